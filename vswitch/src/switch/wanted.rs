//! The ports that a config asks for.

use std::collections::{BTreeMap, HashMap};

use crate::config::{Config, Name, OffloadDevice, PortSpec, VnicPort};
use crate::topology::{punt_mtu, punt_name};

/// A port that the config wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedPort {
    /// What stands behind it.
    pub spec: PortSpec,
    /// Receive queues, where given.
    pub rx_queues: Option<u16>,
    /// Transmit queues, where given.
    pub tx_queues: Option<u16>,
    /// Largest IP packet, where the config says.
    pub mtu: Option<u16>,
    /// What holds its rules.
    pub offload: Option<OffloadDevice>,
    /// It carries vNICs that come and go; its MTU follows them while it runs.
    pub trunk: bool,
    /// It is an uplink: what comes in there comes in tunnels.
    pub uplink: bool,
}

impl WantedPort {
    /// True when a port of `old` can stay and be this one. The MTU of a trunk is no part of that.
    pub fn is_device_of(&self, old: &Self) -> bool {
        let same_mtu = self.mtu == old.mtu || self.trunk && old.trunk;
        same_mtu && self.is_but_for_mtu(old)
    }

    /// True when a port of `old` needs at most another MTU to be this one.
    pub(super) fn is_but_for_mtu(&self, old: &Self) -> bool {
        Self { mtu: old.mtu, ..self.clone() } == *old
    }
}

/// The ports that need no more than another MTU to be what is wanted; trunks follow their vNICs.
pub fn resized(
    have: &BTreeMap<String, WantedPort>,
    want: &BTreeMap<String, WantedPort>,
) -> BTreeMap<String, WantedPort> {
    let needs = |(name, new): &(&String, &WantedPort)| {
        let old = have.get(*name).filter(|old| old.mtu != new.mtu && new.mtu.is_some() && !new.trunk);
        old.is_some_and(|old| new.is_but_for_mtu(old))
    };
    want.iter().filter(needs).map(|(name, new)| (name.clone(), new.clone())).collect()
}

/// The ports that a config wants, by name.
pub fn wanted(config: &Config) -> BTreeMap<String, WantedPort> {
    let mut ports = BTreeMap::new();
    let mtus = trunk_mtus(config);
    for uplink in &config.uplinks {
        let (rx_queues, tx_queues) = (uplink.rx_queues, uplink.tx_queues);
        let (spec, mtu, offload) = (uplink.port.clone(), Some(uplink.mtu), uplink.offload);
        ports.insert(
            uplink.name.to_string(),
            WantedPort { spec, rx_queues, tx_queues, mtu, offload, trunk: false, uplink: true },
        );
        if let Some(tap) = uplink.punt_tap() {
            let wanted = WantedPort {
                spec: PortSpec::Tap(tap),
                rx_queues: Some(1),
                tx_queues: Some(1),
                mtu: Some(punt_mtu(uplink.mtu)),
                offload: None,
                trunk: false,
                uplink: false,
            };
            ports.insert(punt_name(&uplink.name), wanted);
        }
    }
    for trunk in &config.trunks {
        let spec = trunk.port.clone();
        let (rx_queues, tx_queues) = (trunk.rx_queues, trunk.tx_queues);
        let mtu = mtus.get(&trunk.name).copied();
        ports.insert(
            trunk.name.to_string(),
            WantedPort { spec, rx_queues, tx_queues, mtu, offload: None, trunk: true, uplink: false },
        );
    }
    for vnic in &config.vnics {
        if let VnicPort::Own(spec) = &vnic.port {
            let queues = vnic.queues;
            let (spec, mtu, offload) = (spec.clone(), Some(vnic.mtu), vnic.offload);
            let wanted = WantedPort {
                spec,
                rx_queues: queues,
                tx_queues: queues,
                mtu,
                offload,
                trunk: false,
                uplink: false,
            };
            ports.insert(vnic.name.to_string(), wanted);
        }
    }
    for port in &config.ports {
        let spec = port.port.clone();
        let (rx_queues, tx_queues) = (port.rx_queues, port.tx_queues);
        ports.insert(
            port.name.to_string(),
            WantedPort { spec, rx_queues, tx_queues, mtu: None, offload: None, trunk: false, uplink: false },
        );
    }
    ports
}

