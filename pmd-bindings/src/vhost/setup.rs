//! [`Setup`]: how far a peer is with its memory and its rings, and what it may say next.
//!
//! The library believes the process at the other end: it looks whether a ring is in the guest's memory when it is told where, not
//! when the ring grows; it unmaps memory before it knows that there is other memory; it uses rings that never got a size. Whoever
//! took over a monitor, or wrote one, could have it write where he likes. What it does not check is checked here, before it does
//! anything, and what no monitor of a network device says is refused.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use super::message::{self, Message};
use super::notify::CallFile;
use super::{MAX_RING, feature, files, trial};

/// Regions of a guest's memory at most (`VHOST_MEMORY_MAX_NREGIONS`).
const MOST_REGIONS: usize = 8;
/// Virtqueues that a guest has without VIRTIO_NET_F_MQ.
const FIRST_PAIR: u16 = 2;

/// A part of a guest's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    /// Where the guest has it.
    pub guest: u64,
    /// Where the monitor does.
    pub monitor: u64,
    /// Where we do.
    pub here: u64,
    pub size: u64,
}

/// What a peer has said of a virtqueue since it was last stopped.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ring {
    /// Descriptors; 0 before it was said.
    pub size: u16,
    /// Where it begins was said for this size.
    pub has_base: bool,
    /// Where its descriptors and its available ring are, by the monitor's addresses.
    pub places: Option<[u64; 2]>,
}

#[derive(Debug, Default)]
pub(super) struct Setup {
    features: u64,
    /// None while they change.
    pub regions: Vec<Region>,
    pub rings: BTreeMap<u16, Ring>,
    /// The library is about to map memory that it should be able to map.
    maps: bool,
}

impl Setup {
    fn is_packed(&self) -> bool {
        self.features & feature::RING_PACKED != 0
    }

    /// Whether the guest has no more than the first pair of rings, as was agreed on.
    pub fn has_one_pair(&self) -> bool {
        self.features & feature::MQ == 0
    }

    fn ring(&self, message: &Message) -> Ring {
        self.rings.get(&message.ring()).copied().unwrap_or_default()
    }

    /// Whether the library could not do what was let through, and has unmapped the memory that its rings are in.
    pub fn is_lost(&self) -> bool {
        self.maps
    }

