//! Checks that no two ports share a device, and what a port has for itself.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::super::port_spec::PortSpec;
use super::Checker;
use super::ports::Written;

pub(super) fn check(checker: &mut Checker<'_>, ports: &[Written<'_>]) {
    let mut taken: HashMap<String, &Written<'_>> = HashMap::new();
    for port in ports {
        for resource in resources(port.spec) {
            if let Some(other) = taken.get(&resource) {
                let message = format!(
                    "{}: {resource} is already used by {}{}; a device serves one port, so choose another",
                    port.who,
                    other.who,
                    checker.line(&other.path)
                );
                checker.fail(&port.path, message);
            } else {
                taken.insert(resource, port);
            }
        }
    }
}

/// The devices a port takes for itself, in words; of a bond, those of its members.
pub fn resources(spec: &PortSpec) -> HashSet<String> {
    let iface = |name: &str| format!("interface {name}");
    let tidy = |path: &Path| path.components().collect::<PathBuf>().display().to_string();
    let end = |server| if server { "server" } else { "client" };
    let list = match spec {
        PortSpec::Pci(pci) => vec![format!("PCI device {}", full_pci_address(&pci.address))],
        PortSpec::Representor(vf) => vec![format!("VF {} of {}", vf.vf, full_pci_address(&vf.pf))],
        PortSpec::VhostUser(v) => vec![format!("socket {} ({})", tidy(&v.path), end(v.server))],
        PortSpec::VirtioUser(v) => vec![format!("socket {} ({})", tidy(&v.path), end(v.server))],
        PortSpec::Tap(tap) => match tap.namespace() {
            Some(namespace) => vec![format!("interface {} in {}", tap.iface, tidy(&namespace))],
            None => vec![iface(&tap.iface)],
        },
        PortSpec::AfPacket(packet) => vec![iface(&packet.iface)],
        PortSpec::AfXdp(xdp) => vec![iface(&xdp.iface)],
        PortSpec::Veth(veth) => vec![iface(&veth.iface)],
        PortSpec::Memif(memif) => {
            vec![
                format!("memif {} of socket {} ({:?})", memif.id, tidy(&memif.socket), memif.role)
                    .to_lowercase(),
            ]
        }
        PortSpec::Pcap(pcap) => {
            let ifaces = [&pcap.iface, &pcap.rx_iface, &pcap.tx_iface].into_iter().flatten();
            let file = pcap.tx_pcap.iter().map(|path| format!("file {}", tidy(path)));
            ifaces.map(|name| iface(name)).chain(file).collect()
        }
        PortSpec::Ring(ring) => ring.name.iter().map(|name| format!("ring {name}")).collect(),
        PortSpec::Bond(bond) => bond.members.iter().flat_map(resources).collect(),
        PortSpec::Null(_) => Vec::new(),
        PortSpec::Raw(raw) => {
            vec![format!("virtual device {}", raw.vdev.split(',').next().unwrap_or_default())]
        }
    };
    list.into_iter().collect()
}

/// The address with its domain.
pub(super) fn full_pci_address(address: &str) -> String {
    let address = address.to_ascii_lowercase();
    if address.matches(':').count() == 1 { format!("0000:{address}") } else { address }
}
