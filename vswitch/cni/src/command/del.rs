//! DEL: the vNIC goes, then the interface, then the addresses of another plugin. What is gone already is well gone.

use super::{Call, host};
use crate::environment::{Attachment, Command};
use crate::error::{Error, Result};
use crate::names::Names;
use crate::switch::Switch;

pub fn run(call: &Call, attachment: &Attachment) -> Result<()> {
    let names = Names::of(&call.config.name, &attachment.container, &attachment.interface);
    Switch::connect(&call.config.socket)?.delete(&names.vnic)?;
    unplug(&names.host_end)?;
    // Only now may others have the addresses.
    call.delegate()?.map_or(Ok(()), |delegate| delegate.ask(Command::Del))
}

/// Takes a veth away, by its end at the host.
pub fn unplug(host_end: &str) -> Result<()> {
    let failed = |error| Error::interface(format!("taking {host_end} away"), error);
    let (mut host, _turn) = host()?;
    match host.link(host_end).map_err(failed)? {
        Some(link) => host.delete_link(link.index).map_err(failed),
        None => Ok(()),
    }
}
