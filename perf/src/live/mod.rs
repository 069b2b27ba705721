//! Live traffic: `perf` as the machines around the switch, on memif ports, with frames made and read packet by packet.
//!
//! ```text
//!   one core: perf                                      another core: vswitch
//!   pace -> write frames -> tx  ===== memif =====>  vNIC port -> worker --+
//!   histograms <- read frames <- rx  <==== memif ====  uplink or vNIC  <--+
//! ```
//! One thread sends and receives, so that its own hiccups delay both: what is on its way is bounded, no ring can
//! overflow because of it, and a loss is the switch's.

pub mod beside;
pub mod capacity;
pub mod config;
pub mod pace;
pub mod ports;
pub mod testbed;
