//! GC: what is left of attachments that nobody knows any more goes.

use std::collections::HashSet;

use super::{Call, host};
use crate::environment::Command;
use crate::error::{Error, Result};
use crate::names::{Names, is_of_network};
use crate::switch::Switch;

pub fn run(call: &Call) -> Result<()> {
    let network = &call.config.name;
    // Without the list everything would go.
    let none = || Error::config("cni.dev/valid-attachments", "GC needs it", "a container runtime passes it");
    let valid = call.config.valid_attachments.as_ref().ok_or_else(none)?;
    let delegate = call.delegate()?;
    let names = valid.iter().map(|valid| Names::of(network, &valid.container, &valid.interface).vnic);
    let kept: HashSet<String> = names.collect();
    let is_left = |vnic: &str| is_of_network(vnic, network) && !kept.contains(vnic);
    let mut switch = Switch::connect(&call.config.socket)?;
    for vnic in switch.vnics()?.into_iter().filter(|vnic| is_left(&vnic.name)) {
        switch.delete(&vnic.name)?;
    }
    unplug(&is_left)?;
    // It may take its time: the turn is others' again.
    delegate.map_or(Ok(()), |delegate| delegate.ask(Command::Gc))
}

/// Takes away the veths of vNICs that are left, by their ends at the host.
fn unplug(is_left: &dyn Fn(&str) -> bool) -> Result<()> {
    let (mut host, _turn) = host()?;
    let failed = |error| Error::interface("taking interfaces away", error);
    for link in host.links().map_err(failed)?.into_iter().filter(|link| is_left(&link.alias)) {
        host.delete_link(link.index).map_err(failed)?;
    }
    Ok(())
}
