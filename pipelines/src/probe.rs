//! Path probes as workers see them: echo requests that control sends to other VTEPs, and what comes back.
//!
//! While control probes, a worker tells answers to its requests from the pings of whoever else is there by their identifier, looks whether
//! they bring back what was sent, and hands them on. Control alone knows which request each answer belongs to.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam::queue::ArrayQueue;

use crate::drops::DropReason;

/// Answers that may wait for control: control sends no more requests than that in the time of many turns.
pub const MOST_WAITING: usize = 512;
/// Bytes at the beginning of a request's data that its answer has to bring back.
pub const COOKIE_LEN: usize = size_of::<u64>();

/// What the requests of one run have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeMark {
    /// Identifier of the echo requests.
    pub id: u16,
    /// The first bytes of their data.
    pub cookie: u64,
}

/// Something that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeHeard {
    /// Who says it.
    pub from: IpAddr,
    /// Sequence number of the request.
    pub sequence: u16,
    /// What it says.
    pub answer: ProbeAnswer,
}

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeAnswer {
    /// The request arrived, and so did its answer, an IP packet of so many bytes.
    Reply(u16),
    /// The request to this address was too large for a link with this MTU; 0: it is not said (RFC 1191 section 3).
    TooBig(IpAddr, u32),
}

/// Between control and workers.
#[derive(Clone, Debug)]
pub struct Probes {
    /// The identifier, and bit 16 while there are any.
    id: Arc<AtomicU32>,
    cookie: Arc<AtomicU64>,
    heard: Arc<ArrayQueue<ProbeHeard>>,
}

const ON: u32 = 1 << 16;

impl Default for Probes {
    fn default() -> Self {
        Self { id: Arc::default(), cookie: Arc::default(), heard: Arc::new(ArrayQueue::new(MOST_WAITING)) }
    }
}

impl Probes {
    /// Answers to requests with this mark are for control from now on, or none are. What still waits is of another run.
    pub fn set(&self, mark: Option<ProbeMark>) {
        self.id.store(0, Ordering::Relaxed);
        while self.heard.pop().is_some() {}
        if let Some(mark) = mark {
            self.cookie.store(mark.cookie, Ordering::Relaxed);
            self.id.store(ON | u32::from(mark.id), Ordering::Release);
        }
    }

    /// The mark of the requests that are on their way.
    #[inline]
    pub fn mark(&self) -> Option<ProbeMark> {
        let id = self.id.load(Ordering::Acquire);
        (id & ON != 0).then(|| ProbeMark { id: id as u16, cookie: self.cookie.load(Ordering::Relaxed) })
    }

    /// Hands an answer to control.
    ///
    /// # Errors
    /// The name under which it is dropped when as many wait as may.
    pub fn hear(&self, heard: ProbeHeard) -> Result<(), DropReason> {
        self.heard.push(heard).map_err(|_| DropReason::PROBE_LIMIT)
    }

    /// The oldest answer.
    pub fn heard(&self) -> Option<ProbeHeard> {
        self.heard.pop()
    }
}
