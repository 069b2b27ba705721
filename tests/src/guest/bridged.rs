//! Guests on a plain Linux bridge: the control of what guests do over the switch, and a test of the harness itself.

use super::site::{Vm, set_up};
use super::{Cable, Guest, Hardware, Image};
use crate::Netns;

/// Guests, and the namespace of the bridge between them. The fields go in this order.
#[derive(Debug)]
pub struct Bridged {
    /// The guests, in the order they were named in.
    pub guests: Vec<(Vm, Guest)>,
    _bridge: Netns,
}

impl Bridged {
    /// Boots guests on one bridge.
    #[track_caller]
    pub fn start(vms: &[Vm], image: &Image) -> Bridged {
        Netns::reap();
        let bridge = Netns::new("bridge");
        bridge.ip("link add br0 type bridge mcast_snooping 0");
        bridge.ip("link set br0 up");
        let boot = |vm: &Vm| {
            let tap = format!("tap-{}", vm.name);
            bridge.ip(&format!("tuntap add {tap} mode tap vnet_hdr"));
            bridge.ip(&format!("link set {tap} master br0 up"));
            let cable = Cable::Tap(&bridge, &tap);
            Guest::boot(&Hardware {
                name: &vm.name,
                mac: &vm.mac,
                cable,
                memory: vm.memory,
                image,
                more: &vm.nic,
            })
        };
        let guests: Vec<Guest> = vms.iter().map(boot).collect();
        for (vm, guest) in vms.iter().zip(&guests) {
            guest.wait_ready();
            set_up(vm, guest);
        }
        Bridged { guests: vms.iter().cloned().zip(guests).collect(), _bridge: bridge }
    }
}
