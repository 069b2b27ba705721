//! [`CmMessage`]: what the connection managers say to each other, to the depth that a switch needs.

use super::layout::{
    AprLayout, CommIds, DreqLayout, LapLayout, MraRejLayout, RepLayout, ReqLayout, SidrRepLayout,
    SidrReqLayout, attribute,
};
use crate::mad::BODY_LEN;
use crate::types::{Psn, Qpn};
use crate::view::{View, to_u24, u24};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use zerocopy::FromZeros;
use zerocopy::big_endian::{U16, U32, U64};

/// A global identifier: over RoCEv2 an IP address, IPv4 in its mapped form.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IP address in a RoCEv2 GID: IPv4 where it is IPv4-mapped.
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        })
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.ip(), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Transport service that a REQ asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection: type 0.
    Rc,
    /// Unreliable connection: type 1.
    Uc,
    /// Reliable datagram: type 2.
    Rd,
    /// Extended reliable connection: type 3, extended type 1.
    Xrc,
    /// A reserved code; with the extended transport type.
    Reserved(u8),
}

impl Transport {
    /// True for the services whose queue pairs a quota counts, as
    /// [`RoceClass::is_reliable_connection`](crate::roce::RoceClass::is_reliable_connection) says of packets.
    pub const fn is_reliable_connection(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }

    const fn of(code: u8, extended: u8) -> Self {
        match (code, extended) {
            (0, _) => Self::Rc,
            (1, _) => Self::Uc,
            (2, _) => Self::Rd,
            (_, 1) => Self::Xrc,
            (_, extended) => Self::Reserved(extended),
        }
    }

    /// Transport service type and extended transport type.
    const fn codes(self) -> (u8, u8) {
        match self {
            Self::Rc => (0, 0),
            Self::Uc => (1, 0),
            Self::Rd => (2, 0),
            Self::Xrc => (3, 1),
            Self::Reserved(extended) => (3, extended & 7),
        }
    }
}

/// Which message a REJ or MRA answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answered {
    /// A REQ: the reject is the first answer to it.
    Req,
    /// A REP: the active side gives up.
    Rep,
    /// Another; in an MRA: LAP.
    Other,
    /// A code that the standard reserves (3).
    Reserved,
}

impl Answered {
    const fn of(kind: u8) -> Self {
        match kind >> 6 {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::Other,
            _ => Self::Reserved,
        }
    }

    const fn kind(self) -> u8 {
        (self as u8) << 6
    }
}

/// Reason of a REJ (IBTA vol. 1 section 12.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

impl RejectReason {
    /// No queue pair available.
    pub const NO_QP: Self = Self(1);
    /// No resources available.
    pub const NO_RESOURCES: Self = Self(3);
    /// The answer took too long.
    pub const TIMEOUT: Self = Self(4);
    /// Nobody offers the service.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// The receiver still holds an earlier connection of this queue pair.
    pub const STALE_CONNECTION: Self = Self(10);
    /// The application refused.
    pub const CONSUMER: Self = Self(28);

    /// The reason in words, where the standard's number is one of those above.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::NO_QP => Some("no-qp"),
            Self::NO_RESOURCES => Some("no-resources"),
            Self::TIMEOUT => Some("timeout"),
            Self::INVALID_SERVICE_ID => Some("invalid-service-id"),
            Self::STALE_CONNECTION => Some("stale-connection"),
            Self::CONSUMER => Some("consumer"),
            _ => None,
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "reason {}", self.0),
        }
    }
}

