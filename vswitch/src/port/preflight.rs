//! Checks before a driver is asked: drivers refuse in words of their own, or do not refuse at all.
//!
//! Looks, and removes stale sockets; makes nothing.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use super::Opening;
use super::error::OpenError;
use super::interface::Interface;

/// A capability of a process (capabilities(7)).
pub(super) struct Capability {
    name: &'static str,
    /// Its bit in a set of capabilities.
    bit: u32,
}

/// To make interfaces and change them.
pub(super) const NET_ADMIN: Capability = Capability { name: "CAP_NET_ADMIN", bit: 12 };
/// To enter network namespaces.
pub(super) const SYS_ADMIN: Capability = Capability { name: "CAP_SYS_ADMIN", bit: 21 };
/// To open packet sockets.
pub(super) const NET_RAW: Capability = Capability { name: "CAP_NET_RAW", bit: 13 };

/// How long a listener gets to answer before it counts as alive and busy.
const CONNECT_WAIT: Duration = Duration::from_secs(1);
/// The longest path of a Unix socket.
const LONGEST_SOCKET: usize = 107;

/// The effective capabilities of this process, a bit each, where the kernel says.
pub(crate) fn effective_capabilities() -> Option<u64> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

/// This process has a capability that ports of a kind need.
pub(super) fn capable(kind: &'static str, needed: Capability) -> Result<(), OpenError> {
    // Where the kernel does not say, the driver will.
    match effective_capabilities() {
        Some(set) if set & (1 << needed.bit) == 0 => {
            Err(OpenError::Capability { kind, capability: needed.name })
        }
        _ => Ok(()),
    }
}

/// The interface exists in this network namespace and is up.
fn interface_up(iface: &str) -> Result<Interface, OpenError> {
    let interface = Interface::named(iface)?;
    match pmd::interface::is_up(iface) {
        Ok(false) => Err(OpenError::InterfaceDown { iface: iface.into() }),
        _ => Ok(interface),
    }
}

/// The interface exists and is up, and is the port's own from here on, under whatever name.
pub(super) fn own_interface(iface: &str, opening: &mut Opening<'_>) -> Result<Interface, OpenError> {
    opening.take(format!("interface {iface}"))?;
    let interface = interface_up(iface)?;
    opening.take(format!("interface number {}", interface.index()))?;
    Ok(interface)
}

/// So many packet sockets may be opened on an interface, which is the port's [own](own_interface).
pub(super) fn packet_socket(
    kind: &'static str,
    iface: &str,
    queues: u16,
    opening: &mut Opening<'_>,
) -> Result<Interface, OpenError> {
    /// The limit of DPDK's driver, and a sensible one without it: the kernel has 256 sockets in a fanout group at most.
    const MAX_QUEUES: u16 = 16;
    capable(kind, NET_RAW)?;
    let interface = own_interface(iface, opening)?;
    if queues > MAX_QUEUES {
        return Err(OpenError::Value {
            key: "queues",
            value: queues.to_string(),
            why: "is more than the driver has; write at most 16",
        });
    }
    Ok(interface)
}

/// The interface, unless it is promiscuous already: what a port made so, it makes undone.
pub(super) fn calm_interface(interface: Interface) -> Option<Interface> {
    let is_calm = pmd::interface::is_promiscuous(interface.name()).is_ok_and(|promiscuous| !promiscuous);
    is_calm.then_some(interface)
}

/// The MTU of an interface.
pub(super) fn interface_mtu(iface: &str) -> Result<u32, OpenError> {
    pmd::process::interface_mtu(iface).map_err(|source| OpenError::Interface {
        iface: iface.into(),
        operation: "read its MTU".into(),
        source,
    })
}

