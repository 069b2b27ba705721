//! What the new process gets of the old one's tables: everything by names and addresses, for numbers are each process's own.
//! Connections are not among it: they are in a file, complete when the old process has let go (`switch::connections::file`).

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::port::Undo;

/// Rows of a chunk.
pub const ROWS: usize = 4096;
/// Rows that are taken of one switch.
const MOST: usize = 1 << 25;

/// A part of the tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Chunk {
    /// Next hops: uplink, address and MAC.
    Neighbours(Vec<(String, IpAddr, [u8; 6])>),
    /// Admitted queue pairs of a vNIC: peer, and its queue pair.
    QueuePairs(String, Vec<(IpAddr, u32)>),
    /// Addresses that float at a vNIC, with their MACs.
    Floating(String, Vec<(IpAddr, [u8; 6])>),
    /// What was done to kernel interfaces, for who closes them last.
    Interfaces(Vec<Undo>),
    /// Whether packets are received, and the ports of which none are all the same. Only for who takes it.
    Forwarding(bool, Vec<String>),
    /// The ports that are there, each with a number that another config gives to the same one. Only for who takes it.
    Ports(Vec<(String, u64)>),
}

impl Chunk {
    fn rows(&self) -> usize {
        match self {
            Self::Neighbours(rows) => rows.len(),
            Self::QueuePairs(_, rows) => rows.len(),
            Self::Floating(_, rows) => rows.len(),
            Self::Interfaces(rows) => rows.len(),
            Self::Forwarding(_, stopped) => stopped.len(),
            Self::Ports(rows) => rows.len(),
        }
    }
}

/// The tables that have come.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    chunks: Vec<Chunk>,
    rows: usize,
}

impl Tables {
    /// Takes in a part; `false` when it is too much.
    pub fn add(&mut self, chunk: Chunk) -> bool {
        self.rows += chunk.rows() + 1;
        self.chunks.push(chunk);
        self.rows <= MOST
    }

    /// Its parts.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Whether the old switch forwarded, and its ports that were stopped, where it says so.
    pub fn forwarding(&self) -> Option<(bool, &[String])> {
        self.chunks.iter().find_map(|chunk| match chunk {
            Chunk::Forwarding(on, stopped) => Some((*on, stopped.as_slice())),
            _ => None,
        })
    }

    /// The ports that the old switch had, where it says so.
    pub fn ports(&self) -> impl Iterator<Item = (&str, u64)> {
        let rows = self.chunks.iter().filter_map(|chunk| match chunk {
            Chunk::Ports(rows) => Some(rows),
            _ => None,
        });
        rows.flatten().map(|(name, number)| (name.as_str(), *number))
    }

    /// How many rows there are: next hops, queue pairs, floating addresses.
    pub fn counts(&self) -> [usize; 3] {
        let of = |is: fn(&Chunk) -> bool| self.chunks.iter().filter(|chunk| is(chunk)).map(Chunk::rows).sum();
        [
            of(|chunk| matches!(chunk, Chunk::Neighbours(_))),
            of(|chunk| matches!(chunk, Chunk::QueuePairs(..))),
            of(|chunk| matches!(chunk, Chunk::Floating(..))),
        ]
    }
}

/// Rows of one name, in chunks.
pub(crate) fn split<T: Clone>(name: &str, rows: &[T], chunk: fn(String, Vec<T>) -> Chunk) -> Vec<Chunk> {
    rows.chunks(ROWS).map(|part| chunk(name.to_owned(), part.to_vec())).collect()
}