/// What a REQ says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// Communication id, chosen by the sender.
    pub local_comm_id: u32,
    /// Service asked for; of the RDMA connection manager the low 16 bits are a port.
    pub service_id: u64,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: u64,
    /// Queue pair of the sender.
    pub local_qpn: Qpn,
    /// Transport service type, from the fields of both the base and the extended type.
    pub transport: Transport,
    /// PSN of the first packet to the sender's queue pair.
    pub starting_psn: Psn,
    /// Partition key of the connection.
    pub pkey: u16,
    /// Most payload of one packet, bytes; `None` for a reserved code.
    pub path_mtu: Option<u16>,
    /// Sender's end of the primary path.
    pub local_gid: Gid,
    /// Receiver's end of the primary path.
    pub remote_gid: Gid,
}

/// A message. "Local" is its sender, "remote" its receiver; a remote communication id of zero is one that the
/// sender did not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are named as in the standard and in `Req`
pub enum CmMessage {
    /// Request for communication (REQ).
    Req(Req),
    /// Message receipt acknowledgement: the answer takes a while.
    Mra { local_comm_id: u32, remote_comm_id: u32, answers: Answered },
    /// Reject: no connection, and why.
    Rej { local_comm_id: u32, remote_comm_id: u32, answers: Answered, reason: RejectReason },
    /// Reply to a REQ.
    Rep { local_comm_id: u32, remote_comm_id: u32, local_qpn: Qpn, starting_psn: Psn, local_ca_guid: u64 },
    /// Ready to use: the answer to a REP.
    Rtu { local_comm_id: u32, remote_comm_id: u32 },
    /// Request for release of the connection of the receiver's queue pair.
    Dreq { local_comm_id: u32, remote_comm_id: u32, remote_qpn: Qpn },
    /// Reply to a DREQ.
    Drep { local_comm_id: u32, remote_comm_id: u32 },
    /// Load alternate path: where to fail over to.
    Lap { local_comm_id: u32, remote_comm_id: u32, remote_qpn: Qpn, local_gid: Gid, remote_gid: Gid },
    /// Alternate path response; status 0: loaded.
    Apr { local_comm_id: u32, remote_comm_id: u32, status: u8 },
    /// Service id resolution request.
    SidrReq { request_id: u32, pkey: u16, service_id: u64 },
    /// Service id resolution reply; status 0: the queue pair is valid.
    SidrRep { request_id: u32, status: u8, qpn: Qpn, service_id: u64, qkey: u32 },
}

impl CmMessage {
    /// The message in the body of a MAD; `None` for an unknown attribute id.
    pub(super) fn parse(attribute: u16, body: &[u8; BODY_LEN]) -> Option<Self> {
        let CommIds { local, remote } = *CommIds::view(body)?.0;
        let (local_comm_id, remote_comm_id) = (local.get(), remote.get());
        Some(match attribute {
            attribute::REQ => Self::Req(Req::parse(ReqLayout::view(body)?.0)),
            attribute::MRA => {
                let answers = Answered::of(MraRejLayout::view(body)?.0.kind);
                Self::Mra { local_comm_id, remote_comm_id, answers }
            }
            attribute::REJ => {
                let rej = MraRejLayout::view(body)?.0;
                let (answers, reason) = (Answered::of(rej.kind), RejectReason(rej.reason.get()));
                Self::Rej { local_comm_id, remote_comm_id, answers, reason }
            }
            attribute::REP => {
                let rep = RepLayout::view(body)?.0;
                Self::Rep {
                    local_comm_id,
                    remote_comm_id,
                    local_qpn: Qpn::truncated(u24(rep.local_qpn)),
                    starting_psn: Psn::truncated(u24(rep.starting_psn)),
                    local_ca_guid: rep.local_ca_guid.get(),
                }
            }
            attribute::RTU => Self::Rtu { local_comm_id, remote_comm_id },
            attribute::DREQ => {
                let remote_qpn = Qpn::truncated(u24(DreqLayout::view(body)?.0.remote_qpn));
                Self::Dreq { local_comm_id, remote_comm_id, remote_qpn }
            }
            attribute::DREP => Self::Drep { local_comm_id, remote_comm_id },
            attribute::LAP => {
                let lap = LapLayout::view(body)?.0;
                Self::Lap {
                    local_comm_id,
                    remote_comm_id,
                    remote_qpn: Qpn::truncated(u24(lap.remote_qpn)),
                    local_gid: Gid(lap.local_gid),
                    remote_gid: Gid(lap.remote_gid),
                }
            }
            attribute::APR => {
                Self::Apr { local_comm_id, remote_comm_id, status: AprLayout::view(body)?.0.status }
            }
            attribute::SIDR_REQ => {
                let req = SidrReqLayout::view(body)?.0;
                Self::SidrReq {
                    request_id: req.request_id.get(),
                    pkey: req.pkey.get(),
                    service_id: req.service_id.get(),
                }
            }
            attribute::SIDR_REP => {
                let rep = SidrRepLayout::view(body)?.0;
                Self::SidrRep {
                    request_id: rep.request_id.get(),
                    status: rep.status,
                    qpn: Qpn::truncated(u24(rep.qpn)),
                    service_id: rep.service_id.get(),
                    qkey: rep.qkey.get(),
                }
            }
            _ => return None,
        })
    }

