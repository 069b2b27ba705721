//! What each error of the switch means to whoever asked for a change, and which value of the config it is about.
//!
//! No match here has a wildcard: an error that is new does not compile until it has its place. Where the path is empty the error is about
//! no value: a worker or a thread that does not do its part, a disk, an end of the process, a fault of the switch itself.
//!
//! | code | of what |
//! |---|---|
//! | `INVALID_ARGUMENT` | what cannot be, whatever else there is |
//! | `NOT_FOUND` | what a request names, and is not there |
//! | `FAILED_PRECONDITION` | what cannot be here and now: something else is in the way, or not there; somebody has to mend that first |
//! | `RESOURCE_EXHAUSTED` | what there is no room for: a table, buffers, threads |
//! | `UNAVAILABLE` | what may be there if it is asked for again |
//! | `DATA_LOSS` | what is in force, and not on the disk |
//! | `DEADLINE_EXCEEDED` | what is in force in software, and not known to be in a NIC |
//! | `INTERNAL` | a fault of the switch itself |

use std::borrow::Cow;
use std::io;

use pmd::{Errno, PortError};
use tonic::Code;
use worker::mailbox::WorkerError;
use worker::pool::PoolError;

use crate::config::path;
use crate::port::OpenError;
use crate::rdma;
use crate::switch::{PortsError, SwitchError};
use crate::topology::TopologyError;

/// A code, and the path of a value of the config, as [`ConfigError::path`](crate::config::ConfigError::path) has it. What is about the port
/// that a request names is at `port`.
type Place<'e> = (Code, Cow<'e, str>);

fn at<'e>(code: Code, path: impl Into<Cow<'e, str>>) -> Place<'e> {
    (code, path.into())
}

fn nowhere<'e>(code: Code) -> Place<'e> {
    at(code, "")
}

pub(super) fn place(error: &SwitchError) -> Place<'_> {
    match error {
        // Each of them has a path of its own.
        SwitchError::Config(_) => nowhere(Code::InvalidArgument),
        SwitchError::Ports(error) => of_ports(error),
        SwitchError::Topology(error) => of_topology(error),
        SwitchError::Rdma(error) => of_rdma(error),
        SwitchError::Worker(error) => of_worker(error),
        SwitchError::Pool(error) => of_pool(error),
        SwitchError::Memory { path, .. } => at(Code::ResourceExhausted, path),
        SwitchError::Mempool(_) => at(Code::ResourceExhausted, "eal.memory"),
        SwitchError::Eal(_) => at(Code::FailedPrecondition, "eal"),
        SwitchError::NoSuchCore { .. } => at(Code::FailedPrecondition, "workers.cores"),
        SwitchError::TooFewCores { .. } => at(Code::FailedPrecondition, "workers.count"),
        SwitchError::NotLive { path, .. } => at(Code::FailedPrecondition, *path),
        SwitchError::NoPciBus { path, .. }
        | SwitchError::Nowhere { path, .. }
        | SwitchError::InUse { path, .. } => at(Code::FailedPrecondition, path),
        SwitchError::Unknown { path, .. } => at(Code::NotFound, path),
        SwitchError::Watchdog(_) => nowhere(Code::ResourceExhausted),
        SwitchError::NotYet => nowhere(Code::Unavailable),
        SwitchError::File { .. } | SwitchError::NotSaved(_) => nowhere(Code::DataLoss),
        // What it means there: the change may have been made.
        SwitchError::NotWithdrawn { .. } => nowhere(Code::DeadlineExceeded),
        SwitchError::Toml(_) => nowhere(Code::Internal),
    }
}

fn of_ports(error: &PortsError) -> Place<'_> {
    match error {
        PortsError::Open { path, source, .. } => at(of_opening(source), path),
        PortsError::Ethdev { path, source, .. } => at(of_device(source), path),
        PortsError::Queues { path, .. }
        | PortsError::SmallBuffers { path, .. }
        | PortsError::NoPeer { path, .. }
        | PortsError::NoProxy { path, .. } => at(Code::FailedPrecondition, path),
        PortsError::TooMany { path } => at(Code::ResourceExhausted, path),
        PortsError::Unknown(_) => at(Code::NotFound, "port"),
        PortsError::NotThere(_) | PortsError::AlreadySo { .. } => at(Code::FailedPrecondition, "port"),
        PortsError::Thread { .. } => nowhere(Code::ResourceExhausted),
        PortsError::Ended { .. } => nowhere(Code::Internal),
        PortsError::Worker(error) => of_worker(error),
    }
}

