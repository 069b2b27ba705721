//! CHECK: whether the attachment is as ADD left it, in the pod and in the switch.

use super::addresses::of_vnic;
use super::{Call, pod};
use crate::environment::{Attachment, Command};
use crate::error::{DIFFERS, Error, Result};
use crate::names::Names;
use crate::pod::PodInterface;
use crate::result::CniResult;
use crate::switch::Switch;

pub fn run(call: &Call, attachment: &Attachment) -> Result<()> {
    let none =
        || Error::config("prevResult", "CHECK needs the result of ADD", "a container runtime passes it");
    let before = call.config.prev_result.as_ref().ok_or_else(none)?;
    let delegate = call.delegate()?;
    let mut wanted = told(before, attachment)?;
    let names = Names::of(&call.config.name, &attachment.container, &attachment.interface);
    let mut found = Vec::new();
    match Switch::connect(&call.config.socket)?.vnic(&names.vnic)? {
        None => found.push(format!("the switch has no vNIC {}", names.vnic)),
        Some(known) => {
            let vnic = &known.vnic;
            if vnic.mac.parse().ok() != Some(wanted.mac) {
                found.push(format!("the vNIC has the MAC address {}, not {}", vnic.mac, wanted.mac));
            }
            let vips = of_vnic(&vnic.vips)?;
            let missing = wanted.addresses.iter().filter(|address| !vips.contains(&address.addr()));
            found.extend(missing.map(|address| format!("the vNIC has no address {}", address.addr())));
            if !known.is_up && !is_virtual_machine(before, attachment) {
                found.push(format!("the vNIC is not up: {}", known.reason));
            }
            // Results before 1.1.0 say nothing about it.
            wanted.mtu = vnic.mtu.unwrap_or(wanted.mtu);
        }
    }
    if !is_virtual_machine(before, attachment) {
        let (_, mut pod) = pod(attachment)?;
        let differences = wanted.differences(&mut pod);
        found.extend(differences.map_err(|error| Error::interface("reading the pod's interfaces", error))?);
    }
    if !found.is_empty() {
        return Err(Error::new(DIFFERS, found.join("; "), "DEL the attachment and ADD it again"));
    }
    delegate.map_or(Ok(()), |delegate| delegate.ask(Command::Check))
}

/// True when the result is of a vhost-user socket.
fn is_virtual_machine(before: &CniResult, attachment: &Attachment) -> bool {
    before
        .interfaces
        .iter()
        .any(|interface| interface.name == attachment.interface && interface.socket_path.is_some())
}

/// What the pod's interface should be like, by the result of ADD.
fn told(before: &CniResult, attachment: &Attachment) -> Result<PodInterface> {
    let is_ours = |interface: &crate::result::Interface| {
        interface.name == attachment.interface && !interface.sandbox.is_empty()
    };
    let wrong =
        |wrong: String| Error::config("prevResult", wrong, "pass the result of ADD for this interface");
    let at = before.interfaces.iter().position(is_ours);
    let at =
        at.ok_or_else(|| wrong(format!("it has no interface {} of a container", attachment.interface)))?;
    let interface = &before.interfaces[at];
    let mac = interface.mac.parse().map_err(|error| wrong(format!("{error}")))?;
    let addresses: Vec<_> =
        before.ips.iter().filter(|ip| ip.interface == Some(at)).map(|ip| ip.address).collect();
    // Routes of other plugins of the chain may be by other interfaces.
    let by_us = |route: &&crate::result::Route| {
        route.gw.is_some_and(|gw| addresses.iter().any(|address| address.contains(&gw)))
    };
    let routes = before.routes.iter().filter(by_us).cloned().collect();
    let mtu = interface.mtu.unwrap_or_default();
    Ok(PodInterface { name: interface.name.clone(), mac, mtu, addresses, routes })
}
