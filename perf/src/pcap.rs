//! Reading and writing capture files of the classic pcap format (Ethernet link type).
//!
//! Only what frames for and from a switch need: whole frames, both time resolutions, both byte orders when reading.
//! Time stamps are written as zero and ignored.

use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINK_ETHERNET: u32 = 1;
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
/// The longest frame that is taken for a frame and not for a damaged file.
const LONGEST: u32 = 262_144;

/// What is wrong with a capture file.
#[derive(Debug, thiserror::Error)]
pub enum PcapError {
    /// It could not be read or written.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// It does not begin as a pcap file does.
    #[error("not a pcap file (it begins with {0:#010x})")]
    Magic(u32),
    /// It holds something else than Ethernet frames.
    #[error("link type {0} instead of 1 (Ethernet)")]
    Link(u32),
    /// A record has an impossible length.
    #[error("record {index} claims {length} bytes")]
    Length {
        /// Which record, from 0.
        index: usize,
        /// The length it claims.
        length: u32,
    },
    /// A frame was cut by the capture.
    #[error("record {index} holds {captured} of {length} bytes")]
    Cut {
        /// Which record, from 0.
        index: usize,
        /// Bytes in the file.
        captured: u32,
        /// Bytes of the frame.
        length: u32,
    },
}

/// Writes `frames` into a new file.
pub fn write<'a>(path: &Path, frames: impl IntoIterator<Item = &'a [u8]>) -> Result<(), PcapError> {
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    for word in [MAGIC_MICROSECONDS, 0x0004_0002, 0, 0, LONGEST, LINK_ETHERNET] {
        file.write_all(&word.to_le_bytes())?;
    }
    for (index, frame) in frames.into_iter().enumerate() {
        let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        if length > LONGEST {
            return Err(PcapError::Length { index, length });
        }
        for word in [0, 0, length, length] {
            file.write_all(&word.to_le_bytes())?;
        }
        file.write_all(frame)?;
    }
    file.flush()?;
    Ok(())
}

/// Reads all whole frames of a file.
///
/// A record that is not complete yet (a file still being written) ends the list.
pub fn read(path: &Path) -> Result<Vec<Vec<u8>>, PcapError> {
    let mut bytes = Vec::new();
    BufReader::new(std::fs::File::open(path)?).read_to_end(&mut bytes)?;
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Result<Vec<Vec<u8>>, PcapError> {
    let Some((header, mut rest)) = bytes.split_at_checked(FILE_HEADER) else { return Ok(Vec::new()) };
    let raw = word(header, 0, false);
    let swapped = match raw {
        MAGIC_MICROSECONDS | MAGIC_NANOSECONDS => false,
        _ if [MAGIC_MICROSECONDS, MAGIC_NANOSECONDS].contains(&raw.swap_bytes()) => true,
        _ => return Err(PcapError::Magic(raw)),
    };
    let link = word(header, 20, swapped);
    if link != LINK_ETHERNET {
        return Err(PcapError::Link(link));
    }
    let mut frames = Vec::new();
    while let Some((record, tail)) = rest.split_at_checked(RECORD_HEADER) {
        let (captured, length) = (word(record, 8, swapped), word(record, 12, swapped));
        let index = frames.len();
        if length > LONGEST || captured > length {
            return Err(PcapError::Length { index, length: captured.max(length) });
        }
        if captured < length {
            return Err(PcapError::Cut { index, captured, length });
        }
        let Some((frame, tail)) = tail.split_at_checked(length as usize) else { break };
        frames.push(frame.to_vec());
        rest = tail;
    }
    Ok(frames)
}

fn word(bytes: &[u8], at: usize, swapped: bool) -> u32 {
    let mut array = [0; 4];
    array.copy_from_slice(&bytes[at..at + 4]);
    let value = u32::from_le_bytes(array);
    if swapped { value.swap_bytes() } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(frames: &[&[u8]]) -> Vec<u8> {
        let path = std::env::temp_dir().join(format!("perf-pcap-{}-{:p}", std::process::id(), &frames));
        write(&path, frames.iter().copied()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        bytes
    }

    #[test]
    fn round_trip() {
        let frames: [&[u8]; 3] = [&[1; 60], &[], &[7; 1514]];
        assert_eq!(parse(&image(&frames)).unwrap(), frames);
    }

    #[test]
    fn an_unfinished_record_ends_the_list_wherever_it_is_cut() {
        let bytes = image(&[&[1; 60], &[2; 60]]);
        for cut in 0..bytes.len() {
            let whole = cut.saturating_sub(FILE_HEADER) / (RECORD_HEADER + 60);
            assert_eq!(parse(&bytes[..cut]).unwrap().len(), whole, "cut at {cut}");
        }
    }

    #[test]
    fn reads_the_other_byte_order_and_resolution() {
        let mut bytes = Vec::new();
        for word in [MAGIC_NANOSECONDS, 0x0002_0004, 0, 0, 65_535, LINK_ETHERNET, 1, 2, 3, 3] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend([9, 8, 7]);
        assert_eq!(parse(&bytes).unwrap(), [[9, 8, 7]]);
    }

    #[test]
    fn refuses_what_it_cannot_trust() {
        let good = image(&[&[1; 60]]);
        let with = |at: usize, value: u32| {
            let mut bytes = good.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            parse(&bytes).unwrap_err()
        };
        assert!(matches!(with(0, 0x0a0d_0d0a), PcapError::Magic(0x0a0d_0d0a)));
        assert!(matches!(with(20, 113), PcapError::Link(113)));
        assert!(matches!(with(FILE_HEADER + 12, u32::MAX), PcapError::Length { index: 0, length: u32::MAX }));
        assert!(matches!(with(FILE_HEADER + 12, 61), PcapError::Cut { index: 0, captured: 60, length: 61 }));
    }
}