fn of_topology(error: &TopologyError) -> Place<'_> {
    match error {
        // Each of them has a path of its own.
        TopologyError::Location(_) => nowhere(Code::InvalidArgument),
        TopologyError::NotUnicast { path, .. } => at(Code::InvalidArgument, path),
        TopologyError::OwnVtep { path, .. }
        | TopologyError::NoRoute { path, .. }
        | TopologyError::UnknownVnic { path, .. } => at(Code::FailedPrecondition, path),
        TopologyError::UnknownVni { vip, vni } => {
            at(Code::FailedPrecondition, format!("{}.vni", path::of("location", &format!("{vni} {vip}"))))
        }
        TopologyError::LocalVip { vip, vni, .. } => {
            at(Code::FailedPrecondition, format!("{}.vip", path::of("location", &format!("{vni} {vip}"))))
        }
        TopologyError::VltFull { path, .. } | TopologyError::TooManyVnics { path } => {
            at(Code::ResourceExhausted, path)
        }
    }
}

fn of_rdma(error: &rdma::Error) -> Place<'_> {
    match error {
        rdma::Error::Quota { path, why, .. } => at(of_rdma(why).0, path),
        // Of quotas, which say whose they are, or of a device that a request names, which is told there.
        rdma::Error::NoDevice { .. } | rdma::Error::NoLimit { .. } | rdma::Error::Nothing { .. } => {
            nowhere(Code::FailedPrecondition)
        }
        rdma::Error::Slow => nowhere(Code::Unavailable),
        rdma::Error::NoThread(_) => nowhere(Code::ResourceExhausted),
    }
}

fn of_worker<'e>(error: &WorkerError) -> Place<'e> {
    match error {
        WorkerError::Gone { .. } | WorkerError::Stuck { .. } => nowhere(Code::Unavailable),
    }
}

fn of_pool<'e>(error: &PoolError) -> Place<'e> {
    match error {
        PoolError::Core { .. } => at(Code::FailedPrecondition, "workers.cores"),
        PoolError::Thread { .. } | PoolError::Divider(_) => nowhere(Code::ResourceExhausted),
    }
}

fn of_opening(error: &OpenError) -> Code {
    match error {
        OpenError::SocketPathLength { .. } | OpenError::Value { .. } => Code::InvalidArgument,
        OpenError::Device { source, .. } | OpenError::NoDriver { source, .. } => of_device(source),
        OpenError::Capability { .. }
        | OpenError::InUse { .. }
        | OpenError::NoInterface { .. }
        | OpenError::InterfaceDown { .. }
        | OpenError::Namespace { .. }
        | OpenError::NoTap { .. }
        | OpenError::NoAccount { .. }
        | OpenError::Access { .. }
        | OpenError::NoVeth { .. }
        | OpenError::Interface { .. }
        | OpenError::NoDeviceFile { .. }
        | OpenError::NoFolder { .. }
        | OpenError::NotASocket { .. }
        | OpenError::SocketLive { .. }
        | OpenError::NobodyListens { .. }
        | OpenError::File { .. }
        | OpenError::Capture { .. }
        | OpenError::Pci { .. }
        | OpenError::Mtu { .. }
        | OpenError::Ring { .. }
        | OpenError::LeftBehind { .. } => Code::FailedPrecondition,
    }
}

pub(super) fn of_device(error: &PortError) -> Code {
    match error {
        PortError::LimitReached { .. } => Code::ResourceExhausted,
        PortError::Attach { errno, .. } | PortError::Operation { errno, .. } if is_room(*errno) => {
            Code::ResourceExhausted
        }
        PortError::Name { .. } => Code::InvalidArgument,
        PortError::Exists(_)
        | PortError::Busy(_)
        | PortError::NotFound { .. }
        | PortError::Attach { .. }
        | PortError::Range { .. }
        | PortError::Offloads { .. }
        | PortError::Rss { .. }
        | PortError::RssKey { .. }
        | PortError::FlowQueues { .. }
        | PortError::Unsupported { .. }
        | PortError::Operation { .. } => Code::FailedPrecondition,
        PortError::QueuesMissing { .. }
        | PortError::FlowQueuesOut { .. }
        | PortError::ForeignQueues { .. } => Code::Internal,
    }
}

/// There was no room.
fn is_room(errno: Errno) -> bool {
    let kind = io::Error::from_raw_os_error(errno.code()).kind();
    matches!(kind, io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull)
}

#[cfg(test)]
mod tests;
