//! Settled switches, frozen between their samples: one at a time, or some that run at the same time.

use std::time::Duration;

use super::board::Kept;
use super::cases::{Case, Job, Peer};
use super::check::{self, Done, Input};
use super::peer::{Contender, StageTime, Switch};
use super::sample::{Counter, Moment, Sample, WARM_UP};
use crate::host::{interrupt, threads};
use crate::{Error, Result};

/// Tries for each round that is asked for.
const TRIES: usize = 4;

/// A thread that forwards, and where its packets are counted.
struct Worker {
    thread: u32,
    counter: Counter,
}

pub struct Runner {
    contender: Contender,
    pub switch: Box<dyn Switch>,
    workers: Vec<Worker>,
}

impl Runner {
    /// Waits for the steady state of a switch that forwards on these cores, and freezes it. `counter` opens what a core's
    /// packets are counted by, waits for all flows, and checks what came out; the switch has to be steady still after that.
    pub fn settle(
        contender: Contender,
        mut switch: Box<dyn Switch>,
        cores: &[usize],
        mut counter: impl FnMut(&mut dyn Switch, usize) -> Result<Counter>,
    ) -> Result<Self> {
        switch.settle()?;
        let mut workers = Vec::new();
        for (worker, &core) in cores.iter().enumerate() {
            let counter = counter(switch.as_mut(), worker)?;
            let name = switch.name().to_owned();
            workers.push(Worker { thread: threads::forwarding(switch.process(), &name, core)?, counter });
        }
        switch.settle()?;
        switch.process().freeze()?;
        Ok(Self { contender, switch, workers })
    }

    /// A sample of a switch with one worker.
    pub fn sample(&mut self, seconds: f64) -> Result<Sample> {
        let contender = self.contender;
        sample(&mut [self], seconds)?.first().copied().ok_or_else(|| silent(contender, seconds))
    }

    /// What its stages take, watched for so long.
    pub fn account(&mut self, seconds: f64) -> Result<Vec<StageTime>> {
        self.switch.process().thaw()?;
        self.switch.watch()?;
        interrupt::pause(Duration::from_secs_f64(seconds))?;
        let stages = self.switch.watched()?;
        self.switch.process().freeze()?;
        Ok(stages)
    }

    /// Bytes that its classes have paid for since the start. Fails if a packet had to wait at any time.
    pub fn paid(&mut self) -> Result<u64> {
        self.switch.process().thaw()?;
        let bytes = self.switch.drawn();
        self.switch.process().freeze()?;
        bytes
    }

    /// The same, and packets that have left.
    pub fn drawn(&mut self) -> Result<(u64, u64)> {
        let bytes = self.paid()?;
        let counts = self.workers.iter().map(|worker| worker.counter.read(self.switch.as_mut()));
        Ok((bytes, counts.map(|count| Ok(count?.0)).sum::<Result<u64>>()?))
    }

    fn moments(&mut self) -> Result<Vec<Moment>> {
        let Self { switch, workers, .. } = self;
        let pid = switch.process().pid();
        let moment =
            |worker: &Worker| Moment::of(pid, worker.thread, || worker.counter.read(switch.as_mut()));
        workers.iter().map(moment).collect()
    }
}

/// Lets switches run at the same time, and measures each worker of each of them.
pub fn sample(runners: &mut [&mut Runner], seconds: f64) -> Result<Vec<Sample>> {
    for runner in runners.iter_mut() {
        runner.switch.process().thaw()?;
    }
    let samples = measure(runners, seconds);
    for runner in runners.iter_mut() {
        runner.switch.process().freeze()?;
    }
    let samples = samples?;
    let owners = runners.iter().flat_map(|runner| runner.workers.iter().map(|_| runner.contender));
    for (sample, switch) in samples.iter().zip(owners) {
        if sample.packets == 0 {
            return Err(silent(switch, seconds));
        }
        let (lost, made) = (sample.lost(), sample.made.unwrap_or(0));
        if lost * 1000 > made {
            return Err(Error::Lossy { switch: switch.to_string(), lost, made });
        }
    }
    Ok(samples)
}

fn silent(switch: Contender, seconds: f64) -> Error {
    Error::Failed(format!("{switch} forwarded nothing in {seconds} s, although its output was right before"))
}

/// Takes so many rounds in all of whose samples a thread had that share of its core. Noisy ones are taken again, up to four tries for
/// each; what is told then are the rounds that were kept, and the smallest share seen, in percent. So are rounds in which packets were lost,
/// for a machine that stands still loses some; but a switch that does so in more than one of them, and more than a quarter, is refused.
pub fn quiet<T>(
    wanted: usize,
    share: f64,
    mut take: impl FnMut(usize) -> Result<(T, Vec<Sample>)>,
    noisy: impl FnOnce(usize, f64) -> Error,
) -> Result<Vec<T>> {
    let (mut kept, mut worst, mut lossy) = (Vec::new(), 1.0f64, 0);
    for turn in 0..wanted * TRIES {
        if kept.len() == wanted {
            break;
        }
        let (round, samples) = match take(turn) {
            Err(Error::Lossy { .. }) if lossy < (wanted / 4).max(1) => {
                lossy += 1;
                continue;
            }
            taken => taken?,
        };
        worst = samples.iter().map(Sample::share).fold(worst, f64::min);
        if samples.iter().all(|sample| sample.share() >= share) {
            kept.push(round);
        }
    }
    if kept.len() < wanted { Err(noisy(kept.len(), worst * 100.0)) } else { Ok(kept) }
}

