//! The frames of `frames.rs` as templates with patches: what the template device is told to make for a job.
//!
//! For each template one frame is composed; what differs between the flows of a template is said in shifts and masks.
//! Checksums of TCP and the ICRC are those of the template's first frame, whatever is patched: no switch looks at them. The
//! checksum of IPv4 follows its addresses.

use super::cases::{Case, Job, TENANTS, Traffic};
use super::check::OUTER;
use super::frames::{self, Field, Fields, LENGTHS, OUTER_PORT, PEERS, Sent, TAG, TCP_PORTS, TRUNK_PEERS};
use super::template::{Bits, DeviceTemplate, HEAD, Patch, Program};

/// Offsets in a frame without tag: the ports, and BTH's destination queue pair and sequence number with the byte
/// before each.
const SOURCE_PORT: usize = 34;
const DESTINATION_PORT: usize = 36;
const QUEUE_PAIR: usize = 46;
const SEQUENCE: usize = 50;
/// Offsets of the lower halves of addresses, and of IPv4's checksum.
const DESTINATION_MAC: usize = 4;
const SOURCE_MAC: usize = 10;
const CHECKSUM: usize = 24;
const SOURCE_ADDRESS: usize = 28;
const DESTINATION_ADDRESS: usize = 32;

/// Bytes of headers, up to BTH's end.
const HEADERS: usize = 54;

/// What a device makes for one way of a job.
pub fn program(job: &Job, way: Case) -> Program {
    let stations = match job.tenants {
        Some(_) => TENANTS as usize * TRUNK_PEERS,
        // All counterparts are of one template, which is patched.
        None if job.mix.vteps > 0 => 1,
        None => PEERS,
    };
    let kinds = if job.traffic == Traffic::Mixed { 2 } else { 1 };
    let lengths = if job.mix.imix { LENGTHS } else { 1 };
    let templates = (0..(stations * kinds).max(lengths)).map(|flow| template(job, way, flow)).collect();
    let [flows, churn] = [job.flows.count, job.new_flows()].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    Program { flows, churn, zipf: job.mix.zipf, templates }
}

fn template(job: &Job, way: Case, flow: usize) -> DeviceTemplate {
    let frame = frames::input_frame(job, way, flow, Sent::Counted);
    let roce = frames::identity(job, flow).roce;
    let front = match way {
        Case::Decap => OUTER,
        _ if job.tenants.is_some() => TAG,
        _ => 0,
    };
    let mut patches = patches(job, roce);
    patches.extend(counterparts(job, way, &frame[front..]));
    patches.iter_mut().for_each(|patch| *patch = patch.behind(front));
    if way == Case::Decap {
        patches.push(patch(OUTER_PORT, SOURCE_PORT));
        let vteps = frames::vteps(job);
        patches.extend(vteps.into_iter().flat_map(|vtep| address(vtep, SOURCE_ADDRESS, &frame)));
    }
    // As much is written for long frames as for short ones: the lines with the headers.
    let lines = if front + HEADERS <= HEAD / 2 { HEAD / 2 } else { HEAD };
    DeviceTemplate { length: frame.len(), head: frame[..frame.len().min(lines)].to_vec(), patches }
}

fn patch(field: Field, offset: usize) -> Patch {
    let Field { shift, values, base } = field;
    let mask = (values - 1) as u32;
    Patch { offset, width: 2, bits: Bits::Flow(shift), mask, factor: 1, base: base as u32 }
}

/// Half of an address, and the checksum of its IPv4 header, which gets less by what the address gets more. (One's complement: the
/// template's own has to be more than that.)
fn address(field: Field, offset: usize, frame: &[u8]) -> [Patch; 2] {
    let base = usize::from(u16::from_be_bytes([frame[CHECKSUM], frame[CHECKSUM + 1]]));
    let checksum = Patch { factor: u32::MAX, ..patch(Field { base, ..field }, CHECKSUM) };
    [patch(field, offset), checksum]
}

/// The addresses of counterparts, where there are too many for a template each.
fn counterparts(job: &Job, way: Case, inner: &[u8]) -> Vec<Patch> {
    let (mac_at, ip_at) = match way {
        Case::Decap => (SOURCE_MAC, SOURCE_ADDRESS),
        _ => (DESTINATION_MAC, DESTINATION_ADDRESS),
    };
    let Some([mac, ip]) = frames::counterparts(job) else { return Vec::new() };
    [patch(mac, mac_at)].into_iter().chain(address(ip, ip_at, inner)).collect()
}

