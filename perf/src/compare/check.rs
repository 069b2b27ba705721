//! The output check: what came out of a switch must be what the case says, frame by frame.
//!
//! Where frames come from a file, every switch plays each of them once into another one; here that is taken apart. Outer
//! headers must be those of the tunnel, inner bytes those of the input, and every frame must come out exactly once.
//! Where a device makes them, the samples that its counterpart kept are taken apart the same way; `samples.rs`.

use std::collections::{HashMap, HashSet};

use super::cases::{Case, Job, Traffic};
use super::frames::{Frames, LOCAL_VTEP, REMOTE_VTEP, REMOTE_VTEP_MAC, Tenant, UPLINK_MAC, VNI, peers};
use super::peer::Contender;

/// Bytes of the outer Ethernet, IPv4, UDP and VxLAN headers.
pub(crate) const OUTER: usize = 50;

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
    /// There are too few samples, or too few flows among them.
    #[error("{samples} samples were kept, of {flows} different flows of {wanted}")]
    Samples { samples: usize, flows: usize, wanted: usize },
    /// Flows share too few outer source ports to spread over paths.
    #[error("{flows} flows use only {ports} outer source ports")]
    Entropy { flows: usize, ports: usize },
}

/// Checks the frames that came out.
///
/// A peer that only moves packets (testpmd) returns what went in, in every case.
pub fn check(job: &Job, contender: Contender, frames: &Frames, output: &[Vec<u8>]) -> Result<(), Wrong> {
    if output.len() != frames.input.len() {
        return Err(Wrong::Count { out: output.len(), input: frames.input.len() });
    }
    let moves_only = matches!(contender, Contender::Peer(super::cases::Peer::Testpmd));
    let expected = if moves_only { &frames.input } else { &frames.inner };
    let mut left: HashMap<&[u8], usize> = HashMap::new();
    for frame in expected {
        *left.entry(frame).or_default() += 1;
    }
    let mut source_ports = HashSet::new();
    for (index, whole) in output.iter().enumerate() {
        let inner = if job.case == Case::Encap && !moves_only {
            source_ports.insert(outer(index, whole, Tenant(0))?);
            &whole[OUTER..]
        } else {
            whole
        };
        match left.get_mut(inner) {
            Some(count) if *count > 0 => *count -= 1,
            _ => return Err(Wrong::Inner { frame: index, length: inner.len() }),
        }
    }
    let flows = match job.traffic {
        Traffic::UdpFew => peers(job.flows.count),
        _ => job.flows.count,
    };
    let ports = source_ports.len();
    // 16384 ports for the flows: chance alone leaves far more than a quarter of them.
    if !source_ports.is_empty() && ports < flows.min(16_384) / 4 {
        return Err(Wrong::Entropy { flows, ports });
    }
    Ok(())
}

