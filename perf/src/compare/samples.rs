//! The check of samples: frames that a template device kept must be what the case makes of some flow's frame.
//!
//! Nothing is assumed about which flows they are of; that is found out from their inner bytes.

use std::collections::{HashMap, HashSet};

use super::board::Kept;
use super::cases::{Case, Job};
use super::check::{OUTER, Wrong, outer};
use super::frames::{self, TAG, Tenant};
use super::template::Program;

/// What tells flows apart lies in so many bytes of the inner frame.
const KEY: usize = 54;
/// BTH's sequence number, with the byte before it, counts rounds.
const SEQUENCE: std::ops::Range<usize> = 50..54;
/// Fewer samples than this show nothing.
const FEWEST: usize = 32;

/// What a sample was found to be.
struct Taken<'a> {
    whole: &'a [u8],
    inner: Vec<u8>,
    found: bool,
}

/// Checks the samples of one way; of a switch that only moves frames, they are as they came.
pub fn check(job: &Job, way: Case, moves_only: bool, program: &Program, kept: &[Kept]) -> Result<(), Wrong> {
    let mut taken = Vec::new();
    for (frame, sample) in kept.iter().enumerate() {
        let front = front(job, way, moves_only);
        let wrong = || Wrong::Inner { frame, length: sample.length };
        if sample.bytes.len() != sample.length || sample.bytes.len() < front + KEY {
            return Err(wrong());
        }
        let whole = sample.bytes.as_slice();
        let inner = comparable(untagged(job, way, moves_only, whole, front));
        taken.push(Taken { whole, inner, found: false });
    }
    let mut by_key: HashMap<Vec<u8>, Vec<usize>> = HashMap::new();
    for (number, sample) in taken.iter().enumerate() {
        by_key.entry(sample.inner[..KEY].to_vec()).or_default().push(number);
    }
    let (mut flows, mut ports) = (0, HashSet::new());
    for flow in 0..program.flows {
        let input = program.frame(0, flow);
        let inner = comparable(input_inner(job, way, &input));
        let Some(numbers) = by_key.get(&inner[..KEY]) else { continue };
        flows += 1;
        let tenant = frames::identity(job, flow as usize).tenant;
        for &number in numbers {
            let sample = &mut taken[number];
            if sample.inner != inner {
                return Err(Wrong::Inner { frame: number, length: sample.inner.len() });
            }
            if way == Case::Encap && !moves_only {
                ports.insert(outer(number, sample.whole, tenant)?);
            }
            if way == Case::Decap && !moves_only && job.tenants.is_some() {
                tagged(number, sample.whole, tenant)?;
            }
            sample.found = true;
        }
    }
    if let Some(number) = taken.iter().position(|sample| !sample.found) {
        return Err(Wrong::Inner { frame: number, length: taken[number].inner.len() });
    }
    let wanted = job.flows.count;
    if kept.len() < FEWEST || flows < wanted.min(kept.len()) / 4 {
        return Err(Wrong::Samples { samples: kept.len(), flows, wanted });
    }
    let few = job.traffic == super::cases::Traffic::UdpFew;
    if !few && !ports.is_empty() && ports.len() < wanted.min(kept.len()) / 4 {
        return Err(Wrong::Entropy { flows, ports: ports.len() });
    }
    Ok(())
}

/// Bytes before the inner frame of what comes out; a tag is in the inner frame.
fn front(job: &Job, way: Case, moves_only: bool) -> usize {
    match (way, moves_only) {
        (Case::Encap, false) | (Case::Decap, true) => OUTER,
        _ if job.tenants.is_some() => TAG,
        _ => 0,
    }
}

fn untagged(job: &Job, way: Case, moves_only: bool, whole: &[u8], front: usize) -> Vec<u8> {
    match (way, moves_only) {
        (Case::Encap, false) | (Case::Decap, true) => whole[front..].to_vec(),
        _ => without_tag(job, whole),
    }
}

fn input_inner(job: &Job, way: Case, input: &[u8]) -> Vec<u8> {
    if way == Case::Decap { input[OUTER..].to_vec() } else { without_tag(job, input) }
}

fn without_tag(job: &Job, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if job.tenants.is_some() {
        frame.drain(12..12 + TAG);
    }
    frame
}

/// The frame without what changes from round to round.
fn comparable(mut inner: Vec<u8>) -> Vec<u8> {
    // UDP, to RoCEv2's port or to that of its twin.
    if inner[23] == 17 {
        inner[SEQUENCE].fill(0);
    }
    inner
}

fn tagged(frame: usize, whole: &[u8], tenant: Tenant) -> Result<(), Wrong> {
    let (found, expected) = (&whole[12..12 + TAG], frames::tag(tenant));
    if found == expected {
        return Ok(());
    }
    let (found, expected) = (format!("{found:02x?}"), format!("{expected:02x?}"));
    Err(Wrong::Outer { frame, field: "VLAN tag", found, expected })
}

