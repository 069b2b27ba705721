//! [`FrontEnd`]: the driver's end of a vhost-user socket, in the hands of the test: a well-behaved peer without a guest, or one that
//! sends what no monitor of a virtual machine would.
//!
//! The protocol is that of QEMU's docs/interop/vhost-user.rst, the rings are split virtqueues (VIRTIO 1.2 section 2.7). The memory that
//! is shared is a memfd, which this end reads and writes as a file.

pub mod honest;
pub mod siege;

use nix::errno::Errno;
use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, recv, sendmsg};
use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Numbers of messages.
pub mod message {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SEND_RARP: u32 = 19;
}

/// Virtio 1 and what lets the protocol's own features be negotiated; no offloads.
pub const PLAIN: u64 = 1 << 32 | 1 << 30;
/// With them unfinished checksums and super-frames, both ways, and buffers that are chained for them.
pub const OFFLOADS: u64 = PLAIN | 1 << 15 | 1 | 1 << 1 | 1 << 7 | 1 << 8 | 1 << 11 | 1 << 12;

/// Several queues, announcements for guests that have migrated, and a reply to each message that asks for one.
const PROTOCOL: u64 = 1 | 1 << 2 | 1 << 3;
const VERSION: u32 = 1;
const NEEDS_REPLY: u32 = 8;

/// Slots of a ring.
pub const SLOTS: u16 = 64;
/// Bytes in front of a frame: `struct virtio_net_hdr_v1`.
const HEADER: usize = 12;
/// Bytes of a buffer.
const BUFFER: u64 = 2048;
/// Where the buffers of the first ring begin; those of each ring follow those of the one before.
const BUFFERS: u64 = 0x1_0000;
/// Bytes that are shared: room for four rings.
pub const MEMORY: u64 = BUFFERS + 4 * SLOTS as u64 * BUFFER;
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes that a vast peer shares.
pub const VAST: u64 = 256 << 20;
/// Descriptors of its first ring, the most that the switch takes.
pub const LARGE: u16 = 1024;
/// Where that ring is: descriptors, available ring, used ring.
pub const FAR: [u64; 3] = [0x100_0000, 0x110_0000, 0x120_0000];

/// Where the parts of a ring are: descriptors, available ring, used ring.
fn parts(ring: u32) -> [u64; 3] {
    let base = u64::from(ring) * 0x3000;
    [base, base + 0x1000, base + 0x2000]
}

fn buffer(ring: u32, slot: u16) -> u64 {
    BUFFERS + (u64::from(ring) * u64::from(SLOTS) + u64::from(slot)) * BUFFER
}

/// One end of a vhost-user socket.
#[derive(Debug)]
pub struct FrontEnd {
    socket: UnixStream,
    /// What is shared.
    pub memory: File,
    /// What the switch notifies us by.
    pub calls: Vec<EventFd>,
    /// How far each ring is used, by us.
    next: [u16; 4],
}

impl FrontEnd {
    /// Connects, and says nothing yet.
    ///
    /// # Errors
    /// What the kernel says: nobody listens.
    pub fn connect(path: &Path) -> io::Result<FrontEnd> {
        Self::on(UnixStream::connect(path)?)
    }

