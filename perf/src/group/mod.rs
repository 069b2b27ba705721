//! `perf group`: what replicated services do with RDMA (shared state tables, as in Derecho), over one or two switches.
//!
//! ```text
//!   members 0..3 == memif == vswitch A == VxLAN over memif == vswitch B == memif == members 4..7
//!        \_______________________________ perf _______________________________________/
//! ```
//! In every round each member writes its row (one small RDMA write, acknowledged) to each other member, and sends one
//! datagram to each other, in place of a multicast. The next round begins when the last is complete and due. Every
//! frame has a right ICRC and the next sequence number of its queue pair, and both are checked at the receiver.

pub mod report;
pub mod testbed;
pub mod traffic;

use crate::Result;
use crate::host::cores::{self, Cores};
use crate::host::interrupt;
use crate::live::testbed::PreparedHost;
use crate::options::{Common, Plot, within};
use crate::report::parts;

use report::{GroupReport, SwitchReport};
use testbed::GroupTestBed;

pub const MEMBERS: usize = 8;

/// Eight members, all to all, over one or two switches: small writes, acknowledgements and datagrams.
#[derive(Debug, Clone, clap::Args)]
pub struct GroupOptions {
    /// Switches: 2 (joined by VxLAN) or 1.
    #[arg(long, default_value_t = 2, value_parser = within::<usize>(1, 2))]
    pub switches: usize,
    /// How long, in seconds.
    #[arg(long, default_value_t = 10.0, value_parser = within::<f64>(0.1, 600.0))]
    pub seconds: f64,
    /// Rounds per second.
    #[arg(long, default_value_t = 1000, value_parser = within::<u64>(1, 1_000_000))]
    pub rounds: u64,
    /// Bytes of a member's row, 16 to 64.
    #[arg(long, default_value_t = 32, value_parser = within::<usize>(16, 64))]
    pub row: usize,
    #[command(flatten)]
    plot: Plot,
    #[command(flatten)]
    common: Common,
}

/// Who runs where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub own: usize,
    pub workers: Vec<usize>,
    /// Whether workers share a core, and sleep when idle for that reason.
    pub shared: bool,
}

impl Layout {
    /// A core for each as far as there are some; else the workers share the last.
    pub fn new(cores: &[usize], switches: usize) -> Result<Self> {
        let Cores { forwarding: last, housekeeping: own } = cores::choose(cores, None)?;
        let mut others = cores.iter().copied().filter(|&core| core != own);
        let workers: Vec<usize> = others.by_ref().take(switches).collect();
        if workers.len() == switches {
            return Ok(Self { own, workers, shared: false });
        }
        Ok(Self { own, workers: vec![last; switches], shared: true })
    }
}

pub fn run(options: &GroupOptions) -> anyhow::Result<()> {
    let vswitch = options.common.vswitch()?;
    interrupt::install()?;
    let layout = Layout::new(&cores::available(), options.switches)?;
    let cores = Cores { forwarding: layout.workers[0], housekeeping: layout.own };
    let bench = PreparedHost::on(cores, 192 * options.switches as u64 + 160, options.common.keep)?;
    let mut testbed = GroupTestBed::start(options, &vswitch, &bench.scratch, &layout)?;
    let floor = testbed.floor()?;
    let before = testbed.counted()?;
    let outcome = testbed.rounds(options)?;
    let after = testbed.counted()?;
    let queue_pairs = testbed.queue_pairs()?;
    let tsc_hz = testbed.runtime.clock.hz();
    drop(testbed);
    let counted =
        before.into_iter().zip(after).map(|(before, after)| SwitchReport::new(before, after)).collect();
    let report = GroupReport::new(options, &layout, floor, &outcome, counted, &queue_pairs, tsc_hz);
    print!("{}", parts::text(&report.parts()));
    options.common.write(&report)?;
    options.plot.draw(|stem| report.plot(stem))?;
    anyhow::ensure!(report.is_clean(), "packets were lost, out of sequence, damaged or dropped");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Layout;

    #[test]
    fn workers_share_a_core_where_there_are_too_few() {
        let two = Layout::new(&[0, 1], 2).unwrap();
        assert_eq!(two, Layout { own: 0, workers: vec![1, 1], shared: true });
        assert_eq!(Layout::new(&[0, 1], 1).unwrap(), Layout { own: 0, workers: vec![1], shared: false });
        assert_eq!(
            Layout::new(&[0, 1, 2, 3], 2).unwrap(),
            Layout { own: 0, workers: vec![1, 2], shared: false }
        );
        assert!(Layout::new(&[0], 1).is_err());
    }
}
