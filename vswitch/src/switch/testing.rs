//! Switches for tests. DPDK runs once per process, so each test wants a process of its own.

use std::cell::Cell;
use std::time::Duration;

use crossbeam::channel::{Receiver, bounded};
use worker::pool::WorkerHandle;
use worker::{Pool, WorkerCommand};

use super::Switch;
use crate::config::{Config, Source};

thread_local! {
    static COPIES: Cell<u64> = const { Cell::new(0) };
    static FAULT: Cell<&str> = const { Cell::new("") };
}

/// How many copies of a whole config this thread has made of a switch.
pub fn copies() -> u64 {
    COPIES.get()
}

/// One more.
pub(super) fn count_copy() {
    COPIES.set(COPIES.get() + 1);
}

/// Has control panic the next time that this thread gets to a place of this name.
pub fn break_at(place: &'static str) {
    FAULT.set(place);
}

/// A place at which control may be made to panic.
pub(super) fn reach(place: &str) {
    if FAULT.get() == place {
        FAULT.set("");
        panic!("a fault at {place}");
    }
}

/// The sections of a process with one worker, which sleeps, and so many packet buffers, not on huge pages.
pub fn process(mbufs: u32) -> String {
    process_of(1, mbufs)
}

/// The same with so many workers.
pub fn process_of(workers: usize, mbufs: u32) -> String {
    let cores: Vec<usize> = pmd::lcore::available().into_iter().rev().take(workers).collect();
    assert_eq!(cores.len(), workers, "each worker has a core of its own");
    format!(
        "[eal]\nhuge-pages = \"never\"\nmemory = \"128MiB\"\nfile-prefix = \"test-{}\"\nmbufs = {mbufs}\n\
         [workers]\ncores = {cores:?}\nidle = \"sleep\"\n",
        std::process::id()
    )
}

/// What the rest of a config says, in such a process.
#[track_caller]
pub fn config(rest: &str) -> Config {
    let text = process(4095) + rest;
    Config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}"))
}

/// A switch of such a config.
#[track_caller]
pub fn start(rest: &str) -> Switch {
    Switch::start(config(rest)).unwrap_or_else(|error| panic!("{error}"))
}

/// The same, where the config is that of a file.
#[track_caller]
pub fn start_by_file(rest: &str) -> Switch {
    let file = Source::parse(&(process(4095) + rest), "test").unwrap_or_else(|errors| panic!("{errors}"));
    let mut switch = Switch::start(file.config.clone()).unwrap_or_else(|error| panic!("{error}"));
    switch.set_config_file(Some(file));
    switch
}

/// Keeps the worker busy with an answer that nobody takes, until what this returns is dropped.
pub fn stop_worker(switch: &Switch) -> Receiver<()> {
    silence(&switch.pool)
}

/// The same of the worker of a pool.
pub fn silence(pool: &Pool) -> Receiver<()> {
    let (answer, nobody) = bounded(0);
    pool.workers[0].mailbox().post(WorkerCommand::Barrier(answer)).unwrap();
    nobody
}

/// The same of one worker, behind as many requests as its mailbox takes.
pub fn fill(worker: &WorkerHandle) -> Receiver<()> {
    let (answer, nobody) = bounded(0);
    worker.mailbox().post(WorkerCommand::Barrier(answer)).unwrap();
    // It has taken that one out by then.
    for _ in 0..2 {
        while worker.mailbox().offer(WorkerCommand::QpForget(Vec::new())) {}
        std::thread::sleep(Duration::from_millis(50));
    }
    nobody
}
