//! Ports: from what the config says stands behind a port to a device that can be started, and back.
//!
//! One file per kind turns its `PortSpec` into a `DevicePlan`: the devices it takes, the driver's arguments, what
//! the switch must know of it. The registry is `plan`; [`open`] carries a plan out and [`close`] undoes it.
//! Both are synchronous, belong on a helper thread, and never touch a packet.

mod access;
mod af_packet;
mod af_xdp;
mod bond;
mod claims;
mod cleanup;
mod devargs;
pub mod error;
mod held;
mod interface;
mod memif;
mod mtu;
mod null;
mod pcap;
mod pci;
mod preflight;
mod presence;
mod raw;
mod representor;
mod ring;
mod tap;
mod traits;
mod veth;
mod vhost_user;
mod virtio_user;

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use pmd::{Eal, Port, PortError, TapConfig, VhostConfig};

use crate::config::{PortSpec, secret};
pub use access::SocketAccess;
use claims::Claims;
pub use cleanup::{Cleanup, Undo};
pub use error::{OpenError, QueueError};
pub use held::{HeldByDriver, held_by_driver};
pub use interface::Interface;
pub use mtu::{change_mtu, fit_interfaces, min_segment};
pub(crate) use pci::full_address;
pub(crate) use preflight::effective_capabilities;
pub use presence::Presence;
pub use traits::{MtuControl, Traits};

/// What a port is opened with, beside its kind.
#[derive(Clone, Copy, Debug)]
pub struct OpenRequest<'a> {
    /// The switch's own name of the port.
    pub name: &'a str,
    /// A number that no other open port has; the device is named by it.
    pub unique: u32,
    /// Queue pairs for kinds that can have any number and do not say how many.
    pub queues: u16,
    /// The MTU that the port is to have; as it is when not given.
    pub mtu: Option<u16>,
    /// A device of ours (`offload = "simulated"`) stands before its receive queues. As in front of a NIC's e-switch there are
    /// neither super-frames nor unfinished checksums: peers are offered to leave neither to the port.
    pub before_device: bool,
}

/// A port as opened: stopped, and ready to start.
#[derive(Debug)]
pub struct OpenedPort {
    pub port: Port,
    /// What the switch must know of its kind.
    pub traits: Traits,
    /// What is left to do when the device is gone.
    pub cleanup: Cleanup,
    /// Whether what the kernel has of it is still there.
    pub presence: Presence,
    /// What the socket that it makes is to be given when the port was started.
    pub access: Option<SocketAccess>,
}

/// What a kind's plan is made with.
#[derive(Debug)]
struct Opening<'a> {
    eal: &'a Eal,
    request: &'a OpenRequest<'a>,
    claims: Claims,
}

impl Opening<'_> {
    /// Takes a device, named in words, before it is looked at: what a port of ours has looks busy.
    fn take(&mut self, device: String) -> Result<(), OpenError> {
        self.claims.take(device, self.request.name)
    }
}

/// How a kind becomes a device.
#[derive(Debug)]
struct DevicePlan {
    device: DeviceSpec,
    traits: Traits,
    /// The socket the port makes.
    socket: Option<PathBuf>,
    access: Option<SocketAccess>,
    /// Interfaces that the driver sets promiscuous and leaves so.
    calm: Vec<Interface>,
    /// The rings that it is made of.
    ring: Option<ring::End>,
}

/// What DPDK is asked for.
#[derive(Debug)]
enum DeviceSpec {
    /// A virtual device of this driver, with arguments.
    Virtual { driver: &'static str, args: String },
    /// A virtual device, named in full.
    Named { name: String, args: String },
    /// A device of the PCI bus, with devargs.
    Pci(String),
    /// A kernel interface, without an ethdev.
    Interface(String),
    /// A tap, without an ethdev.
    Tap(TapConfig),
    /// A vhost-user socket, without an ethdev.
    VhostUser(VhostConfig),
    /// A port made of rings.
    Rings(ring::PortRings),
    /// A port made of ports.
    Bond(bond::Members),
}

impl DevicePlan {
    fn new(device: DeviceSpec, traits: Traits) -> Self {
        Self { device, traits, socket: None, access: None, calm: Vec::new(), ring: None }
    }

