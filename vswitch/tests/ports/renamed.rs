//! An interface that is renamed under its port, and another one that gets its name.

use super::support::{Lab, run, veth};

#[test]
fn an_interface_stays_the_ports_whatever_it_is_called() {
    let mut lab = Lab::with_room(12_288);
    let mtu = |iface: &str| pmd::process::interface_mtu(iface).unwrap();
    let is_promiscuous = |iface: &str| pmd::interface::is_promiscuous(iface).unwrap();
    for kind in ["af-packet", "veth"] {
        veth("h0", "h1", 1500);
        let spec = format!("kind = \"{kind}\", iface = \"h0\"");
        let mut port = lab.run_with(&spec, 1, Some(1600));
        assert_eq!(mtu("h0"), 1600);
        assert_eq!(is_promiscuous("h0"), kind == "af-packet");
        run("ip link set h0 down");
        run("ip link set h0 name x0");
        run("ip link set x0 up");
        // It is not there under its name, and then somebody else is.
        port.change_mtu(&spec, 1620).unwrap();
        assert_eq!(mtu("x0"), 1620);
        veth("h0", "h2", 9000);
        run("ip link set h0 promisc on");
        port.change_mtu(&spec, 1640).unwrap();
        assert_eq!((mtu("x0"), mtu("h0")), (1640, 9000));
        assert_eq!(port.traits.max_frame(&port.port).is_some_and(|frame| frame < 9000), kind == "af-packet");
        let again = lab.open(&format!("kind = \"{kind}\", iface = \"x0\"")).map(drop).unwrap_err();
        assert!(again.to_string().contains("port p"), "{again}");
        port.close();
        assert_eq!((mtu("x0"), is_promiscuous("x0")), (1500, false), "as it was");
        assert_eq!((mtu("h0"), is_promiscuous("h0")), (9000, true), "nothing of the port's");
        run("ip link del x0");
        run("ip link del h0");
    }
    lab.check_clean(&[]);
}
