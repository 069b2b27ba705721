//! A member's port: a lane with frames that wait to be sent.

use pmd::{Burst, Mempool};

use crate::generator::ports::Lane;
use crate::generator::scenario::Attachment;
use crate::generator::scenario::check::PortPlan;
use crate::live::LiveError;
use crate::live::config::MemifEnd;
use crate::live::ports::{BURST, Runtime};

/// Packets of a ring: a whole round fits.
const RING: u16 = 1024;

#[derive(Debug)]
pub struct Memif {
    lane: Lane,
    waiting: Burst,
    pool: Mempool,
}

impl Memif {
    pub fn open(runtime: &Runtime, name: &str, end: &MemifEnd<'_>) -> Result<Self, LiveError> {
        let MemifEnd { socket, id, role } = end;
        let mut args = format!("role={role},id={id},socket={},socket-abstract=no", socket.display());
        if *role == "client" {
            args += &format!(",rsize={}", RING.ilog2());
        }
        let attachment = Attachment::Virtual { name: format!("net_memif_{name}"), args };
        let plan = PortPlan { name: name.into(), attachment, descriptors: RING, rx_queues: 1 };
        let lane = Lane::open(runtime, &plan, 0)?;
        Ok(Self { lane, waiting: Burst::with_capacity(BURST), pool: runtime.pool().clone() })
    }

    pub fn await_link(&self) -> Result<(), LiveError> {
        self.lane.await_link()
    }

    /// Frames that can be [pushed](Self::push) now.
    #[inline]
    pub fn room(&self) -> usize {
        self.waiting.spare()
    }

    /// Puts a frame behind those that wait to be sent. `false` when there is no room or no buffer.
    #[inline]
    pub fn push(&mut self, frame: &[u8]) -> bool {
        self.pool.alloc_from(frame).is_some_and(|packet| self.waiting.push(packet).is_ok())
    }

    /// Sends what waits, as far as the ring takes it. Returns how many went; the others wait on.
    #[inline]
    pub fn flush(&mut self) -> usize {
        self.lane.send(&mut self.waiting)
    }

    #[inline]
    pub fn receive(&mut self, burst: &mut Burst) -> usize {
        self.lane.receive(burst)
    }
}
