//! The gRPC interface of the switch: what `vswitch/proto` says, as Rust, for the daemon and for its clients.

/// Version 1 of the interface. What is here stays as it is; fields are only ever added.
#[allow(missing_docs, clippy::all, reason = "generated; the docs are those of the proto files")]
pub mod v1 {
    tonic::include_proto!("vswitch.v1");
}

/// The descriptors of all messages and services, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vswitch.bin"));
