//! The output check: what came out of a switch must be what the case says, frame by frame.
//!
//! Where frames come from a file, every switch plays each of them once into another one, and every frame must come out exactly
//! once. Where a device makes them, its counterpart kept samples. Either way outer headers must be those of the tunnel, and inner
//! bytes those of some flow's frame; which flow that is, is found out from them.

use std::collections::{HashMap, HashSet};

use super::board::Kept;
use super::cases::{Case, Job, Traffic};
use super::frames::{self, FAR_VTEP, NEAR_VTEP, TAG, Tenant, VNI, peers};
use super::template::Program;
use crate::generator::frame::TUNNEL;
use crate::live::testbed::Station;

/// Bytes of the outer Ethernet, IPv4, UDP and VxLAN headers.
pub(crate) const OUTER: usize = TUNNEL;
/// What tells flows apart lies in so many bytes of the inner frame.
const KEY: usize = 54;
/// BTH's sequence number, with the byte before it, counts the rounds of a device.
const SEQUENCE: std::ops::Range<usize> = 50..54;
/// Fewer samples than this show nothing.
const FEWEST: usize = 32;
/// Outer source ports that there are for flows.
const PORTS: usize = 16_384;

/// A frame that should not have come out, or one that should have.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Wrong {
    #[error("{out} frames came out for {input} that went in")]
    Count { out: usize, input: usize },
    /// An outer header is not the tunnel's.
    #[error("output frame {frame}: {field} is {found} instead of {expected}")]
    Outer {
        /// Which output frame, from 0.
        frame: usize,
        /// The field, in the words of its RFC.
        field: &'static str,
        found: String,
        expected: String,
    },
    /// The inner bytes are none of the input's, or come once too often.
    #[error("output frame {frame}: its {length} inner bytes are no input frame's, or come a second time")]
    Inner {
        /// Which output frame, from 0.
        frame: usize,
        length: usize,
    },
    /// The inner bytes begin as an input frame's do, and go on otherwise.
    #[error("output frame {frame}: byte {at} of its inner frame is {found:#04x} instead of {expected:#04x}")]
    Byte {
        /// Which output frame, from 0.
        frame: usize,
        /// Which byte of the inner frame, from 0.
        at: usize,
        /// What it is.
        found: u8,
        /// What it is in the frame that went in.
        expected: u8,
    },
    /// There are too few samples, or too few flows among them.
    #[error("{samples} samples were kept, of {flows} different flows of {wanted}")]
    Samples { samples: usize, flows: usize, wanted: usize },
    /// Flows share too few outer source ports to spread over paths.
    #[error("{flows} flows use only {ports} outer source ports")]
    Entropy { flows: usize, ports: usize },
}

/// The frames that went in.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// Each of these once.
    Replayed(&'a [Vec<u8>]),
    /// Those of a device again and again, with the next sequence number each time.
    Made {
        program: &'a Program,
        /// How many it has made so far, at most.
        made: u64,
    },
}

impl Input<'_> {
    fn flows(&self) -> usize {
        match self {
            Self::Replayed(frames) => frames.len(),
            Self::Made { program, made } => program.flows_among(*made),
        }
    }

    fn frame(&self, flow: usize) -> Vec<u8> {
        match self {
            Self::Replayed(frames) => frames[flow].clone(),
            Self::Made { program, .. } => program.frame(0, flow as u32),
        }
    }

    /// The inner frame of a whole one, behind `front` bytes of a tunnel's headers or without a tag; and without what changes
    /// from round to round.
    fn inner(&self, whole: &[u8], front: usize) -> Vec<u8> {
        let mut inner = match front {
            TAG => [&whole[..12], &whole[12 + TAG..]].concat(),
            _ => whole[front..].to_vec(),
        };
        // UDP, to RoCEv2's port or to that of its twin.
        if matches!(self, Self::Made { .. }) && inner[23] == 17 {
            inner[SEQUENCE].fill(0);
        }
        inner
    }
}

/// What a switch does to frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// What the case says.
    Work,
    /// Nothing.
    Moved,
    /// Nothing but that it writes their MAC addresses.
    Readdressed,
}

impl Done {
    /// A frame without what may be different.
    fn comparable(self, whole: &[u8]) -> Vec<u8> {
        let mut whole = whole.to_vec();
        if self == Self::Readdressed {
            whole[..12].fill(0);
        }
        whole
    }
}

