//! Capture files of the classic pcap format with whole Ethernet frames; time stamps are written as zero and ignored.

use std::io::BufWriter;
use std::path::Path;
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapParser, PcapWriter};
use pcap_file::{DataLink, Endianness};

/// The longest frame that is taken for a frame and not for a damaged file.
const LONGEST: u32 = 262_144;

#[derive(Debug, thiserror::Error)]
pub enum PcapError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("not a pcap file, or a damaged one ({0})")]
    Damaged(#[from] pcap_file::PcapError),
    #[error("link type {0} instead of 1 (Ethernet)")]
    Link(u32),
    #[error("record {index} claims {length} bytes")]
    Length { index: usize, length: u32 },
    /// A frame was cut by the capture.
    #[error("record {index} holds {captured} of {length} bytes")]
    Cut { index: usize, captured: u32, length: u32 },
}

/// Writes `frames` into a new file.
pub fn write<'a>(path: &Path, frames: impl IntoIterator<Item = &'a [u8]>) -> Result<(), PcapError> {
    let file = BufWriter::new(std::fs::File::create(path)?);
    let endianness = Endianness::Little;
    let datalink = DataLink::ETHERNET;
    let header = PcapHeader { snaplen: LONGEST, datalink, endianness, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(file, header)?;
    for frame in frames {
        let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        writer.write_packet(&PcapPacket::new(Duration::ZERO, length, frame))?;
    }
    std::io::Write::flush(&mut writer.into_writer())?;
    Ok(())
}

/// Reads all whole frames of a file. A record that is not complete yet (a file still being written) ends the list.
pub fn read(path: &Path) -> Result<Vec<Vec<u8>>, PcapError> {
    parse(&std::fs::read(path)?)
}

fn parse(bytes: &[u8]) -> Result<Vec<Vec<u8>>, PcapError> {
    let (mut rest, parser) = match PcapParser::new(bytes) {
        Err(pcap_file::PcapError::IncompleteBuffer) => return Ok(Vec::new()),
        other => other?,
    };
    let (link, endianness) = (parser.header().datalink, parser.header().endianness);
    if link != DataLink::ETHERNET {
        return Err(PcapError::Link(link.into()));
    }
    let mut frames = Vec::new();
    loop {
        let (tail, packet) = match parser.next_packet(rest) {
            Err(pcap_file::PcapError::IncompleteBuffer) => {
                // The rest is awaited; more than a frame can be is not.
                let claimed = rest.get(8..12).and_then(<[u8]>::first_chunk).map(|bytes| match endianness {
                    Endianness::Little => u32::from_le_bytes(*bytes),
                    Endianness::Big => u32::from_be_bytes(*bytes),
                });
                return match claimed.filter(|length| *length > LONGEST) {
                    Some(length) => Err(PcapError::Length { index: frames.len(), length }),
                    None => Ok(frames),
                };
            }
            other => other?,
        };
        let captured = u32::try_from(packet.data.len()).unwrap_or(u32::MAX);
        if captured < packet.orig_len {
            let (index, length) = (frames.len(), packet.orig_len);
            return Err(PcapError::Cut { index, captured, length });
        }
        frames.push(packet.data.into_owned());
        rest = tail;
    }
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
            let whole = cut.saturating_sub(24) / (16 + 60);
            assert_eq!(parse(&bytes[..cut]).unwrap().len(), whole, "cut at {cut}");
        }
    }

    #[test]
    fn reads_the_other_byte_order_and_resolution() {
        let mut bytes = Vec::new();
        for word in [0xa1b2_3c4d_u32, 0x0002_0004, 0, 0, 65_535, 1, 1, 2, 3, 3] {
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
        assert!(matches!(with(0, 0x0a0d_0d0a), PcapError::Damaged(_)));
        assert!(matches!(with(20, 113), PcapError::Link(113)));
        let long = with(24 + 8, u32::MAX);
        assert!(matches!(long, PcapError::Length { index: 0, length: u32::MAX }), "{long}");
        assert!(matches!(with(24 + 12, u32::MAX), PcapError::Damaged(_)));
        assert!(matches!(with(24 + 12, 61), PcapError::Cut { index: 0, captured: 60, length: 61 }));
    }
}
