//! How many cache lines a hit touches, counted by valgrind's lackey, which prints every access of a program.
//!
//! The test runs itself under it. The child announces its phases by stores to an address that it prints first.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use wire::{HeapBuf, PacketBuf};

use super::*;

const CHILD: &str = "VSWITCH_COUNT_LINES";
const LINE: u64 = 64;
const BURST: u32 = 32;
/// A line of each packet in `RoceBurst`, which the next burst writes over; it belongs to no queue pair.
const OWN: usize = 1;
/// Lines that a burst may touch for RCFT whatever its length: headers of its tables, the packets' own second lines.
const FIXED: usize = 24;

static PHASE: AtomicU64 = AtomicU64::new(0);

/// Runs a burst of TCP and one of a reliable connection, both of known flows, between announcements.
#[test]
fn lines_child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let mut world = plain();
    let tcp: Vec<_> = (0..BURST).map(|_| v4(A, R).tcp(7, 8, 0x10, &[0; 40])).collect();
    let first: Vec<_> = (0..BURST).map(|n| write(v4(A, R), 100 + n * 77, 0)).collect();
    let roce: Vec<_> = (0..BURST).map(|n| write(v4(A, R), 100 + n * 77, 1)).collect();
    world.run(1, tcp.iter().map(|frame| HeapBuf::new(frame)).collect());
    world.run(1, first.iter().map(|frame| HeapBuf::new(frame)).collect());
    let bursts =
        [&tcp, &roce].map(|frames| frames.iter().map(|frame| HeapBuf::new(frame)).collect::<Vec<_>>());
    let mut announced = format!("{:x}\n", std::ptr::from_ref(&PHASE) as u64);
    for burst in &bursts {
        let own: Vec<_> = burst.iter().map(|packet| format!("{:x}", packet.head().as_ptr() as u64)).collect();
        announced += &(own.join(" ") + "\n");
    }
    world.worker.out.sent.reserve(64);
    std::fs::write(&path, announced).unwrap();
    // The parent looks for the file now and then: it finds it somewhere in the trace of this.
    let zeros = vec![0u8; 200_000];
    assert_eq!(zeros.iter().map(|zero| std::hint::black_box(*zero)).max(), Some(0));
    for packets in bursts {
        let rest = world.worker.burst.fill(packets);
        assert!(rest.is_empty());
        PHASE.store(1, Ordering::SeqCst);
        let worker = &mut world.worker;
        worker.overlay.run(&world.snapshot, world.now, 1, &mut worker.burst, &mut worker.out);
        PHASE.store(0, Ordering::SeqCst);
        assert_eq!(world.worker.out.sent.len(), BURST as usize);
        world.worker.out.sent.clear();
    }
    assert_eq!(world.shared.rcft.ledger.count(0), BURST);
}

/// Where the child announces: the address of its marker, and those of the packets of both bursts.
fn announced(path: &std::path::Path) -> Option<(u64, [HashSet<u64>; 2])> {
    let text = std::fs::read_to_string(path).ok()?;
    let hex = |word: &str| u64::from_str_radix(word, 16).unwrap();
    let mut lines = text.lines();
    let marker = hex(lines.next()?);
    // Frame and headroom of a packet.
    let around = |at: u64| at / LINE - 4..at / LINE + 4;
    let mut packets = || Some(lines.next()?.split(' ').flat_map(|word| around(hex(word))).collect());
    Some((marker, [packets()?, packets()?]))
}

/// The distinct lines of both bursts outside packets and stack.
fn count() -> [usize; 2] {
    let path = std::env::temp_dir().join(format!("vswitch-lines.{}", std::process::id()));
    let mut child = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--log-fd=2", "-q"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "lines::lines_child", "--nocapture", "--test-threads=1"])
        .env(CHILD, &path)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("valgrind runs (scripts/bootstrap installs it)");
    let mut lines = [HashSet::new(), HashSet::new()];
    let mut known = None;
    let (mut phase, mut stack) = (0usize, 0);
    for (number, text) in BufReader::new(child.stderr.take().unwrap()).lines().enumerate() {
        if known.is_none() && number % 1000 == 0 {
            known = announced(&path);
        }
        let (Ok(text), Some((marker, packets))) = (text, &known) else { continue };
        let mut words = text.split_whitespace();
        let (Some(kind @ ("L" | "S" | "M")), Some(access)) = (words.next(), words.next()) else { continue };
        let (at, size) = access.split_once(',').unwrap();
        let (at, size) = (u64::from_str_radix(at, 16).unwrap(), size.parse::<u64>().unwrap());
        if at == *marker && kind != "L" {
            // Stores alternate: one begins a burst, the next ends it.
            phase += 1;
            stack = 0;
        } else if phase % 2 == 1 {
            if stack == 0 {
                // The first access after the announcement is a local's.
                stack = at;
            }
            for line in at / LINE..=(at + size - 1) / LINE {
                if at.abs_diff(stack) >= 1 << 20 && !packets[phase / 2].contains(&line) {
                    lines[phase / 2].insert(line);
                }
            }
        }
    }
    let _ = std::fs::remove_file(&path);
    assert!(child.wait().unwrap().success());
    assert_eq!(phase, 4, "both bursts were seen");
    lines.map(|lines| lines.len())
}

#[test]
fn rcft_a_hit_touches_two_lines_of_tables_more_than_tcp() {
    let [tcp, roce] = count();
    println!("{BURST} packets of one flow: TCP {tcp} lines, RC with {BURST} queue pairs {roce} lines");
    assert!(tcp > BURST as usize / 4, "lines were counted: {tcp}");
    let more = roce.saturating_sub(tcp);
    let of_tables = more.saturating_sub(OWN * BURST as usize);
    assert!(of_tables <= 2 * BURST as usize + FIXED, "{more} lines more for {BURST} packets");
    // Each queue pair has an entry line of its own: fewer would mean that nothing was counted.
    assert!(of_tables >= BURST as usize, "{more}");
}