/// Checks the frames of one way that were kept.
pub fn check(job: &Job, way: Case, done: Done, input: Input<'_>, kept: &[Kept]) -> Result<(), Wrong> {
    let moves_only = done != Done::Work;
    let is_replayed = matches!(input, Input::Replayed(_));
    if is_replayed && kept.len() != input.flows() {
        return Err(Wrong::Count { out: kept.len(), input: input.flows() });
    }
    let untunnelled = if job.tenants.is_some() { TAG } else { 0 };
    let front_in = if way == Case::Decap { OUTER } else { untunnelled };
    let front = match way {
        _ if moves_only => front_in,
        Case::Encap => OUTER,
        _ => untunnelled,
    };
    let mut inner_frames = Vec::new();
    let mut by_key: HashMap<Vec<u8>, Vec<usize>> = HashMap::new();
    for (frame, Kept { length, bytes }) in kept.iter().enumerate() {
        if bytes.len() != *length || bytes.len() < front + KEY {
            return Err(Wrong::Inner { frame, length: *length });
        }
        let inner = input.inner(&done.comparable(bytes), front);
        by_key.entry(inner[..KEY].to_vec()).or_default().push(frame);
        inner_frames.push(inner);
    }
    let (mut flows, mut ports) = (0, HashSet::new());
    for flow in 0..input.flows() {
        let whole = done.comparable(&input.frame(flow));
        let inner = input.inner(&whole, front_in);
        // What is left in the end is of no flow, or came twice of a file.
        let Some(mut frames) = by_key.remove(&inner[..KEY]) else { continue };
        if is_replayed && frames.len() > 1 {
            by_key.insert(inner[..KEY].to_vec(), frames.split_off(1));
        }
        flows += 1;
        let who = frames::identity(job, flow);
        for frame in frames {
            let bytes = &kept[frame].bytes;
            if inner_frames[frame].len() != inner.len() {
                return Err(Wrong::Inner { frame, length: inner_frames[frame].len() });
            }
            let differs =
                inner_frames[frame].iter().zip(&inner).position(|(found, expected)| found != expected);
            if let Some(at) = differs {
                let (found, expected) = (inner_frames[frame][at], inner[at]);
                return Err(Wrong::Byte { frame, at, found, expected });
            }
            if moves_only {
                let front = |whole: &[u8]| whole[..front].to_vec();
                if is_replayed && front(&done.comparable(bytes)) != front(&whole) {
                    return Err(Wrong::Inner { frame, length: inner.len() });
                }
            } else if way == Case::Encap {
                ports.insert(outer(frame, bytes, who.tenant, who.vtep)?);
            } else if way == Case::Decap && job.tenants.is_some() {
                tagged(frame, bytes, who.tenant)?;
            }
        }
    }
    if let Some(&frame) = by_key.values().flatten().min() {
        return Err(Wrong::Inner { frame, length: inner_frames[frame].len() });
    }
    let wanted = job.flows.count;
    if !is_replayed && (kept.len() < FEWEST || flows < wanted.min(kept.len()) / 4) {
        return Err(Wrong::Samples { samples: kept.len(), flows, wanted });
    }
    let different = if job.traffic == Traffic::UdpFew { peers(job) } else { wanted };
    // Chance alone leaves far more than a quarter of them.
    if !ports.is_empty() && ports.len() < different.min(kept.len()).min(PORTS) / 4 {
        return Err(Wrong::Entropy { flows, ports: ports.len() });
    }
    Ok(())
}

/// Checks the tag of a tenant's frame.
fn tagged(frame: usize, whole: &[u8], tenant: Tenant) -> Result<(), Wrong> {
    let (found, expected) = (&whole[12..12 + TAG], frames::tag(tenant));
    if found == expected {
        return Ok(());
    }
    let (found, expected) = (format!("{found:02x?}"), format!("{expected:02x?}"));
    Err(Wrong::Outer { frame, field: "VLAN tag", found, expected })
}