    /// The attribute id of the MAD that carries the message (see [`attribute`]).
    pub const fn attribute(&self) -> u16 {
        match self {
            Self::Req(_) => attribute::REQ,
            Self::Mra { .. } => attribute::MRA,
            Self::Rej { .. } => attribute::REJ,
            Self::Rep { .. } => attribute::REP,
            Self::Rtu { .. } => attribute::RTU,
            Self::Dreq { .. } => attribute::DREQ,
            Self::Drep { .. } => attribute::DREP,
            Self::Lap { .. } => attribute::LAP,
            Self::Apr { .. } => attribute::APR,
            Self::SidrReq { .. } => attribute::SIDR_REQ,
            Self::SidrRep { .. } => attribute::SIDR_REP,
        }
    }

    /// The name in console and traces.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Req(_) => "req",
            Self::Mra { .. } => "mra",
            Self::Rej { .. } => "rej",
            Self::Rep { .. } => "rep",
            Self::Rtu { .. } => "rtu",
            Self::Dreq { .. } => "dreq",
            Self::Drep { .. } => "drep",
            Self::Lap { .. } => "lap",
            Self::Apr { .. } => "apr",
            Self::SidrReq { .. } => "sidr-req",
            Self::SidrRep { .. } => "sidr-rep",
        }
    }

    /// Communication ids of sender and receiver; `None` for SIDR, which is about no connection.
    pub const fn comm_ids(&self) -> Option<(u32, u32)> {
        match *self {
            Self::Req(req) => Some((req.local_comm_id, 0)),
            Self::Mra { local_comm_id, remote_comm_id, .. }
            | Self::Rej { local_comm_id, remote_comm_id, .. }
            | Self::Rep { local_comm_id, remote_comm_id, .. }
            | Self::Rtu { local_comm_id, remote_comm_id }
            | Self::Dreq { local_comm_id, remote_comm_id, .. }
            | Self::Drep { local_comm_id, remote_comm_id }
            | Self::Lap { local_comm_id, remote_comm_id, .. }
            | Self::Apr { local_comm_id, remote_comm_id, .. } => Some((local_comm_id, remote_comm_id)),
            Self::SidrReq { .. } | Self::SidrRep { .. } => None,
        }
    }

    /// Writes the message over the start of a body of zeros.
    pub(super) fn write(&self, body: &mut [u8; BODY_LEN]) {
        let (local, remote) = self.comm_ids().unwrap_or_default();
        let ids = CommIds::new(local, remote);
        match *self {
            Self::Req(req) => put(body, &req.layout()),
            Self::Mra { answers, .. } => put(body, &answer(ids, answers, 0)),
            Self::Rej { answers, reason, .. } => put(body, &answer(ids, answers, reason.0)),
            Self::Rep { local_qpn, starting_psn, local_ca_guid, .. } => {
                let mut rep = RepLayout { ids, ..RepLayout::new_zeroed() };
                rep.local_qpn = to_u24(local_qpn.get());
                rep.starting_psn = to_u24(starting_psn.get());
                rep.local_ca_guid = U64::new(local_ca_guid);
                put(body, &rep);
            }
            Self::Rtu { .. } | Self::Drep { .. } => put(body, &ids),
            Self::Dreq { remote_qpn, .. } => put(body, &DreqLayout::new(ids, remote_qpn.get())),
            Self::Lap { remote_qpn, local_gid, remote_gid, .. } => {
                let mut lap = LapLayout { ids, ..LapLayout::new_zeroed() };
                lap.remote_qpn = to_u24(remote_qpn.get());
                (lap.local_gid, lap.remote_gid) = (local_gid.0, remote_gid.0);
                put(body, &lap);
            }
            Self::Apr { status, .. } => put(body, &AprLayout { ids, status, ..AprLayout::new_zeroed() }),
            Self::SidrReq { request_id, pkey, service_id } => {
                let (request_id, service_id) = (U32::new(request_id), U64::new(service_id));
                put(
                    body,
                    &SidrReqLayout { request_id, pkey: U16::new(pkey), reserved: U16::ZERO, service_id },
                );
            }
            Self::SidrRep { request_id, status, qpn, service_id, qkey } => {
                let mut rep = SidrRepLayout { status, ..SidrRepLayout::new_zeroed() };
                rep.request_id = U32::new(request_id);
                rep.qpn = to_u24(qpn.get());
                rep.service_id = U64::new(service_id);
                rep.qkey = U32::new(qkey);
                put(body, &rep);
            }
        }
    }
}

