//! Sysfs on a made-up tree, the merge with what verbs say, and what this machine says.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A folder that stands for `/sys/class`; goes with the value.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("rdma-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// A device as rdma_rxe shows itself, with two GIDs in use, and one whose type cannot be read.
    fn rxe(self) -> Self {
        let gid = "infiniband/rxe0/ports/1/gids";
        let attributes = "infiniband/rxe0/ports/1/gid_attrs";
        self.file("infiniband/rxe0/node_guid", "5054:00ff:fe00:0001\n")
            .file("infiniband/rxe0/node_type", "1: CA\n")
            .file("infiniband/rxe0/fw_ver", "\n")
            .file("infiniband/rxe0/ports/1/state", "4: ACTIVE\n")
            .file("infiniband/rxe0/ports/1/phys_state", "5: LinkUp\n")
            .file("infiniband/rxe0/ports/1/rate", "2.5 Gb/sec (1X SDR)\n")
            .file("infiniband/rxe0/ports/1/link_layer", "Ethernet\n")
            .file(&format!("{gid}/0"), "fe80:0000:0000:0000:5054:00ff:fe00:0001\n")
            .file(&format!("{gid}/1"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n")
            .file(&format!("{gid}/2"), "0000:0000:0000:0000:0000:0000:0000:0000\n")
            .file(&format!("{gid}/10"), "fd00:0000:0000:0000:0000:0000:0000:0001\n")
            .file(&format!("{attributes}/types/0"), "IB/RoCE v1\n")
            .file(&format!("{attributes}/types/1"), "RoCE v2\n")
            .file(&format!("{attributes}/ndevs/0"), "eth0\n")
            .file(&format!("{attributes}/ndevs/1"), "eth0\n")
            .file("infiniband/rxe0/ports/1/counters/port_xmit_data", "12\n")
            .file("infiniband/rxe0/ports/1/hw_counters/sent_pkts", "34\n")
            .file("infiniband/rxe0/ports/1/hw_counters/odd", "N/A (no PMA)\n")
            .file("infiniband/rxe0/ports/1/hw_counters/lifespan", "10\n");
        self
    }

    fn with_uverbs(self) -> Self {
        self.file("infiniband_verbs/abi_version", "6\n").file("infiniband_verbs/uverbs0/ibdev", "rxe0\n");
        self
    }

    /// What is made of this tree, whose folder `dev` stands for `/dev/infiniband`.
    fn merged(&self, verbs: Verbs) -> Inventory {
        merged(&self.0, &self.0.join("dev"), verbs)
    }

    /// The one device, and why its limits are not known.
    fn fault(&self, verbs: Verbs) -> Unopened {
        let inventory = self.merged(verbs);
        let fault = inventory.get("rxe0").unwrap().limits.clone().unwrap_err();
        assert_eq!(inventory.notes, [format!("rxe0: limits and MTUs are unknown: {fault}")]);
        fault
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn opened() -> Opened {
    let limits = Limits { max_qp: 1000, max_cq: 500, ..Limits::default() };
    Opened { limits, firmware: "1.2.3".into(), guid: 7, mtus: vec![(Some(4096), Some(1024))] }
}

#[test]
fn a_device_is_read_whole() {
    let tree = Tree::new().rxe();
    symlink("../../../devices/pci0000:00/0000:00:04.0", tree.0.join("infiniband/rxe0/device")).unwrap();
    let inventory = tree.merged(Ok(BTreeMap::from([("rxe0".into(), Ok(opened()))])));
    assert_eq!(inventory.notes, Vec::<String>::new());
    let [device] = &inventory.devices[..] else { panic!("{inventory:?}") };
    assert_eq!(device.name, "rxe0");
    assert_eq!(device.node_type.as_deref(), Some("CA"));
    assert_eq!(device.node_guid.unwrap().to_string(), "5054:00ff:fe00:0001");
    // Sysfs has an empty version, so that of verbs counts.
    assert_eq!(device.firmware.as_deref(), Some("1.2.3"));
    assert_eq!(device.bus.as_deref(), Some("0000:00:04.0"));
    assert_eq!(device.limits.as_ref().unwrap().max_qp, 1000);
    let [port] = &device.ports[..] else { panic!("{device:?}") };
    assert_eq!((port.number, port.max_mtu, port.active_mtu), (1, Some(4096), Some(1024)));
    assert_eq!(port.state.as_deref(), Some("ACTIVE"));
    assert_eq!(port.physical_state.as_deref(), Some("LinkUp"));
    assert_eq!(port.link_layer.as_deref(), Some("Ethernet"));
    assert_eq!(port.rate.as_deref(), Some("2.5 Gb/sec (1X SDR)"));
    assert_eq!(port.counters, BTreeMap::from([("port_xmit_data".into(), 12)]));
    assert_eq!(port.hw_counters, BTreeMap::from([("sent_pkts".into(), 34)]));
}

#[test]
fn gids_in_use_have_type_interface_and_ip() {
    let tree = Tree::new().rxe();
    let inventory = tree.merged(Err(Unopened::NotBuilt));
    let gids = &inventory.devices[0].ports[0].gids;
    let told: Vec<_> =
        gids.iter().map(|gid| (gid.index, gid.ip().to_string(), gid.kind, gid.netdev.as_deref())).collect();
    assert_eq!(
        told,
        [
            (0, "fe80::5054:ff:fe00:1".into(), GidKind::IbOrRoceV1, Some("eth0")),
            (1, "10.0.0.1".into(), GidKind::RoceV2, Some("eth0")),
            (10, "fd00::1".into(), GidKind::Unknown, None),
        ]
    );
}

#[test]
fn what_is_missing_is_named_with_its_remedy() {
    let nothing = || Ok(BTreeMap::new());
    let failed = |errno| Err(Unopened::Failed { what: "open it", errno });
    let of_rxe = |fault| Ok(BTreeMap::from([("rxe0".into(), fault)]));
    let bare = Tree::new().rxe();
    assert_eq!(bare.fault(nothing()), Unopened::NoUverbs);
    assert_eq!(bare.fault(Err(Unopened::NotBuilt)), Unopened::NotBuilt);
    let tree = Tree::new().rxe().with_uverbs();
    assert_eq!(tree.fault(nothing()), Unopened::NoFile("uverbs0".into()));
    assert_eq!(tree.fault(of_rxe(failed(Errno::new(libc::ENOENT)))), Unopened::NoFile("uverbs0".into()));
    tree.file("dev/uverbs0", "");
    assert_eq!(tree.fault(nothing()), Unopened::NoProvider);
    assert_eq!(tree.fault(Err(Unopened::NotBuilt)), Unopened::NotBuilt);
    assert_eq!(
        tree.fault(Err(Unopened::NoList(Errno::new(libc::EPERM)))),
        Unopened::NotAllowed("uverbs0".into())
    );
    assert_eq!(tree.fault(of_rxe(failed(Errno::new(libc::EACCES)))), Unopened::NotAllowed("uverbs0".into()));
    let other = tree.fault(of_rxe(failed(Errno::EINVAL)));
    assert!(other.to_string().starts_with("libibverbs cannot open it: "), "{other}");
}

#[test]
fn machines_without_devices_say_so() {
    let tree = Tree::new();
    let inventory = tree.merged(Ok(BTreeMap::new()));
    assert_eq!(inventory.devices, []);
    assert_eq!(inventory.notes, ["the kernel has no RDMA driver loaded (there is no /sys/class/infiniband)"]);
    fs::create_dir(tree.0.join("infiniband")).unwrap();
    let inventory = tree.merged(Ok(BTreeMap::new()));
    assert_eq!(inventory.notes, ["RDMA drivers are loaded and have found no device"]);
    let inventory = tree.merged(Ok(BTreeMap::from([("x".into(), Ok(opened()))])));
    assert_eq!(inventory.notes, ["x: libibverbs lists it, sysfs does not"]);
}

#[test]
fn odd_trees_do_no_harm() {
    let tree = Tree::new();
    tree.file("infiniband/a/node_guid", "0000:0000:0000:0000\n")
        .file("infiniband/b/node_guid", "zz\n")
        .file("infiniband/b/ports/x/state", "4: ACTIVE\n")
        .file("infiniband/b/ports/2/state", "odd\n")
        .file("infiniband/b/ports/2/gids/0", "not a gid\n")
        .file("infiniband/c", "a file\n");
    let inventory = tree.merged(Ok(BTreeMap::new()));
    assert_eq!(sysfs::names(&tree.0), ["a", "b", "c"]);
    assert!(inventory.devices.iter().all(|device| device.node_guid.is_none()));
    assert_eq!(inventory.devices[1].ports.len(), 1);
    assert_eq!(inventory.devices[1].ports[0].state.as_deref(), Some("odd"));
    assert_eq!(inventory.devices[1].ports[0].gids, []);
}

#[test]
fn this_machine_is_looked_at_without_an_error() {
    let inventory = inventory();
    assert_eq!(names().len(), inventory.devices.len());
    if inventory.devices.is_empty() {
        assert!(!inventory.notes.is_empty(), "nothing there, and no word on why");
    }
    for device in &inventory.devices {
        assert!(device.limits.is_ok() || inventory.notes.iter().any(|note| note.starts_with(&device.name)));
    }
}
