//! A host whose ports are on an e-switch.

pub use testkit::offload::*;
