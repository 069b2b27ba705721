//! The check on made-up hosts.

mod people;
mod probing;
mod tree;

use super::host::Unanswered;
use super::{FindingState, Unseen};
use crate::config::Config;
use tree::{DEVICE, NETDEV, PCI, Tree, changes, finding};

fn config(text: &str) -> Config {
    Config::parse(text, "test").unwrap()
}

/// An uplink and one representor, offloaded.
const OFFLOADED: &str = r#"
[workers]
cores = [16, 17]
[[uplink]]
name = "up0"
port = { kind = "pci", address = "3b:00.0", devargs = "dv_flow_en=2" }
addresses = ["192.0.2.1/24"]
mtu = 9000
offload = "rte-flow"
[[vpc]]
name = "red"
vni = 7
[[subnet]]
vpc = "red"
prefix = "10.0.0.0/24"
[[vnic]]
name = "v1"
vpc = "red"
mac = "52:54:00:00:00:01"
vips = ["10.0.0.1"]
port = { kind = "representor", pf = "0000:3b:00.0", vf = 1 }
offload = "rte-flow"
"#;

#[test]
fn a_nic_in_switchdev_mode_is_fine() {
    let report = Tree::fine().report();
    assert_eq!((changes(&report), report.status()), (vec![], 0), "{}", report.text());
    assert_eq!(report.device, PCI);
    let value = |name: &str| finding(&report, name).value.clone();
    assert_eq!(value("model"), "ConnectX-6 Dx (0x15b3:0x101d)");
    assert_eq!(value("driver version"), "of the kernel, 6.1.0-18-amd64");
    assert_eq!(value("firmware"), "22.36.1010");
    assert_eq!(value("huge pages"), "1024 of 1024 x 2 MiB free");
    assert_eq!(value("NUMA node"), "1, cores 16-31,48-63");
    assert_eq!(value("PCIe link"), "16.0 GT/s PCIe x16");
    assert_eq!(value("link"), format!("{NETDEV} up, 100000 Mb/s"));
    assert_eq!(value("e-switch mode"), "switchdev, inline-mode none, encap-mode basic");
    assert_eq!(value("flow_steering_mode"), "smfs");
    assert_eq!(value("representors"), "ens1f0np0_0 (pf0vf0), ens1f0np0_1 (pf0vf1)");
    assert_eq!(
        (value("PFC"), value("trust")),
        ("on for priority 3".into(), "DSCP, 1 of them lead to a priority".into())
    );
    assert_eq!(value("ECN of RDMA"), "roce_np 3, roce_rp 3");
    assert_eq!(value("queues, RSS"), "the kernel has 2 rx, 2 tx");
    assert!(value("chains").starts_with("not asked: with --probe"));
}

#[test]
fn source_ports_that_are_left_to_the_nic_are_looked_at() {
    use crate::config::Entropy;
    let looked = |text: &str, entropy: Entropy| {
        let mut wanted = config(text);
        wanted.offload.entropy = entropy;
        let report = Tree::fine().check(Some(&wanted)).unwrap();
        let found = report.findings.iter().find(|finding| finding.name == "outer source ports").unwrap();
        (found.state, found.value.clone())
    };
    let (state, value) = looked(OFFLOADED, Entropy::Exact);
    assert!(state == FindingState::Fine && value.starts_with("software's own"), "{value}");
    let (state, value) = looked(OFFLOADED, Entropy::Hardware);
    let (expected, words) = match pmd::flow::BUILD.encap_hash {
        true => (FindingState::Fine, "when the switch starts"),
        false => (FindingState::Noted, "cannot ask for them"),
    };
    assert!(state == expected && value.contains(words), "{value}");
    let (state, value) = looked(&OFFLOADED.replace("dv_flow_en=2", "dv_flow_en=1"), Entropy::Hardware);
    assert!(state == FindingState::Noted && value.contains("a flow changes its path"), "{value}");
}

