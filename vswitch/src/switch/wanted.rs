//! The ports that a config asks for.

use std::collections::{BTreeMap, HashMap};

use crate::config::{Config, Name, OffloadDevice, PortSpec, VnicPort, path};
use crate::port::{OpenError, QueueError};
use crate::topology::{punt_mtu, punt_name, punting_uplink};

/// What of a config asks for a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortOf {
    /// An uplink: what comes in there comes in tunnels.
    Uplink,
    /// An uplink that leaves something to the host, by this key.
    Punt(&'static str),
    /// A trunk: it carries vNICs that come and go, and its MTU follows them while it runs.
    Trunk,
    Vnic,
    /// A plain port.
    Port,
}

impl PortOf {
    /// The path of the object whose port has this name.
    pub fn object(self, name: &str) -> String {
        match self {
            Self::Uplink => path::of("uplink", name),
            Self::Punt(_) => path::of("uplink", punting_uplink(name)),
            Self::Trunk => path::of("trunk", name),
            Self::Vnic => path::of("vnic", name),
            Self::Port => path::of("port", name),
        }
    }

    /// The path of what stands behind the port.
    pub fn port(self, name: &str) -> String {
        let key = match self {
            Self::Punt(key) => key,
            Self::Uplink | Self::Trunk | Self::Vnic | Self::Port => "port",
        };
        format!("{}.{key}", self.object(name))
    }

    /// The path of its number of queues, which has this key where each way has its own.
    pub fn queues(self, name: &str, key: &str) -> String {
        match self {
            Self::Punt(_) => self.port(name),
            Self::Vnic => format!("{}.queues", self.object(name)),
            Self::Uplink | Self::Trunk | Self::Port => format!("{}.{key}", self.object(name)),
        }
    }

    /// The path of its MTU. Of a trunk that is its vNICs', and a plain port has none of its own.
    pub fn mtu(self, name: &str) -> String {
        match self {
            Self::Uplink | Self::Punt(_) | Self::Vnic => format!("{}.mtu", self.object(name)),
            Self::Trunk | Self::Port => self.port(name),
        }
    }

    pub(super) fn is_trunk(self) -> bool {
        self == Self::Trunk
    }

    /// True where a port passes from the one to the other and stays what it is: a vNIC takes over the plain port of its name.
    fn is_like(self, old: Self) -> bool {
        let plain = |of: Self| matches!(of, Self::Vnic | Self::Port);
        self == old || plain(self) && plain(old)
    }
}

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
    /// Its device cuts TCP super-frames inside VxLAN, where it can.
    pub tunnel_tso: bool,
    /// Whose it is.
    pub of: PortOf,
}

impl WantedPort {
    /// True when a port of `old` can stay and be this one. The MTU of a trunk is no part of that.
    pub fn is_device_of(&self, old: &Self) -> bool {
        let same_mtu = self.mtu == old.mtu || self.of.is_trunk() && old.of.is_trunk();
        same_mtu && self.is_but_for_mtu(old)
    }

    /// True when a port of `old` needs at most another MTU to be this one.
    pub(super) fn is_but_for_mtu(&self, old: &Self) -> bool {
        self.of.is_like(old.of) && Self { mtu: old.mtu, of: old.of, ..self.clone() } == *old
    }

    /// The path of what an error about its device is about, under this name.
    pub(super) fn path_of(&self, name: &str, error: &OpenError) -> String {
        match (error, self.of) {
            (OpenError::Mtu { .. }, of) => of.mtu(name),
            (_, of @ PortOf::Punt(_)) => of.port(name),
            (error, of) => match error.key(&self.spec) {
                Some(key) => format!("{}.{key}", of.port(name)),
                None => of.port(name),
            },
        }
    }

    /// The path of a number of queues that it cannot have.
    pub(super) fn path_of_queues(&self, name: &str, error: &QueueError) -> String {
        match error {
            QueueError::Range { key, .. } => self.of.queues(name, key),
            QueueError::Unequal { .. } => self.of.queues(name, "rx-queues"),
        }
    }
}