    /// Whether the library may do what a message asks for.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&mut self, message: &Message) -> Result<(), &'static str> {
        if message.length() < needed(message.number()).ok_or("no network device is asked for it")? {
            return Err("it is shorter than its kind is");
        }
        check_files(message)?;
        match message.number() {
            message::SET_FEATURES => self.check_features(message.word(0)),
            message::RESET_OWNER if self.rings.values().any(|ring| ring.size > 0) => {
                Err("its rings were not stopped")
            }
            message::SET_MEM_TABLE => {
                check_memory(message)?;
                self.regions.clear();
                self.maps = true;
                Ok(())
            }
            message::SET_VRING_NUM => self.check_size(self.ring(message), message.half(1)),
            message::SET_VRING_BASE if self.is_packed() => {
                let inside = message.half(1) & 0x7fff < u32::from(self.ring(message).size);
                inside.then_some(()).ok_or("a packed ring begins behind its end")
            }
            message::SET_VRING_ADDR if self.ring(message).size == 0 => Err("the ring has no size"),
            message::SET_VRING_KICK => self.check_start(message),
            _ => Ok(()),
        }
    }

    /// What the library keeps of a ring is as large as its format and its features say.
    fn check_features(&self, features: u64) -> Result<(), &'static str> {
        const LAYOUT: u64 = feature::RING_PACKED | feature::EVENT_IDX;
        let changes = (self.features ^ features) & LAYOUT != 0;
        if changes && self.rings.values().any(|ring| ring.size > 0) {
            return Err("another format for rings that were not stopped");
        }
        Ok(())
    }

    fn check_size(&self, ring: Ring, size: u32) -> Result<(), &'static str> {
        if size > MAX_RING {
            return Err(
                "a ring is larger than 1024 descriptors: give it smaller ones (rx_queue_size and tx_queue_size of QEMU, \
                 queue_size of virtio-user)",
            );
        }
        if size == 0 || !self.is_packed() && !size.is_power_of_two() {
            return Err("a ring has no such size");
        }
        if ring.places.is_some() && size != u32::from(ring.size) {
            return Err("a ring is to grow or to shrink that has its place, and was not stopped");
        }
        Ok(())
    }

    /// Of a ring that is used from then on.
    fn check_start(&self, message: &Message) -> Result<(), &'static str> {
        let ring = self.ring(message);
        if ring.size == 0 {
            return Err("the ring has no size");
        }
        if self.is_packed() && !ring.has_base {
            return Err("nothing says where the packed ring begins");
        }
        // The library frees them under its users when other features change.
        if message.ring() >= FIRST_PAIR && self.features & feature::MQ == 0 {
            return Err("several pairs of rings were not agreed on");
        }
        Ok(())
    }

    /// The library has done what a message asks for. The memory that it mapped, the caller tells.
    pub fn done(&mut self, message: &Message) {
        match message.number() {
            message::SET_FEATURES => {
                self.features = message.word(0);
                if self.features & feature::MQ == 0 {
                    self.rings.retain(|number, _| *number < FIRST_PAIR);
                }
            }
            message::SET_MEM_TABLE => self.maps = false,
            message::RESET_OWNER => *self = Self::default(),
            message::GET_VRING_BASE => {
                self.rings.remove(&message.ring());
            }
            message::SET_VRING_NUM => {
                let places = self.ring(message).places;
                let ring = Ring { size: message.half(1) as u16, has_base: false, places };
                self.rings.insert(message.ring(), ring);
            }
            message::SET_VRING_BASE => self.rings.entry(message.ring()).or_default().has_base = true,
            message::SET_VRING_ADDR => {
                // Behind number and flags: descriptors, used ring, available ring.
                let places = Some([message.word(1), message.word(3)]);
                self.rings.entry(message.ring()).or_default().places = places;
            }
            _ => {}
        }
    }
}

/// Bytes of the payload of a message that a network device is asked for; `None` for any other.
fn needed(number: u32) -> Option<usize> {
    const RING_AND_NUMBER: usize = 8;
    Some(match number {
        message::GET_FEATURES
        | message::SET_OWNER
        | message::RESET_OWNER
        | message::GET_PROTOCOL_FEATURES
        | message::GET_QUEUE_NUM
        | message::SET_LOG_FD
        | message::SET_BACKEND_REQ_FD
        | message::GET_STATUS => 0,
        // The head of the table.
        message::SET_MEM_TABLE => 8,
        message::SET_LOG_BASE => 16,
        message::SET_VRING_NUM
        | message::SET_VRING_BASE
        | message::GET_VRING_BASE
        | message::SET_VRING_ENABLE => RING_AND_NUMBER,
        message::SET_VRING_ADDR => 40,
        message::SET_FEATURES
        | message::SET_PROTOCOL_FEATURES
        | message::SET_VRING_KICK
        | message::SET_VRING_CALL
        | message::SET_VRING_ERR
        | message::SEND_RARP
        | message::NET_SET_MTU
        | message::SET_STATUS => 8,
        _ => return None,
    })
}

/// Whether the files of a message are what its kind is for. The library closes them, and notifies by some, while workers wait for it, and
/// all other peers: closing a file of any other kind may take as long as the peer likes.
fn check_files(message: &Message) -> Result<(), &'static str> {
    let (is_good, why): (fn(BorrowedFd<'_>) -> bool, _) = match message.number() {
        message::SET_MEM_TABLE | message::SET_LOG_BASE => {
            (files::is_memory, "a file of memory is none: share memory (memfd, /dev/shm, huge pages)")
        }
        message::SET_VRING_KICK | message::SET_VRING_CALL | message::SET_VRING_ERR | message::SET_LOG_FD => {
            (|file| CallFile::check(file).is_ok(), "a file of notifications is no eventfd")
        }
        message::SET_BACKEND_REQ_FD => {
            (files::is_local_socket, "a channel back to the peer is no local socket")
        }
        _ => (|_| false, "there is a file with it"),
    };
    message.files().all(is_good).then_some(()).ok_or(why)
}

