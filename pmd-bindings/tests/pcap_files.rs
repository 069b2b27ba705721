//! Frames from a capture file come in, frames go out to one, and both are what they should be.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::fs;
use std::path::PathBuf;

use common::{eal, frame, pool, start, stop};
use pmd::{Burst, Port, PortConfig};

/// A capture file that is removed at the end.
struct Capture(PathBuf);

impl Capture {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("pmd-{}-{name}.pcap", std::process::id())))
    }

    fn write(&self, frames: &[Vec<u8>]) {
        let mut bytes = Vec::new();
        for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1] {
            bytes.extend(word.to_le_bytes());
        }
        for frame in frames {
            let length = frame.len() as u32;
            for word in [0, 0, length, length] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(frame);
        }
        fs::write(&self.0, bytes).unwrap();
    }

    fn read(&self) -> Vec<Vec<u8>> {
        let bytes = fs::read(&self.0).unwrap();
        let mut rest = &bytes[24..];
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
            frames.push(rest[16..16 + length].to_vec());
            rest = &rest[16 + length..];
        }
        frames
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_file_goes_through_unchanged() {
    let eal = eal();
    let pool = pool(&eal, 1023);
    let (input, output) = (Capture::new("in"), Capture::new("out"));
    // The last ones span two and three buffers.
    let lengths = (60..160).chain([1514, 2049, 4000, 5000]);
    let frames: Vec<_> = lengths.enumerate().map(|(number, length)| frame(number, length)).collect();
    input.write(&frames);
    let args = format!("rx_pcap={},tx_pcap={}", input.0.display(), output.0.display());
    let (port, mut rx, mut tx) =
        start(Port::attach(&eal, "net_pcap0", &args).unwrap(), &PortConfig::default(), &pool);

    let mut packets = Burst::with_capacity(32);
    let mut chains = 0;
    let mut idle = 0;
    while idle < 3 {
        idle = if rx[0].receive(&mut packets) == 0 { idle + 1 } else { 0 };
        chains += packets.iter().filter(|packet| packet.segment_count() > 1).count();
        tx[0].send(&mut packets);
        assert!(packets.is_empty());
    }
    assert_eq!(chains, 3);
    assert_eq!(rx[0].header_split_drops(), 0);
    let bytes: usize = frames.iter().map(Vec::len).sum();
    let stats = port.stats().unwrap();
    assert_eq!((stats.rx_packets, stats.tx_bytes), (frames.len() as u64, bytes as u64));
    let xstats = port.xstats().unwrap();
    assert!(xstats.contains(&("rx_good_packets".into(), frames.len() as u64)), "{xstats:?}");
    stop(port, rx, tx).detach().unwrap();
    assert_eq!(output.read(), frames);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn infinite_rx_repeats_the_file() {
    let eal = eal();
    let pool = pool(&eal, 1023);
    let input = Capture::new("loop");
    let frames: Vec<_> = (0..10).map(|number| frame(number, 64)).collect();
    input.write(&frames);
    let args = format!("rx_pcap={},infinite_rx=1", input.0.display());
    let (port, mut rx, mut tx) =
        start(Port::attach(&eal, "net_pcap0", &args).unwrap(), &PortConfig::default(), &pool);
    let mut packets = Burst::with_capacity(32);
    for round in 0..100 {
        assert_eq!(rx[0].receive(&mut packets), 32);
        for (index, packet) in packets.iter().enumerate() {
            assert_eq!(packet.to_vec(), frames[(round * 32 + index) % 10]);
        }
        // Without a tx file the port drops.
        assert_eq!(tx[0].send(&mut packets), 32);
    }
    stop(port, rx, tx).detach().unwrap();
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_missing_file_is_named_by_the_driver() {
    let eal = eal();
    let error = Port::attach(&eal, "net_pcap0", "rx_pcap=/does/not/exist.pcap").unwrap_err().to_string();
    assert!(error.contains("net_pcap0") && error.contains("/does/not/exist.pcap"), "{error}");
    assert!(error.contains("DPDK says"), "{error}");
}