    /// The peer of a switch that connected to us, or that we connected to; it says nothing yet.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn on(socket: UnixStream) -> io::Result<FrontEnd> {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let memory = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC)?);
        memory.set_len(MEMORY)?;
        Ok(FrontEnd { socket, memory, calls: Vec::new(), next: [0; 4] })
    }

    /// A peer of one queue pair that can be talked to.
    ///
    /// # Errors
    /// The step that the switch did not take.
    pub fn ready(path: &Path, features: u64) -> io::Result<FrontEnd> {
        Self::ready_on(UnixStream::connect(path)?, features)
    }

    /// As [`ready`](Self::ready), of a switch that is connected already.
    ///
    /// # Errors
    /// As of [`ready`](Self::ready).
    pub fn ready_on(socket: UnixStream, features: u64) -> io::Result<FrontEnd> {
        let mut peer = FrontEnd::on(socket)?;
        peer.agree(features)?;
        peer.share(MEMORY)?;
        for ring in 0..2 {
            peer.set_up(ring)?;
        }
        for ring in 0..2 {
            peer.numbers(message::SET_VRING_ENABLE, [ring, 1])?;
        }
        Ok(peer)
    }

    /// A peer of one queue pair with a lot of memory, of which nothing is there until it is written, whose first ring has
    /// [`LARGE`] descriptors and no buffers yet: they are at [`FAR`].
    ///
    /// # Errors
    /// As of [`ready`](Self::ready).
    pub fn vast(path: &Path, features: u64) -> io::Result<FrontEnd> {
        let mut peer = FrontEnd::connect(path)?;
        peer.memory.set_len(VAST)?;
        peer.agree(features)?;
        peer.share(VAST)?;
        peer.size(0, u32::from(LARGE))?;
        peer.numbers(message::SET_VRING_BASE, [0, 0])?;
        peer.place(0, FAR)?;
        peer.tell_files(0)?;
        peer.set_up(1)?;
        for ring in 0..2 {
            peer.numbers(message::SET_VRING_ENABLE, [ring, 1])?;
        }
        Ok(peer)
    }

    /// Whether the switch has closed its end.
    pub fn is_hung_up(&self) -> bool {
        let mut byte = [0];
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        match recv(self.socket.as_raw_fd(), &mut byte, flags) {
            Ok(read) => read == 0,
            Err(error) => error != Errno::EAGAIN,
        }
    }

    /// Sends a message as it is.
    ///
    /// # Errors
    /// What the kernel says: the switch hung up.
    pub fn send_raw(
        &self,
        number: u32,
        flags: u32,
        size: u32,
        payload: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let header: Vec<u8> = [number, flags, size].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let parts = [IoSlice::new(&header), IoSlice::new(payload)];
        let files: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
        let control = [ControlMessage::ScmRights(&files)];
        let control = if files.is_empty() { &[][..] } else { &control[..] };
        sendmsg::<()>(self.socket.as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None)?;
        Ok(())
    }

    /// Sends a message and waits until the switch has handled it.
    ///
    /// # Errors
    /// The switch refused it, or hung up.
    pub fn tell(&self, number: u32, payload: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_raw(number, VERSION | NEEDS_REPLY, payload.len() as u32, payload, files)?;
        match self.reply()? {
            0 => Ok(()),
            _ => Err(io::Error::other(format!("message {number} was refused"))),
        }
    }

    /// Asks for a number.
    ///
    /// # Errors
    /// The switch hung up.
    pub fn ask(&self, number: u32, payload: &[u8]) -> io::Result<u64> {
        self.send_raw(number, VERSION, payload.len() as u32, payload, &[])?;
        self.reply()
    }

    fn reply(&self) -> io::Result<u64> {
        let mut bytes = [0; 20];
        (&self.socket).read_exact(&mut bytes)?;
        Ok(u64::from_ne_bytes(bytes[12..].try_into().map_err(io::Error::other)?))
    }

    fn numbers(&self, number: u32, numbers: [u32; 2]) -> io::Result<()> {
        let payload: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        self.tell(number, &payload, &[])
    }

    /// Agrees on features.
    ///
    /// # Errors
    /// As of [`tell`](Self::tell); the switch does not offer them.
    pub fn agree(&self, features: u64) -> io::Result<()> {
        let offered = self.ask(message::GET_FEATURES, &[])?;
        if offered & features != features {
            return Err(io::Error::other(format!("{:#x} is not offered", features & !offered)));
        }
        // Whether replies may be asked for is agreed on with these.
        self.send_raw(message::SET_OWNER, VERSION, 0, &[], &[])?;
        self.send_raw(message::SET_FEATURES, VERSION, 8, &features.to_ne_bytes(), &[])?;
        self.ask(message::GET_PROTOCOL_FEATURES, &[])?;
        self.send_raw(message::SET_PROTOCOL_FEATURES, VERSION, 8, &PROTOCOL.to_ne_bytes(), &[])
    }

    /// Shares so many bytes, as the guest's memory from address 0 on.
    ///
    /// # Errors
    /// As of [`tell`](Self::tell).
    pub fn share(&self, bytes: u64) -> io::Result<()> {
        let payload: Vec<u8> = [1, 0, bytes, 0, 0].iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        self.tell(message::SET_MEM_TABLE, &payload, &[self.memory.as_fd()])
    }

    /// Tells of a ring: where it is, and by what we notify each other.
    ///
    /// # Errors
    /// As of [`tell`](Self::tell).
    pub fn set_up(&mut self, ring: u32) -> io::Result<()> {
        self.size(ring, u32::from(SLOTS))?;
        self.numbers(message::SET_VRING_BASE, [ring, 0])?;
        self.place(ring, parts(ring))?;
        self.tell_files(ring)?;
        if ring.is_multiple_of(2) {
            (0..SLOTS).try_for_each(|slot| self.give(ring, slot))?;
        }
        Ok(())
    }

    /// Tells how many descriptors a ring has.
    ///
    /// # Errors
    /// As of [`tell`](Self::tell).
    pub fn size(&self, ring: u32, descriptors: u32) -> io::Result<()> {
        self.numbers(message::SET_VRING_NUM, [ring, descriptors])
    }

    fn tell_files(&mut self, ring: u32) -> io::Result<()> {
        let (call, kick) = (EventFd::new()?, EventFd::new()?);
        for (number, file) in [(message::SET_VRING_CALL, &call), (message::SET_VRING_KICK, &kick)] {
            self.tell(number, &u64::from(ring).to_ne_bytes(), &[file.as_fd()])?;
        }
        self.calls.push(call);
        Ok(())
    }

    /// Tells where the parts of a ring are.
    ///
    /// # Errors
    /// As of [`tell`](Self::tell).
    pub fn place(&self, ring: u32, [descriptors, available, used]: [u64; 3]) -> io::Result<()> {
        let mut payload: Vec<u8> = [ring, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        payload.extend([descriptors, used, available, 0].iter().flat_map(|word| word.to_ne_bytes()));
        self.tell(message::SET_VRING_ADDR, &payload, &[])
    }

    /// Gives the switch the buffer of a slot to write into.
    fn give(&mut self, ring: u32, slot: u16) -> io::Result<()> {
        const WRITE: u16 = 2;
        self.describe(ring, slot, buffer(ring, slot), BUFFER as u32, WRITE, 0)?;
        self.offer(ring, slot)
    }

    /// Writes a descriptor.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn describe(
        &self,
        ring: u32,
        slot: u16,
        address: u64,
        length: u32,
        flags: u16,
        next: u16,
    ) -> io::Result<()> {
        let mut bytes = address.to_ne_bytes().to_vec();
        bytes.extend(length.to_ne_bytes());
        bytes.extend([flags, next].iter().flat_map(|word| word.to_ne_bytes()));
        self.memory.write_all_at(&bytes, parts(ring)[0] + 16 * u64::from(slot))
    }

    /// Makes a chain that begins with a descriptor available.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn offer(&mut self, ring: u32, slot: u16) -> io::Result<()> {
        let (available, index) = (parts(ring)[1], self.next[ring as usize]);
        self.memory.write_all_at(&slot.to_ne_bytes(), available + 4 + 2 * u64::from(index % SLOTS))?;
        self.next[ring as usize] = index.wrapping_add(1);
        self.set_available(ring, index.wrapping_add(1))
    }

    /// Writes how far the available ring is filled.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_available(&self, ring: u32, index: u16) -> io::Result<()> {
        self.memory.write_all_at(&index.to_ne_bytes(), parts(ring)[1] + 2)
    }

    fn used(&self, ring: u32) -> io::Result<u16> {
        let mut bytes = [0; 2];
        self.memory.read_exact_at(&mut bytes, parts(ring)[2] + 2)?;
        Ok(u16::from_ne_bytes(bytes))
    }

    /// Sends a frame on the first pair of queues.
    ///
    /// # Errors
    /// What the kernel says; `WouldBlock` when the switch has not taken what was sent before.
    pub fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.send_with(&[0; HEADER], frame)
    }

    /// As [`send`](Self::send), with another header in front.
    ///
    /// # Errors
    /// As of [`send`](Self::send).
    pub fn send_with(&mut self, header: &[u8], frame: &[u8]) -> io::Result<()> {
        const RING: u32 = 1;
        let slot = self.next[RING as usize];
        if slot.wrapping_sub(self.used(RING)?) >= SLOTS {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let slot = slot % SLOTS;
        let packet = [header, frame].concat();
        self.memory.write_all_at(&packet, buffer(RING, slot))?;
        self.describe(RING, slot, buffer(RING, slot), packet.len() as u32, 0, 0)?;
        self.offer(RING, slot)
    }

    /// The frames that have come, of at most the size of a buffer; their buffers are given back.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn receive(&mut self) -> io::Result<Vec<Vec<u8>>> {
        const RING: u32 = 0;
        let mut frames = Vec::new();
        loop {
            // All buffers were given once, and each again when it was taken.
            let seen = self.next[RING as usize].wrapping_sub(SLOTS);
            if self.used(RING)? == seen {
                return Ok(frames);
            }
            let mut element = [0; 8];
            self.memory.read_exact_at(&mut element, parts(RING)[2] + 4 + 8 * u64::from(seen % SLOTS))?;
            let word = |at: usize| {
                u32::from_ne_bytes([element[at], element[at + 1], element[at + 2], element[at + 3]])
            };
            let (slot, length) = (word(0) as u16, word(4) as usize);
            let mut frame = vec![0; length.saturating_sub(HEADER)];
            self.memory.read_exact_at(&mut frame, buffer(RING, slot) + HEADER as u64)?;
            frames.push(frame);
            self.give(RING, slot)?;
        }
    }
}

