//! The frames of `frames.rs` as templates with patches: what the template device is told to make for a job.
//!
//! For each template one frame is composed; what differs between the flows of a template is said in shifts and masks.
//! Checksums of TCP and the ICRC are those of the template's first frame, whatever is patched: no switch looks at them.

use super::cases::{Case, Job, TENANTS, Traffic};
use super::check::OUTER;
use super::frames::{self, Field, Fields, OUTER_PORT, PEERS, Sent, TAG, TCP_PORTS, TRUNK_PEERS};
use super::template::{Bits, DeviceTemplate, HEAD, Patch, Program};

/// Offsets in a frame without tag: the ports, and BTH's destination queue pair and sequence number with the byte
/// before each.
const SOURCE_PORT: usize = 34;
const DESTINATION_PORT: usize = 36;
const QUEUE_PAIR: usize = 46;
const SEQUENCE: usize = 50;

/// Bytes of headers, up to BTH's end.
const HEADERS: usize = 54;

/// What a device makes for one way of a job.
pub fn program(job: &Job, way: Case) -> Program {
    let count = match (job.tenants, job.traffic) {
        (Some(_), Traffic::Mixed) => 2 * TENANTS as usize * TRUNK_PEERS,
        (Some(_), _) => TENANTS as usize * TRUNK_PEERS,
        (None, Traffic::Mixed) => 2 * PEERS,
        (None, _) => PEERS,
    };
    let templates = (0..count).map(|flow| template(job, way, flow)).collect();
    Program { flows: u32::try_from(job.flows.count).unwrap_or(u32::MAX), templates }
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
    patches.iter_mut().for_each(|patch| *patch = patch.behind(front));
    if way == Case::Decap {
        patches.push(patch(OUTER_PORT, SOURCE_PORT));
    }
    // As much is written for long frames as for short ones: the lines with the headers.
    let lines = if front + HEADERS <= HEAD / 2 { HEAD / 2 } else { HEAD };
    DeviceTemplate { length: frame.len(), head: frame[..frame.len().min(lines)].to_vec(), patches }
}

fn patch(field: Field, offset: usize) -> Patch {
    let Field { shift, values, base } = field;
    let mask = (values - 1) as u32;
    Patch { offset, width: 2, bits: Bits::Flow(shift), mask, left: 0, base: base as u32 }
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
    if job.tenants.is_none() && job.flows.count > TCP_PORTS * PEERS {
        patches.push(patch(destination, DESTINATION_PORT));
    }
    patches
}

#[cfg(test)]
mod tests {
    use super::*;

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
                for inner_bytes in [64, 200, 1400] {
                    let flows = "1M".parse().unwrap();
                    let job = Job { case: way, tenants, flows, inner_bytes, traffic, ..Job::plain(way, "1") };
                    let program = program(&job, way);
                    for flow in (0..1_000_000).step_by(9973).chain([1, 16, 255, 256, 999_999]) {
                        let composed = frames::input_frame(&job, way, flow, Sent::Counted);
                        let patched = program.frame(0, flow as u32);
                        assert_eq!(
                            comparable(&job, way, flow, patched),
                            comparable(&job, way, flow, composed),
                            "flow {flow} of {way} {traffic} {tenants:?}"
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
