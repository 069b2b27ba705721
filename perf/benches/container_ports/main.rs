//! Would io_uring(7) serve container ports better than the calls that they use: packet sockets on veths (a shared ring, then recv(2)
//! for super-frames, and sendmmsg(2)) and taps (read(2) and write(2))?
//!
//! `cargo bench -p perf --bench container_ports [PAIRS [ROOM]]`, as root, on two cores; ROOM is the bytes of a packet buffer of the switch,
//! which then has no long ones for super-frames.
//! One thread forwards from one interface to another, in a network namespace of its own; another thread, on the other core,
//! fills the first interface's queue while the first one waits, so that a forwarder always finds a full batch and nothing is dropped.
//! Figures are of the CPU time of the forwarding thread, in which the kernel also receives the frames at the other end of the second
//! interface, where nobody wants them.
//!
//! ```text
//!   core 0:  sender --> veth or tap --> | queue |        other end --> dropped by the kernel
//!   core 1:                             | queue | --> forwarder --> veth or tap --^
//! ```
//! The ways alternate within a round, for the speed of a shared machine drifts by more than they differ; ratios are those of
//! neighbours in time. `ports` is what the switch has, with packet buffers and what goes with them; the other ways move the
//! same bytes and do nothing else, so they are to be compared with `calls`.

#![allow(unsafe_code, reason = "system calls that no safe crate here has")]

mod calls;
mod frames;
mod ports;
mod socket;
mod testbed;
mod uring;

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use frames::Traffic;
use perf::host::cores::{self, Cores};
use perf::host::netns::Netns;
use perf::host::{scratch, tsc};
use perf::live::ports::Runtime;
use perf::report::stats::Spread;
use pmd::{MempoolConfig, Namespace, PciAccess};
use testbed::{Kind, Sample, Way};

/// Pairs of neighbours in time, where the command line does not say another number.
const PAIRS: u16 = 9;
/// Bytes of all packet buffers.
const BUFFERS: u32 = 40 << 20;
/// Long packet buffers of the switch.
const LONG: u32 = 128;
/// CPU time of a sample.
const SAMPLE: Duration = Duration::from_millis(300);
/// What the other ways are compared with.
const BASE: Way = Way::Calls;

/// The samples of one way, in the order in which they were taken.
struct Row {
    way: Way,
    samples: Vec<Sample>,
}

fn main() -> anyhow::Result<()> {
    // Cargo adds a flag of its own.
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<u16>().ok());
    let (pairs, room) = (numbers.next().unwrap_or(PAIRS), numbers.next());
    Netns::clear_dead();
    let cores = cores::choose(&cores::available(), None)?;
    let netns = Netns::create("ports")?;
    let namespace = Namespace::open(&Path::new("/run/netns").join(netns.name()))?;
    namespace.within(|| measure(&netns, cores, pairs, room))?
}

/// On a thread in the namespace, which forwards.
fn measure(netns: &Netns, cores: Cores, pairs: u16, room: Option<u16>) -> anyhow::Result<()> {
    let usual = MempoolConfig::default();
    let data_room = room.unwrap_or(usual.data_room);
    let long = if room.is_none() { LONG } else { 0 };
    let buffers = MempoolConfig { mbufs: BUFFERS / u32::from(data_room), data_room, long, ..usual };
    let runtime = Runtime::start(&scratch::file_prefix(0), cores.forwarding, buffers, PciAccess::None)?;
    let refused = uring::refusal();
    if let Some(error) = &refused {
        println!(
            "io_uring is not to be had here ({error}; see sysctl kernel.io_uring_disabled): the others alone"
        );
    }
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    println!(
        "{}, Linux {}, {pairs} pairs, {SAMPLE:?} of CPU time each, buffers of {data_room} bytes, {long} long ones",
        tsc::processor(),
        kernel.trim()
    );
    for kind in [Kind::Veth, Kind::Tap] {
        for traffic in [Traffic::Datagrams, Traffic::SingleDatagrams, Traffic::SuperFrames] {
            let ways = kind.ways().iter().filter(|way| refused.is_none() || !way.needs_uring());
            let mut rows: Vec<Row> = ways.map(|&way| Row { way, samples: Vec::new() }).collect();
            for _ in 0..pairs {
                for row in &mut rows {
                    let sample = testbed::sample(netns, &runtime, cores, (kind, row.way, traffic), SAMPLE)
                        .with_context(|| {
                            format!("{}, {}, {}", kind.name(), row.way.name(), traffic.name())
                        })?;
                    row.samples.push(sample);
                }
                // Whoever was last is first now: neighbours change, too.
                rows.reverse();
            }
            rows.sort_by_key(|row| kind.ways().iter().position(|way| *way == row.way));
            print(kind, traffic, &rows);
        }
    }
    Ok(())
}

fn print(kind: Kind, traffic: Traffic, rows: &[Row]) {
    println!(
        "\n{}, {} of {} bytes; each median (range)\n{:<24} {:>32} {:>26} {:>24}",
        kind.name(),
        traffic.name(),
        traffic.frame().len(),
        "",
        "frames a CPU-second, thousands",
        "Gbit a CPU-second",
        "ratio to calls"
    );
    let base = rows.iter().find(|row| row.way == BASE);
    let spread = |values: &[f64], unit: f64, digits: usize| {
        let values: Vec<f64> = values.iter().map(|value| value * unit).collect();
        Spread::of(&values).map_or_else(String::new, |spread| spread.text(digits))
    };
    for row in rows {
        let rates: Vec<f64> = row.samples.iter().map(Sample::rate).collect();
        let bits = traffic.frame().len() as f64 * 8.0;
        let ratios = base.map(|base| base.samples.iter().map(Sample::rate));
        let ratios: Vec<f64> =
            ratios.into_iter().flatten().zip(&rates).map(|(base, rate)| rate / base).collect();
        println!(
            "{:<24} {:>32} {:>26} {:>24}",
            row.way.name(),
            spread(&rates, 1e-3, 1),
            spread(&rates, bits / 1e9, 2),
            spread(&ratios, 1.0, 3)
        );
    }
}
