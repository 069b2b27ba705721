//! What tests of control share: ports that are a list of names.

use pipelines::snapshot::{NO_PORT, PortIndex};
use wire::MacAddr;

use super::Ports;

/// Ports of these names, in this order; they carry nothing.
pub(crate) struct Names(pub &'static [&'static str]);

impl Ports for Names {
    fn find(&self, name: &str) -> Option<(PortIndex, MacAddr)> {
        let at = self.0.iter().position(|known| *known == name)? as PortIndex;
        Some((at, self.mac(at)))
    }
    fn partial_checksums(&self, _: PortIndex) -> bool {
        false
    }
    fn takes_super_frames(&self, _: PortIndex) -> bool {
        false
    }
    fn partner(&self, _: PortIndex) -> PortIndex {
        NO_PORT
    }
    fn count(&self) -> usize {
        self.0.len()
    }
    fn mac(&self, port: PortIndex) -> MacAddr {
        MacAddr([2, 0, 0, 0, 1, port as u8])
    }
}