#[test]
fn a_nic_in_legacy_mode_is_told_how_to_leave_it() {
    let mut tree = Tree::fine();
    tree.eswitch("legacy");
    tree.steering("dmfs");
    for netdev in ["ens1f0np0_0", "ens1f0np0_1"] {
        tree.remove(&format!("sys/class/net/{netdev}"));
        tree.remove(&format!("{DEVICE}/net/{netdev}"));
    }
    // So the kernel answers where there is no switch.
    tree.spoil(&format!("sys/class/net/{NETDEV}/phys_switch_id"));
    let report = tree.report();
    let steering = "devlink dev param set pci/0000:3b:00.0 name flow_steering_mode value smfs cmode runtime";
    let mode = "devlink dev eswitch set pci/0000:3b:00.0 mode switchdev";
    assert_eq!(changes(&report), [("flow_steering_mode", steering), ("e-switch mode", mode)]);
    assert_eq!(report.status(), 1);
    assert_eq!(finding(&report, "representors").value, "none");
    // In switchdev mode the same takes a way back.
    tree.eswitch("switchdev");
    let report = tree.report();
    let again = format!("devlink dev eswitch set pci/0000:3b:00.0 mode legacy && {steering} && {mode}");
    assert_eq!(changes(&report)[0], ("flow_steering_mode", again.as_str()));
}

#[test]
fn huge_pages_are_those_of_the_nics_node() {
    let mut tree = Tree::fine();
    tree.pages(0, 2048, 4096, 4096);
    tree.pages(1, 2048, 100, 40);
    let report = tree.report();
    let command = "echo 316 > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";
    assert_eq!(changes(&report), [("huge pages", command)], "512 MiB are 256 pages, 40 are free");
    // Large ones do as well.
    tree.pages(1, 1_048_576, 2, 1);
    assert_eq!(tree.report().status(), 0);
    let never = config("[eal]\nhuge-pages = \"never\"\n");
    tree.pages(1, 1_048_576, 0, 0);
    assert_eq!(finding(&tree.check(Some(&never)).unwrap(), "huge pages").state, FindingState::Noted);
    tree.remove("sys/devices/system/node");
    assert_eq!(
        (finding(&tree.report(), "huge pages").state, tree.report().status()),
        (FindingState::Unknown, 2)
    );
}

#[test]
fn another_driver_is_to_be_changed_first() {
    let mut tree = Tree::fine();
    tree.bind("vfio-pci");
    tree.remove(&format!("{DEVICE}/net"));
    tree.remove(&format!("{DEVICE}/infiniband"));
    tree.uninstall("devlink");
    let report = tree.report();
    assert_eq!(changes(&report), [("driver", "dpdk-devbind.py --bind=mlx5_core 0000:3b:00.0")]);
    assert_eq!(report.status(), 1, "what only the right driver tells is nobody's fault: {}", report.text());
    tree.remove(&format!("{DEVICE}/driver"));
    let load = "modprobe mlx5_core && echo 0000:3b:00.0 > /sys/bus/pci/drivers_probe";
    assert_eq!(changes(&tree.report()), [("driver", load)]);
    tree.write(&format!("{DEVICE}/vendor"), "0x8086");
    assert_eq!(changes(&tree.report()), [("model", "lspci -D -d 15b3:")]);
}

#[test]
fn a_missing_device_names_those_that_there_are() {
    let mut tree = Tree::empty();
    let error = tree.check(None).unwrap_err();
    assert!(error.to_string().starts_with("there is no PCI device 0000:3b:00.0; none here"), "{error}");
    tree.write("sys/bus/pci/devices/0000:5e:00.1/vendor", "0x15b3");
    assert!(tree.check(None).unwrap_err().to_string().ends_with("mlx5 drives 0000:5e:00.1"));
    tree.remove("sys/bus/pci");
    assert_eq!(tree.check(None), Err(Unseen::NoBus));
}

