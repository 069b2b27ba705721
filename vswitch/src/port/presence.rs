//! [`Presence`]: whether the kernel interface behind a port is still there.
//!
//! Drivers do not say: a packet socket whose interface was deleted sends into nothing and reports success, and a tap
//! that was deleted reads as silent. An interface that was renamed, or a tap that was moved into a container's network
//! namespace, is the same interface still.

use std::fs;
use std::path::PathBuf;

use crate::config::PortSpec;

/// What to look at. Made when the port was just opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// Nothing: the port has no kernel interface, or the kernel does not tell of it.
    #[default]
    Unknown,
    /// An interface that a socket is bound to.
    Interface {
        /// Its name.
        iface: String,
        /// Its index, which no later interface gets.
        index: u32,
    },
    /// A tap that this process holds open.
    Tap {
        /// Its name.
        iface: String,
        /// Descriptors that the driver has of it.
        descriptors: Vec<PathBuf>,
    },
}

impl Presence {
    /// Of a port that was opened just now.
    pub(super) fn of(spec: &PortSpec) -> Self {
        match spec {
            PortSpec::AfPacket(spec) => Self::interface(&spec.iface),
            PortSpec::AfXdp(spec) => Self::interface(&spec.iface),
            PortSpec::Tap(spec) => Self::tap(&spec.iface),
            _ => Self::Unknown,
        }
    }

    fn interface(iface: &str) -> Self {
        pmd::interface::index(iface)
            .map_or(Self::Unknown, |index| Self::Interface { iface: iface.to_owned(), index })
    }

    fn tap(iface: &str) -> Self {
        let Ok(entries) = fs::read_dir("/proc/self/fdinfo") else { return Self::Unknown };
        let paths = entries.flatten().map(|entry| entry.path());
        let descriptors: Vec<PathBuf> =
            paths.filter(|path| tap_name(path).is_some_and(|name| name == iface)).collect();
        if descriptors.is_empty() {
            return Self::Unknown;
        }
        Self::Tap { iface: iface.to_owned(), descriptors }
    }

    /// `None` while the interface is there, else why it is not, in words.
    pub fn fault(&self) -> Option<String> {
        let (iface, there) = match self {
            Self::Unknown => return None,
            Self::Interface { iface, index } => (iface, pmd::interface::name_of(*index).is_ok()),
            Self::Tap { iface, descriptors } => {
                let attached = |path: &PathBuf| tap_name(path).is_some_and(|name| !name.is_empty());
                (iface, descriptors.iter().any(attached))
            }
        };
        (!there).then(|| format!("interface {iface} was deleted"))
    }
}

/// The interface that a descriptor of a tap belongs to; empty when the interface is gone.
fn tap_name(fdinfo: &PathBuf) -> Option<String> {
    let text = fs::read_to_string(fdinfo).ok()?;
    let name = text.lines().find_map(|line| line.strip_prefix("iff:"))?;
    Some(name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repair_an_interface_is_known_by_its_index() {
        let Presence::Interface { index, .. } = Presence::interface("lo") else { panic!("no loopback") };
        assert_eq!(Presence::Interface { iface: "lo".into(), index }.fault(), None);
        let fault = Presence::Interface { iface: "gone0".into(), index: u32::MAX >> 1 }.fault().unwrap();
        assert!(fault.contains("gone0"), "{fault}");
        assert_eq!(Presence::interface("no-such-if"), Presence::Unknown);
        // A descriptor that is not a tap's any more.
        let tap = Presence::Tap { iface: "t0".into(), descriptors: vec!["/proc/self/fdinfo/0".into()] };
        assert!(tap.fault().is_some());
        assert_eq!(Presence::tap("no-such-if"), Presence::Unknown);
    }
}