/// An IPv4 datagram of UDP in an Ethernet frame, whose payload is a number. Neither has its checksum left out.
pub fn datagram(from: Station, to: Station, number: u32) -> Vec<u8> {
    let mut frame = [to.mac(), from.mac()].concat();
    frame.extend([0x08, 0x00, 0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend([from.address(), to.address()].concat());
    let sum = checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    let pseudo = [&frame[26..34], &[0, 17, 0, 12]].concat();
    frame.extend([0x10, 0x00, 0x10, 0x01, 0, 12, 0, 0]);
    frame.extend(number.to_be_bytes());
    let sum = checksum(&[&pseudo, &frame[34..]].concat());
    frame[40..42].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
    frame
}

/// The Internet checksum (RFC 1071).
/// Who has the address of a station? (RFC 826)
pub fn arp_request(from: Station, of: Station) -> Vec<u8> {
    const REQUEST: [u8; 10] = [0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1];
    [&[0xff; 6][..], &from.mac(), &REQUEST, &from.mac(), &from.address(), &[0; 6], &of.address()].concat()
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum = words.sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) as u16 + (sum >> 16) as u16)
}

/// A vNIC by its number: what it is called by others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Station(pub u16);

impl Station {
    /// Its MAC address.
    pub fn mac(self) -> [u8; 6] {
        let [high, low] = self.0.to_be_bytes();
        [0x02, 0, 0, 0x0a, high, low]
    }

