//! Bringing ports in and out: virtual devices by hotplug, devices that exist by name or PCI address.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use dpdk_sys as sys;

use super::socket::Interface;
use super::tap::TapPort;
use super::vhost::VhostSocket;
use super::{PortId, PortInfo, Ring};
use crate::eal::Eal;
use crate::error::{Errno, PortError, Words, cut};
use crate::flags::MAX_PORTS;
use crate::flow::FlowQueues;
use crate::interface;
use crate::log;
use crate::mempool::Mempool;

/// Ports that somebody in this process holds.
static CLAIMED: [AtomicBool; MAX_PORTS] = [const { AtomicBool::new(false) }; MAX_PORTS];
/// Numbers of ports that are no ethdevs.
static OTHER_PORTS: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
/// DPDK's device lists are not safe against two hotplug calls at once.
pub(super) static HOTPLUG: Mutex<()> = Mutex::new(());

/// The longest device name that DPDK keeps whole.
const MAX_NAME: usize = sys::RTE_ETH_NAME_MAX_LEN as usize - 1;
const MAX_ARGS: usize = 4096;

/// The number of ports that this DPDK was built for.
pub fn limit() -> usize {
    MAX_PORTS
}

/// The number of ports that exist, whoever holds them.
pub fn in_use() -> usize {
    // SAFETY: counts entries of a static table.
    usize::from(unsafe { sys::rte_eth_dev_count_total() })
}

/// A stopped port. Dropping it closes the device.
#[derive(Debug)]
pub struct Port {
    pub(super) claim: Claim,
}

/// What a port is.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Ethdev,
    /// Packet sockets on a kernel interface.
    Interface(Interface),
    Tap(TapPort),
    Vhost(VhostSocket),
}

/// The exclusive hold on a port; dropping it closes the device.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) id: PortId,
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Keeps the EAL running.
    _eal: Eal,
    /// The pool of the last start: a driver may still have buffers of it until it is closed.
    pub(super) pool: Option<Mempool>,
    /// The rings that the port is made of: its driver has pointers to them.
    pub(super) rings: Vec<Ring>,
    /// The ports that it is made of, which are closed after it.
    pub(super) members: Vec<Port>,
    /// The flow queues that it was once configured with: that is never undone.
    pub(super) flow_queues: Option<FlowQueues>,
    closed: bool,
}

impl Claim {
    pub(super) fn take(eal: &Eal, id: PortId, name: &str) -> Result<Self, PortError> {
        let free = CLAIMED.get(id.index()).is_some_and(|claimed| !claimed.swap(true, Ordering::AcqRel));
        if !free {
            return Err(PortError::Busy(name.into()));
        }
        Ok(Self::new(eal, id, name, Kind::Ethdev))
    }

    /// A port of another kind, under a number that no ethdev has.
    pub(super) fn without_ethdev(eal: &Eal, name: &str, kind: Kind) -> Result<Self, PortError> {
        let mut taken = OTHER_PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        let free = (PortId::FIRST_OTHER..=u16::MAX).find(|id| !taken.contains(id));
        let limit = usize::from(u16::MAX - PortId::FIRST_OTHER) + 1;
        let id = free.ok_or_else(|| PortError::LimitReached { name: name.into(), limit })?;
        taken.insert(id);
        Ok(Self::new(eal, PortId::new(id), name, kind))
    }

    fn new(eal: &Eal, id: PortId, name: &str, kind: Kind) -> Self {
        Self {
            id,
            name: name.into(),
            kind,
            _eal: eal.clone(),
            pool: None,
            rings: Vec::new(),
            members: Vec::new(),
            flow_queues: None,
            closed: false,
        }
    }