/// The ports that need no more than another MTU to be what is wanted; trunks follow their vNICs.
pub fn resized(
    have: &BTreeMap<String, WantedPort>,
    want: &BTreeMap<String, WantedPort>,
) -> BTreeMap<String, WantedPort> {
    let needs = |(name, new): &(&String, &WantedPort)| {
        let old = have.get(*name).filter(|old| old.mtu != new.mtu && new.mtu.is_some() && !new.of.is_trunk());
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
        let wanted = WantedPort {
            spec: uplink.port.clone(),
            rx_queues,
            tx_queues,
            mtu: Some(uplink.mtu),
            offload: uplink.offload,
            tunnel_tso: !uplink.software_tso,
            of: PortOf::Uplink,
        };
        ports.insert(uplink.name.to_string(), wanted);
        if let Some(tap) = uplink.punt_tap() {
            let wanted = WantedPort {
                spec: PortSpec::Tap(tap),
                rx_queues: Some(1),
                tx_queues: Some(1),
                mtu: Some(punt_mtu(uplink.mtu)),
                offload: None,
                tunnel_tso: false,
                of: PortOf::Punt(if uplink.host_tap.is_some() { "host-tap" } else { "host" }),
            };
            ports.insert(punt_name(&uplink.name), wanted);
        }
    }
    for trunk in &config.trunks {
        let spec = trunk.port.clone();
        let (rx_queues, tx_queues) = (trunk.rx_queues, trunk.tx_queues);
        let mtu = mtus.get(&trunk.name).copied();
        let (offload, tunnel_tso, of) = (None, false, PortOf::Trunk);
        ports.insert(
            trunk.name.to_string(),
            WantedPort { spec, rx_queues, tx_queues, mtu, offload, tunnel_tso, of },
        );
    }
    for vnic in &config.vnics {
        if let VnicPort::Own(spec) = &vnic.port {
            let wanted = WantedPort {
                spec: spec.clone(),
                rx_queues: vnic.queues,
                tx_queues: vnic.queues,
                mtu: Some(vnic.mtu),
                offload: vnic.offload,
                tunnel_tso: false,
                of: PortOf::Vnic,
            };
            ports.insert(vnic.name.to_string(), wanted);
        }
    }
    for port in &config.ports {
        let spec = port.port.clone();
        let (rx_queues, tx_queues) = (port.rx_queues, port.tx_queues);
        let (mtu, offload, tunnel_tso, of) = (None, None, false, PortOf::Port);
        ports.insert(
            port.name.to_string(),
            WantedPort { spec, rx_queues, tx_queues, mtu, offload, tunnel_tso, of },
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
        let own = WantedPort { of: PortOf::Vnic, ..new["lab"].clone() };
        assert!(
            !own.is_device_of(&WantedPort { of: PortOf::Vnic, ..old["lab"].clone() }),
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

    #[test]
    fn a_port_is_told_by_the_object_that_asks_for_it() {
        let text = |tap: &str| {
            format!(
                "[[uplink]]\nname = \"up\"\nport = {{ kind = \"null\" }}\naddresses = [\"172.16.0.1/24\"]\nhost = \"punt\"\n{tap}\
                 [[trunk]]\nname = \"lab\"\nport = {{ kind = \"null\" }}\n\
                 [[vpc]]\nname = \"red\"\nvni = 7\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n\
                 [[vnic]]\nname = \"v.1\"\nvpc = \"red\"\nmac = \"52:54:00:00:00:01\"\nvips = [\"10.0.0.1\"]\n\
                 port = {{ kind = \"veth\", iface = \"a\" }}\n\
                 [[port]]\nname = \"p\"\nport = {{ kind = \"representor\", pf = \"01:00.0\", vf = 1 }}\n"
            )
        };
        let ports = |tap| wanted(&Config::parse(&text(tap), "test.toml").unwrap());
        let (ports, named) = (ports(""), ports("host-tap = \"h0\"\n"));
        let of = |name: &str| ports[name].of.port(name);
        assert_eq!(
            ["up", "up:punt", "lab", "v.1", "p"].map(of),
            [
                "uplink[name=up].port",
                "uplink[name=up].host",
                "trunk[name=lab].port",
                "vnic[name=v.1].port",
                "port[name=p].port"
            ]
        );
        assert_eq!(named["up:punt"].of.port("up:punt"), "uplink[name=up].host-tap");
        let mtu = |name: &str| ports[name].of.mtu(name);
        assert_eq!(
            ["up", "lab", "v.1", "p"].map(mtu),
            ["uplink[name=up].mtu", "trunk[name=lab].port", "vnic[name=v.1].mtu", "port[name=p].port"]
        );
        let range = QueueError::Range { key: "tx-queues", wanted: 9, min: 1, max: 4, remedy: "" };
        let queues = |name: &str| ports[name].path_of_queues(name, &range);
        assert_eq!(
            ["up", "up:punt", "v.1", "p"].map(queues),
            [
                "uplink[name=up].tx-queues",
                "uplink[name=up].host",
                "vnic[name=v.1].queues",
                "port[name=p].tx-queues"
            ]
        );
        let taken = OpenError::InUse { what: "it".into(), by: "another".into() };
        let pci = OpenError::Pci { address: "01:00.0".into(), why: "no".into() };
        let mtu = OpenError::Mtu { kind: "veth", port: "v.1".into(), wanted: 9000, max: 1500 };
        for (name, error, path) in [
            ("v.1", &taken, "vnic[name=v.1].port.iface"),
            ("v.1", &mtu, "vnic[name=v.1].mtu"),
            ("p", &taken, "port[name=p].port.vf"),
            ("p", &pci, "port[name=p].port.pf"),
            ("up:punt", &taken, "uplink[name=up].host"),
            ("up:punt", &mtu, "uplink[name=up].mtu"),
            ("up", &taken, "uplink[name=up].port"),
        ] {
            assert_eq!(ports[name].path_of(name, error), path, "{name}");
        }
    }

    #[test]
    fn a_vnic_takes_over_the_plain_port_of_its_name() {
        let text = "[[port]]\nname = \"v\"\nport = { kind = \"null\" }\n";
        let ports = wanted(&Config::parse(text, "test.toml").unwrap());
        let plain = &ports["v"];
        let of = |of| WantedPort { of, ..plain.clone() };
        assert!(of(PortOf::Vnic).is_device_of(plain) && plain.is_device_of(&of(PortOf::Vnic)));
        for other in [PortOf::Trunk, PortOf::Uplink, PortOf::Punt("host")] {
            assert!(!of(other).is_device_of(plain) && !plain.is_device_of(&of(other)), "{other:?}");
        }
    }
}
