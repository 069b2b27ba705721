//! ADD: a pod's interface, and the vNIC behind it.
//!
//! The veth comes first, so that the switch finds it at once; then the vNIC, which settles whose the addresses are; then the pod's
//! addresses and routes. What a call before this one left half done is finished, and what fails is taken back.

use std::fs::File;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use tonic::Code;

use super::addresses::{Addresses, Choice, Subnets, of_vnic};
use super::{Call, del, host, pod};
use crate::environment::{Attachment, Command};
use crate::error::{Error, INTERFACE, REFUSED, Result, TRY_AGAIN};
use crate::host_end;
use crate::netlink::{Netlink, Veth};
use crate::parameters::Parameters;
use crate::pod::{self as pod_interface, PodInterface};
use crate::result::{CniResult, Interface};
use crate::switch::{KnownVnic, Switch, refusal};

/// How long the vNIC may take to be up.
const UP: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
/// How often another address is tried because somebody was faster.
const TRIES: usize = 32;

struct Add<'a> {
    call: &'a Call,
    attachment: &'a Attachment,
    parameters: Parameters,
    vni: u32,
    subnets: Subnets,
    switch: Switch,
    netns: File,
    pod: Netlink,
}

pub fn run(call: &Call, attachment: &Attachment) -> Result<CniResult> {
    let parameters = Parameters::of(&call.config, attachment)?;
    let delegate = call.delegate()?;
    let (netns, pod) = pod(attachment)?;
    let mut switch = Switch::connect(&call.config.socket)?;
    let vpc = &parameters.vpc;
    let unknown = || {
        Error::config(
            "vpc",
            format!("the switch has no VPC {vpc:?}"),
            "make it there, or correct the network config",
        )
    };
    let vni = switch.vpc(vpc)?.ok_or_else(unknown)?;
    let subnets = Subnets::of(&call.config, vpc, &mut switch)?;
    let known = switch.vnic(&parameters.names.vnic)?;
    let mut add = Add { call, attachment, parameters, vni, subnets, switch, netns, pod };
    if let Some(known) = known {
        let ips = of_vnic(&known.vnic.vips)?;
        if delegate.is_none() || add.is_whole(&ips)? {
            let ips = if delegate.is_some() { ips } else { add.parameters.asked(&ips) };
            return add.finish(&ips);
        }
        // The other plugin does not tell again what it chose: begin anew.
        del::run(call, attachment)?;
    }
    let made = match &delegate {
        None => add.with_own_addresses(),
        Some(delegate) => delegate
            .add()
            .and_then(|chosen| add.subnets.chosen_elsewhere(chosen, &call.config.dns))
            .and_then(|addresses| add.with_addresses(addresses)),
    };
    made.inspect_err(|_| {
        add.take_back();
        if let Some(delegate) = &delegate {
            // Of the two failures the first one is told.
            let _ = delegate.ask(Command::Del);
        }
    })
}