    /// Closes the port and those that it is made of, and removes their devices unless other ports share them.
    fn close(&mut self) -> Result<(), PortError> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        // Members may have buffers of it until they are closed.
        let _pool = self.pool.clone();
        let closed = self.close_device();
        self.members.drain(..).fold(closed, |all, member| all.and(member.detach()))
    }

    fn close_device(&mut self) -> Result<(), PortError> {
        if !matches!(self.kind, Kind::Ethdev) {
            OTHER_PORTS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id.get());
            return Ok(());
        }
        let _hotplug = HOTPLUG.lock().unwrap_or_else(PoisonError::into_inner);
        let device = device_of(self.id);
        let ((), words) = log::captured(|| {
            // SAFETY: the port is stopped, and this claim is the only hold on it.
            let ret = unsafe { sys::rte_eth_dev_close(self.id.get()) };
            if let Err(errno) = Errno::check(ret) {
                tracing::debug!(port = self.name, %errno, "rte_eth_dev_close");
            }
        });
        if let Some(claimed) = CLAIMED.get(self.id.index()) {
            claimed.store(false, Ordering::Release);
        }
        if device.is_null() || ports().any(|port| device_of(port) == device) {
            return Ok(());
        }
        // SAFETY: the device is a live one of the EAL's list, and no port uses it any more.
        let (ret, more) = log::captured(|| unsafe { sys::rte_dev_remove(device) });
        self.pool = None;
        Errno::check(ret).map(|_| ()).map_err(|errno| PortError::Operation {
            name: self.name.clone(),
            operation: "detach",
            errno,
            words: Words(words.0.into_iter().chain(more.0).collect()),
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, "a port did not close cleanly");
        }
    }
}

impl Port {
    /// Makes a virtual device: `attach(&eal, "net_ring0", "")`, `attach(&eal, "net_memif1", "role=client")`.
    ///
    /// Some drivers wait for their peer here (vhost-user in server mode); other attachments wait meanwhile.
    ///
    /// # Errors
    /// [`PortError::LimitReached`], [`PortError::Exists`], [`PortError::Name`], or [`PortError::Attach`] with
    /// the driver's words.
    pub fn attach(eal: &Eal, name: &str, args: &str) -> Result<Self, PortError> {
        let c_name = checked_name(name)?;
        let c_args = checked_args(name, args)?;
        let _hotplug = HOTPLUG.lock().unwrap_or_else(PoisonError::into_inner);
        if in_use() >= MAX_PORTS {
            return Err(PortError::LimitReached { name: name.into(), limit: MAX_PORTS });
        }
        if find(&c_name).is_some() {
            return Err(PortError::Exists(name.into()));
        }
        let (ret, words) = log::captured(|| {
            // SAFETY: three C strings; the EAL runs (`eal`); the lock keeps other hotplug calls away.
            unsafe { sys::rte_eal_hotplug_add(c"vdev".as_ptr(), c_name.as_ptr(), c_args.as_ptr()) }
        });
        let refused = |errno, words| PortError::Attach { name: name.into(), args: cut(args), errno, words };
        Errno::check(ret).map_err(|errno| refused(errno, words.clone()))?;
        let Some(id) = find(&c_name) else {
            // SAFETY: as above; the device exists and made no port.
            unsafe { sys::rte_eal_hotplug_remove(c"vdev".as_ptr(), c_name.as_ptr()) };
            return Err(refused(Errno::ENODEV, words));
        };
        Ok(Self { claim: Claim::take(eal, id, name)? })
    }