#[test]
fn a_virtual_device_has_memory_a_config_and_rules() {
    let tree = Tree::fine();
    let host = super::HostView { root: tree.root.clone(), tools: Box::new(super::host::Installed) };
    let device = super::Device::parse("net_x0").unwrap();
    let text = "[[uplink]]\nname = \"up\"\naddresses = [\"192.0.2.1/24\"]\noffload = \"rte-flow\"\n\
                port = { kind = \"raw\", vdev = \"net_x0,a=1\" }\n";
    let names = |config: &Config| {
        let report = super::check(&host, &device, Some((config, "f")), None).unwrap();
        let names: Vec<String> = report.findings.iter().map(|finding| finding.name.clone()).collect();
        assert_eq!(names, ["huge pages", "[offload]", "DPDK", "chains"]);
        finding(&report, "[offload]").clone()
    };
    let offload = names(&config(text));
    assert!(offload.state == FindingState::Fine && offload.value.starts_with("on for up"), "{offload:?}");
    let offload = names(&config(&text.replace("net_x0", "net_x01")));
    assert!(offload.state == FindingState::Change && offload.value.contains("vdev = "), "{offload:?}");
}

#[test]
fn devlink_that_is_missing_refuses_or_talks_nonsense_is_told() {
    let mut tree = Tree::fine();
    tree.uninstall("devlink");
    let report = tree.report();
    let mode = finding(&report, "e-switch mode");
    assert_eq!((mode.state, mode.value.as_str()), (FindingState::Unknown, "not known: install iproute2"));
    assert_eq!(mode.command.as_deref(), Some("apt-get install iproute2"));
    assert_eq!((report.status(), finding(&report, "firmware").value.as_str()), (2, "22.36.1010"));

    for nonsense in ["", "no", "{", "[]", "{}", "7", r#"{"dev":7,"param":[],"info":null}"#, "\u{1b}[2J\0"] {
        let mut tree = Tree::fine();
        for what in ["dev eswitch show", "dev param show", "dev info"] {
            tree.answer(&format!("devlink -j {what}"), nonsense);
        }
        for what in ["pfc show", "app show"] {
            tree.answer(&format!("dcb -j {what}"), nonsense);
        }
        let report = tree.report();
        assert_eq!((changes(&report), report.status()), (vec![], 2), "{nonsense:?}");
        assert!(finding(&report, "e-switch mode").value.contains("is not understood"), "{}", report.text());
    }

    let mut tree = Tree::fine();
    tree.fail("devlink -j dev eswitch show", Unanswered::Denied("devlink".into()));
    let report = tree.report();
    assert_eq!(report.status(), 2);
    assert_eq!(
        finding(&report, "e-switch mode").value,
        "not known: no right to ask devlink: run this as root"
    );
}

#[test]
fn no_file_is_trusted() {
    let files = Tree::fine().files();
    assert!(files.len() > 20, "{files:?}");
    let garbage: [&[u8]; 6] = [b"", b"\0\0", b"\xff\xfe", b"-1", b"99999999999999999999", &[b'x'; 300_000]];
    for file in &files {
        for bytes in garbage {
            let mut tree = Tree::fine();
            tree.write_bytes(file, bytes);
            let _ = tree.report();
        }
        let mut tree = Tree::fine();
        tree.spoil(file);
        let _ = tree.report();
        tree.remove(file);
        let _ = tree.report();
    }
    // What it comes to where it matters.
    for (file, name) in [("sys/class/net/ens1f0np0/mtu", "MTU"), (&format!("{DEVICE}/vendor"), "model")] {
        let mut tree = Tree::fine();
        tree.spoil(file);
        let report = tree.report();
        let found = finding(&report, name);
        assert!(found.state == FindingState::Unknown && found.value.contains("cannot be read"), "{found:?}");
        assert_eq!(report.status(), 2);
    }
    let mut tree = Tree::fine();
    tree.write("sys/class/net/ens1f0np0/mtu", "many");
    assert!(finding(&tree.report(), "MTU").value.contains("holds \"many\", which is not understood"));
}