/// Checks the outer headers of a tenant's frame to a VTEP and returns its outer source port.
pub(crate) fn outer(frame: usize, bytes: &[u8], tenant: Tenant, vtep: Station) -> Result<u16, Wrong> {
    let wrong = |field, found: String, expected: String| Wrong::Outer { frame, field, found, expected };
    if bytes.len() < OUTER {
        return Err(wrong("length", bytes.len().to_string(), format!("at least {OUTER}")));
    }
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let ip_length = u16::try_from(bytes.len() - 14).unwrap_or(u16::MAX);
    let udp_length = ip_length - 20;
    let vni = tenant.vni().get().to_be_bytes();
    let expectations: [(&'static str, &[u8], &[u8]); 11] = [
        ("destination MAC", &bytes[0..6], &vtep.0.0),
        ("source MAC", &bytes[6..12], &NEAR_VTEP.0.0),
        ("EtherType, IP version and header length", &bytes[12..15], &[0x08, 0x00, 0x45]),
        ("IP total length", &bytes[16..18], &ip_length.to_be_bytes()),
        ("IP protocol", &bytes[23..24], &[17]),
        ("source VTEP", &bytes[26..30], &NEAR_VTEP.1.octets()),
        ("destination VTEP", &bytes[30..34], &vtep.1.octets()),
        ("UDP destination port", &bytes[36..38], &4789_u16.to_be_bytes()),
        ("UDP length", &bytes[38..40], &udp_length.to_be_bytes()),
        ("UDP checksum over IPv4", &bytes[40..42], &[0, 0]),
        ("VxLAN flags, VNI and reserved bits", &bytes[42..50], &[0x08, 0, 0, 0, vni[1], vni[2], vni[3], 0]),
    ];
    for (field, found, expected) in expectations {
        if found != expected {
            return Err(wrong(field, hex(found), hex(expected)));
        }
    }
    if !wire::ipv4::checksum_ok(&bytes[14..34]) {
        return Err(wrong("IP header checksum", hex(&bytes[24..26]), "the sum of the header".into()));
    }
    if bytes[22] == 0 {
        return Err(wrong("TTL", "0".into(), "more".into()));
    }
    Ok(u16::from_be_bytes([bytes[34], bytes[35]]))
}

/// The outer addresses that [`check`] insists on, for the head of the report.
pub fn tunnel_text() -> String {
    let ((near_mac, near), (far_mac, far)) = (NEAR_VTEP, FAR_VTEP);
    format!("{near} ({near_mac}) -> {far} ({far_mac}), UDP 4789, VNI {}", VNI.get())
}

#[cfg(test)]
mod tests {
    use super::super::program;
    use super::*;
    use crate::generator::choice::Dice;

    /// Of every kind that devices make.
    fn jobs() -> Vec<Job> {
        let mut jobs = Vec::new();
        for traffic in [Traffic::Tcp, Traffic::Rocev2, Traffic::Mixed] {
            let job = |case, tenants| Job { tenants, traffic, inner_bytes: 200, ..Job::plain(case, "1k") };
            jobs.push(job(Case::L2, None));
            for case in [Case::Encap, Case::Decap] {
                jobs.extend([None, Some(1), Some(64)].map(|tenants| job(case, tenants)));
            }
        }
        jobs
    }

    /// A job of a file.
    fn replayed(case: Case) -> (Job, Vec<Vec<u8>>) {
        let job = Job { traffic: Traffic::Mixed, ..Job::plain(case, "40") };
        let frames = frames::replayed(&job);
        (job, frames)
    }

    /// What a switch should make of a flow's frame.
    fn right(job: &Job, flow: usize, input: &[u8]) -> Kept {
        let who = frames::identity(job, flow);
        let mut inner = if job.case == Case::Decap { input[OUTER..].to_vec() } else { input.to_vec() };
        match job.case {
            Case::Encap => {
                if job.tenants.is_some() {
                    inner.drain(12..12 + TAG);
                }
                let path = wire::build::Path::v4(NEAR_VTEP, who.vtep);
                inner = path.vxlan(40_000 + flow as u16, who.tenant.vni(), &inner);
            }
            Case::Decap if job.tenants.is_some() => {
                inner.splice(12..12, frames::tag(who.tenant));
            }
            _ => {}
        }
        Kept::whole(inner)
    }

    fn all_right(job: &Job, frames: &[Vec<u8>]) -> Vec<Kept> {
        frames.iter().enumerate().map(|(flow, frame)| right(job, flow, frame)).collect()
    }

    /// What is kept of two rounds, in each of which flows come in another order.
    fn samples(job: &Job, program: &Program) -> Vec<Kept> {
        let (mut dice, mut flows): (_, Vec<u32>) = (Dice::new(1), (0..program.flows).collect());
        let mut round = |number| {
            dice.shuffle(&mut flows);
            let kept = flows.iter().take(100);
            kept.map(|&flow| right(job, flow as usize, &program.frame(number, flow))).collect::<Vec<_>>()
        };
        [round(1), round(2)].concat()
    }

    fn checked(job: &Job, frames: &[Vec<u8>], kept: &[Kept]) -> Result<(), Wrong> {
        check(job, job.case, Done::Work, Input::Replayed(frames), kept)
    }

    fn sampled(job: &Job, program: &Program, kept: &[Kept]) -> Result<(), Wrong> {
        check(job, job.case, Done::Work, Input::Made { program, made: 0 }, kept)
    }

    #[test]
    fn accepts_what_is_right() {
        for case in [Case::L2, Case::Encap, Case::Decap] {
            let (job, frames) = replayed(case);
            assert_eq!(checked(&job, &frames, &all_right(&job, &frames)), Ok(()), "{case}");
            let moved: Vec<Kept> = frames.iter().cloned().map(Kept::whole).collect();
            assert_eq!(check(&job, case, Done::Moved, Input::Replayed(&frames), &moved), Ok(()), "{case}");
        }
        for job in jobs() {
            let program = program::program(&job, job.case);
            assert_eq!(sampled(&job, &program, &samples(&job, &program)), Ok(()), "{}", job.label());
            let moved: Vec<Kept> = (0..100).map(|flow| Kept::whole(program.frame(3, flow))).collect();
            assert_eq!(
                check(&job, job.case, Done::Moved, Input::Made { program: &program, made: 0 }, &moved),
                Ok(()),
                "{}",
                job.label()
            );
        }
    }

    #[test]
    fn a_changed_byte_anywhere_but_in_free_fields_is_found() {
        // The outer source port is the switch's choice. DSCP/ECN, id and flags, and TTL are too, but the checksum covers them.
        let (job, frames) = replayed(Case::Encap);
        let good = all_right(&job, &frames);
        for at in (0..good[3].length).filter(|at| !(34..36).contains(at)) {
            let mut output = good.clone();
            output[3].bytes[at] ^= 0x10;
            assert!(checked(&job, &frames, &output).is_err(), "byte {at}");
        }
        for job in jobs() {
            let program = program::program(&job, job.case);
            let good = samples(&job, &program);
            let (inner, mut free) = match job.case {
                Case::Encap => (OUTER, vec![34, 35]),
                Case::Decap if job.tenants.is_some() => (TAG, Vec::new()),
                _ => (0, Vec::new()),
            };
            if good[7].bytes[inner + 23] == 17 {
                free.extend(SEQUENCE.map(|at| inner + at));
            }
            for at in (0..good[7].length).filter(|at| !free.contains(at)) {
                let mut output = good.clone();
                output[7].bytes[at] ^= 0x40;
                let found = sampled(&job, &program, &output);
                let place = format!("{} {}: byte {at}", job.label(), job.traffic);
                assert!(found.is_err(), "{place}");
                if at >= inner + KEY {
                    let (found_byte, expected) = (output[7].bytes[at], good[7].bytes[at]);
                    let wrong = Wrong::Byte { frame: 7, at: at - inner, found: found_byte, expected };
                    assert_eq!(found, Err(wrong), "{place}");
                }
            }
        }
    }

    #[test]
    fn lost_doubled_and_cut_frames_of_a_file_are_found() {
        let (job, frames) = replayed(Case::Decap);
        let good = all_right(&job, &frames);
        assert_eq!(checked(&job, &frames, &good[1..]), Err(Wrong::Count { out: 39, input: 40 }));
        let mut doubled = good;
        doubled[1] = doubled[0].clone();
        assert_eq!(checked(&job, &frames, &doubled), Err(Wrong::Inner { frame: 1, length: 60 }));
        let moved: Vec<Kept> = frames.iter().cloned().map(Kept::whole).collect();
        assert!(checked(&job, &frames, &moved).is_err(), "still encapsulated");
        let mut changed = moved;
        changed[5].bytes[30] ^= 1;
        assert!(
            check(&job, job.case, Done::Moved, Input::Replayed(&frames), &changed).is_err(),
            "an outer header"
        );
        let (job, frames) = replayed(Case::Encap);
        let cut = |kept: Kept| Kept::whole(kept.bytes[..49].to_vec());
        let cut: Vec<Kept> = all_right(&job, &frames).into_iter().map(cut).collect();
        assert!(checked(&job, &frames, &cut).is_err());
    }

    #[test]
    fn too_few_samples_flows_or_ports_are_found() {
        let one_port = |kept: &mut Kept| kept.bytes[34..36].copy_from_slice(&[0xc0, 0x01]);
        let (job, frames) = replayed(Case::Encap);
        let mut output = all_right(&job, &frames);
        output.iter_mut().for_each(one_port);
        assert_eq!(checked(&job, &frames, &output), Err(Wrong::Entropy { flows: 40, ports: 1 }));
        let job = Job { inner_bytes: 200, ..Job::plain(Case::Encap, "1k") };
        let program = program::program(&job, Case::Encap);
        let mut good = samples(&job, &program);
        let found = |kept: &[Kept]| sampled(&job, &program, kept);
        assert!(matches!(found(&good[..20]), Err(Wrong::Samples { samples: 20, .. })));
        assert!(matches!(found(&vec![good[0].clone(); 200]), Err(Wrong::Samples { flows: 1, .. })));
        good.iter_mut().for_each(one_port);
        assert!(matches!(found(&good), Err(Wrong::Entropy { .. })));
    }

    #[test]
    fn another_tenants_tunnel_is_found() {
        let job = Job { tenants: Some(64), inner_bytes: 200, ..Job::plain(Case::Encap, "1k") };
        let program = program::program(&job, Case::Encap);
        let mut output = samples(&job, &program);
        let (one, other) = (output[0].bytes.clone(), output[1].bytes.clone());
        assert_ne!(one[46..49], other[46..49]);
        output[0].bytes[..OUTER].copy_from_slice(&other[..OUTER]);
        assert!(sampled(&job, &program, &output).is_err());
    }
}
