//! `perf compare` on the command line.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::cases::{Flows, Job, Peer, Traffic, Work};
use super::ovs::ExactMatchCache;
use super::record::Record;
use super::{Outcome, Supply, check, frames, report};
use crate::host::interrupt;

/// Compare with other switches: same frames, same kind of ports, one core, by turns.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Who to compare with: testpmd, ovs (both kinds of megaflows), ovs-exact, ovs-wildcard; or the switch itself
    /// with the frames of `--traffic roce` on another UDP port: udp (a flow each), udp-few (a flow per address), or
    /// without the rates of `--qos`: no-qos; with one tenant on the trunk: one-tenant; with
    /// inner frames of 64 bytes: short; or another build of it, named with `--before`: before.
    #[arg(long, value_delimiter = ',', default_value = "testpmd,ovs")]
    peers: Vec<String>,
    /// What to do: l2, encap, decap, both (encap and decap at the same time), trunk64 and trunk64-decap (64 tenants on
    /// one port).
    #[arg(long, value_delimiter = ',', default_value = "l2,encap,decap")]
    cases: Vec<Work>,
    /// Where frames come from and go to: template (devices that make and swallow them, of a driver that is built
    /// first) or pcap (files; up to 200k flows, one way, no trunk).
    #[arg(long, default_value = "template")]
    frames: Supply,
    /// Numbers of flows, as in 1,1k,100k,1M.
    #[arg(long, value_delimiter = ',', default_value = "1,1k")]
    flows: Vec<Flows>,
    /// Length of the inner Ethernet frame, with its 4-byte frame check sequence (so 64 means 60 bytes in memory).
    #[arg(long, default_value_t = 64)]
    inner_bytes: usize,
    /// What the inner frames carry: tcp, rocev2 (or roce; a flow is a queue pair), mixed, udp, udp-few.
    #[arg(long, default_value = "tcp")]
    traffic: Traffic,
    /// Give this switch rates for the link, the VPC, the vNIC and its classes, so high that each packet pays and none
    /// waits.
    #[arg(long)]
    qos: bool,
    /// After each row, ask this switch what its stages take.
    #[arg(long, conflicts_with = "peers_alone")]
    account: bool,
    /// Another build of the daemon, for the peer `before`.
    #[arg(long)]
    before: Option<PathBuf>,
    /// Pairs of samples per row.
    #[arg(long, default_value_t = 10)]
    pairs: usize,
    /// Length of a sample in seconds.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// The core that forwards [default: the last one].
    #[arg(long)]
    core: Option<usize>,
    /// The daemon [default: `vswitch` beside this program].
    #[arg(long, conflicts_with = "peers_alone")]
    pub vswitch: Option<PathBuf>,
    /// OVS's exact-match cache: on, off, or auto (on up to 4096 flows, where it is faster so).
    #[arg(long, default_value = "auto")]
    ovs_emc: ExactMatchCache,
    /// Measure the peers without ours; our fields and the ratios are null.
    #[arg(long)]
    pub peers_alone: bool,
    /// Write the rows as JSON to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the rows with everything around them as JSON to this file, for `perf report`.
    #[arg(long)]
    record: Option<PathBuf>,
    /// Keep the private folder (configs, frames in and out) and say where it is.
    #[arg(long)]
    keep: bool,
}

/// Runs it with the daemon that was found; without one the peers are measured alone.
pub fn run(given: Options, vswitch: Option<PathBuf>) -> anyhow::Result<()> {
    anyhow::ensure!(
        frames::INNER_BYTES.contains(&given.inner_bytes),
        "--inner-bytes {} is not in {} to {}",
        given.inner_bytes,
        frames::INNER_BYTES.start(),
        frames::INNER_BYTES.end()
    );
    anyhow::ensure!(given.pairs > 0, "--pairs 0 measures nothing; 10 is a good number");
    anyhow::ensure!((0.1..=60.0).contains(&given.seconds), "--seconds {} is not in 0.1 to 60", given.seconds);
    interrupt::install()?;
    let peers: Vec<Vec<Peer>> =
        given.peers.iter().map(|word| Peer::parse_word(word)).collect::<Result<_, _>>()?;
    let jobs = given
        .cases
        .iter()
        .flat_map(|&work| given.flows.iter().map(move |flows| (work, flows.clone())))
        .map(|(work, flows)| Job {
            case: work.case,
            tenants: work.tenants,
            flows,
            inner_bytes: given.inner_bytes,
            traffic: given.traffic,
            qos: given.qos,
        })
        .collect();
    let options = super::Options {
        jobs,
        peers: peers.concat(),
        pairs: given.pairs,
        seconds: given.seconds,
        vswitch,
        core: given.core,
        exact_match_cache: given.ovs_emc,
        frames: given.frames,
        before: given.before,
        account: given.account,
        keep: given.keep,
    };
    println!("tunnel: {}", check::tunnel_text());
    println!(
        "Mpps and cyc (TSC cycles per packet) count the forwarding thread's CPU time; ratio is ours to the peer's"
    );
    if given.qos {
        println!(
            "ours has rates for link, VPC, vNIC and classes: each packet across the tunnel pays, none waits"
        );
    }
    println!("{}", report::table_head());
    let mut rows = Vec::new();
    let mut record = Record::begin(&options);
    let result = super::run(&options, |outcome| match outcome {
        Outcome::Measured(row) => {
            println!("{}", report::table_row(&row));
            if let Some(line) = report::stages_line(&row) {
                println!("{line}");
            }
            record.add(&row);
            rows.push(*row);
        }
        Outcome::Skipped(skipped) => {
            println!("{}", report::skipped_row(&skipped));
            record.skip(&skipped);
        }
    });
    record.end();
    // Also when it stopped early: minutes of measurement are not to be lost.
    if let Some(path) = given.json {
        write_json(&path, &rows)?;
    }
    if let Some(path) = given.record {
        write_json(&path, &record)?;
    }
    Ok(result?)
}

fn write_json(path: &Path, value: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    std::fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))
}