/// Checks the outer headers of a tenant's frame and returns its outer source port.
pub(crate) fn outer(frame: usize, bytes: &[u8], tenant: Tenant) -> Result<u16, Wrong> {
    let wrong = |field, found: String, expected: String| Wrong::Outer { frame, field, found, expected };
    if bytes.len() < OUTER {
        return Err(wrong("length", bytes.len().to_string(), format!("at least {OUTER}")));
    }
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let ip_length = u16::try_from(bytes.len() - 14).unwrap_or(u16::MAX);
    let vni = tenant.vni().get().to_be_bytes();
    let vtep = tenant.vtep();
    let expectations: [(&'static str, &[u8], &[u8]); 9] = [
        ("destination MAC", &bytes[0..6], &vtep.0.0),
        ("source MAC", &bytes[6..12], &UPLINK_MAC.0),
        ("EtherType, IP version and header length", &bytes[12..15], &[0x08, 0x00, 0x45]),
        ("IP total length", &bytes[16..18], &ip_length.to_be_bytes()),
        ("IP protocol", &bytes[23..24], &[17]),
        ("source VTEP", &bytes[26..30], &LOCAL_VTEP.octets()),
        ("destination VTEP", &bytes[30..34], &vtep.1.octets()),
        ("UDP destination port", &bytes[36..38], &4789_u16.to_be_bytes()),
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
    let udp_length = ip_length - 20;
    if word(38) != udp_length {
        return Err(wrong("UDP length", word(38).to_string(), udp_length.to_string()));
    }
    if word(40) != 0 {
        return Err(wrong("UDP checksum over IPv4", hex(&bytes[40..42]), "zero".into()));
    }
    Ok(word(34))
}

/// The outer addresses that [`check`] insists on, for the head of the report.
pub fn tunnel_text() -> String {
    format!("{LOCAL_VTEP} ({UPLINK_MAC}) -> {REMOTE_VTEP} ({REMOTE_VTEP_MAC}), UDP 4789, VNI {}", VNI.get())
}

#[cfg(test)]
mod tests {
    use super::super::cases::Peer;
    use super::super::frames;
    use super::*;

    fn job(case: Case) -> Job {
        Job { traffic: Traffic::Mixed, ..Job::plain(case, "40") }
    }

    fn encapsulated(made: &Frames) -> Vec<Vec<u8>> {
        let mut port = 50_000;
        made.inner
            .iter()
            .map(|inner| {
                port += 1;
                wire::build::Path::v4((UPLINK_MAC, LOCAL_VTEP), (REMOTE_VTEP_MAC, REMOTE_VTEP))
                    .vxlan(port, VNI, inner)
            })
            .collect()
    }

    #[test]
    fn accepts_what_is_right() {
        let ovs = Contender::Peer(Peer::OvsExact);
        let made = frames::frames(&job(Case::Encap));
        assert_eq!(check(&job(Case::Encap), ovs, &made, &encapsulated(&made)), Ok(()));
        let made = frames::frames(&job(Case::Decap));
        assert_eq!(check(&job(Case::Decap), Contender::Ours, &made, &made.inner), Ok(()));
        assert_eq!(check(&job(Case::Decap), Contender::Peer(Peer::Testpmd), &made, &made.input), Ok(()));
        let made = frames::frames(&job(Case::L2));
        assert_eq!(check(&job(Case::L2), Contender::Ours, &made, &made.input), Ok(()));
    }

    #[test]
    fn a_changed_byte_anywhere_but_in_free_fields_is_found() {
        let made = frames::frames(&job(Case::Encap));
        let good = encapsulated(&made);
        // DSCP/ECN, id and flags, TTL and the source port are the switch's choice, but the checksum covers all but the last.
        let free = 34..36;
        for at in (0..good[0].len()).filter(|at| !free.contains(at)) {
            let mut output = good.clone();
            output[3][at] ^= 0x10;
            assert!(check(&job(Case::Encap), Contender::Ours, &made, &output).is_err(), "byte {at}");
        }
    }

    #[test]
    fn lost_doubled_and_cut_frames_are_found() {
        let made = frames::frames(&job(Case::Decap));
        let decap = |output: &[Vec<u8>]| check(&job(Case::Decap), Contender::Ours, &made, output);
        assert_eq!(decap(&made.inner[1..]), Err(Wrong::Count { out: 39, input: 40 }));
        let mut doubled = made.inner.clone();
        doubled[1] = doubled[0].clone();
        assert_eq!(decap(&doubled), Err(Wrong::Inner { frame: 1, length: 60 }));
        assert!(decap(&made.input).is_err(), "still encapsulated");
        let made = frames::frames(&job(Case::Encap));
        let cut: Vec<Vec<u8>> = encapsulated(&made).iter().map(|frame| frame[..49].to_vec()).collect();
        assert!(check(&job(Case::Encap), Contender::Ours, &made, &cut).is_err());
    }

    #[test]
    fn one_outer_port_for_all_flows_is_found() {
        let made = frames::frames(&job(Case::Encap));
        let mut output = encapsulated(&made);
        for frame in &mut output {
            frame[34..36].copy_from_slice(&[0xc0, 0x01]);
        }
        assert_eq!(
            check(&job(Case::Encap), Contender::Ours, &made, &output),
            Err(Wrong::Entropy { flows: 40, ports: 1 })
        );
    }
}
