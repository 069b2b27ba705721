//! How often a MAC address has moved, and when that is too often (RFC 7432 section 15.1): then two hosts have it, and both would answer
//! each other without end.
//!
//! A move is one to this host or away from it. With the last one that is allowed within the time the address is a duplicate, and is left as
//! it is: what is announced of it stays announced, so that others have it somewhere, and what others say of it waits. It is tried again
//! after the time, or when its vNIC comes anew.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::config::EvpnConfig;

/// How many moves within which time are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub moves: usize,
    pub within: Duration,
}

impl Default for Limit {
    /// As the RFC says.
    fn default() -> Self {
        Self { moves: EvpnConfig::DUPLICATE_MOVES, within: EvpnConfig::DUPLICATE_TIME }
    }
}

/// A MAC address that two hosts have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// Where the other one was last.
    pub vtep: IpAddr,
    /// When it is tried again.
    pub until: Instant,
}

/// The moves of a MAC address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Those within the time, oldest first.
    recent: VecDeque<Instant>,
    /// The other host's tunnel end point.
    other: Option<IpAddr>,
    /// It is a duplicate.
    pub held: Option<Duplicate>,
}

impl Moves {
    /// Notes a move between this host and another; the duplicate that the address is with it, if it is one.
    pub fn note(&mut self, other: IpAddr, now: Instant, limit: Limit) -> Option<Duplicate> {
        self.other = Some(other);
        self.note_back(now, limit)
    }

    /// The same of a move from where it went last.
    pub fn note_back(&mut self, now: Instant, limit: Limit) -> Option<Duplicate> {
        self.recent.retain(|time| now.saturating_duration_since(*time) < limit.within);
        self.recent.push_back(now);
        let vtep = self.other.filter(|_| self.recent.len() >= limit.moves)?;
        self.recent.clear();
        self.held = Some(Duplicate { vtep, until: now + limit.within });
        self.held
    }

    /// Of a duplicate: whether its time is over.
    pub fn is_over(&self, now: Instant) -> Option<bool> {
        self.held.map(|duplicate| duplicate.until <= now)
    }
}