impl Add<'_> {
    /// True when the pod's interface has the vNIC's addresses.
    fn is_whole(&mut self, ips: &[IpAddr]) -> Result<bool> {
        if self.parameters.socket.is_some() {
            return Ok(true);
        }
        let Some(link) = pod_interface::link(&mut self.pod, &self.attachment.interface)? else {
            return Ok(false);
        };
        let has = self
            .pod
            .addresses(link.index)
            .map_err(|error| Error::interface("reading addresses in the pod", error))?;
        Ok(link.mac == Some(self.parameters.mac)
            && ips.iter().all(|ip| has.iter().any(|net| net.addr() == *ip)))
    }

    /// Finishes what an earlier call began, or finds it done.
    fn finish(&mut self, ips: &[IpAddr]) -> Result<CniResult> {
        if self.cable()? {
            // Its port may still be that of the interface which was there before.
            self.switch.delete(&self.parameters.names.vnic)?;
        }
        let mut addresses = self.subnets.addresses(ips, &self.call.config.dns);
        if self.call.config.delegates()
            && let Some(link) = pod_interface::link(&mut self.pod, &self.attachment.interface)?
        {
            let failed = |error| Error::interface("reading addresses and routes in the pod", error);
            let has = self.pod.addresses(link.index).map_err(failed)?;
            let routes = self.pod.routes(link.index).map_err(failed)?;
            addresses = self.subnets.found_in_pod(addresses, &has, routes);
        }
        self.with_addresses(addresses)
    }

    /// Chooses addresses, and others when somebody was faster.
    fn with_own_addresses(&mut self) -> Result<CniResult> {
        self.cable()?;
        let mut tries = 0;
        loop {
            let mut taken = self.switch.taken(&self.parameters.vpc, &self.parameters.names.vnic)?;
            let (config, parameters) = (&self.call.config, &self.parameters);
            let mut choice = Choice { config, parameters, vni: self.vni, switch: &mut self.switch };
            let ips = self.subnets.choose(&mut choice, &mut taken)?;
            let status = match self.switch.create(self.parameters.vnic(&ips)) {
                Ok(known) => {
                    let addresses = self.subnets.addresses(&ips, &self.call.config.dns);
                    return self.configure(known, addresses);
                }
                Err(status) => status,
            };
            let now = self.switch.taken(&self.parameters.vpc, &self.parameters.names.vnic)?;
            let lost = status.code() == Code::InvalidArgument && ips.iter().any(|ip| now.contains(ip));
            tries += 1;
            if !lost {
                return Err(refusal(&status));
            }
            if let Some(ip) = self.parameters.ips.iter().find(|ip| now.contains(ip)) {
                return Err(self.parameters.taken(*ip));
            }
            if tries == TRIES {
                return Err(Error::new(TRY_AGAIN, "others took every address that was chosen", "try again"));
            }
        }
    }

    fn with_addresses(&mut self, addresses: Addresses) -> Result<CniResult> {
        self.cable()?;
        let ips: Vec<_> = addresses.ips.iter().map(|ip| ip.address.addr()).collect();
        let created = self.switch.create(self.parameters.vnic(&ips));
        let known = created.map_err(|status| match status.code() {
            Code::AlreadyExists => {
                let msg = format!("the attachment is there and differs: {}", status.message());
                Error::new(REFUSED, msg, "DEL it first")
            }
            _ => refusal(&status),
        })?;
        self.configure(known, addresses)
    }

    /// Makes the veth, where it is not there; true when it was not.
    fn cable(&mut self) -> Result<bool> {
        if self.parameters.socket.is_some() {
            return Ok(false);
        }
        let (names, interface) = (&self.parameters.names, self.attachment.interface.as_str());
        let failed = |error| {
            Error::interface(
                format!("making a veth from {} to {interface} in the pod", names.host_end),
                error,
            )
        };
        let (mut host, _turn) = host()?;
        let (here, there) =
            (host.link(&names.host_end).map_err(failed)?, self.pod.link(interface).map_err(failed)?);
        match (here, there) {
            // Its alias is the last that an earlier call gave it.
            (Some(here), Some(there))
                if here.peer == Some(there.index)
                    && here.alias == names.vnic
                    && there.mac == Some(self.parameters.mac) =>
            {
                return Ok(false);
            }
            // Its other end is in a namespace that is not this one, or not what is asked for now.
            (Some(here), _) => host.delete_link(here.index).map_err(failed)?,
            (None, None) => {}
            (None, Some(_)) => {
                let msg = format!("the pod has an interface {interface} already, which is not ours");
                return Err(Error::new(INTERFACE, msg, "take it away, or ask for another CNI_IFNAME"));
            }
        }
        let veth = Veth {
            host_end: &names.host_end,
            pod_end: interface,
            mac: self.parameters.mac,
            mtu: self.call.config.mtu,
        };
        host.make_veth(&veth, &self.netns).map_err(failed)?;
        host_end::shut_off(&names.host_end).map_err(failed)?;
        let end = host.link(&names.host_end).map_err(failed)?;
        let end = end.ok_or_else(|| Error::interface("making a veth", "its end at the host is gone"))?;
        host.set_host_end_up(end.index, &names.vnic).map_err(failed)?;
        let end = self.pod.link(interface).map_err(failed)?;
        let end = end.ok_or_else(|| Error::interface("making a veth", "its end in the pod is gone"))?;
        // Before its MTU is known: the switch takes a veth whose two ends are up.
        self.pod.set_up(end.index, None).map_err(failed)?;
        Ok(true)
    }

    /// Gives the pod's interface what it should have, and waits until the vNIC is up.
    fn configure(&mut self, known: Option<KnownVnic>, addresses: Addresses) -> Result<CniResult> {
        let mtu = known.as_ref().and_then(|known| known.vnic.mtu);
        let mtu = mtu.ok_or_else(|| {
            Error::new(REFUSED, "the switch made a vNIC without an MTU", "look at its version")
        })?;
        let interface = PodInterface {
            name: self.attachment.interface.clone(),
            mac: self.parameters.mac,
            mtu,
            addresses: addresses.ips.iter().map(|ip| ip.address).collect(),
            routes: addresses.routes.clone(),
        };
        if self.parameters.socket.is_none() {
            interface.configure(&mut self.pod, &self.netns)?;
        }
        self.wait(known)?;
        Ok(self.result(mtu, addresses))
    }

    /// Waits until packets can pass. A virtual machine comes when it will: its socket is enough.
    fn wait(&mut self, mut known: Option<KnownVnic>) -> Result<()> {
        let name = &self.parameters.names.vnic;
        let end = Instant::now() + UP;
        loop {
            let is_there = self.parameters.socket.as_ref().is_some_and(|socket| socket.exists());
            if is_there || known.as_ref().is_some_and(|known| known.is_up) {
                return Ok(());
            }
            if Instant::now() >= end {
                let reason = known.map_or_else(|| "it is gone".to_owned(), |known| known.reason);
                let msg = format!("vNIC {name} is not up after {} s: {reason}", UP.as_secs());
                return Err(Error::new(TRY_AGAIN, msg, "look at `port list` of the switch"));
            }
            thread::sleep(PAUSE);
            known = self.switch.vnic(name)?;
        }
    }

    fn result(&self, mtu: u32, addresses: Addresses) -> CniResult {
        let Addresses { mut ips, mut routes, dns } = addresses;
        // In one order, whoever told them.
        routes.sort_by_key(|route| route.dst);
        let mac = self.parameters.mac.to_string();
        let netns = self.attachment.netns.clone().unwrap_or_default();
        let pod = Interface {
            name: self.attachment.interface.clone(),
            mac,
            mtu: Some(mtu),
            sandbox: netns.display().to_string(),
            socket_path: self.parameters.socket.as_ref().map(|socket| socket.display().to_string()),
        };
        let host = Interface {
            name: self.parameters.names.host_end.clone(),
            mtu: Some(mtu),
            ..Interface::default()
        };
        let mut interfaces = vec![pod];
        if self.parameters.socket.is_none() {
            interfaces.push(host);
        }
        for ip in &mut ips {
            ip.interface = Some(0);
        }
        CniResult { interfaces, ips, routes, dns }
    }

    /// Takes back what this call made.
    fn take_back(&mut self) {
        // Of two failures the first one is told.
        let _ = self.switch.delete(&self.parameters.names.vnic);
        let _ = del::unplug(&self.parameters.names.host_end);
    }
}
