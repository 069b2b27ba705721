//! Measuring the switch: comparisons with other switches on the same frames, ports and core.
//!
//! The binary `perf` is a thin command line over this library. Everything here runs the switches as processes of
//! their own and looks at them from outside (their counters, their threads' CPU time, their output frames); it
//! never links the data plane and never touches a port itself.

pub mod compare;
pub mod host;
pub mod pcap;