    fn address(self) -> [u8; 4] {
        let [high, low] = self.0.to_be_bytes();
        [10, 0, high, low]
    }

    /// Its name in the config.
    pub fn name(self) -> String {
        format!("v{}", self.0)
    }

    /// Its lines of the config, in that VPC, with a socket in that folder that the switch makes.
    pub fn vnic(self, vpc: &str, folder: &Path) -> String {
        self.vnic_by(vpc, folder, true)
    }

    /// As [`vnic`](Self::vnic), with a socket that the switch makes, or that it connects to.
    pub fn vnic_by(self, vpc: &str, folder: &Path, server: bool) -> String {
        let mac = self.mac().map(|byte| format!("{byte:02x}")).join(":");
        let [a, b, c, d] = self.address();
        format!(
            "[[vnic]]\nname = \"{}\"\nvpc = \"{vpc}\"\nmac = \"{mac}\"\nvips = [\"{a}.{b}.{c}.{d}\"]\n\
             port = {{ kind = \"vhost-user\", path = \"{}\", server = {server} }}\n",
            self.name(),
            self.socket(folder).display()
        )
    }

    /// Its socket.
    pub fn socket(self, folder: &Path) -> std::path::PathBuf {
        folder.join(format!("{}.sock", self.name()))
    }
}

/// The number that a [`datagram`] carries; `None` for anything else.
pub fn number_of(frame: &[u8]) -> Option<u32> {
    (frame.len() >= 46 && frame[12..14] == [0x08, 0x00] && frame[23] == 17)
        .then(|| u32::from_be_bytes([frame[42], frame[43], frame[44], frame[45]]))
}
