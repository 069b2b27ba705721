//! `perf compare` on the command line.

use std::path::PathBuf;

use super::cases::{FlowCount, Job, Mix, Peer, Work};
use super::frames::INNER_BYTES;
use super::ovs::ExactMatchCache;
use super::record::Record;
use super::{RowOutcome, Supply, check, report};
use crate::host::interrupt;
use crate::options::{Common, OneCore, within, write_json};

/// Compare with other switches: same frames, same kind of ports, one core, by turns.
#[derive(Debug, Clone, clap::Args)]
pub struct CompareOptions {
    /// Who to compare with: testpmd, testpmd-mac (which writes MAC addresses), ovs (both kinds of megaflows), ovs-exact, ovs-wildcard,
    /// ovs-conntrack (with `--traffic udp`); or the switch itself
    /// with the frames of `--traffic roce` on another UDP port: udp (a flow each), udp-few (a flow per address), or
    /// without the rates of `--qos`: no-qos; without the groups of `--groups`: no-groups; without the ports of
    /// `--idle-ports`: no-idle; with one tenant on the trunk:
    /// one-tenant; with
    /// inner frames of 64 bytes: short; without --zipf, --churn and --vteps: no-mix; or another build of it, named with `--before`: before.
    #[arg(long, value_delimiter = ',', default_value = "testpmd,ovs", value_parser = Peer::parse_word)]
    pub(super) peers: Vec<Vec<Peer>>,
    /// What to do.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "l2,encap,decap")]
    cases: Vec<Work>,
    /// Where frames come from and go to.
    #[arg(long, value_enum, default_value = "template")]
    pub(super) frames: Supply,
    /// Numbers of flows, as in 1,1k,100k,1M.
    #[arg(long, value_delimiter = ',', default_value = "1,1k")]
    flows: Vec<FlowCount>,
    #[command(flatten)]
    job: Job,
    #[command(flatten)]
    mix: Mix,
    /// After each row, ask this switch what its stages take.
    #[arg(long, conflicts_with = "peers_alone")]
    pub(super) account: bool,
    /// Another build of the daemon, for the peer `before`.
    #[arg(long)]
    pub(super) before: Option<PathBuf>,
    /// Pairs of samples per row.
    #[arg(long, default_value_t = 20, value_parser = within::<usize>(1, 1000))]
    pub(super) pairs: usize,
    /// Length of a sample in seconds.
    #[arg(long, default_value_t = 1.0, value_parser = within::<f64>(0.1, 60.0))]
    pub(super) seconds: f64,
    #[command(flatten)]
    pub(super) on: OneCore,
    /// OVS's exact-match cache.
    #[arg(long, value_enum, default_value = "auto")]
    pub(super) ovs_emc: ExactMatchCache,
    /// Measure the peers without ours; our fields and the ratios are null.
    #[arg(long, conflicts_with = "vswitch")]
    peers_alone: bool,
    /// Write the rows with everything around them as JSON to this file, for `perf report`.
    #[arg(long)]
    record: Option<PathBuf>,
    #[command(flatten)]
    pub common: Common,
}

impl CompareOptions {
    /// The rows' cases, flow counts, lengths and traffic.
    pub(super) fn jobs(&self) -> Vec<Job> {
        let inner_bytes = if self.mix.imix { *INNER_BYTES.end() } else { self.job.inner_bytes };
        let like = Job { inner_bytes, mix: self.mix, ..self.job.clone() };
        like.each(self.cases.iter().map(|work| work.parts()), &self.flows)
    }
}

pub fn run(given: &CompareOptions) -> anyhow::Result<()> {
    let vswitch = if given.peers_alone { None } else { Some(given.common.vswitch()?) };
    interrupt::install()?;
    println!("tunnel: {}", check::tunnel_text());
    println!(
        "Mpps and cyc (TSC cycles per packet) count the forwarding thread's CPU time; ratio is ours to the peer's"
    );
    if given.job.qos {
        println!(
            "ours has rates for link, VPC, vNIC and classes: each packet across the tunnel pays, none waits"
        );
    }
    println!("{}", report::TABLE.head());
    let mut rows = Vec::new();
    let mut record = Record::begin(vswitch.as_deref(), given.frames);
    let result = super::run(given, vswitch, |outcome| match outcome {
        RowOutcome::Measured(row) => {
            println!("{}", report::TABLE.row(&row));
            if let Some(line) = report::stages_line(&row) {
                println!("{line}");
            }
            record.add(&row);
            rows.push(*row);
        }
        RowOutcome::Skipped(skipped) => {
            println!("{}", report::skipped_row(&skipped));
            record.skip(&skipped);
        }
    });
    record.end();
    // Also when it stopped early: minutes of measurement are not to be lost.
    given.common.write(&rows)?;
    if let Some(path) = &given.record {
        write_json(path, &record)?;
    }
    Ok(result?)
}