#[cfg(test)]
mod tests {
    use super::super::cases::Traffic;
    use super::super::frames::{LOCAL_VTEP, UPLINK_MAC};
    use super::super::order::Order;
    use super::super::program;
    use super::*;

    fn job(case: Case, tenants: Option<u32>, traffic: Traffic) -> Job {
        Job {
            case,
            tenants,
            flows: "1k".parse().unwrap(),
            inner_bytes: 200,
            traffic,
            qos: false,
            groups: false,
        }
    }

    /// What a switch should make of the frames.
    fn right(job: &Job, program: &Program) -> Vec<Kept> {
        let made = Order::new(program.flows, 1).skip(1500).take(200).map(|(round, flow)| {
            let input = program.frame(round, flow);
            let tenant = frames::identity(job, flow as usize).tenant;
            let mut inner = input_inner(job, job.case, &input);
            match job.case {
                Case::Encap => {
                    let path = wire::build::Path::v4((UPLINK_MAC, LOCAL_VTEP), tenant.vtep());
                    path.vxlan(40_000 + flow as u16, tenant.vni(), &inner)
                }
                Case::Decap if job.tenants.is_some() => {
                    inner.splice(12..12, frames::tag(tenant));
                    inner
                }
                _ => inner,
            }
        });
        made.map(|bytes| Kept { length: bytes.len(), bytes }).collect()
    }

    fn cases() -> Vec<Job> {
        let mut jobs = Vec::new();
        for traffic in [Traffic::Tcp, Traffic::Rocev2, Traffic::Mixed] {
            jobs.push(job(Case::L2, None, traffic));
            for case in [Case::Encap, Case::Decap] {
                jobs.extend([None, Some(1), Some(64)].map(|tenants| job(case, tenants, traffic)));
            }
        }
        jobs
    }

    #[test]
    fn accepts_what_is_right() {
        for job in cases() {
            let program = program::program(&job, job.case);
            assert_eq!(
                check(&job, job.case, false, &program, &right(&job, &program)),
                Ok(()),
                "{}",
                job.label()
            );
            let moved: Vec<Kept> = (0..100)
                .map(|flow| program.frame(3, flow))
                .map(|bytes| Kept { length: bytes.len(), bytes })
                .collect();
            assert_eq!(check(&job, job.case, true, &program, &moved), Ok(()), "{}", job.label());
        }
    }

    #[test]
    fn a_changed_byte_anywhere_is_found() {
        for job in cases() {
            let program = program::program(&job, job.case);
            let good = right(&job, &program);
            let mut free: Vec<usize> = Vec::new();
            let inner = match job.case {
                Case::Encap => {
                    // The outer source port is the switch's choice.
                    free.extend(34..36);
                    OUTER
                }
                Case::Decap if job.tenants.is_some() => TAG,
                _ => 0,
            };
            if good[7].bytes[inner + 23] == 17 {
                free.extend(SEQUENCE.map(|at| inner + at));
            }
            for at in (0..good[7].length).filter(|at| !free.contains(at)) {
                let mut output = good.clone();
                output[7].bytes[at] ^= 0x40;
                let found = check(&job, job.case, false, &program, &output);
                assert!(found.is_err(), "{} {}: byte {at}", job.label(), job.traffic);
            }
        }
    }

    #[test]
    fn too_few_samples_flows_or_ports_are_found() {
        let job = job(Case::Encap, None, Traffic::Tcp);
        let program = program::program(&job, Case::Encap);
        let good = right(&job, &program);
        let found = |kept: &[Kept]| check(&job, Case::Encap, false, &program, kept);
        assert!(matches!(found(&good[..20]), Err(Wrong::Samples { samples: 20, .. })));
        assert!(matches!(found(&vec![good[0].clone(); 200]), Err(Wrong::Samples { flows: 1, .. })));
        let mut one_port = good;
        one_port.iter_mut().for_each(|kept| kept.bytes[34..36].copy_from_slice(&[0xc0, 1]));
        assert!(matches!(found(&one_port), Err(Wrong::Entropy { .. })));
    }

    #[test]
    fn another_tenants_tunnel_is_found() {
        let job = job(Case::Encap, Some(64), Traffic::Tcp);
        let program = program::program(&job, Case::Encap);
        let mut output = right(&job, &program);
        let (one, other) = (output[0].bytes.clone(), output[1].bytes.clone());
        assert_ne!(one[46..49], other[46..49]);
        output[0].bytes[..OUTER].copy_from_slice(&other[..OUTER]);
        assert!(check(&job, Case::Encap, false, &program, &output).is_err());
    }
}
