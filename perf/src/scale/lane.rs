//! What each worker has of its own: a tenant with a port, an uplink, and the frames between them.
//!
//! Lanes have the same inner frames; only their tunnels differ.

use std::net::Ipv4Addr;

use wire::build::Path;

use crate::compare::board::Kept;
use crate::compare::cases::{Case, Job};
use crate::compare::check::OUTER;
use crate::compare::frames::{FAR_VTEP, NEAR_VTEP, Tenant};
use crate::compare::program;
use crate::compare::template::Program;
use crate::live::testbed::Station;

/// A worker's share of the work, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerLane(pub u8);

/// Where the fields are that differ between lanes: MAC addresses, VTEPs, VNI.
const FIELDS: [std::ops::Range<usize>; 3] = [0..12, 26..34, 46..49];
/// The outer IPv4 header and its checksum.
const HEADER: std::ops::Range<usize> = 14..34;
const CHECKSUM: std::ops::Range<usize> = 24..26;
const PORT: std::ops::Range<usize> = 34..36;

impl WorkerLane {
    pub fn tenant(self) -> Tenant {
        Tenant(u32::from(self.0))
    }

    pub fn near(self) -> Station {
        self.end(NEAR_VTEP)
    }

    pub fn far(self) -> Station {
        self.end(FAR_VTEP)
    }

    fn end(self, (mut mac, address): Station) -> Station {
        mac.0[3] += self.0;
        (mac, Ipv4Addr::from_bits(address.to_bits() + (u32::from(self.0) << 8)))
    }

    /// What its device makes for one way.
    pub fn program(self, job: &Job, way: Case) -> Program {
        let mut program = program::program(job, way);
        for template in program.templates.iter_mut().filter(|_| way == Case::Decap) {
            let inner = vec![0; template.length - OUTER];
            let port = u16::from_be_bytes([template.head[PORT.start], template.head[PORT.start + 1]]);
            let whole = Path::v4(self.far(), self.near()).vxlan(port, self.tenant().vni(), &inner);
            template.head[..OUTER].copy_from_slice(&whole[..OUTER]);
        }
        program
    }

    /// A frame that this lane sent into the tunnel as the first lane would have sent it; what is not of this lane stays
    /// as it is, so that a check finds it.
    pub fn as_first(self, mut kept: Kept) -> Kept {
        if kept.bytes.len() < OUTER || !wire::ipv4::checksum_ok(&kept.bytes[HEADER]) {
            return kept;
        }
        let of = |lane: Self| Path::v4(lane.near(), lane.far()).vxlan(0, lane.tenant().vni(), &[]);
        let (own, first) = (of(self), of(Self(0)));
        if FIELDS.iter().all(|field| kept.bytes[field.clone()] == own[field.clone()]) {
            for field in FIELDS {
                kept.bytes[field.clone()].copy_from_slice(&first[field]);
            }
            kept.bytes[CHECKSUM].fill(0);
            let sum = wire::checksum::of(&kept.bytes[HEADER]);
            kept.bytes[CHECKSUM].copy_from_slice(&sum.to_be_bytes());
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::check;

    fn job() -> Job {
        Job::plain(Case::Both, "1k")
    }

    #[test]
    fn lanes_differ_in_their_tunnels_alone() {
        let programs = [0, 1].map(|lane| WorkerLane(lane).program(&job(), Case::Decap));
        for flow in [0, 17, 999] {
            let [first, second] = [0, 1].map(|lane: usize| programs[lane].frame(0, flow));
            assert_eq!(first[OUTER..], second[OUTER..]);
            assert_ne!(first[..OUTER], second[..OUTER]);
            assert_eq!(first[PORT], second[PORT]);
            assert!(wire::ipv4::checksum_ok(&second[HEADER]));
        }
        assert_eq!(WorkerLane(0).program(&job(), Case::Decap), program::program(&job(), Case::Decap));
        assert_eq!(WorkerLane(1).program(&job(), Case::Encap), program::program(&job(), Case::Encap));
    }

    #[test]
    fn only_frames_of_the_lane_pass_for_the_firsts() {
        let sent = |lane: WorkerLane| {
            let bytes = Path::v4(lane.near(), lane.far()).vxlan(50_000, lane.tenant().vni(), &[7; 60]);
            Kept { length: bytes.len(), bytes }
        };
        let first = WorkerLane(0).tenant();
        let right = |kept: &Kept| check::outer(0, &kept.bytes, first, first.vtep());
        assert_eq!(right(&WorkerLane(1).as_first(sent(WorkerLane(1)))), Ok(50_000));
        assert!(right(&WorkerLane(1).as_first(sent(WorkerLane(2)))).is_err());
        for at in (0..OUTER).filter(|at| !PORT.contains(at) && !(18..23).contains(at)) {
            let mut wrong = sent(WorkerLane(1));
            wrong.bytes[at] ^= 0x40;
            assert!(right(&WorkerLane(1).as_first(wrong)).is_err(), "byte {at}");
        }
    }
}
