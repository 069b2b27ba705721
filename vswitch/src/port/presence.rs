//! [`Presence`]: whether the kernel interface or the PCI device behind a port is still there.
//!
//! Drivers do not say: a packet socket whose interface was deleted sends into nothing and reports success. An interface that was
//! renamed is the same interface still. (A tap says itself what became of it.) A PCI device that was pulled, or taken off the bus, is
//! no longer in sysfs; what a driver itself knows of that is asked besides. Unconfirmed on hardware.

use std::path::{Path, PathBuf};

use super::pci;
use crate::config::PortSpec;

/// What to look at. Made when the port was just opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// Nothing: the port has neither an interface nor a device that the kernel tells of.
    #[default]
    Unknown,
    /// An interface that a socket is bound to.
    Interface {
        iface: String,
        /// Its index, which no later interface gets.
        index: u32,
    },
    /// A device on the PCI bus.
    Pci {
        address: String,
        /// Where sysfs has it.
        path: PathBuf,
    },
}

impl Presence {
    /// Of a port that was opened just now.
    pub(super) fn of(spec: &PortSpec) -> Self {
        match spec {
            PortSpec::AfPacket(spec) => Self::interface(&spec.iface),
            PortSpec::AfXdp(spec) => Self::interface(&spec.iface),
            PortSpec::Veth(spec) => Self::interface(&spec.iface),
            PortSpec::Pci(spec) => Self::pci(Path::new(pci::DEVICES), &spec.address),
            PortSpec::Representor(spec) => Self::pci(Path::new(pci::DEVICES), &spec.pf),
            _ => Self::Unknown,
        }
    }

    fn interface(iface: &str) -> Self {
        pmd::interface::index(iface)
            .map_or(Self::Unknown, |index| Self::Interface { iface: iface.to_owned(), index })
    }

    fn pci(devices: &Path, address: &str) -> Self {
        let Ok(address) = pci::full_address(address) else { return Self::Unknown };
        let path = devices.join(&address);
        if path.exists() { Self::Pci { address, path } } else { Self::Unknown }
    }

    /// `None` while the interface or device is there, else why it is not, in words.
    pub fn fault(&self) -> Option<String> {
        let (iface, there) = match self {
            Self::Unknown => return None,
            Self::Pci { address, path } => {
                return (!path.exists()).then(|| format!("PCI device {address} was removed"));
            }
            Self::Interface { iface, index } => (iface, pmd::interface::name_of(*index).is_ok()),
        };
        (!there).then(|| format!("interface {iface} was deleted"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn repair_a_pci_device_that_was_pulled_is_told() {
        let bus = std::env::temp_dir().join(format!("presence-{}", std::process::id()));
        let device = bus.join("0000:3b:00.0");
        fs::create_dir_all(&device).unwrap();
        // The domain may be left out of a config.
        for written in ["0000:3b:00.0", "3b:00.0"] {
            let presence = Presence::pci(&bus, written);
            assert!(matches!(presence, Presence::Pci { .. }), "{presence:?}");
            assert_eq!(presence.fault(), None);
        }
        let presence = Presence::pci(&bus, "0000:3b:00.0");
        assert_eq!(Presence::pci(&bus, "0000:3c:00.0"), Presence::Unknown);
        fs::remove_dir_all(&bus).unwrap();
        let fault = presence.fault().unwrap();
        assert!(fault.contains("0000:3b:00.0") && fault.contains("removed"), "{fault}");
    }

    #[test]
    fn repair_an_interface_is_known_by_its_index() {
        let Presence::Interface { index, .. } = Presence::interface("lo") else { panic!("no loopback") };
        assert_eq!(Presence::Interface { iface: "lo".into(), index }.fault(), None);
        let fault = Presence::Interface { iface: "gone0".into(), index: u32::MAX >> 1 }.fault().unwrap();
        assert!(fault.contains("gone0"), "{fault}");
        assert_eq!(Presence::interface("no-such-if"), Presence::Unknown);
    }
}
