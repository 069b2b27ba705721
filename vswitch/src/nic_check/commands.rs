//! Every command that the check can print, in the order of its findings. `pmd-bindings/BRINGUP.md` has each of them for
//! people, and a test holds the two together: a finding cannot name a command that is not here.

/// A command with places in it: `<pci>`, `<netdev>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template(&'static str);

impl Template {
    /// The text, places and all.
    pub const fn text(self) -> &'static str {
        self.0
    }

    /// The command with its places filled in.
    pub fn with(self, places: &[(&str, &str)]) -> String {
        places.iter().fold(self.0.to_owned(), |text, (name, value)| text.replace(&format!("<{name}>"), value))
    }
}

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        $($(#[$doc])* pub const $name: Template = Template($text);)*
        /// All, in the order of the findings.
        pub const ALL: &[Template] = &[$($name),*];
    };
}

commands! {
    /// NICs that mlx5 drives.
    LIST_NICS = "lspci -D -d 15b3:",
    /// The kernel's driver, where none is bound.
    LOAD_DRIVER = "modprobe mlx5_core && echo <pci> > /sys/bus/pci/drivers_probe",
    /// The kernel's driver in place of another.
    BIND_DRIVER = "dpdk-devbind.py --bind=mlx5_core <pci>",
    /// devlink and dcb.
    INSTALL_IPROUTE2 = "apt-get install iproute2",
    /// What the firmware is.
    QUERY_FIRMWARE = "mstflint -d <pci> query",
    /// DPDK's drivers.
    INSTALL_DPDK = "apt-get install libdpdk-dev ibverbs-providers",
    /// Huge pages on a node.
    HUGE_PAGES = "echo <pages> > /sys/devices/system/node/node<node>/hugepages/hugepages-<kib>kB/nr_hugepages",
    /// Which core is on which node.
    LIST_CORES = "lscpu --extended=CPU,NODE",
    /// What the PCIe link can do, and does.
    PCIE_LINK = "lspci -vv -s <pci>",
    /// The interface up.
    LINK_UP = "ip link set <netdev> up",
    /// The MTU.
    MTU = "ip link set <netdev> mtu <mtu>",
    /// VFs.
    VFS = "echo <vfs> > /sys/bus/pci/devices/<pci>/sriov_numvfs",
    /// The kernel's steering, before switchdev mode.
    STEERING = "devlink dev param set pci/<pci> name flow_steering_mode value smfs cmode runtime",
    /// The same when the e-switch is in switchdev mode already.
    STEERING_AGAIN = "devlink dev eswitch set pci/<pci> mode legacy && devlink dev param set pci/<pci> name flow_steering_mode value smfs cmode runtime && devlink dev eswitch set pci/<pci> mode switchdev",
    /// Switchdev mode.
    SWITCHDEV = "devlink dev eswitch set pci/<pci> mode switchdev",
    /// Representors that there are.
    LIST_PORTS = "devlink port show",
    /// PFC.
    SHOW_PFC = "dcb pfc show dev <netdev>",
    /// How priorities follow from packets.
    SHOW_TRUST = "dcb app show dev <netdev>",
    /// RoCE's DSCP leads to a priority.
    TRUST_DSCP = "dcb app add dev <netdev> dscp-prio 26:<priority>",
    /// ECN as the vendor's driver tells of it.
    SHOW_ECN = "grep . /sys/class/net/<netdev>/ecn/roce_np/enable/*",
    /// ECN of the NIC's own queue pairs.
    ENABLE_ECN = "echo 1 > /sys/class/net/<netdev>/ecn/<protocol>/enable/<priority>",
    /// The kernel's queues and RSS.
    SHOW_RSS = "ethtool -x <netdev>",
    /// A config to compare with.
    CONFIG = "vswitch nic check <pci> --config <file>",
    /// The whole config, checked.
    CHECK_CONFIG = "vswitch check --config <file>",
    /// Which rules the device takes.
    PROBE = "vswitch nic check <pci> --probe",
    /// The same in full, with the rules that were refused.
    RUNNING = "vswitch ctl \"show offload capabilities\"",
}
