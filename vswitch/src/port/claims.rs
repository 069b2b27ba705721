//! Who has which device: no two ports of this process on one interface, socket end, PCI device or file.
//!
//! A driver asked twice for the same device may take it twice, each port with half the packets.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::error::OpenError;

static TAKEN: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

fn taken() -> MutexGuard<'static, BTreeMap<String, String>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The devices of one port. Dropping it frees them.
#[derive(Debug, Default)]
pub(super) struct Claims(Vec<String>);

impl Claims {
    /// Takes the device named in words (`interface v0`) for `port`, beside those it has.
    pub(super) fn take(&mut self, device: String, port: &str) -> Result<(), OpenError> {
        match taken().entry(device) {
            Entry::Occupied(entry) => {
                Err(OpenError::InUse { what: entry.key().clone(), by: entry.get().clone() })
            }
            Entry::Vacant(entry) => {
                self.0.push(entry.key().clone());
                entry.insert(port.to_owned());
                Ok(())
            }
        }
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        let mut taken = taken();
        for device in &self.0 {
            taken.remove(device);
        }
    }
}

/// True when a port of this process has a device whose name begins so.
pub(super) fn any_taken(prefix: &str) -> bool {
    taken().keys().any(|device| device.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_serves_one_port_at_a_time() {
        let device = || "interface claims-test".to_owned();
        let (mut first, mut second) = (Claims::default(), Claims::default());
        first.take("interface claims-other".into(), "a").unwrap();
        first.take(device(), "a").unwrap();
        let error = second.take(device(), "b").unwrap_err().to_string();
        assert!(error.contains("interface claims-test") && error.contains("port a"), "{error}");
        assert!(any_taken("interface claims-"));
        drop(first);
        second.take(device(), "b").unwrap();
        drop(second);
        assert!(!any_taken("interface claims-"));
    }
}