    /// Takes a port that exists, by its name; or probes a PCI device (`0000:3b:00.0`, with devargs after a
    /// comma) and takes its first free port. A representor is named as in devargs:
    /// `0000:3b:00.0,representor=vf3`. Unconfirmed on hardware.
    ///
    /// # Errors
    /// [`PortError::NotFound`], [`PortError::Busy`], [`PortError::Attach`] or [`PortError::LimitReached`].
    pub fn open(eal: &Eal, name_or_pci: &str) -> Result<Self, PortError> {
        let devargs = checked_args(name_or_pci, name_or_pci)?;
        if name_or_pci.is_empty() {
            return Err(PortError::Name { name: String::new(), why: "it is empty" });
        }
        let _hotplug = HOTPLUG.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = find(&devargs) {
            return Ok(Self { claim: Claim::take(eal, id, name_or_pci)? });
        }
        let (found, quiet) = log::captured(|| matching(&devargs));
        let taken = || PortError::Busy(cut(name_or_pci));
        if !found.is_empty() {
            return Self::first_free(eal, &found).ok_or_else(taken);
        }
        if !is_pci(name_or_pci) {
            return Err(PortError::NotFound { name: cut(name_or_pci), words: quiet });
        }
        if in_use() >= MAX_PORTS {
            return Err(PortError::LimitReached { name: cut(name_or_pci), limit: MAX_PORTS });
        }
        // SAFETY: a C string; the EAL runs; the lock keeps other hotplug calls away.
        let (ret, words) = log::captured(|| unsafe { sys::rte_dev_probe(devargs.as_ptr()) });
        if let Err(errno) = Errno::check(ret) {
            let name = cut(name_or_pci);
            return Err(match errno {
                Errno::ENODEV => PortError::NotFound { name, words },
                errno => PortError::Attach { name, args: cut(name_or_pci), errno, words },
            });
        }
        let found = matching(&devargs);
        if found.is_empty() {
            return Err(PortError::NotFound { name: cut(name_or_pci), words });
        }
        Self::first_free(eal, &found).ok_or_else(taken)
    }

    /// A port on a kernel interface of this network namespace, by packet sockets and without an ethdev: there may be
    /// thousands. Frames come and go with the kernel's offloads, so that a TCP segment of 64 KB may be one packet.
    ///
    /// # Errors
    /// [`PortError::NotFound`] without such an interface, [`PortError::LimitReached`].
    pub fn on_interface(eal: &Eal, name: &str, iface: &str) -> Result<Self, PortError> {
        let found = interface::index(iface);
        let index = found.map_err(|_| PortError::NotFound { name: cut(iface), words: Words::default() })?;
        Ok(Self { claim: Claim::without_ethdev(eal, name, Kind::Interface(Interface { index }))? })
    }

    fn first_free(eal: &Eal, ports: &[PortId]) -> Option<Self> {
        ports.iter().find_map(|id| {
            let claim = Claim::take(eal, *id, &name_of(*id)).ok()?;
            Some(Self { claim })
        })
    }

    /// The port's number.
    pub fn id(&self) -> PortId {
        self.claim.id
    }

    /// The port's name.
    pub fn name(&self) -> &str {
        &self.claim.name
    }

    /// What the port is and can do.
    ///
    /// # Errors
    /// [`PortError::Operation`] when the driver does not say.
    pub fn info(&self) -> Result<PortInfo, PortError> {
        match &self.claim.kind {
            Kind::Interface(interface) => Ok(interface.info(self.claim.id, &self.claim.name)),
            Kind::Tap(tap) => Ok(tap.info(self.claim.id, &self.claim.name)),
            Kind::Vhost(socket) => Ok(socket.info(self.claim.id, &self.claim.name)),
            Kind::Ethdev => PortInfo::of(self.claim.id, &self.claim.name),
        }
    }

    /// Closes the port and removes its device.
    ///
    /// # Errors
    /// [`PortError::Operation`]; the port is gone even then.
    pub fn detach(mut self) -> Result<(), PortError> {
        self.claim.close()
    }
}

pub(super) fn checked_name(name: &str) -> Result<CString, PortError> {
    let why = if name.is_empty() {
        "it is empty; a virtual device is named after its driver, like net_ring0"
    } else if name.len() > MAX_NAME {
        "it is over 63 bytes long"
    } else if !name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
        "a name has letters, digits and _ - . only"
    } else if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        "a name begins with its driver, like net_ring0"
    } else {
        return CString::new(name)
            .map_err(|_| PortError::Name { name: cut(name), why: "it holds a NUL byte" });
    };
    Err(PortError::Name { name: cut(name), why })
}

fn checked_args(name: &str, args: &str) -> Result<CString, PortError> {
    let why = if args.len() > MAX_ARGS {
        "its arguments are over 4096 bytes long"
    } else if args.chars().any(char::is_control) {
        "its arguments hold control characters"
    } else {
        return CString::new(args)
            .map_err(|_| PortError::Name { name: cut(name), why: "it holds a NUL byte" });
    };
    Err(PortError::Name { name: cut(name), why })
}

