//! Kernel network interfaces, as far as a port on one must know them: state, the other end of a veth, offloads
//! that spoil what a packet socket reads, who has a tap, and in which network namespace an interface is.
//!
//! Asks by ioctl rather than in /sys, whose view is that of the namespace that mounted it. Changes nothing but
//! whether an interface is up or promiscuous, and whether a tap is there; nothing here concerns DPDK.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use wire::MacAddr;

use crate::namespace::in_namespace;
use crate::process::{self, Request};
use crate::tap;

const ETHTOOL_GTSO: u32 = 0x1e;

/// Bytes of `struct nlmsghdr`.
const NETLINK_HEADER: usize = 16;
/// Bytes of `struct ifinfomsg`.
const LINK_HEADER: usize = 16;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_TUN_NUM_QUEUES: u16 = 8;
const IFLA_TUN_NUM_DISABLED_QUEUES: u16 = 9;
/// Of the type of an attribute; the other bits say how it is written.
const NLA_TYPE: u16 = 0x3fff;

/// Where `ip netns` keeps its named namespaces.
const NAMESPACES: &str = "/run/netns";

/// The index of an interface of this network namespace.
///
/// # Errors
/// `ENODEV` for no such interface, `InvalidInput` for a name that none can have.
pub fn index(interface: &str) -> io::Result<u32> {
    let mut request = Request::new(interface)?;
    request.run(libc::SIOCGIFINDEX)?;
    // SAFETY: the kernel filled this member of the union.
    let index = unsafe { request.raw.ifr_ifru.ifru_ifindex };
    Ok(index.cast_unsigned())
}

/// The name of the interface with this index, in this network namespace.
///
/// # Errors
/// `ENODEV` for no such interface.
pub fn name_of(index: u32) -> io::Result<String> {
    // Any valid name makes a request; the kernel overwrites it.
    let mut request = Request::new("lo")?;
    request.raw.ifr_ifru.ifru_ifindex = index.cast_signed();
    request.run(libc::SIOCGIFNAME)?;
    let bytes: Vec<u8> = request.raw.ifr_name.iter().map(|c| c.cast_unsigned()).collect();
    let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

/// True when an interface is set up (`ip link set ... up`), whether or not it has a carrier.
///
/// # Errors
/// `ENODEV` for no such interface.
pub fn is_up(interface: &str) -> io::Result<bool> {
    flags(&mut Request::new(interface)?).map(|flags| i32::from(flags) & libc::IFF_UP != 0)
}

/// True when an interface is up and has a carrier: for a veth, that its other end is up, too.
///
/// # Errors
/// `ENODEV` for no such interface.
pub fn has_carrier(interface: &str) -> io::Result<bool> {
    let wanted = libc::IFF_UP | libc::IFF_RUNNING;
    flags(&mut Request::new(interface)?).map(|flags| i32::from(flags) & wanted == wanted)
}

/// The MAC address of an Ethernet interface.
///
/// # Errors
/// `ENODEV` for no such interface.
pub fn mac(interface: &str) -> io::Result<MacAddr> {
    let mut request = Request::new(interface)?;
    request.run(libc::SIOCGIFHWADDR)?;
    Ok(address_in(&request.raw))
}

/// The address in the kernel's answer to `SIOCGIFHWADDR`.
pub(crate) fn address_in(answer: &libc::ifreq) -> MacAddr {
    // SAFETY: the kernel filled this member of the union, of which any bytes are a value.
    let address = unsafe { answer.ifr_ifru.ifru_hwaddr };
    let byte = |at: usize| address.sa_data[at].cast_unsigned();
    MacAddr([byte(0), byte(1), byte(2), byte(3), byte(4), byte(5)])
}

/// True when an interface was set promiscuous (`ip link set ... promisc on`, or a driver that did the same).
///
/// # Errors
/// `ENODEV` for no such interface.
pub fn is_promiscuous(interface: &str) -> io::Result<bool> {
    flags(&mut Request::new(interface)?).map(|flags| i32::from(flags) & libc::IFF_PROMISC != 0)
}

/// Sets an interface promiscuous, or no longer.
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN, `ENODEV` for no such interface.
pub fn set_promiscuous(interface: &str, on: bool) -> io::Result<()> {
    set_flag(interface, libc::IFF_PROMISC, on)
}

/// Sets an interface up.
pub(crate) fn set_up(interface: &str) -> io::Result<()> {
    set_flag(interface, libc::IFF_UP, true)
}

fn set_flag(interface: &str, flag: libc::c_int, on: bool) -> io::Result<()> {
    let mut request = Request::new(interface)?;
    let flags = i32::from(flags(&mut request)?) & !flag;
    let flags = if on { flags | flag } else { flags };
    // All flags of an interface request fit 16 bits.
    request.raw.ifr_ifru.ifru_flags = flags as i16;
    request.run(libc::SIOCSIFFLAGS)
}

fn flags(request: &mut Request) -> io::Result<i16> {
    request.run(libc::SIOCGIFFLAGS)?;
    // SAFETY: the kernel filled this member of the union.
    Ok(unsafe { request.raw.ifr_ifru.ifru_flags })
}

/// True when TCP may hand this interface frames longer than its MTU for it to cut.
///
/// # Errors
/// `ENODEV` for no such interface, `EOPNOTSUPP` for one without ethtool.
pub fn tcp_segmentation_offload(interface: &str) -> io::Result<bool> {
    process::ethtool_value(interface, ETHTOOL_GTSO, 0).map(|value| value != 0)
}

/// The other end of a veth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VethPeer {
    /// Its index, in its own network namespace.
    pub index: u32,
    /// It is in the namespace of the end that was asked for.
    pub same_namespace: bool,
}

