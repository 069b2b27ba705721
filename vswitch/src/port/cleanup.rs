//! [`Cleanup`]: what is left to do when a port's device is gone.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::claims::Claims;
use super::error::OpenError;
use super::interface::Interface;
use super::ring;

/// What is left to do when a port's device is gone. Dropping it does it too, and logs what fails.
#[derive(Debug, Default)]
pub struct Cleanup {
    /// The socket that the port made.
    pub(super) socket: Option<PathBuf>,
    /// The interfaces whose MTU was raised, and what it was before.
    pub(super) mtus: BTreeMap<Interface, u32>,
    /// The driver sets the MTU of interfaces by itself: what it was before is kept in any case.
    pub(super) keeps_mtus: bool,
    /// The interfaces that are to be promiscuous no longer.
    pub(super) calm: Vec<Interface>,
    /// The rings that it is made of.
    pub(super) ring: Option<ring::End>,
    /// The devices to set free, last of all.
    pub(super) claims: Claims,
}

/// What a port has done to a kernel interface, and undoes when it is closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Undo {
    /// Raised its MTU from this one.
    Mtu(String, u32),
    /// Made it promiscuous.
    Promiscuous(String),
}

impl Undo {
    /// The interface.
    pub fn iface(&self) -> &str {
        match self {
            Self::Mtu(iface, _) | Self::Promiscuous(iface) => iface,
        }
    }
}

impl Cleanup {
    /// Packets that were sent into rings of the process and are still there; `None` for a port that has none.
    pub fn sent_into_rings(&self) -> Option<usize> {
        self.ring.as_ref().map(|end| end.rings.sent())
    }

    /// What is to be undone at kernel interfaces, by whoever goes on with those of these names.
    pub fn of_interfaces(&self) -> Vec<Undo> {
        let mtus = self.mtus.iter().filter(|(iface, _)| iface.keeps_name());
        let mtus = mtus.map(|(iface, mtu)| Undo::Mtu(iface.name().to_owned(), *mtu));
        let calm = self.calm.iter().filter(|iface| iface.keeps_name());
        mtus.chain(calm.map(|iface| Undo::Promiscuous(iface.name().to_owned()))).collect()
    }

    /// Another process undoes it, for it goes on with the interfaces; but not with those that were renamed.
    pub fn leave_interfaces(&mut self) {
        self.mtus.retain(|iface, _| !iface.keeps_name());
        self.calm.retain(|iface| !iface.keeps_name());
    }

    /// Undoes what another process has done to an interface, too.
    pub fn inherit(&mut self, undo: &Undo) {
        // One that has gone meanwhile took it with it.
        let Ok(iface) = Interface::named(undo.iface()) else { return };
        match undo {
            Undo::Mtu(_, mtu) => {
                self.mtus.insert(iface, *mtu);
            }
            Undo::Promiscuous(_) if !self.calm.contains(&iface) => self.calm.push(iface),
            Undo::Promiscuous(_) => {}
        }
    }

    /// Does what is left to do.
    ///
    /// # Errors
    /// The first thing that stayed behind; the others are done all the same.
    pub fn finish(mut self) -> Result<(), OpenError> {
        self.run()
    }

    fn run(&mut self) -> Result<(), OpenError> {
        let mut first = Ok(());
        let mut note = |what: String, source| {
            let error = OpenError::LeftBehind { what, source };
            if first.is_ok() {
                first = Err(error);
            } else {
                tracing::warn!(%error, "closing a port");
            }
        };
        if let Some(path) = self.socket.take() {
            let is_socket = fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket());
            match is_socket.then(|| fs::remove_file(&path)) {
                Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                    note(format!("socket {}", path.display()), error);
                }
                _ => {}
            }
        }
        for (iface, mtu) in std::mem::take(&mut self.mtus) {
            // An interface that went away took its MTU with it.
            let Ok(iface) = iface.name_now() else { continue };
            if pmd::process::interface_mtu(&iface).is_ok_and(|now| now != mtu)
                && let Err(error) = pmd::process::set_interface_mtu(&iface, mtu)
            {
                note(format!("the raised MTU of interface {iface}"), error);
            }
        }
        for iface in std::mem::take(&mut self.calm) {
            let Ok(iface) = iface.name_now() else { continue };
            if let Err(error) = pmd::interface::set_promiscuous(&iface, false) {
                note(format!("the promiscuous mode of interface {iface}"), error);
            }
        }
        self.ring = None;
        self.claims = Claims::default();
        first
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        if let Err(error) = self.run() {
            tracing::warn!(%error, "closing a port");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_go_and_files_stay() {
        let folder = std::env::temp_dir().join(format!("cleanup-test-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (socket, file) = (folder.join("s"), folder.join("f"));
        drop(UnixListener::bind(&socket).unwrap());
        fs::write(&file, "kept").unwrap();
        for path in [&socket, &file, &folder.join("missing")] {
            let mut cleanup = Cleanup::default();
            cleanup.socket = Some(path.clone());
            cleanup.finish().unwrap();
        }
        assert!(!socket.exists() && file.exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
