//! The empty loop: a thread of this process on the forwarding core that hands pointers from one ring to another.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use pmd::{Burst, Eal, Port, Ring, rdtsc};

use crate::Result;
use crate::generator::ports::Lane;
use crate::live::ports::{BURST, Runtime};

use super::stalls::LEAST;

const RING: u16 = 1023;

/// The loop; dropping it ends its thread.
#[derive(Debug)]
pub struct Empty {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
    hertz: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Ticks of the shortest stall that counts.
    least: u64,
    awake: AtomicBool,
    over: AtomicBool,
    thread: AtomicU32,
    /// Turns that took longer than [`LEAST`], in ticks.
    stalls: Mutex<Vec<u64>>,
}

impl Empty {
    /// Starts it on `core`, at rest, and gives the lanes at both of its ends.
    pub fn start(runtime: &Runtime, core: usize) -> Result<(Self, Vec<Lane>)> {
        let ring = |name: &str| Ring::new(runtime.eal(), name, RING);
        let rings = [ring("in")?, ring("out")?, ring("none")?];
        let [into, out, none] = &rings;
        let port = |name: &str, rx: &Ring, tx: &Ring| {
            Port::from_rings(runtime.eal(), name, std::slice::from_ref(rx), std::slice::from_ref(tx))
        };
        let lane = |name: &str, rx, tx| Lane::start(runtime, name, port(name, rx, tx)?, RING, 1, false);
        let lanes = vec![lane("a", none, into)?, lane("b", out, none)?];
        let middle = Lane::start(runtime, "middle", port("middle", into, out)?, RING, 1, false)?;
        let least = (LEAST * runtime.clock.hz() as f64 / 1e6) as u64;
        let state = Arc::new(State { least, ..State::default() });
        let (shared, eal, hertz) = (Arc::clone(&state), runtime.eal().clone(), runtime.clock.hz());
        let thread = std::thread::spawn(move || forward(&shared, &eal, core, middle));
        Ok((Self { state, thread: Some(thread), hertz }, lanes))
    }

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

    /// For how long it was kept from its core each time since this was last asked, in microseconds.
    pub fn take_stalls(&self) -> Vec<f64> {
        let mut stalls = self.state.stalls.lock().unwrap_or_else(PoisonError::into_inner);
        stalls.drain(..).map(|ticks| ticks as f64 * 1e6 / self.hertz as f64).collect()
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
    let mut last = rdtsc();
    while !state.over.load(Ordering::Relaxed) {
        if !state.awake.load(Ordering::Relaxed) {
            std::thread::park();
            last = rdtsc();
            continue;
        }
        let now = rdtsc();
        if now.wrapping_sub(last) > state.least {
            state.stalls.lock().unwrap_or_else(PoisonError::into_inner).push(now.wrapping_sub(last));
        }
        last = now;
        middle.receive(&mut burst);
        middle.send(&mut burst);
    }
}

/// The calling thread's id in the kernel.
fn own_id() -> Option<u32> {
    std::fs::read_link("/proc/thread-self").ok()?.file_name()?.to_str()?.parse().ok()
}