/// The other end of a veth; `None` for an interface of another kind.
///
/// # Errors
/// `ENODEV` for no such interface, or what the kernel says to a question over netlink.
pub fn veth_peer(interface: &str) -> io::Result<Option<VethPeer>> {
    let index = index(interface)?;
    let is_veth = process::interface_driver(interface).is_ok_and(|driver| driver == "veth");
    if !is_veth {
        return Ok(None);
    }
    Ok(linked(&ask_link(index)?))
}

/// The kernel's description of a link (`RTM_GETLINK`), netlink header included.
fn ask_link(index: u32) -> io::Result<Vec<u8>> {
    // SAFETY: makes a socket; the result is checked.
    let fd =
        unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // struct nlmsghdr {length, type, flags, sequence, port}, struct ifinfomsg {family, type, index, flags, change}.
    let mut question = [0u8; NETLINK_HEADER + LINK_HEADER];
    question[..4].copy_from_slice(&((NETLINK_HEADER + LINK_HEADER) as u32).to_ne_bytes());
    question[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    question[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    question[20..24].copy_from_slice(&index.to_ne_bytes());
    // SAFETY: an open socket and a buffer with its length; unaddressed messages go to the kernel.
    let sent = unsafe { libc::send(socket.as_raw_fd(), question.as_ptr().cast(), question.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut answer = vec![0u8; 32 << 10];
    // SAFETY: an open socket and a writable buffer with its length.
    let length = unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    answer.truncate(usize::try_from(length).map_err(|_| io::Error::last_os_error())?);
    let refused = u16_at(&answer, 4).is_some_and(|kind| i32::from(kind) == libc::NLMSG_ERROR);
    if refused {
        let errno = u32_at(&answer, NETLINK_HEADER).unwrap_or_default().cast_signed();
        return Err(io::Error::from_raw_os_error(errno.wrapping_neg()));
    }
    Ok(answer)
}

/// What a link's description says it is linked to.
fn linked(answer: &[u8]) -> Option<VethPeer> {
    let attributes = answer.get(NETLINK_HEADER + LINK_HEADER..).unwrap_or_default();
    let peer = attribute(attributes, IFLA_LINK).and_then(|value| u32_at(value, 0));
    let same_namespace = attribute(attributes, IFLA_LINK_NETNSID).is_none();
    peer.filter(|index| *index != 0).map(|index| VethPeer { index, same_namespace })
}

/// The value of an attribute among others.
fn attribute(attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut at = 0;
    loop {
        let (length, kind) = (usize::from(u16_at(attributes, at)?), u16_at(attributes, at + 2)?);
        if length < 4 {
            return None;
        }
        if kind & NLA_TYPE == wanted {
            return attributes.get(at + 4..at + length);
        }
        at += length.next_multiple_of(4);
    }
}

/// How many queues of a tap somebody has open: attached, or detached for a while. Who they belong to the kernel does not say.
///
/// # Errors
/// `ENODEV` for no such interface, `InvalidData` for one that is no tap, or a kernel that does not tell (before Linux 4.17).
pub fn tap_queues(interface: &str) -> io::Result<u32> {
    let answer = ask_link(index(interface)?)?;
    tap_queues_in(&answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn tap_queues_in(answer: &[u8]) -> Option<u32> {
    let attributes = answer.get(NETLINK_HEADER + LINK_HEADER..)?;
    let data = attribute(attribute(attributes, IFLA_LINKINFO)?, IFLA_INFO_DATA)?;
    let count = |kind| attribute(data, kind).and_then(|value| u32_at(value, 0));
    Some(count(IFLA_TUN_NUM_QUEUES)?.saturating_add(count(IFLA_TUN_NUM_DISABLED_QUEUES).unwrap_or(0)))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// Opens an existing tap interface (of several queues) for a moment, to see whether that can be done. Not for a tap that somebody has
/// open: it changes how packets are framed there.
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN, `EINVAL` for an interface of another kind or a tap of one queue.
pub fn probe_tap(interface: &str) -> io::Result<()> {
    tap::attach(interface, 0).map(drop)
}

/// Removes a tap interface (of several queues) that is there though nobody has it open, with its addresses and routes. One that somebody
/// has open goes with them.
///
/// # Errors
/// As [`probe_tap`].
pub fn remove_tap(interface: &str) -> io::Result<()> {
    tap::remove(interface)
}

/// A process of this network namespace that has a tap interface open, as far as /proc lets one see, and as it is found in a tenth of a
/// second: whoever holds it may have as many files open as it likes, and files of which there is much to tell.
pub fn tap_holder(interface: &str) -> Option<u32> {
    const LONGEST: Duration = Duration::from_millis(100);
    let until = Instant::now() + LONGEST;
    let namespace = |process: &Path| fs::read_link(process.join("ns/net")).ok();
    let ours = namespace(Path::new("/proc/thread-self"))?;
    let line = format!("iff:\t{interface}\n");
    let holds = |descriptor: &Path| begins(descriptor).is_ok_and(|text| text.contains(&line));
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        // Threads of our own may be in other namespaces than the one that asks.
        if pid != std::process::id() && namespace(&entry.path())? != ours {
            return None;
        }
        let descriptors = fs::read_dir(entry.path().join("fdinfo")).ok()?.flatten();
        let mut descriptors = descriptors.take_while(|_| Instant::now() < until);
        descriptors.any(|descriptor| holds(&descriptor.path())).then_some(pid)
    })
}

/// The first lines of a file, which may be as long as somebody likes.
fn begins(path: &Path) -> io::Result<String> {
    const BYTES: u64 = 1024;
    let mut text = String::new();
    File::open(path)?.take(BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// The names of those `ip netns` namespaces that have an interface of this name. Namespaces that cannot be
/// entered are passed over.
pub fn named_namespaces_with(interface: &str) -> Vec<String> {
    namespaces_with(Path::new(NAMESPACES), interface)
}

fn namespaces_with(folder: &Path, interface: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let has_it = |path: &Path| {
        let file = File::open(path).ok()?;
        in_namespace(&file, || index(interface)).ok()?.ok()
    };
    let mut found: Vec<String> = entries
        .flatten()
        .filter(|entry| has_it(&entry.path()).is_some())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_known_by_name_and_index() {
        let index = index("lo").unwrap();
        assert_eq!(name_of(index).unwrap(), "lo");
        assert_eq!(super::index("no-such-if").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert!(name_of(u32::MAX >> 1).is_err() && is_up("no-such-if").is_err());
        assert_eq!(veth_peer("lo").unwrap(), None);
        assert!(ask_link(index).unwrap().len() > NETLINK_HEADER + LINK_HEADER);
        assert_eq!(ask_link(u32::MAX >> 1).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn a_link_is_read_from_its_attributes() {
        let answer = |attributes: &[(u16, u32)]| {
            let mut bytes = vec![0; NETLINK_HEADER + LINK_HEADER];
            for (kind, value) in attributes {
                bytes.extend(8u16.to_ne_bytes().into_iter().chain(kind.to_ne_bytes()));
                bytes.extend(value.to_ne_bytes());
            }
            bytes
        };
        let peer = |index, same_namespace| Some(VethPeer { index, same_namespace });
        assert_eq!(linked(&answer(&[(3, 1), (IFLA_LINK, 7)])), peer(7, true));
        assert_eq!(linked(&answer(&[(IFLA_LINK_NETNSID, 0), (IFLA_LINK, 7)])), peer(7, false));
        assert_eq!(linked(&answer(&[])), None);
        for length in 0..40 {
            let _ = linked(&answer(&[(IFLA_LINK, 7)])[..length]);
        }
    }

    #[test]
    fn the_open_queues_of_a_tap_are_read_from_its_attributes() {
        let nest = |kind: u16, parts: &[Vec<u8>]| {
            let value = parts.concat();
            let header = [(value.len() as u16 + 4).to_ne_bytes(), kind.to_ne_bytes()].concat();
            [header, value].concat()
        };
        let number = |kind: u16, value: u32| nest(kind, &[value.to_ne_bytes().to_vec()]);
        let tun = nest(IFLA_INFO_DATA | 0x8000, &[number(IFLA_TUN_NUM_QUEUES, 2), number(9, 1)]);
        let kind = nest(1, &[b"tun\0".to_vec()]);
        let whole = [vec![0; NETLINK_HEADER + LINK_HEADER], nest(IFLA_LINKINFO, &[kind, tun])].concat();
        assert_eq!(tap_queues_in(&whole), Some(3));
        for length in 0..whole.len() {
            let _ = tap_queues_in(&whole[..length]);
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut other = whole.clone();
                other[at] ^= 1 << bit;
                let _ = tap_queues_in(&other);
            }
        }
        assert_eq!(tap_queues("lo").unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_folder_without_namespaces_has_none() {
        assert!(namespaces_with(Path::new("/no/such/folder"), "lo").is_empty());
    }
}