#[test]
fn a_config_says_what_is_wanted() {
    let mut tree = Tree::fine();
    let wanted = config(OFFLOADED);
    let report = tree.check(Some(&wanted)).unwrap();
    assert_eq!((changes(&report), report.status()), (vec![], 0), "{}", report.text());
    let value = &finding(&report, "[offload]").value;
    assert!(value.starts_with("on for up0, v1: at most 1048576 rules, 10000 a second"), "{value}");
    assert!(value.ends_with("dv_flow_en=2"), "{value}");

    tree.write(&format!("sys/class/net/{NETDEV}/mtu"), "1500");
    tree.write(&format!("{DEVICE}/local_cpulist"), "0-16");
    tree.write(&format!("{DEVICE}/sriov_numvfs"), "1");
    tree.remove("sys/class/net/ens1f0np0_1");
    let report = tree.check(Some(&wanted)).unwrap();
    let expected = [
        ("NUMA node", "lscpu --extended=CPU,NODE"),
        ("MTU", "ip link set ens1f0np0 mtu 9000"),
        ("VFs", "echo 2 > /sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs"),
        ("representors", "devlink port show"),
    ];
    assert_eq!(changes(&report), expected);

    // Without offload or representors nothing asks for switchdev mode.
    let plain =
        config(&OFFLOADED[..OFFLOADED.find("[[vpc]]").unwrap()].replace("offload = \"rte-flow\"", ""));
    let mut tree = Tree::fine();
    tree.eswitch("legacy");
    tree.steering("dmfs");
    let report = tree.check(Some(&plain)).unwrap();
    assert_eq!((changes(&report), report.status()), (vec![], 0), "{}", report.text());
    assert!(finding(&report, "[offload]").value.starts_with("no rules on this device for up0"));
    let other = config("");
    let report = tree.check(Some(&other)).unwrap();
    assert_eq!(changes(&report), [("[offload]", "vswitch check --config /etc/vswitch.toml")]);
}

#[test]
fn firmware_link_and_lossless_settings_have_their_commands() {
    let mut tree = Tree::fine();
    tree.answer("devlink -j dev info", "{}");
    tree.write(&format!("{DEVICE}/infiniband/mlx5_0/fw_ver"), "22.35.1011");
    tree.write(&format!("{DEVICE}/current_link_width"), "8");
    tree.write(&format!("sys/class/net/{NETDEV}/operstate"), "down");
    tree.write(&format!("sys/class/net/{NETDEV}/ecn/roce_rp/enable/3"), "0");
    tree.answer("dcb -j app show", "{}");
    tree.remove("usr");
    let expected = [
        ("firmware", "mstflint -d 0000:3b:00.0 query"),
        ("DPDK driver", "apt-get install libdpdk-dev ibverbs-providers"),
        ("PCIe link", "lspci -vv -s 0000:3b:00.0"),
        ("link", "ip link set ens1f0np0 up"),
        ("trust", "dcb app add dev ens1f0np0 dscp-prio 26:3"),
        ("ECN of RDMA", "echo 1 > /sys/class/net/ens1f0np0/ecn/roce_rp/enable/3"),
    ];
    assert_eq!(changes(&tree.report()), expected);
    // Without PFC there is no priority to lead to.
    tree.pfc(None);
    assert_eq!(finding(&tree.report(), "trust").state, FindingState::Noted);
    tree.uninstall("dcb");
    let report = tree.report();
    assert_eq!(finding(&report, "PFC").value, "not known: install iproute2");
    tree.remove(&format!("sys/class/net/{NETDEV}/ecn"));
    assert_eq!(finding(&tree.report(), "ECN of RDMA").state, FindingState::Noted);
}
