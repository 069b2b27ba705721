//! The thread that divides the rates of the tree: hundreds of microseconds with thousands of vNICs, which no worker has
//! to spare between two bursts.
//!
//! It runs where control runs. When it comes late, rates are those of an epoch before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use pipelines::qos::Divider;

use super::pool::guard;

/// The thread, as its owner holds it; it ends with this.
pub struct DividerThread {
    turns: Arc<AtomicU64>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DividerThread {
    /// Starts it; `now_ns` is the workers' time.
    ///
    /// # Errors
    /// When the system starts no thread.
    pub fn start(divider: Divider, now_ns: impl Fn() -> u64 + Send + 'static) -> std::io::Result<Self> {
        let turns = Arc::new(AtomicU64::new(0));
        let (stop, stopped) = bounded(0);
        let told = turns.clone();
        let body = move || guard("the thread that divides rates", || run(divider, &now_ns, &stopped, &told));
        let thread = std::thread::Builder::new().name("divider".into()).spawn(body)?;
        Ok(Self { turns, stop: Some(stop), thread: Some(thread) })
    }

    /// How often it has looked so far: the watchdog looks whether that goes on.
    pub fn turns(&self) -> Arc<AtomicU64> {
        self.turns.clone()
    }
}

impl Drop for DividerThread {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(mut divider: Divider, now_ns: &dyn Fn() -> u64, stopped: &Receiver<()>, turns: &AtomicU64) {
    loop {
        let due_ns = divider.tick(now_ns());
        turns.fetch_add(1, Ordering::Relaxed);
        let wait = Duration::from_nanos(due_ns.saturating_sub(now_ns()));
        if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use pipelines::Direction;
    use pipelines::qos::{Class, HardwareWork, NodeLimits, Tree, TreeSize};

    use super::*;

    /// Somebody who takes tokens is given a share soon, by nobody's doing but the thread's.
    #[test]
    fn dhtb_rates_are_divided_beside_the_workers() {
        let tree = Arc::new(Tree::new(TreeSize { tenants: 1, vnics: 2 }, &|_, _| {}));
        let link = NodeLimits { ceil: 1_000_000_000, ..NodeLimits::FREE };
        tree.set(tree.link_node(Direction::Out), &link, 0);
        let start = Instant::now();
        let thread =
            DividerThread::start(Divider::new(tree.clone()), move || start.elapsed().as_nanos() as u64)
                .unwrap();
        let leaf = tree.leaf(Direction::Out, 1, Class::Tcp);
        let share = || tree.view(tree.leaf_node(leaf), start.elapsed().as_nanos() as u64).share;
        while share() == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "no share");
            let work = HardwareWork { bytes: 10_000, over_ns: 1_000_000, unread_ns: 1_000_000 };
            tree.debit(leaf, work, start.elapsed().as_nanos() as u64);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(share() <= 1_000_000_000, "{}", share());
        let (turns, before) = (thread.turns(), thread.turns().load(Ordering::Relaxed));
        assert!(before > 0);
        drop(thread);
        let ended = turns.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(turns.load(Ordering::Relaxed), ended, "it has ended");
    }
}
