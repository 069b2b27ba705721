//! CHECK: whether the attachment is as ADD left it, in the pod and in the switch.

use super::addresses::of_vnic;
use super::{Call, pod};
use crate::config::Port;
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
    // Results before 1.1.0 have no path of its socket.
    let is_virtual_machine = call.config.port == Port::VhostUser;
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
            if !known.is_up && !is_virtual_machine {
                found.push(format!("the vNIC is not up: {}", known.reason));
            }
            // Results before 1.1.0 say nothing about it.
            wanted.mtu = vnic.mtu.unwrap_or(wanted.mtu);
        }
    }
    if !is_virtual_machine {
        let (_, mut pod) = pod(attachment)?;
        let differences = wanted.differences(&mut pod);
        found.extend(differences.map_err(|error| Error::interface("reading the pod's interfaces", error))?);
    }
    if !found.is_empty() {
        return Err(Error::new(DIFFERS, found.join("; "), "DEL the attachment and ADD it again"));
    }
    delegate.map_or(Ok(()), |delegate| delegate.ask(Command::Check))
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use serde_json::{Value, json};

    use super::*;
    use crate::args::PodArgs;
    use crate::config::{NetworkConfig, VERSIONS};
    use crate::fake::Fake;
    use crate::parameters::Parameters;
    use crate::result::{Address, Interface};

    fn call(config: &Value) -> Call {
        let text = config.to_string().into_bytes();
        Call { config: NetworkConfig::read(&text).unwrap(), text, folders: Vec::new() }
    }

    /// What ADD answers for the socket of a virtual machine.
    fn added(parameters: &Parameters, attachment: &Attachment) -> CniResult {
        let interface = Interface {
            name: attachment.interface.clone(),
            mac: parameters.mac.to_string(),
            mtu: Some(1450),
            sandbox: "/run/netns/vm".to_owned(),
            socket_path: parameters.socket.as_ref().map(|socket| socket.display().to_string()),
        };
        let ip = Address { address: "10.0.0.5/24".parse().unwrap(), gateway: None, interface: Some(0) };
        CniResult { interfaces: vec![interface], ips: vec![ip], ..CniResult::default() }
    }

    /// The switch's vNIC is down, for its guest may come late, and the container has no interface.
    #[test]
    fn a_virtual_machine_is_as_add_left_it_in_every_version() {
        for version in VERSIONS {
            let args = PodArgs::read("").unwrap();
            let (container, interface) = ("c".to_owned(), "eth0".to_owned());
            let attachment = Attachment { container, interface, netns: Some("/nowhere".into()), args };
            let mut config = json!({"cniVersion": version, "name": "n", "type": "vswitch-cni", "vpc": "blue",
                "subnet": "10.0.0.0/24", "port": "vhost-user", "socketFolder": "/run/vms"});
            let parameters = Parameters::of(&call(&config).config, &attachment).unwrap();
            let told = added(&parameters, &attachment).told(version);
            config["prevResult"] = serde_json::from_str(&told).unwrap();
            let check = |address: IpAddr| {
                let fake = Fake::start(version, vec![parameters.vnic(&[address])]);
                let mut config = config.clone();
                config["socket"] = json!(fake.socket());
                run(&call(&config), &attachment)
            };
            check([10, 0, 0, 5].into()).unwrap_or_else(|error| panic!("{version}: {error}"));
            let error = check([10, 0, 0, 6].into()).unwrap_err();
            assert!(error.code == DIFFERS && error.msg == "the vNIC has no address 10.0.0.5", "{error}");
        }
    }
}
