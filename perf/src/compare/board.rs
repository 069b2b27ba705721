//! The board of a template device: the file in which it counts and keeps samples of what was sent to it.
//!
//! Reads only; the layout is `struct board` of the plugin.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::{Error, Result};

const MAGIC: u64 = 0x6a61_6b69_726f_0001;
const HEADER: u64 = 64;
const LINE: u64 = 64;
const TX_QUEUES: u64 = 16;
const RECORD_HEADER: usize = 8;

#[derive(Debug)]
pub struct Board {
    file: File,
    path: String,
    slots: u64,
    slot_bytes: u64,
}

/// A frame that was sent to the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub length: usize,
    /// Its bytes, as many as were kept.
    pub bytes: Vec<u8>,
}

impl Kept {
    /// All of a frame.
    pub fn whole(bytes: Vec<u8>) -> Self {
        Self { length: bytes.len(), bytes }
    }
}

impl Board {
    /// Opens the board that a running device made.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(Error::io(format!("open {name}")))?;
        let mut board = Self { file, path: name, slots: 0, slot_bytes: 0 };
        if board.word(0)? != MAGIC {
            return Err(Error::missing(
                format!("{} is no board of a template device", board.path),
                "remove what is left in the cache folder vswitch/dpdk-plugin and try again",
            ));
        }
        let sizes = board.word(8)?;
        board.slots = sizes & u64::from(u32::MAX);
        board.slot_bytes = sizes >> 32;
        Ok(board)
    }

    pub fn made(&self) -> Result<u64> {
        self.word(HEADER)
    }

    /// Packets that were sent to it.
    pub fn swallowed(&self) -> Result<u64> {
        (0..TX_QUEUES).map(|queue| self.word(HEADER + LINE * (1 + queue))).sum()
    }

    pub fn samples(&self) -> Result<Vec<Kept>> {
        let count = self.word(16)?.min(self.slots);
        let start = HEADER + LINE * (1 + TX_QUEUES);
        let mut samples = Vec::new();
        for slot in 0..count {
            let mut record = vec![0; usize::try_from(self.slot_bytes).unwrap_or(0)];
            self.read(&mut record, start + slot * self.slot_bytes)?;
            let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| record[at + byte])) as usize;
            let (length, stored) = (word(0), word(4));
            // Nothing is stored while it is being written.
            if stored != 0 && stored <= record.len() - RECORD_HEADER {
                samples.push(Kept { length, bytes: record[RECORD_HEADER..RECORD_HEADER + stored].to_vec() });
            }
        }
        Ok(samples)
    }

    fn word(&self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read(&mut bytes, at)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn read(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        self.file.read_exact_at(bytes, at).map_err(Error::io(format!("read {}", self.path)))
    }
}
