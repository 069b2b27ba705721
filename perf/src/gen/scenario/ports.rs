//! The ports of a scenario: the switch's own kinds, and any other device by its DPDK arguments.

use std::fmt::Display;

use serde::Deserialize;
use toml::Spanned;

use super::SourceText;
use crate::{Error, Result};

/// A port as the file has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PortSpec {
    pub name: Spanned<String>,
    pub kind: Spanned<PortKind>,
    /// memif: its socket.
    pub socket: Option<Spanned<String>>,
    /// memif: tells those of one socket apart.
    pub id: Option<Spanned<u32>>,
    /// memif: `server` or `client`.
    pub role: Option<Spanned<Role>>,
    /// vhost-user, virtio-user: the socket.
    pub path: Option<Spanned<String>>,
    /// vhost-user, virtio-user: this end makes the socket.
    pub server: Option<Spanned<bool>>,
    /// af-packet, tap: the interface.
    pub iface: Option<Spanned<String>>,
    /// pci: the address.
    pub address: Option<Spanned<String>>,
    /// pci: the driver's own arguments.
    pub devargs: Option<Spanned<String>>,
    /// vdev: as DPDK's `--vdev` takes it.
    pub vdev: Option<Spanned<String>>,
    /// Descriptors of its queues [default: 1024; memif: 4096].
    pub ring: Option<Spanned<u16>>,
    /// memif, pci, vdev: queues that are received from [default: 1]. Over shared memory a peer that sends on more than
    /// one, as OVS does on one for each of its threads, reaches only those that are there.
    pub queues: Option<Spanned<u16>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortKind {
    Memif,
    VhostUser,
    VirtioUser,
    AfPacket,
    Tap,
    Loopback,
    Pci,
    Vdev,
}

/// Which end of a memif.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    Server,
    Client,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attachment {
    /// A virtual device, its arguments, and whether it needs its peer to be there before it starts.
    Virtual {
        name: String,
        args: String,
    },
    Pci(String),
    Loopback,
}

/// The arguments of a memif; its client says how large the rings are.
pub fn memif(role: Role, id: u32, socket: impl Display, ring: u16) -> String {
    let (role, size) = match role {
        Role::Client => ("client", format!(",rsize={}", ring.ilog2())),
        Role::Server => ("server", String::new()),
    };
    format!("role={role},id={id},socket={socket},socket-abstract=no{size}")
}

/// The value of a key, or what is usual.
fn or<T: Copy>(key: &Option<Spanned<T>>, usual: T) -> T {
    key.as_ref().map_or(usual, |key| *key.get_ref())
}

/// Where a key is in the file, if it is there.
fn place<T>(key: &Option<Spanned<T>>) -> Option<usize> {
    key.as_ref().map(|key| key.span().start)
}

impl PortSpec {
    pub fn descriptors(&self) -> u16 {
        or(&self.ring, if *self.kind.get_ref() == PortKind::Memif { 4096 } else { 1024 })
    }

    pub fn rx_queues(&self) -> u16 {
        or(&self.queues, 1)
    }

    /// How it is attached; `index` tells the devices of this process apart.
    pub fn attachment(&self, index: usize, source: &SourceText) -> Result<Attachment> {
        self.refuse_foreign_keys(source)?;
        for (key, range, what) in [
            (&self.ring, 64..=16_384, "`ring` is not in 64 to 16384 descriptors; 4096 is a good number"),
            (&self.queues, 1..=64, "`queues` is not in 1 to 64; write as many as the other end sends on"),
        ] {
            if let Some(key) = key.as_ref().filter(|key| !range.contains(key.get_ref())) {
                return Err(source.at(key, what));
            }
        }
        let needed = |value, key| self.needed(value, key, source);
        let queue_size = self.descriptors();
        let (driver, args) = match self.kind.get_ref() {
            PortKind::Memif => {
                let (role, id) = (or(&self.role, Role::Server), or(&self.id, 0));
                ("memif_gen", memif(role, id, needed(&self.socket, "socket")?, queue_size))
            }
            PortKind::VhostUser => {
                let (path, client) = (needed(&self.path, "path")?, u8::from(!or(&self.server, true)));
                ("vhost", format!("iface={path},queues=1,client={client},tso=0"))
            }
            PortKind::VirtioUser => {
                let (path, server) = (needed(&self.path, "path")?, u8::from(or(&self.server, false)));
                ("virtio_user", format!("path={path},server={server},queues=1,queue_size={queue_size}"))
            }
            PortKind::AfPacket => ("af_packet", format!("iface={}", needed(&self.iface, "iface")?)),
            PortKind::Tap => ("tap", format!("iface={}", needed(&self.iface, "iface")?)),
            PortKind::Loopback => return Ok(Attachment::Loopback),
            PortKind::Pci => {
                let address = needed(&self.address, "address")?;
                let more = self.devargs.as_ref().map(|args| format!(",{}", args.get_ref()));
                return Ok(Attachment::Pci(format!("{address}{}", more.unwrap_or_default())));
            }
            PortKind::Vdev => {
                let text = self.vdev.as_ref().ok_or_else(|| self.missing("vdev", source))?;
                if !text.get_ref().starts_with("net_") {
                    let what = "a network device's name begins with its driver's, like net_ring0 or net_x0,key=value";
                    return Err(source.at(text, what));
                }
                let (name, args) = text.get_ref().split_once(',').unwrap_or((text.get_ref(), ""));
                return Ok(Attachment::Virtual { name: name.into(), args: args.into() });
            }
        };
        Ok(Attachment::Virtual { name: format!("net_{driver}{index}"), args })
    }

    fn missing(&self, key: &str, source: &SourceText) -> Error {
        source.at(&self.kind, format!("a port of this kind needs the key `{key}`; add it"))
    }

    fn needed<'a>(
        &self,
        value: &'a Option<Spanned<String>>,
        key: &str,
        source: &SourceText,
    ) -> Result<&'a str> {
        let value = value.as_ref().ok_or_else(|| self.missing(key, source))?;
        let text = value.get_ref();
        if text.is_empty() || text.contains(|c: char| c.is_control() || matches!(c, ',' | '[' | ']')) {
            let what =
                format!("`{key}` is empty or has a comma, a bracket or a control character; rename it");
            return Err(source.at(value, what));
        }
        Ok(text)
    }

    fn refuse_foreign_keys(&self, source: &SourceText) -> Result<()> {
        let given = [
            ("socket", place(&self.socket)),
            ("id", place(&self.id)),
            ("role", place(&self.role)),
            ("path", place(&self.path)),
            ("server", place(&self.server)),
            ("iface", place(&self.iface)),
            ("address", place(&self.address)),
            ("devargs", place(&self.devargs)),
            ("vdev", place(&self.vdev)),
            ("queues", place(&self.queues)),
        ];
        let own: &[&str] = match self.kind.get_ref() {
            PortKind::Memif => &["socket", "id", "role", "queues"],
            PortKind::VhostUser | PortKind::VirtioUser => &["path", "server"],
            PortKind::AfPacket | PortKind::Tap => &["iface"],
            PortKind::Loopback => &[],
            PortKind::Pci => &["address", "devargs", "queues"],
            PortKind::Vdev => &["vdev", "queues"],
        };
        for (key, at) in given {
            if let Some(at) = at.filter(|_| !own.contains(&key)) {
                let own = if own.is_empty() { "none".into() } else { own.join(", ") };
                let what = format!("a port of this kind has no key `{key}` (its keys: {own}); remove it");
                return Err(source.error(at, what));
            }
        }
        Ok(())
    }
}
