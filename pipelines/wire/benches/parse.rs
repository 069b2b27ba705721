//! Cost of what the fast path asks of this crate, in nanoseconds a packet, best of many rounds.
//!
//! `cargo bench -p wire`. Frames lie in cache and come in an order that the branch predictor knows: a lower
//! bound, good for comparing two versions on one machine and for nothing else.

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::time::Instant;
use wire::{Headers, Psn, Qpn, Vni, icrc, l4, parse, roce};

const ROUNDS: usize = 200;
const BURST: usize = 32;
const BURSTS: usize = 200;

fn measure(name: &str, frames: &[Vec<u8>], mut work: impl FnMut(&[u8], &mut Headers) -> bool) {
    let burst: Vec<&[u8]> = frames.iter().cycle().take(BURST).map(Vec::as_slice).collect();
    let mut headers = [Headers::default(); BURST];
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..BURSTS {
            for (frame, headers) in black_box(&burst).iter().zip(&mut headers) {
                assert!(work(frame, headers));
            }
            black_box(&mut headers);
        }
        best = best.min(start.elapsed().as_nanos() as f64 / (BURST * BURSTS) as f64);
    }
    println!("{name:<32} {best:7.2} ns");
}

fn main() {
    let into = |frame: &[u8], h: &mut Headers| parse::parse_into(frame, frame.len(), h).is_ok();
    let (v4, v6) = (common::v4(), common::v6());
    let inner = v4.tcp(1, 2, 0x10, &[0; 6]);
    let tunnelled = v4.vxlan(0xc000, Vni::truncated(7), &inner);
    measure("parse eth/ipv4/tcp", std::slice::from_ref(&inner), into);
    measure("parse by value eth/ipv4/tcp", std::slice::from_ref(&inner), |frame, h| {
        let parsed = parse::parse(frame, frame.len());
        parsed.is_ok_and(|parsed| {
            *h = parsed;
            true
        })
    });
    measure("parse eth/ipv4/udp/vxlan", std::slice::from_ref(&tunnelled), into);
    measure("parse eth/vlan/ipv4/tcp", &[v4.clone().tagged(5).tcp(1, 2, 0, b"")], into);
    measure("parse eth/ipv6/tcp", &[v6.tcp(1, 2, 0x10, b"")], into);
    measure(
        "parse four kinds in turn",
        &[inner.clone(), v4.udp(1, 2, b""), v6.tcp(1, 2, 0, b""), tunnelled],
        into,
    );
    measure("parse and ipv4 checksum", &[inner], |frame, h| into(frame, h) && h.ipv4_checksum_ok(frame));
    let big = [v4.tcp(1, 2, 0x10, &[0x5a; 1400])];
    measure("fill tcp checksum, 1400 bytes", &big, |frame, h| {
        into(frame, h) && black_box(l4::compute(h, [frame])).is_some()
    });
    let bth = roce::Bth::new(roce::opcode::RC_WRITE_MIDDLE, Qpn::truncated(3), Psn::truncated(4));
    let rdma = [v4.roce(0xc000, bth, &[0x5a; 1024])];
    measure("verify icrc, 1024 bytes", &rdma, |frame, h| {
        into(frame, h) && icrc::verify(h, [frame]) == Some(true)
    });
}
