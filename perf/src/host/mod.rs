//! What a measurement needs from the machine: a private folder, huge pages, child processes, a clock, an early end;
//! and this project's daemon as a child.
//!
//! Used by every command of `perf`. Nothing here knows what is measured.

pub mod cores;
pub mod daemon;
pub mod hugepages;
pub mod interrupt;
pub mod netns;
pub mod ovs;
pub mod process;
pub mod scratch;
pub mod testpmd;
pub mod threads;
pub mod tsc;
