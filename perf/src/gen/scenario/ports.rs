//! The ports of a scenario: the switch's own kinds, and any other device by its DPDK arguments.

use std::fmt::Display;

use serde::Deserialize;
use toml::Spanned;

use super::{ScenarioError, SourceText};

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

impl PortSpec {
    pub fn descriptors(&self) -> u16 {
        let usual = if *self.kind.get_ref() == PortKind::Memif { 4096 } else { 1024 };
        self.ring.as_ref().map_or(usual, |ring| *ring.get_ref())
    }

    pub fn rx_queues(&self) -> u16 {
        self.queues.as_ref().map_or(1, |queues| *queues.get_ref())
    }

    /// How it is attached; `index` tells the devices of this process apart.
    pub fn attachment(&self, index: usize, source: &SourceText) -> Result<Attachment, ScenarioError> {
        self.refuse_foreign_keys(source)?;
        let virtual_device =
            |driver: &str, args: String| Attachment::Virtual { name: format!("net_{driver}{index}"), args };
        if let Some(ring) = &self.ring
            && !(64..=16_384).contains(ring.get_ref())
        {
            return Err(source.at(ring, "`ring` is not in 64 to 16384 descriptors; 4096 is a good number"));
        }
        if let Some(queues) = &self.queues
            && !(1..=64).contains(queues.get_ref())
        {
            let what = "`queues` is not in 1 to 64; write as many as the other end sends on";
            return Err(source.at(queues, what));
        }
        let queue_size = self.descriptors();
        Ok(match self.kind.get_ref() {
            PortKind::Memif => {
                let socket = self.needed(&self.socket, "socket", source)?;
                let id = self.id.as_ref().map_or(0, |id| *id.get_ref());
                let role = self.role.as_ref().map_or(Role::Server, |role| *role.get_ref());
                virtual_device("memif_gen", memif(role, id, socket, queue_size))
            }
            PortKind::VhostUser => {
                let path = self.needed(&self.path, "path", source)?;
                let server = self.server.as_ref().is_none_or(|server| *server.get_ref());
                virtual_device("vhost", format!("iface={path},queues=1,client={},tso=0", u8::from(!server)))
            }
            PortKind::VirtioUser => {
                let path = self.needed(&self.path, "path", source)?;
                let server = self.server.as_ref().is_some_and(|server| *server.get_ref());
                let server = u8::from(server);
                virtual_device(
                    "virtio_user",
                    format!("path={path},server={server},queues=1,queue_size={queue_size}"),
                )
            }
            PortKind::AfPacket => {
                let iface = self.needed(&self.iface, "iface", source)?;
                virtual_device("af_packet", format!("iface={iface}"))
            }
            PortKind::Tap => {
                let iface = self.needed(&self.iface, "iface", source)?;
                virtual_device("tap", format!("iface={iface}"))
            }
            PortKind::Loopback => Attachment::Loopback,
            PortKind::Pci => {
                let address = self.needed(&self.address, "address", source)?;
                let more = self.devargs.as_ref().map(|args| format!(",{}", args.get_ref()));
                Attachment::Pci(format!("{address}{}", more.unwrap_or_default()))
            }
            PortKind::Vdev => {
                let text = match &self.vdev {
                    Some(text) if text.get_ref().starts_with("net_") => text.get_ref(),
                    Some(text) => {
                        let what = "a network device's name begins with its driver's, like net_ring0 or net_x0,key=value";
                        return Err(source.at(text, what));
                    }
                    None => return Err(self.missing("vdev", source)),
                };
                let (name, args) = text.split_once(',').unwrap_or((text, ""));
                Attachment::Virtual { name: name.into(), args: args.into() }
            }
        })
    }

    fn missing(&self, key: &str, source: &SourceText) -> ScenarioError {
        source.at(&self.kind, format!("a port of this kind needs the key `{key}`; add it"))
    }

    fn needed<'a>(
        &self,
        value: &'a Option<Spanned<String>>,
        key: &str,
        source: &SourceText,
    ) -> Result<&'a str, ScenarioError> {
        let value = value.as_ref().ok_or_else(|| self.missing(key, source))?;
        let text = value.get_ref();
        if text.is_empty() || text.contains(|c: char| c.is_control() || matches!(c, ',' | '[' | ']')) {
            let what =
                format!("`{key}` is empty or has a comma, a bracket or a control character; rename it");
            return Err(source.at(value, what));
        }
        Ok(text)
    }

    fn refuse_foreign_keys(&self, source: &SourceText) -> Result<(), ScenarioError> {
        let start = |key: &Option<Spanned<String>>| key.as_ref().map(|key| key.span().start);
        let given = [
            ("socket", start(&self.socket)),
            ("id", self.id.as_ref().map(|id| id.span().start)),
            ("role", self.role.as_ref().map(|role| role.span().start)),
            ("path", start(&self.path)),
            ("server", self.server.as_ref().map(|server| server.span().start)),
            ("iface", start(&self.iface)),
            ("address", start(&self.address)),
            ("devargs", start(&self.devargs)),
            ("vdev", start(&self.vdev)),
            ("queues", self.queues.as_ref().map(|queues| queues.span().start)),
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
