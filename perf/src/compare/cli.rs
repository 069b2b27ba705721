//! `perf compare` on the command line.

use std::path::PathBuf;

use super::cases::{Flows, Job, Peer, Traffic, Work};
use super::frames::INNER_BYTES;
use super::ovs::ExactMatchCache;
use super::record::Record;
use super::{Outcome, Supply, check, report};
use crate::host::interrupt;
use crate::options::{Common, within, write_json};

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
    #[arg(long, default_value_t = 64, value_parser = within::<usize>(*INNER_BYTES.start(), *INNER_BYTES.end()))]
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
    #[arg(long, default_value_t = 10, value_parser = within::<usize>(1, 1000))]
    pairs: usize,
    /// Length of a sample in seconds.
    #[arg(long, default_value_t = 1.0, value_parser = within::<f64>(0.1, 60.0))]
    seconds: f64,
    /// The core that forwards [default: the last one].
    #[arg(long)]
    core: Option<usize>,
    /// OVS's exact-match cache: on, off, or auto (on up to 4096 flows, where it is faster so).
    #[arg(long, default_value = "auto")]
    ovs_emc: ExactMatchCache,
    /// Measure the peers without ours; our fields and the ratios are null.
    #[arg(long, conflicts_with = "vswitch")]
    peers_alone: bool,
    /// Write the rows with everything around them as JSON to this file, for `perf report`.
    #[arg(long)]
    record: Option<PathBuf>,
    #[command(flatten)]
    pub common: Common,
}

pub fn run(given: Options) -> anyhow::Result<()> {
    let vswitch = if given.peers_alone { None } else { Some(given.common.vswitch()?) };
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
        keep: given.common.keep,
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
    println!("{}", report::TABLE.head());
    let mut rows = Vec::new();
    let mut record = Record::begin(&options);
    let result = super::run(&options, |outcome| match outcome {
        Outcome::Measured(row) => {
            println!("{}", report::TABLE.row(&row));
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
    given.common.write(&rows)?;
    if let Some(path) = given.record {
        write_json(&path, &record)?;
    }
    Ok(result?)
}
