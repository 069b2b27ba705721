//! What drivers hold of the packet pool, by kind of port: known without opening one, for `vswitch check` asks.

use super::{af_xdp, pci, ring, tap, virtio_user};
use crate::config::PortSpec;

/// Packet buffers that a driver holds for all queues of a port at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldByDriver {
    /// Armed for what comes; they are held as long as the port runs.
    pub rx: u32,
    /// Of what was sent and has not left, or whose buffers the driver has not given back yet.
    pub tx: u32,
    /// Transmit queues.
    pub tx_queues: u16,
    /// It delivers super-frames, of up to 64 KB.
    pub super_frames: bool,
}

/// What the driver of a port holds that has these queues, where they are given, and else one for each of so many workers, as
/// far as its kind has them.
pub fn held_by_driver(spec: &PortSpec, rx: Option<u16>, tx: Option<u16>, workers: u16) -> HeldByDriver {
    if let PortSpec::Bond(bond) = spec {
        let members = bond.members.iter().map(|member| held_by_driver(member, rx, tx, workers));
        return members.fold(HeldByDriver::default(), |all, one| HeldByDriver {
            rx: all.rx + one.rx,
            tx: all.tx + one.tx,
            tx_queues: one.tx_queues,
            super_frames: false,
        });
    }
    // As `Traits::queues`: kinds that say how many queues they have poll all of them.
    let own = match spec {
        PortSpec::VhostUser(port) => Some(port.queues),
        PortSpec::VirtioUser(port) => Some(port.queues),
        PortSpec::Tap(port) => Some(port.queues),
        PortSpec::AfPacket(port) => Some(port.queues),
        PortSpec::AfXdp(port) => Some(port.queues),
        PortSpec::Veth(port) => Some(port.queues),
        PortSpec::Pcap(_) => Some(1),
        _ => None,
    };
    // Those of no ethdev.
    let sends_on_all = matches!(spec, PortSpec::Tap(_) | PortSpec::Veth(_) | PortSpec::VhostUser(_));
    let rx_queues = own.or(rx).unwrap_or(workers).max(1);
    let tx_queues = match own {
        Some(own) if sends_on_all => own,
        Some(own) => tx.unwrap_or(workers).min(own),
        None => tx.unwrap_or(workers),
    };
    let tx_queues = tx_queues.max(1);
    let (rx, tx) = match spec {
        PortSpec::Pci(_) | PortSpec::Representor(_) | PortSpec::Raw(_) => {
            (pci::DESCRIPTORS, pci::DESCRIPTORS)
        }
        PortSpec::VirtioUser(_) => (virtio_user::RING, virtio_user::RING),
        PortSpec::AfXdp(_) => (af_xdp::RING, af_xdp::RING),
        PortSpec::Tap(_) => (tap::AT_HAND, 0),
        PortSpec::Ring(_) => (0, ring::PACKETS),
        // These copy to and from memory of the kernel or of the peer at once.
        PortSpec::VhostUser(_)
        | PortSpec::AfPacket(_)
        | PortSpec::Veth(_)
        | PortSpec::Memif(_)
        | PortSpec::Pcap(_)
        | PortSpec::Bond(_)
        | PortSpec::Null(_) => (0, 0),
    };
    HeldByDriver {
        rx: u32::from(rx) * u32::from(rx_queues),
        tx: u32::from(tx) * u32::from(tx_queues),
        tx_queues,
        super_frames: sends_on_all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn held(port: &str, rx: Option<u16>, tx: Option<u16>) -> (u32, u32, u16) {
        let config = Config::parse(&format!("[[port]]\nname = \"p\"\nport = {port}\n"), "test").unwrap();
        let held = held_by_driver(&config.ports[0].port, rx, tx, 4);
        (held.rx, held.tx, held.tx_queues)
    }

    #[test]
    fn ports_buffers_in_rings_follow_kind_and_queues() {
        let nic = "{ kind = \"pci\", address = \"0000:01:00.0\" }";
        assert_eq!(held(nic, None, None), (4096, 4096, 4), "a queue for each worker");
        assert_eq!(held(nic, Some(2), Some(1)), (2048, 1024, 1));
        let veth = "{ kind = \"veth\", iface = \"h0\", queues = 2 }";
        assert_eq!(held(veth, None, None), (0, 0, 2), "the memory is the kernel's");
        let virtio = "{ kind = \"virtio-user\", path = \"/run/v\", queues = 2, trusted-peer = true }";
        assert_eq!(held(virtio, None, Some(1)), (1024, 512, 1));
        assert_eq!(held("{ kind = \"tap\", iface = \"t0\" }", None, None), (33, 0, 1));
        assert_eq!(held("{ kind = \"ring\" }", Some(1), Some(1)), (0, 1023, 1));
        let other = nic.replace("01:00.0", "01:00.1");
        let bond = format!("{{ kind = \"bond\", members = [{nic}, {other}] }}");
        assert_eq!(held(&bond, None, None), (8192, 8192, 4), "what each of its members holds");
    }
}
