//! The gRPC interface of the switch: what `vswitch/proto` says, as Rust, for the daemon and for its clients.

use prost::Message;

/// Version 1 of the interface. What is here stays as it is; fields are only ever added.
#[allow(missing_docs, clippy::all, reason = "generated; the docs are those of the proto files")]
pub mod v1 {
    tonic::include_proto!("vswitch.v1");
}

/// What the switch uses of the interface of gobgpd (GoBGP 3), whose client it is.
#[allow(missing_docs, clippy::all, reason = "generated; the docs are those of the proto files")]
pub mod gobgp {
    tonic::include_proto!("apipb");
}

/// What a refused call was refused for, from the details of its status (`tonic::Status::details`); none where it is no refusal of
/// the switch's own.
pub fn refusal(details: &[u8]) -> Option<v1::Refusal> {
    let status = v1::RpcStatus::decode(details).ok()?;
    let refusal = status.details.iter().find(|detail| detail.type_url.ends_with("/vswitch.v1.Refusal"))?;
    v1::Refusal::decode(refusal.value.as_slice()).ok()
}

/// The descriptors of all messages and services, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vswitch.bin"));
