//! Changes of a switch that runs: each is one snapshot, whatever it is, and what came of it is what a start from the whole
//! config gives.
//!
//! DPDK runs once per process, so each test wants a process of its own (`cargo nextest`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::path::PathBuf;

use vswitch::config::{Config, Source};
use vswitch::control::in_process::InProcess;
use vswitch::controller::Controller;
use vswitch::state;
use vswitch::switch::Switch;

const NETWORKS: &str = r#"
[[uplink]]
name = "up"
port = { kind = "null" }
addresses = ["172.16.0.1/24"]
mtu = 1600
[[trunk]]
name = "t"
port = { kind = "null" }
[[vpc]]
name = "red"
vni = 100
flood = true
[[subnet]]
vpc = "red"
prefix = "10.0.0.0/24"
[[vnic]]
name = "one"
vpc = "red"
mac = "02:00:00:00:00:01"
vips = ["10.0.0.1"]
port = "t"
vlan = 1
[[location]]
vni = 100
vip = "10.0.0.2"
mac = "02:00:00:00:00:02"
vtep = "172.16.0.2"
"#;

fn text(more: &str) -> String {
    let core = pmd::lcore::available().into_iter().last().unwrap_or(0);
    format!(
        "[eal]\nhuge-pages = \"never\"\nmemory = \"128MiB\"\nfile-prefix = \"changes-{}\"\nmbufs = 4095\n\
         [workers]\ncores = [{core}]\nidle = \"sleep\"\n[forward]\nauto-start = false\n{NETWORKS}{more}",
        std::process::id()
    )
}

struct Running {
    inside: InProcess,
    folder: PathBuf,
    file: Source,
}

