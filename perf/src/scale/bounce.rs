//! What it costs that a cache line moves from one core to the other, by the time stamp counter.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::report::stats::median;

/// Handings over of a batch, and batches: a thread that loses its core spoils one of them.
const BATCH: u64 = 20_000;
const BATCHES: u64 = 50;

/// A line that nothing else is on.
#[repr(align(128))]
struct Line(AtomicU64);

/// Ticks of the time stamp counter between one core's write to a line and the other's answer, the median of batches;
/// `None` when the cores could not be had.
pub fn ticks(cores: [usize; 2]) -> Option<f64> {
    let line = Line(AtomicU64::new(0));
    let last = BATCH * BATCHES;
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|parity| {
            let (line, core) = (&line, cores[parity as usize]);
            scope.spawn(move || {
                let pinned = core_affinity::set_for_current(core_affinity::CoreId { id: core });
                let mut marks = Vec::with_capacity(BATCHES as usize + 1);
                for turn in (parity..last).step_by(2) {
                    if turn % BATCH == parity {
                        marks.push(pmd::rdtsc());
                    }
                    while line.0.load(Ordering::Acquire) != turn {
                        std::hint::spin_loop();
                    }
                    line.0.store(turn + 1, Ordering::Release);
                }
                pinned.then_some(marks)
            })
        });
        let marks = threads.map(|thread| thread.join().ok().flatten());
        let marks = marks.into_iter().collect::<Option<Vec<_>>>()?;
        let batches: Vec<f64> =
            marks.iter().flat_map(|marks| marks.windows(2)).map(|pair| (pair[1] - pair[0]) as f64).collect();
        median(&batches).map(|ticks| ticks / BATCH as f64)
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_takes_its_time() {
        let cores = crate::host::cores::available();
        if let [first, second, ..] = cores[..] {
            let ticks = super::ticks([first, second]).unwrap();
            assert!(ticks > 5.0, "{ticks}");
        }
    }
}