fn measure(runners: &mut [&mut Runner], seconds: f64) -> Result<Vec<Sample>> {
    interrupt::pause(WARM_UP)?;
    let mut all = || -> Result<Vec<Moment>> {
        Ok(runners.iter_mut().map(|runner| runner.moments()).collect::<Result<Vec<_>, _>>()?.concat())
    };
    let first = all()?;
    interrupt::pause(Duration::from_secs_f64(seconds))?;
    let last = all()?;
    Ok(first.iter().zip(&last).map(|(first, last)| first.until(last)).collect())
}

/// Checks what was kept of the frames that a switch sent one way.
pub fn check_kept(contender: Contender, job: &Job, way: Case, input: Input<'_>, kept: &[Kept]) -> Result<()> {
    let done = match contender {
        Contender::Peer(Peer::Testpmd) => Done::Moved,
        Contender::Peer(Peer::TestpmdMac) => Done::Readdressed,
        _ => Done::Work,
    };
    check::check(job, way, done, input, kept).map_err(|wrong| {
        let flows = &job.flows;
        Error::Failed(format!("{contender}, {way} with {flows} flows: {wrong}; its output is not comparable"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample::QUIET_SHARE;
    use super::*;
    use crate::host::cores;
    use crate::host::process::{Placement, Process};

    /// A process that is busy on its core, and what is asked of it as a switch.
    struct Asked {
        process: Process,
        steady: Vec<bool>,
    }

    impl Switch for Asked {
        fn name(&self) -> &str {
            "busy"
        }

        fn process(&mut self) -> &mut Process {
            &mut self.process
        }

        fn forwarded(&mut self) -> Result<u64> {
            Ok(0)
        }

        fn settle(&mut self) -> Result<()> {
            match self.steady.pop() {
                Some(true) => Ok(()),
                _ => Err(Error::Refused { switch: "busy", words: "packets wait".into() }),
            }
        }
    }

    #[test]
    fn rounds_with_losses_are_taken_again_unless_there_are_many() {
        let take = |wanted: usize, lossy: &[usize]| {
            let mut turns = 0;
            let round = |turn: usize| {
                turns = turn + 1;
                let lost = Error::Lossy { switch: "ours".into(), lost: 1, made: 2 };
                if lossy.contains(&turn) { Err(lost) } else { Ok((turn, Vec::new())) }
            };
            let noisy = |_, _| panic!("no sample was noisy");
            let kept = quiet(wanted, QUIET_SHARE, round, noisy);
            (kept.ok(), turns)
        };
        assert_eq!(take(1, &[]), (Some(vec![0]), 1));
        assert_eq!(take(1, &[0]), (Some(vec![1]), 2));
        assert_eq!(take(1, &[0, 1]), (None, 2));
        assert_eq!(take(8, &[0, 5]).0.map(|kept| kept.len()), Some(8));
        assert_eq!(take(8, &[0, 3, 5]), (None, 6));
    }

    #[test]
    fn quiet_needs_its_core() {
        let sample = |cpu| Sample { packets: 1, made: None, cpu, wall: 1.0 };
        let round = |turn: usize| Ok((turn, vec![sample(1.0), sample([0.969, 0.97][turn])]));
        let noisy = |_, _| panic!("the second one is not noisy");
        assert_eq!(quiet(1, QUIET_SHARE, round, noisy).ok(), Some(vec![1]));
        let mut told = None;
        let always = quiet(
            2,
            QUIET_SHARE,
            |turn| Ok((turn, vec![sample(0.5)])),
            |kept, worst| {
                told = Some((kept, worst));
                Error::Failed("noisy".into())
            },
        );
        assert!(always.is_err());
        assert_eq!(told, Some((0, 50.0)));
    }

    #[test]
    fn a_switch_that_is_steady_no_more_once_all_flows_have_come_is_refused() {
        let core = *cores::available().last().unwrap();
        // What it says when it is asked, the last answer first, and how often the counters were opened by the end.
        for (steady, opened) in [(vec![true, true], 1), (vec![false, true], 1), (vec![false], 0)] {
            let words = ["-c", &core.to_string(), "sh", "-c", "while :; do :; done"].map(str::to_owned);
            let process =
                Process::start("taskset", &words, &[], Placement::default(), "install util-linux").unwrap();
            let is_steady = !steady.contains(&false);
            let mut count = 0;
            let switch = Box::new(Asked { process, steady });
            let settled = Runner::settle(Contender::Ours, switch, &[core], |_, _| {
                count += 1;
                Ok(Counter::default())
            });
            assert_eq!((settled.is_ok(), count), (is_steady, opened), "{:?}", settled.err());
        }
    }
}