impl Running {
    fn start(more: &str) -> Self {
        let file = Source::parse(&text(more), "f.toml").unwrap_or_else(|errors| panic!("{errors}"));
        let folder = std::env::temp_dir().join(format!("vswitch-changes-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut switch = Switch::start(file.config.clone()).unwrap_or_else(|error| panic!("{error}"));
        switch.set_state_file(Some(&folder.join("state")), None);
        switch.set_config_file(Some(file.clone()));
        let inside = InProcess::start(Controller::new(switch, None), &folder.join("s.sock")).unwrap();
        Self { inside, folder, file }
    }

    fn version(&self) -> u32 {
        self.inside.controller.switch.snapshot().version
    }

    fn try_run(&mut self, line: &str) -> Result<(), String> {
        self.inside.execute(line).map(|_| ()).map_err(|error| error.message)
    }

    /// A command that changes the config: one snapshot, and a restart would have it.
    fn run(&mut self, line: &str) {
        let before = self.version();
        self.try_run(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(self.version(), before.wrapping_add(1), "{line}");
        self.check(line);
    }

    fn check(&self, after: &str) {
        let running = self.inside.controller.switch.config();
        let restored =
            state::restore(self.file.config.clone(), Some(&self.file), &self.folder.join("state")).unwrap().0;
        assert_eq!(sorted(restored), sorted(running), "what a restart would have after {after}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.inside.controller.switch.stop();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn sorted(mut config: Config) -> Config {
    config.vnics.sort_by(|a, b| a.name.cmp(&b.name));
    config.vpcs.sort_by(|a, b| a.name.cmp(&b.name));
    config.locations.sort_by_key(|location| (location.vni.get(), location.vip));
    config
}

#[test]
fn a_change_is_one_snapshot_and_is_saved() {
    let mut running = Running::start("");
    for line in [
        "vlt set 100 10.0.0.9 mac 02:00:00:00:00:09 vtep 172.16.0.9",
        "vlt set 100 10.0.0.9 vtep 172.16.0.8",
        "vnic add two vpc red mac 02:00:00:00:00:03 vips 10.0.0.3 vlan 2 port t",
        "vnic add own vpc red mac 02:00:00:00:00:04 vips 10.0.0.4,fe80::4 port null size=100",
        "vpc add green vni 300",
        "subnet add green 10.3.0.0/24",
        "vnic add third vpc green mac 02:00:00:00:00:03 vips 10.3.0.3 mtu 1400 vlan 3 port t",
        "route add green 10.9.0.0/16 vtep 172.16.0.7 mac 02:00:00:00:00:07",
        "route add green 0.0.0.0/0 next-hops 172.16.0.7=02:00:00:00:00:07,172.16.0.8=02:00:00:00:00:08",
        "route add green 10.0.0.0/24 vpc red",
        "route add green 10.3.0.128/25 blackhole",
        "route set green 10.3.0.128/25 vtep 172.16.0.7 mac 02:00:00:00:00:07",
        "route set green 10.5.0.0/16 blackhole",
        "route del green 10.9.0.0/16",
        "subnet add green 10.4.0.0/24 gateway 10.4.0.254",
        "subnet del green 10.4.0.0/24",
        // Both addresses of one go to another host, on to a third, and come back one after the other.
        "security-group add web vpc red",
        "security-group set own web",
        "vnic move own vtep 172.16.0.9",
        "vlt move 100 02:00:00:00:00:04 vtep 172.16.0.8",
        "vnic add own vpc red mac 02:00:00:00:00:04 vips 10.0.0.4 port null size=100",
        "vlt del 100 fe80::4",
        "vlt set 300 10.3.0.9 mac 02:00:00:00:00:09 vtep 172.16.0.9",
        "vnic del own",
        "vnic del two",
        "vlt del 100 10.0.0.9",
        "port attach spare ring",
        "vnic del third",
        "vpc del green",
        "port detach spare",
    ] {
        running.run(line);
    }
    // A file is one change, too, whatever is in it.
    let more = "[[vpc]]\nname = \"blue\"\nvni = 7\n[[subnet]]\nvpc = \"blue\"\nprefix = \"10.7.0.0/24\"\n\
        [[vnic]]\nname = \"b\"\nvpc = \"blue\"\nmac = \"02:00:00:00:00:07\"\nvips = [\"10.7.0.7\"]\nport = \"t\"\nvlan = 7\n";
    let file = Source::parse(&text(more), "g.toml").unwrap();
    let before = running.version();
    running.inside.controller.switch.reload_file(file.clone()).unwrap();
    assert_eq!(running.version(), before + 1);
    running.file = file;
    running.check("a reload");
    running.inside.controller.switch.load_file(Source::parse(&text(""), "f.toml").unwrap()).unwrap();
    assert_eq!(running.version(), before + 2);
}

#[test]
fn a_vnic_moves_whole_or_not_at_all() {
    let own = "[[security-group]]\nname = \"web\"\nvpc = \"red\"\n[[vnic]]\nname = \"own\"\nvpc = \"red\"\n\
        mac = \"02:00:00:00:00:04\"\nvips = [\"10.0.0.4\", \"fe80::4\"]\nport = { kind = \"null\" }\n\
        security-groups = [\"web\"]\n[[vnic]]\nname = \"none\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:05\"\nvips = []\n\
        port = { kind = \"null\" }\n";
    let mut running = Running::start(own);
    let config = |running: &Running| running.inside.controller.switch.config();
    let (version, before) = (running.version(), config(&running));
    for (line, why) in [
        ("vnic move own vtep 172.16.0.1", "our own"),
        ("vnic move own vtep 192.168.0.1", "no uplink has a route"),
        ("vnic move own vtep 224.0.0.1", "unicast"),
        ("vnic move other vtep 172.16.0.9", "show vnic"),
        ("vnic move none vtep 172.16.0.9", "no VIP"),
        ("vlt move 100 02:00:00:00:00:09 vtep 172.16.0.9", "show vlt"),
        ("vlt move 100 02:00:00:00:00:02 vtep 172.16.0.1", "our own"),
        // Another station has the address: no move, a mistake.
        ("vnic add x vpc red mac 02:00:00:00:00:0a vips 10.0.0.2 vlan 10 port t", "remove one of the two"),
        ("vnic add x vpc red mac 02:00:00:00:00:02 vips 10.0.0.2 vlan 10 groups nobody port t", "nobody"),
    ] {
        let error = running.try_run(line).unwrap_err();
        assert!(error.contains(why), "{line}: {error}");
        assert_eq!(running.version(), version, "{line}");
        assert_eq!(config(&running), before, "{line}");
    }
    running.run("vnic move own vtep 172.16.0.9");
    let after = config(&running);
    assert!(after.vnics.iter().all(|vnic| vnic.name.as_str() != "own"));
    let there: Vec<_> =
        after.locations.iter().filter(|location| location.vip != before.locations[0].vip).collect();
    assert_eq!(there.len(), 2);
    for location in there {
        assert_eq!(
            (location.mac.to_string().as_str(), location.vtep.to_string().as_str()),
            ("02:00:00:00:00:04", "172.16.0.9")
        );
        assert_eq!(location.groups.len(), 1, "it stays in its groups");
    }
    // Back, with all or with one of its addresses: what it has is here, in its groups; what it has not stays there.
    running.run("vnic add own vpc red mac 02:00:00:00:00:04 vips 10.0.0.4 port null size=100");
    let back = config(&running);
    let own = back.vnics.iter().find(|vnic| vnic.name.as_str() == "own").unwrap();
    assert_eq!(own.security_groups.len(), 1, "{own:?}");
    let left: Vec<_> = back.locations.iter().map(|location| location.vip.to_string()).collect();
    assert_eq!(left, ["10.0.0.2", "fe80::4"]);
}

#[test]
fn a_route_follows_its_vnic_to_other_hosts_and_back() {
    let mut running = Running::start(
        "[[vpc]]\nname = \"green\"\nvni = 200\n[[vnic]]\nname = \"meta\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:04\"\n\
         vips = [\"10.0.0.4\"]\nallowed = [{ ip = \"169.254.169.254\" }]\nport = { kind = \"null\" }\n",
    );
    let shown = |running: &mut Running| {
        let reply = running.inside.execute("show route red").unwrap();
        let rows = reply.json["routes"].as_array().unwrap().clone();
        let row = rows.into_iter().find(|row| row["to"] == "169.254.169.254/32").unwrap();
        assert_eq!((row["kind"].as_str(), row["mac"].as_str()), (Some("station"), Some("02:00:00:00:00:04")));
        (row["vnic"].as_str().map(str::to_owned), row["state"].as_str().unwrap().to_owned())
    };
    let (version, config) = (running.version(), running.inside.controller.switch.config());
    for (line, why) in [
        ("route add red 169.254.169.254/32 vnic nobody", "does not have"),
        ("route add green 169.254.169.254/32 vnic meta", "in VPC red"),
        ("route add red 169.254.169.254/32 mac ff:ff:ff:ff:ff:ff", "one station"),
        ("route add red 169.254.0.0/16 vnic meta", "link-local"),
        ("route add nobody 169.254.169.254/32 vnic meta", "show vpc"),
    ] {
        let error = running.try_run(line).unwrap_err();
        assert!(error.contains(why), "{line}: {error}");
        assert_eq!(running.version(), version, "{line}");
        assert_eq!(running.inside.controller.switch.config(), config, "{line}");
    }
    running.run("route add red 169.254.169.254/32 vnic meta");
    assert_eq!(shown(&mut running), (Some("meta".into()), "local".into()));
    // Other changes of the vNIC's neighbours leave it alone, and it can still be found to be named.
    running.run("vnic add two vpc red mac 02:00:00:00:00:03 vips 10.0.0.3 vlan 2 port t");
    running.run("vnic move meta vtep 172.16.0.2");
    assert_eq!(shown(&mut running), (None, "resolving".into()));
    running.run("vlt move 100 02:00:00:00:00:04 vtep 172.16.0.3");
    assert_eq!(shown(&mut running), (None, "resolving".into()));
    running.run("vlt del 100 10.0.0.4");
    assert_eq!(shown(&mut running), (None, "unreachable".into()));
    running.run("vnic add again vpc red mac 02:00:00:00:00:04 vips 10.0.0.4 port null size=100");
    assert_eq!(shown(&mut running), (Some("again".into()), "local".into()));
    running.run("route set red 169.254.169.254/32 vnic again");
    running.run("vnic del again");
    assert_eq!(shown(&mut running), (None, "unreachable".into()));
    // A vNIC of the same name with another MAC address is another machine.
    running.run("vnic add again vpc red mac 02:00:00:00:00:05 vips 10.0.0.4 port null size=100");
    assert_eq!(shown(&mut running), (None, "unreachable".into()));
    running.run("route del red 169.254.169.254/32");
}

#[test]
fn a_change_of_one_vnic_is_refused_as_the_whole_config_would_be() {
    let ring = |name: &str, host: u8, ring: &str| {
        format!(
            "[[vnic]]\nname = \"{name}\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:{host:02x}\"\nvips = [\"10.0.0.{host}\"]\n\
             port = {{ kind = \"ring\", {ring} }}\n"
        )
    };
    let own = ring("own", 4, "name = \"a\", peer = \"b\"");
    let peer = ring("peer", 5, "name = \"b\", peer = \"a\"");
    let mut running = Running::start(&format!("{own}{peer}"));
    let refused = [
        "vnic add one vpc red mac 02:00:00:00:00:0a vips 10.0.0.10 vlan 10 port t",
        "vnic add t vpc red mac 02:00:00:00:00:0a vips 10.0.0.10 vlan 10 port t",
        "vnic add x vpc red mac 02:00:00:00:00:01 vips 10.0.0.10 vlan 10 port t",
        "vnic add x vpc red mac 02:00:00:00:00:0a vips 10.0.0.1 vlan 10 port t",
        "vnic add x vpc red mac 02:00:00:00:00:0a vips 10.0.0.2 vlan 10 port t",
        "vnic add x vpc red mac 02:00:00:00:00:0a vips 10.0.0.10 vlan 1 port t",
        "vnic add x vpc red mac 02:00:00:00:00:0a vips 10.9.0.10 vlan 10 port t",
        "vnic add x vpc blue mac 02:00:00:00:00:0a vips 10.0.0.10 vlan 10 port t",
        "vnic add x vpc red mac 02:00:00:00:00:0a vips 10.0.0.10 port ring name=a",
        "vnic add x vpc red mac 02:00:00:00:00:0a vips 10.0.0.10 vlan 10 port u",
    ];
    let (version, config) = (running.version(), running.inside.controller.switch.config());
    for line in refused {
        assert!(running.try_run(line).is_err(), "{line}");
        assert_eq!(running.version(), version, "{line}");
        assert_eq!(running.inside.controller.switch.config(), config, "{line}");
    }
    // What another needs stays.
    let error = running.try_run("vnic del own").unwrap_err();
    assert!(error.contains("is no ring"), "{error}");
    running.run("vnic add x vpc red mac 02:00:00:00:00:0a vips 10.0.0.10 vlan 10 port t");
}
