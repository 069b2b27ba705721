//! The empty loop: a thread of this process on the forwarding core that hands pointers from one ring to another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use pmd::{Burst, Eal, Port, Ring};

use crate::generator::ports::Lane;
use crate::live::LiveError;
use crate::live::ports::{BURST, Runtime};

const RING: u16 = 1023;

/// The loop; dropping it ends its thread.
#[derive(Debug)]
pub struct Empty {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    awake: AtomicBool,
    over: AtomicBool,
    thread: AtomicU32,
}

impl Empty {
    /// Starts it on `core`, at rest, and gives the lanes at both of its ends.
    pub fn start(runtime: &Runtime, core: usize) -> Result<(Self, Vec<Lane>), LiveError> {
        let ring = |name: &str| Ring::new(runtime.eal(), name, RING);
        let rings = [ring("in")?, ring("out")?, ring("none")?];
        let [into, out, none] = &rings;
        let port = |name: &str, rx: &Ring, tx: &Ring| {
            Port::from_rings(runtime.eal(), name, std::slice::from_ref(rx), std::slice::from_ref(tx))
        };
        let lane = |name: &str, rx, tx| Lane::start(runtime, name, port(name, rx, tx)?, RING);
        let lanes = vec![lane("a", none, into)?, lane("b", out, none)?];
        let middle = Lane::start(runtime, "middle", port("middle", into, out)?, RING)?;
        let state = Arc::new(State::default());
        let (shared, eal) = (Arc::clone(&state), runtime.eal().clone());
        let thread = std::thread::spawn(move || forward(&shared, &eal, core, middle));
        Ok((Self { state, thread: Some(thread) }, lanes))
    }

    /// Lets it forward, or rest.
    pub fn set_awake(&self, awake: bool) {
        self.state.awake.store(awake, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Empty {
    /// Its thread's id in the kernel.
    pub fn thread(&self) -> u32 {
        self.state.thread.load(Ordering::Relaxed)
    }
}

impl Drop for Empty {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::Relaxed);
        self.set_awake(false);
        if let Some(thread) = self.thread.take() {
            // It does nothing that could panic, and nobody would be left to tell.
            let _ = thread.join();
        }
    }
}

fn forward(state: &State, eal: &Eal, core: usize, mut middle: Lane) {
    // Without either it forwards all the same, and the share of its core that it had shows it.
    let _registration = pmd::lcore::register_current_thread(eal);
    let _ = pmd::lcore::pin_current_thread(core);
    state.thread.store(own_id().unwrap_or_default(), Ordering::Relaxed);
    let mut burst = Burst::with_capacity(BURST);
    while !state.over.load(Ordering::Relaxed) {
        if !state.awake.load(Ordering::Relaxed) {
            std::thread::park();
            continue;
        }
        middle.receive(&mut burst);
        middle.send(&mut burst);
    }
}

/// The calling thread's id in the kernel.
fn own_id() -> Option<u32> {
    std::fs::read_link("/proc/thread-self").ok()?.file_name()?.to_str()?.parse().ok()
}