/// Whether the library will map all of a new table of memory: it unmaps what there is before it tries.
fn check_memory(message: &Message) -> Result<(), &'static str> {
    let count = message.half(0) as usize;
    if count > MOST_REGIONS || count != message.files().len() {
        return Err("there are not as many files as regions of memory, or too many");
    }
    if message.length() < 8 + 32 * count {
        return Err("it is shorter than its kind is");
    }
    for (region, file) in message.files().enumerate() {
        let (size, offset) = (message.word(2 + 4 * region), message.word(4 + 4 * region));
        check_region(file, offset, size)?;
    }
    Ok(())
}

fn check_region(file: BorrowedFd<'_>, offset: u64, size: u64) -> Result<(), &'static str> {
    let end = offset.checked_add(size).filter(|_| size > 0);
    let end = end.ok_or("a region of memory has no bytes, or ends nowhere")?;
    trial::map(file, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has a message checked, and done when it was let through.
    fn say(setup: &mut Setup, number: u32, halves: &[u32]) -> bool {
        let message = Message::of(number, halves);
        let is_let_through = setup.check(&message).is_ok();
        if is_let_through {
            setup.done(&message);
        }
        is_let_through
    }

    fn features(setup: &mut Setup, features: u64) -> bool {
        say(setup, message::SET_FEATURES, &[features as u32, (features >> 32) as u32])
    }

    #[test]
    fn hostile_vhost_a_ring_is_used_with_the_features_it_was_set_up_for() {
        let mut setup = Setup::default();
        let place = |ring| [ring, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(features(&mut setup, 0));
        for ring in [0, 2] {
            assert!(say(&mut setup, message::SET_VRING_NUM, &[ring, 256]));
            assert!(say(&mut setup, message::SET_VRING_ADDR, &place(ring)));
            assert_eq!(say(&mut setup, message::SET_VRING_KICK, &[ring, 0]), ring == 0, "not several pairs");
        }
        assert!(!features(&mut setup, feature::EVENT_IDX) && !features(&mut setup, feature::RING_PACKED));
        assert!(features(&mut setup, feature::MQ), "which the library refuses while it runs");
        assert!(say(&mut setup, message::SET_VRING_NUM, &[2, 256]));
        assert!(say(&mut setup, message::SET_VRING_KICK, &[2, 0]));
        assert!(!say(&mut setup, message::RESET_OWNER, &[]), "what it has of them would be lost");
        // Those of a second pair go with the agreement.
        assert!(features(&mut setup, 0) && features(&mut setup, feature::MQ));
        assert!(!say(&mut setup, message::SET_VRING_KICK, &[2, 0]));
        assert!(say(&mut setup, message::GET_VRING_BASE, &[0, 0]));
        assert!(say(&mut setup, message::RESET_OWNER, &[]));
        assert!(features(&mut setup, feature::RING_PACKED));
        // A smaller ring begins anew.
        assert!(say(&mut setup, message::SET_VRING_NUM, &[1, 1000]));
        assert!(say(&mut setup, message::SET_VRING_BASE, &[1, 999]));
        assert!(say(&mut setup, message::SET_VRING_NUM, &[1, 64]));
        assert!(!say(&mut setup, message::SET_VRING_KICK, &[1, 0]));
    }

    #[test]
    fn hostile_vhost_memory_that_is_not_mapped_after_all_is_told() {
        let mut setup = Setup::default();
        let table = Message::of(message::SET_MEM_TABLE, &[0, 0]);
        setup.check(&table).unwrap();
        assert!(setup.is_lost(), "until it is done");
        setup.done(&table);
        assert!(!setup.is_lost());
        assert!(setup.check(&Message::of(message::SET_MEM_TABLE, &[1, 0])).is_err(), "without its file");
        assert!(!setup.is_lost());
    }
}