fn put<T: View>(body: &mut [u8; BODY_LEN], layout: &T) {
    // Every layout is shorter than the body.
    if let Some(place) = body.get_mut(..T::LEN) {
        place.copy_from_slice(layout.bytes());
    }
}

fn answer(ids: CommIds, answers: Answered, reason: u16) -> MraRejLayout {
    MraRejLayout { ids, kind: answers.kind(), length_or_timeout: 0, reason: U16::new(reason) }
}

impl Req {
    fn parse(req: &ReqLayout) -> Self {
        Self {
            local_comm_id: req.local_comm_id.get(),
            service_id: req.service_id.get(),
            local_ca_guid: req.local_ca_guid.get(),
            local_qpn: Qpn::truncated(u24(req.local_qpn)),
            transport: Transport::of(req.transport(), req.extended_transport()),
            starting_psn: Psn::truncated(u24(req.starting_psn)),
            pkey: req.pkey.get(),
            path_mtu: match req.mtu() {
                code @ 1..=5 => Some(128 << code),
                _ => None,
            },
            local_gid: Gid(req.local_gid),
            remote_gid: Gid(req.remote_gid),
        }
    }

    fn layout(&self) -> ReqLayout {
        let (transport, extended) = self.transport.codes();
        // Sizes between two codes are written as the smaller one.
        let mtu = self.path_mtu.map_or(0, |mtu| (mtu.max(256).ilog2() - 7).min(5) as u8);
        ReqLayout {
            local_comm_id: U32::new(self.local_comm_id),
            service_id: U64::new(self.service_id),
            local_ca_guid: U64::new(self.local_ca_guid),
            local_qpn: to_u24(self.local_qpn.get()),
            timeout_transport: transport << 1,
            starting_psn: to_u24(self.starting_psn.get()),
            pkey: U16::new(self.pkey),
            mtu_rnr: mtu << 4,
            retries_extended: extended,
            local_gid: self.local_gid.0,
            remote_gid: self.remote_gid.0,
            ..ReqLayout::new_zeroed()
        }
    }
}

const _: () = assert!(size_of::<ReqLayout>() <= BODY_LEN && size_of::<LapLayout>() <= BODY_LEN);