    /// A virtual device of `driver`.
    fn virtual_device(driver: &'static str, args: devargs::Devargs, traits: Traits) -> Self {
        Self::new(DeviceSpec::Virtual { driver, args: args.finish() }, traits)
    }
}

/// The registry: which file knows a kind.
fn plan(spec: &PortSpec, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    match spec {
        PortSpec::Pci(spec) => pci::plan(spec, opening),
        PortSpec::Representor(spec) => representor::plan(spec, opening),
        PortSpec::VhostUser(spec) => vhost_user::plan(spec, opening),
        PortSpec::VirtioUser(spec) => virtio_user::plan(spec, opening),
        PortSpec::Tap(spec) => tap::plan(spec, opening),
        PortSpec::AfPacket(spec) => af_packet::plan(spec, opening),
        PortSpec::AfXdp(spec) => af_xdp::plan(spec, opening),
        PortSpec::Veth(spec) => veth::plan(spec, opening),
        PortSpec::Memif(spec) => memif::plan(spec, opening),
        PortSpec::Pcap(spec) => pcap::plan(spec, opening),
        PortSpec::Ring(spec) => ring::plan(spec, opening),
        PortSpec::Null(spec) => null::plan(spec, opening),
        PortSpec::Bond(spec) => bond::plan(spec, opening),
        PortSpec::Raw(spec) => raw::plan(spec, opening),
    }
}

/// True when [`open`] may wait for a peer, for as long as that takes. Other ports cannot be opened meanwhile:
/// DPDK attaches one device at a time.
pub fn may_block(spec: &PortSpec) -> bool {
    matches!(spec, PortSpec::VirtioUser(spec) if spec.server)
}

/// The interface of the kernel that a port is on, of a kind that two processes may have open at once: each gets every packet.
pub fn shared_interface(spec: &PortSpec) -> Option<&str> {
    match spec {
        PortSpec::Veth(port) => Some(&port.iface),
        PortSpec::AfPacket(port) => Some(&port.iface),
        _ => None,
    }
}

/// Ends the wait of an [`open`] on another thread, which fails then: connects in place of the peer, and leaves.
/// Does nothing for a kind that does not wait, or when nobody waits.
pub fn give_up(spec: &PortSpec) {
    if let PortSpec::VirtioUser(virtio) = spec
        && virtio.server
    {
        drop(UnixStream::connect(&virtio.path));
    }
}

/// Opens a port: checks, asks the driver, and prepares what the kind needs.
///
/// # Errors
/// [`OpenError`]; nothing stays behind then.
pub fn open(eal: &Eal, spec: &PortSpec, request: &OpenRequest<'_>) -> Result<OpenedPort, OpenError> {
    let mut opening = Opening { eal, request, claims: Claims::default() };
    let plan = plan(spec, &mut opening)?;
    let mut cleanup = Cleanup {
        socket: plan.socket,
        mtus: BTreeMap::new(),
        keeps_mtus: matches!(plan.device, DeviceSpec::Bond(_)),
        calm: plan.calm,
        ring: plan.ring,
        claims: opening.claims,
    };
    let port = match attach(eal, plan.device, &request.unique.to_string()) {
        Ok(port) => port,
        Err((driver, source)) => {
            cleanup.finish()?;
            return Err(explain(spec.kind(), driver, request.name, source));
        }
    };
    let device = |source| refused(spec.kind(), request.name, source);
    let info = port.info().map_err(device)?;
    let traits = plan.traits.bounded(&info);
    fit_interfaces(&traits, &mut cleanup, request.mtu)?;
    if let (MtuControl::Device, Some(wanted)) = (&traits.mtu, request.mtu) {
        mtu::check_device(spec.kind(), request.name, wanted, &info)?;
    }
    Ok(OpenedPort { port, traits, cleanup, presence: Presence::of(spec), access: plan.access })
}

/// Closes a stopped port: detaches its device, and removes what it made.
///
/// # Errors
/// The driver's refusal, or what stayed behind. The port is gone all the same.
pub fn close(port: Port, cleanup: Cleanup) -> Result<(), OpenError> {
    let name = port.name().to_owned();
    let detached = port.detach().map_err(|source| refused("detached", &name, source));
    let cleaned = cleanup.finish();
    detached.and(cleaned)
}

/// Removes a tap that was made to stay, with its addresses and routes, unless it is gone.
///
/// # Errors
/// [`OpenError::NoTap`] when it is another interface by now, or another process has it; [`OpenError::LeftBehind`].
pub fn remove_tap(iface: &str) -> Result<(), OpenError> {
    tap::remove(iface)
}

/// Asks DPDK for the device; `unique` is what no other device's name ends with. An error comes with the driver it concerns.
fn attach(eal: &Eal, device: DeviceSpec, unique: &str) -> Result<Port, (Option<&'static str>, PortError)> {
    match device {
        DeviceSpec::Virtual { driver, args } => {
            let attached = Port::attach(eal, &format!("net_{driver}{unique}"), &args);
            attached.map_err(|error| (Some(driver), discreet(error, &args)))
        }
        DeviceSpec::Named { name, args } => {
            Port::attach(eal, &name, &args).map_err(|error| (None, discreet(error, &args)))
        }
        DeviceSpec::Pci(devargs) => {
            Port::open(eal, &devargs).map_err(|error| (None, discreet(error, &devargs)))
        }
        DeviceSpec::Interface(iface) => {
            Port::on_interface(eal, &format!("veth{unique}"), &iface).map_err(|error| (None, error))
        }
        DeviceSpec::Tap(config) => {
            Port::on_tap(eal, &format!("tap{unique}"), &config).map_err(|error| (None, error))
        }
        DeviceSpec::VhostUser(config) => {
            let name = format!("vhost{unique}");
            Port::on_vhost_user(eal, &name, &config).map_err(|error| (None, error))
        }
        DeviceSpec::Rings(ways) => ways.attach(eal, unique).map_err(|error| (None, error)),
        DeviceSpec::Bond(members) => members.attach(eal, unique),
    }
}

/// An error about a port with these arguments, without their secrets.
fn discreet(error: PortError, given: &str) -> PortError {
    let PortError::Attach { name, args, errno, mut words } = error else { return error };
    for value in secret::values(given) {
        words.0.iter_mut().for_each(|line| *line = line.replace(value, secret::HIDDEN));
    }
    PortError::Attach { name: secret::hide(&name), args: secret::hide(&args), errno, words }
}

/// A driver that is not loaded is told from one that refuses by what is mapped into this process.
fn explain(kind: &'static str, driver: Option<&'static str>, port: &str, source: PortError) -> OpenError {
    if let (Some(driver), PortError::Attach { .. }) = (driver, &source) {
        // net_virtio_user lives in librte_net_virtio.
        let library = format!("librte_net_{}", driver.trim_end_matches("_user"));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        if !maps.is_empty() && !maps.contains(&library) {
            let package = format!("{}23", library.replace('_', "-"));
            return OpenError::NoDriver { kind, library, package, source: Box::new(source) };
        }
    }
    refused(kind, port, source)
}

fn refused(kind: &'static str, port: &str, source: PortError) -> OpenError {
    OpenError::Device { kind, port: port.into(), source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::port_spec::VirtioUserPort;

    #[test]
    fn only_a_virtio_user_server_blocks() {
        let virtio = |server| {
            PortSpec::VirtioUser(VirtioUserPort {
                path: "/run/v".into(),
                server,
                queues: 1,
                trusted_peer: true,
            })
        };
        assert!(may_block(&virtio(true)) && !may_block(&virtio(false)));
    }

    #[test]
    fn a_missing_driver_is_told_from_a_refusal() {
        let refusal = || PortError::Attach {
            name: "net_x0".into(),
            args: String::new(),
            errno: pmd::Errno::ENODEV,
            words: Default::default(),
        };
        let error = explain("memif", Some("not_loaded"), "p0", refusal()).to_string();
        assert!(error.contains("librte-net-not-loaded") && error.contains("plugins"), "{error}");
        let error = explain("raw", None, "p0", refusal());
        assert!(matches!(error, OpenError::Device { kind: "raw", .. }), "{error}");
    }
}
