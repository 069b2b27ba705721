//! `perf group`: what replicated services do with RDMA (shared state tables, as in Derecho), over one or two switches.
//!
//! ```text
//!   members 0..3 == memif == vswitch A == VxLAN over memif == vswitch B == memif == members 4..7
//!        \_______________________________ perf _______________________________________/
//! ```
//! In every round each member writes its row (one small RDMA write, acknowledged) to each other member, and sends one
//! datagram to each other, in place of a multicast. The next round begins when the last is complete and due. Every
//! frame has a right ICRC and the next sequence number of its queue pair, and both are checked at the receiver.

pub mod field;
pub mod members;
pub mod report;
pub mod run;

use std::path::PathBuf;

use crate::host::scratch::Scratch;
use crate::host::{cores, hugepages, process};
use crate::live::LiveError;

use field::Field;
use report::Report;

/// Members of the group.
pub const MEMBERS: usize = 8;

/// What to do.
#[derive(Debug, Clone)]
pub struct Options {
    /// The daemon's binary.
    pub vswitch: PathBuf,
    /// Switches: 1 or 2.
    pub switches: usize,
    /// How long.
    pub seconds: f64,
    /// Rounds per second.
    pub rounds: u64,
    /// Bytes of a row, 16 to 64.
    pub row: usize,
    /// Keep the private folder.
    pub keep: bool,
}

/// Who runs where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Of this process.
    pub own: usize,
    /// Of each switch's worker.
    pub workers: Vec<usize>,
    /// Whether workers share a core, and sleep when idle for that reason.
    pub shared: bool,
}

impl Layout {
    /// A core for each as far as there are some; else the workers share the last.
    pub fn new(cores: &[usize], switches: usize) -> Result<Self, LiveError> {
        let (last, own) = cores::choose(cores, None)?;
        let mut others = cores.iter().copied().filter(|&core| core != own);
        let workers: Vec<usize> = others.by_ref().take(switches).collect();
        if workers.len() == switches {
            return Ok(Self { own, workers, shared: false });
        }
        Ok(Self { own, workers: vec![last; switches], shared: true })
    }
}

/// Runs it.
pub fn run(options: &Options) -> Result<Report, LiveError> {
    let layout = Layout::new(&cores::available(), options.switches)?;
    core_affinity::set_for_current(core_affinity::CoreId { id: layout.own });
    process::favour_this();
    let scratch = Scratch::create(options.keep)?;
    let _hugepages = hugepages::reserve_or_say(192 * options.switches as u64 + 160, &scratch);
    let mut field = Field::start(options, &scratch, &layout)?;
    let floor = run::direct_loop(&mut field)?;
    let before = field.counted()?;
    let outcome = run::rounds(&mut field, options)?;
    let after = field.counted()?;
    let queue_pairs = field.queue_pairs()?;
    Ok(Report::new(options, &layout, floor, outcome, (before, after), queue_pairs, field.runtime.clock.hz()))
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
