//! MTUs of ports that run. DPDK runs once per process, so each test wants a process of its own.

use pipelines::snapshot::PortIndex;

use crate::config::Config;
use crate::switch::{Missing, Switch, testing};

/// A switch of two vNICs and an uplink with these MTUs; the second vNIC's port is a device of DPDK that keeps its MTU itself.
fn config([uplink, one, two]: [u16; 3], more: &str) -> Config {
    let vnic = |n: u8, mtu: u16, port: &str| {
        format!(
            "[[vnic]]\nname = \"v{n}\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:0{n}\"\nvips = [\"10.0.0.{n}\"]\nmtu = {mtu}\n\
             port = {port}\n"
        )
    };
    let text = [
        testing::process(7500),
        format!(
            "[forward]\nauto-start = false\n\
             [[vpc]]\nname = \"red\"\nvni = 100\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n\
             [[uplink]]\nname = \"up\"\nport = {{ kind = \"raw\", vdev = \"net_null71\" }}\naddresses = [\"172.16.0.1/24\"]\n\
             mtu = {uplink}\n"
        ),
        vnic(1, one, "{ kind = \"null\" }"),
        vnic(2, two, "{ kind = \"raw\", vdev = \"net_null72\" }"),
        more.to_owned(),
    ];
    Config::parse(&text.concat(), "test").unwrap_or_else(|errors| panic!("{errors}"))
}

/// Index of a port, the MTU that is wanted of it, and that which its device has.
fn port(switch: &Switch, name: &str) -> (PortIndex, Option<u16>, Option<u16>) {
    let index = switch.ports.index(name).unwrap();
    let port = switch.ports.get(index).unwrap();
    (index, port.wanted.mtu, port.port.mtu().ok())
}

fn rows(switch: &Switch) -> [u16; 3] {
    let vnic = |name| switch.topology.vnic(name).unwrap().mtu;
    [switch.snapshot().uplinks[0].as_ref().unwrap().mtu, vnic("v1"), vnic("v2")]
}

#[test]
fn ports_mtu_changes_up_and_down_without_another_port() {
    let mut switch = Switch::start(config([1600, 1450, 1450], "")).unwrap();
    let indices = ["up", "v1", "v2"].map(|name| port(&switch, name).0);
    for mtus in [[1700, 1500, 1600], [1600, 1400, 1450], [2000, 1900, 1300]] {
        switch.apply(config(mtus, ""), Missing::Refused).unwrap();
        let [up, one, two] = mtus.map(Some);
        assert_eq!(port(&switch, "up"), (indices[0], up, up));
        assert_eq!(port(&switch, "v2"), (indices[2], two, two));
        let (index, wanted, _) = port(&switch, "v1");
        assert_eq!((index, wanted), (indices[1], one), "a port without an MTU of its own stays, too");
        assert_eq!(rows(&switch), mtus);
    }

    // A change that fails leaves MTUs as they were, those that grow and those that shrink.
    let bad = "[[port]]\nname = \"bad\"\nport = { kind = \"af-packet\", iface = \"no-such-if\" }\n";
    switch.apply(config([2010, 1200, 1800], bad), Missing::Refused).unwrap_err();
    assert_eq!(port(&switch, "up"), (indices[0], Some(2000), Some(2000)));
    assert_eq!(port(&switch, "v2"), (indices[2], Some(1300), Some(1300)));
    assert_eq!(rows(&switch), [2000, 1900, 1300]);

    // Longer than a buffer: the device has to know when it starts that frames may be chains.
    let chains = |switch: &Switch, name| {
        let index = switch.ports.index(name).unwrap();
        switch.ports.get(index).unwrap().traits.max_running_mtu == u16::MAX
    };
    assert!(!chains(&switch, "up") && chains(&switch, "v1"));
    switch.apply(config([9000, 1900, 1300], ""), Missing::Refused).unwrap();
    assert!(chains(&switch, "up"), "it was made anew");
    assert_eq!((port(&switch, "up").2, port(&switch, "v2").0), (Some(9000), indices[2]));
    let index = port(&switch, "up").0;
    for uplink in [2000, 8000] {
        switch.apply(config([uplink, 1900, 1300], ""), Missing::Refused).unwrap();
        assert_eq!(port(&switch, "up"), (index, Some(uplink), Some(uplink)), "once is enough");
    }
    switch.stop();
}

#[test]
fn ports_mtu_of_a_trunk_is_the_largest_of_its_vnics_and_it_stays_whatever_that_is() {
    let trunk = "[[trunk]]\nname = \"t\"\nport = { kind = \"raw\", vdev = \"net_null73\" }\n";
    let tagged = |n: u8, mtu: u16| {
        format!(
            "[[vnic]]\nname = \"v{n}\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:0{n}\"\nvips = [\"10.0.0.{n}\"]\nmtu = {mtu}\n\
             port = \"t\"\nvlan = {n}\n"
        )
    };
    let with = |mtus: [u16; 2]| {
        let vnics = tagged(3, mtus[0]) + &tagged(4, mtus[1]);
        config([9100, 1450, 1450], &(trunk.to_owned() + &vnics))
    };
    // Packet buffers are sized by the first config, so they hold what is wanted at first.
    let mut switch =
        Switch::start(config([1600, 1450, 1450], &(trunk.to_owned() + &tagged(3, 1450)))).unwrap();
    let index = port(&switch, "t").0;
    for (mtus, expected) in [
        ([1450, 1500], 1500),
        ([1800, 1500], 1800),
        ([1400, 1300], 1400),
        // Not as it runs; the vNIC that fits is not disturbed.
        ([1400, 8000], 1400),
        ([1500, 1400], 1500),
    ] {
        switch.apply(with(mtus), Missing::Refused).unwrap();
        let [one, two] = mtus;
        assert_eq!(port(&switch, "t"), (index, Some(one.max(two)), Some(expected)), "{mtus:?}");
    }
    switch.stop();
}
