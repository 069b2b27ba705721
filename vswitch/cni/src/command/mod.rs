//! The commands of the CNI specification.

pub mod add;
mod addresses;
pub mod check;
pub mod del;
pub mod gc;
pub mod status;

use std::fs::File;
use std::io;
use std::path::PathBuf;

use crate::config::NetworkConfig;
use crate::delegate::Delegate;
use crate::environment::Attachment;
use crate::error::{Error, Result, TRY_AGAIN, UNKNOWN_CONTAINER};
use crate::netlink::Netlink;
use crate::netns;
use crate::turn::turn;

/// What a command works with.
#[derive(Debug)]
pub struct Call {
    pub config: NetworkConfig,
    /// The config as it came, for other plugins.
    pub text: Vec<u8>,
    /// Where other plugins are.
    pub folders: Vec<PathBuf>,
}

impl Call {
    /// The plugin that chooses addresses, where another one does.
    fn delegate(&self) -> Result<Option<Delegate>> {
        let kind = &self.config.ipam.kind;
        self.config.delegates().then(|| Delegate::find(kind, &self.folders, &self.text)).transpose()
    }
}

/// The namespace of the container, which has to be there, and a socket in it.
fn pod(attachment: &Attachment) -> Result<(File, Netlink)> {
    let path = attachment.netns.clone().unwrap_or_default();
    let gone = || {
        let msg = format!("CNI_NETNS: there is no {path:?}");
        Error::new(UNKNOWN_CONTAINER, msg, "the container is gone, or its runtime has not made it yet")
    };
    let failed = |error| {
        Error::environment(
            "CNI_NETNS",
            format!("{path:?}: {error}"),
            "give the network namespace of the container",
        )
    };
    let netns = netns::open(&path).map_err(failed)?.ok_or_else(gone)?;
    let pod = Netlink::of(&netns).map_err(failed)?;
    Ok((netns, pod))
}

/// A socket in the namespace of this process, which is the switch's, and the turn to change interfaces there.
fn host() -> Result<(Netlink, File)> {
    let turn = turn().map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            let msg = format!("other pods' interfaces take too long: {error}");
            Error::new(TRY_AGAIN, msg, "try again; look at that process where it lasts")
        }
        _ => Error::interface("waiting for other pods' interfaces", error),
    })?;
    let netlink = Netlink::here().map_err(|error| Error::interface("opening a netlink socket", error))?;
    Ok((netlink, turn))
}