/// True for `[domain:]bus:device.function`, with devargs or not.
fn is_pci(text: &str) -> bool {
    let address = text.strip_prefix("pci:").unwrap_or(text);
    let address = address.split(',').next().unwrap_or_default();
    let hex = |part: &str, digits: usize| part.len() == digits && part.chars().all(|c| c.is_ascii_hexdigit());
    let Some((front, function)) = address.rsplit_once('.') else { return false };
    let mut parts = front.rsplit(':');
    let (device, bus, domain) = (parts.next(), parts.next(), parts.next());
    hex(function, 1)
        && device.is_some_and(|part| hex(part, 2))
        && bus.is_some_and(|part| hex(part, 2))
        && domain.is_none_or(|part| hex(part, 4))
        && parts.next().is_none()
}

pub(super) fn find(name: &CStr) -> Option<PortId> {
    let mut id = 0;
    // SAFETY: a C string and a valid place for the answer.
    let ret = unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut id) };
    (ret == 0).then_some(PortId::new(id))
}

/// Ports of the devices that devargs name.
fn matching(devargs: &CStr) -> Vec<PortId> {
    // SAFETY: an iterator of null pointers is what `rte_eth_iterator_init` starts from itself.
    let mut iterator: sys::rte_dev_iterator = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place and a C string that outlives the iteration.
    let ret = unsafe { sys::rte_eth_iterator_init(&raw mut iterator, devargs.as_ptr()) };
    let mut found = Vec::new();
    if ret != 0 {
        return found;
    }
    loop {
        // SAFETY: initialised above; it frees its own memory once it has returned the last port.
        let id = unsafe { sys::rte_eth_iterator_next(&raw mut iterator) };
        if usize::from(id) >= MAX_PORTS {
            return found;
        }
        found.push(PortId::new(id));
    }
}

fn ports() -> impl Iterator<Item = PortId> {
    let next = |from: u64| {
        let from = u16::try_from(from).ok()?;
        // SAFETY: walks a static table.
        let id = unsafe { sys::rte_eth_find_next(from) };
        (usize::from(id) < MAX_PORTS).then_some(u64::from(id))
    };
    std::iter::successors(next(0), move |id| next(id + 1))
        .filter_map(|id| u16::try_from(id).ok())
        .map(PortId::new)
}

fn device_of(id: PortId) -> *mut sys::rte_device {
    PortInfo::raw(id).map_or(std::ptr::null_mut(), |info| info.device)
}

pub(super) fn name_of(id: PortId) -> String {
    let mut name = [0u8; sys::RTE_ETH_NAME_MAX_LEN as usize];
    // SAFETY: the buffer has the size that the function asks for.
    let ret = unsafe { sys::rte_eth_dev_get_name_by_port(id.get(), name.as_mut_ptr().cast()) };
    let text = CStr::from_bytes_until_nul(&name).ok().filter(|_| ret == 0);
    text.map_or_else(|| format!("port {id}"), |text| text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_told_from_names() {
        for text in ["0000:3b:00.0", "3b:00.1", "pci:0000:3b:00.0", "0000:3b:00.0,representor=vf3"] {
            assert!(is_pci(text), "{text}");
        }
        for text in ["net_ring0", "0000:3b:00", "3b.0", "0:0:0:0.0", "000:3b:00.0", ""] {
            assert!(!is_pci(text), "{text}");
        }
    }

    #[test]
    fn names_and_arguments_are_checked() {
        assert!(checked_name("net_ring0").is_ok());
        for name in ["", "net ring", "net_ring0,iface=x", "0ring", "net\0", &"n".repeat(64)] {
            assert!(matches!(checked_name(name), Err(PortError::Name { .. })), "{name:?}");
        }
        assert!(checked_args("x", "iface=a,b=c").is_ok());
        assert!(checked_args("x", "a\nb").is_err() && checked_args("x", &"a".repeat(5000)).is_err());
    }
}