/// The path can be a socket's; true when a socket is there.
fn socket_at(path: &Path) -> Result<bool, OpenError> {
    let length = path.as_os_str().len();
    if length > LONGEST_SOCKET {
        return Err(OpenError::SocketPathLength { path: path.to_string_lossy().into_owned(), length });
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        return Err(OpenError::NoFolder { path: path.into(), folder: folder.into() });
    }
    let Ok(metadata) = fs::metadata(path) else { return Ok(false) };
    let what = match metadata.file_type() {
        kind if kind.is_socket() => return Ok(true),
        kind if kind.is_dir() => "a folder",
        kind if kind.is_file() => "a regular file",
        _ => "a device",
    };
    Err(OpenError::NotASocket { path: path.into(), what })
}

/// True when somebody listens: connects and leaves. A listener with a full queue lets one wait: from a thread.
fn answers(path: &Path) -> bool {
    let (send, receive) = mpsc::channel();
    let to: PathBuf = path.into();
    let connect = move || {
        let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        let live = UnixStream::connect(to).map_or_else(|error| !refused(&error), |_| true);
        // Nobody waits any more: the listener was slow.
        let _ = send.send(live);
    };
    if std::thread::Builder::new().name("socket-probe".into()).spawn(connect).is_err() {
        return true;
    }
    receive.recv_timeout(CONNECT_WAIT).unwrap_or(true)
}

/// A socket can be made there. A stale one is removed.
pub(super) fn socket_to_serve(path: &Path) -> Result<(), OpenError> {
    if !socket_at(path)? {
        return Ok(());
    }
    if answers(path) {
        return Err(OpenError::SocketLive { path: path.into(), other: "client" });
    }
    tracing::info!(path = %path.display(), "removing a stale socket: nobody listens on it");
    fs::remove_file(path).map_err(|source| OpenError::File { key: "path", path: path.into(), source })
}

/// A socket is there, or can come to be. It is not connected to: a server of one connection would take the
/// question for its client.
pub(super) fn socket_to_await(path: &Path) -> Result<(), OpenError> {
    if !socket_at(path)? {
        let path = path.display();
        tracing::info!(%path, "nobody serves this socket yet; the port comes up when somebody does");
    }
    Ok(())
}

/// A socket is there. It is not connected to, for the same reason.
pub(super) fn socket_to_join(path: &Path) -> Result<(), OpenError> {
    if socket_at(path)? { Ok(()) } else { Err(OpenError::NobodyListens { path: path.into() }) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("preflight-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_served_socket_replaces_a_stale_one_and_nothing_else() {
        let folder = folder("serve");
        let path = folder.join("s");
        socket_to_serve(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        let error = socket_to_serve(&path).unwrap_err();
        assert!(matches!(error, OpenError::SocketLive { .. }), "{error}");
        drop(listener);
        assert!(path.exists());
        socket_to_serve(&path).unwrap();
        assert!(!path.exists());
        fs::write(&path, "precious").unwrap();
        let error = socket_to_serve(&path).unwrap_err().to_string();
        assert!(error.contains("a regular file") && error.contains("left alone"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        fs::remove_dir_all(&folder).unwrap();
        let error = socket_to_serve(&path).unwrap_err().to_string();
        assert!(error.contains("mkdir -p"), "{error}");
    }

    #[test]
    fn a_joined_socket_is_there_and_is_one() {
        let folder = folder("join");
        let path = folder.join("s");
        assert!(matches!(socket_to_join(&path), Err(OpenError::NobodyListens { .. })));
        fs::write(&path, "").unwrap();
        assert!(matches!(socket_to_join(&path), Err(OpenError::NotASocket { .. })));
        assert!(matches!(socket_to_join(&folder), Err(OpenError::NotASocket { what: "a folder", .. })));
        let long = folder.join("x".repeat(200));
        assert!(matches!(socket_to_join(&long), Err(OpenError::SocketPathLength { .. })));
        assert!(matches!(socket_to_await(&long), Err(OpenError::SocketPathLength { .. })));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn interfaces_are_looked_up() {
        if let Err(error) = interface_up("lo") {
            assert!(matches!(error, OpenError::InterfaceDown { .. }));
        }
        let error = interface_up("no-such-if").unwrap_err().to_string();
        assert!(error.contains("no-such-if") && error.contains("ip link"), "{error}");
        assert!(interface_mtu("lo").unwrap() >= 1500);
    }
}