/// The MTUs of trunks that carry vNICs: the largest of those.
fn trunk_mtus(config: &Config) -> HashMap<&Name, u16> {
    let mut mtus = HashMap::new();
    for vnic in &config.vnics {
        if let VnicPort::Trunk(trunk) = &vnic.port {
            let mtu = mtus.entry(trunk).or_insert(vnic.mtu);
            *mtu = vnic.mtu.max(*mtu);
        }
    }
    mtus
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(mtus: [u16; 2]) -> Config {
        let mut text = String::from(
            "[[trunk]]\nname = \"lab\"\nport = { kind = \"tap\", iface = \"lab0\" }\n\
             [[trunk]]\nname = \"bare\"\nport = { kind = \"tap\", iface = \"lab1\" }\n\
             [[vpc]]\nname = \"red\"\nvni = 7\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n",
        );
        for (n, mtu) in mtus.into_iter().enumerate() {
            text += &format!(
                "[[vnic]]\nname = \"v{n}\"\nvpc = \"red\"\nmac = \"52:54:00:00:00:0{n}\"\nvips = [\"10.0.0.1{n}\"]\n\
                 mtu = {mtu}\nport = \"lab\"\nvlan = 1{n}\n"
            );
        }
        Config::parse(&text, "test.toml").unwrap()
    }

    #[test]
    fn repair_a_trunk_has_the_largest_mtu_of_its_vnics() {
        let ports = wanted(&config([1400, 4200]));
        assert_eq!((ports["lab"].mtu, ports["bare"].mtu), (Some(4200), None));
    }

    #[test]
    fn repair_a_trunk_stays_when_the_mtu_of_its_vnics_changes() {
        let (old, new) = (wanted(&config([1400, 1500])), wanted(&config([1400, 1400])));
        assert_ne!(old["lab"], new["lab"]);
        assert!(new["lab"].is_device_of(&old["lab"]));
        let other = WantedPort { rx_queues: Some(2), ..new["lab"].clone() };
        assert!(!other.is_device_of(&old["lab"]));
        let own = WantedPort { trunk: false, ..new["lab"].clone() };
        assert!(
            !own.is_device_of(&WantedPort { trunk: false, ..old["lab"].clone() }),
            "whether a vNIC's own port can stay, its device says"
        );
    }

    #[test]
    fn ports_mtu_is_all_that_differs_of_a_port_that_may_stay() {
        let text = |mtu: u16, iface: &str| {
            format!(
                "[[uplink]]\nname = \"up\"\nport = {{ kind = \"null\" }}\naddresses = [\"172.16.0.1/24\"]\nmtu = {}\n\
                 [[vpc]]\nname = \"red\"\nvni = 7\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n\
                 [[vnic]]\nname = \"v\"\nvpc = \"red\"\nmac = \"52:54:00:00:00:01\"\nvips = [\"10.0.0.1\"]\nmtu = {mtu}\n\
                 port = {{ kind = \"veth\", iface = \"{iface}\" }}\n\
                 [[port]]\nname = \"p\"\nport = {{ kind = \"null\" }}\n",
                mtu + 100
            )
        };
        let ports = |mtu, iface| wanted(&Config::parse(&text(mtu, iface), "test.toml").unwrap());
        let old = ports(1450, "a");
        let names = |new: &BTreeMap<String, WantedPort>| resized(&old, new).into_keys().collect::<Vec<_>>();
        assert_eq!(names(&old), [""; 0]);
        assert_eq!(names(&ports(1400, "a")), ["up", "v"]);
        assert_eq!(names(&ports(1400, "b")), ["up"], "another interface takes another port");
        assert_eq!(names(&BTreeMap::new()), [""; 0]);
        // vNICs come and go on trunks, which follow them in another way.
        let [few, many] = [[1400, 1400], [1400, 1500]].map(|mtus| wanted(&config(mtus)));
        assert_eq!(resized(&few, &many), BTreeMap::new());
    }
}