/// What is patched into frames without tunnel or tag.
fn patches(job: &Job, roce: bool) -> Vec<Patch> {
    let Fields { tcp: [source, destination], udp, queue_pair } = frames::fields(job);
    if roce {
        let word = Patch { width: 4, ..patch(queue_pair, QUEUE_PAIR) };
        let sequence = Patch { offset: SEQUENCE, bits: Bits::Round, base: 0, ..word };
        let port = (udp.values > 1).then(|| patch(udp, SOURCE_PORT));
        return port.into_iter().chain([word, sequence]).collect();
    }
    let mut patches = vec![patch(source, SOURCE_PORT)];
    // The templates have the tenants' destination ports, and few flows have one.
    if job.tenants.is_none() && (job.flows.count > TCP_PORTS * PEERS || job.mix.churn > 0) {
        patches.push(patch(destination, DESTINATION_PORT));
    }
    patches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::Mix;

    /// The frame with what the device leaves alone set to zero: TCP checksum, ICRC and what follows, payload.
    fn comparable(job: &Job, way: Case, flow: usize, mut frame: Vec<u8>) -> Vec<u8> {
        let front = match way {
            Case::Decap => OUTER,
            _ if job.tenants.is_some() => TAG,
            _ => 0,
        };
        if frames::identity(job, flow).roce {
            frame[front + 54..].fill(0);
        } else {
            frame[front + 50..front + 52].fill(0);
            frame[front + 54..].fill(0);
        }
        frame
    }

    #[test]
    fn patched_templates_are_the_frames_composed_one_by_one() {
        let mut compared = 0;
        for traffic in [Traffic::Tcp, Traffic::Rocev2, Traffic::Mixed, Traffic::Udp, Traffic::UdpFew] {
            for (way, tenants) in [
                (Case::L2, None),
                (Case::Encap, None),
                (Case::Decap, None),
                (Case::Encap, Some(64)),
                (Case::Decap, Some(64)),
                (Case::Encap, Some(1)),
            ] {
                let has_tunnels = tenants.is_none() && way != Case::L2 && traffic != Traffic::Mixed;
                let vteps = if has_tunnels { 16_384 } else { 0 };
                for (inner_bytes, mix) in [
                    (64, Mix::default()),
                    (200, Mix { churn: 10, ..Mix::default() }),
                    (1400, Mix { imix: true, ..Mix::default() }),
                    (64, Mix { vteps, ..Mix::default() }),
                ] {
                    let flows = "1M".parse().unwrap();
                    let job = Job { tenants, flows, inner_bytes, traffic, mix, ..Job::plain(way, "1") };
                    let program = program(&job, way);
                    for flow in (0..1_000_000).step_by(9973).chain([1, 16, 255, 256, 999_999]) {
                        let composed = frames::input_frame(&job, way, flow, Sent::Counted);
                        let patched = program.frame(0, flow as u32);
                        assert_eq!(
                            comparable(&job, way, flow, patched),
                            comparable(&job, way, flow, composed),
                            "flow {flow} of {way} {traffic} {tenants:?} {mix}"
                        );
                        compared += 1;
                    }
                }
            }
        }
        assert!(compared > 9000);
    }

    #[test]
    fn the_next_round_has_the_next_sequence_numbers() {
        let job = Job { traffic: Traffic::Rocev2, ..Job::plain(Case::Encap, "1k") };
        let program = program(&job, Case::Encap);
        let (first, later) = (program.frame(0, 77), program.frame(300, 77));
        assert_eq!(later[SEQUENCE..SEQUENCE + 4], [0, 0, 1, 44]);
        assert_eq!(
            (&first[..SEQUENCE], &first[SEQUENCE + 4..]),
            (&later[..SEQUENCE], &later[SEQUENCE + 4..])
        );
    }

    #[test]
    fn what_lies_behind_the_head_is_the_number_of_the_byte() {
        let job = Job { inner_bytes: 1400, ..Job::plain(Case::Encap, "1k") };
        let frame = program(&job, Case::Encap).frame(0, 5);
        assert_eq!(frame.len(), 1396);
        assert!((HEAD / 2..1396).all(|at| frame[at] == (at & 0xff) as u8));
    }
}
