//! `af-packet`: an existing kernel interface through packet sockets. For containers (veth) and plain hosts.
//!
//! A packet socket reads what the interface would have sent on: where checksums and segmentation are left to the
//! device below, packets come with unfinished checksums, and super-frames come cut off. The switch completes
//! the former ([`Traits::partial_checksums`]); for the latter there is only a warning with the remedy.

use std::fmt::Write;

use super::devargs::Devargs;
use super::{DevicePlan, MtuControl, OpenError, Opening, Traits, preflight};
use crate::config::port_spec::AfPacketPort;

/// The kernel puts this much in front of a packet in its frame of the ring.
const FRAME_OVERHEAD: u32 = 80;
/// Ethernet header and two VLAN tags.
const LINK_HEADER: u32 = 22;
/// What the driver takes off a frame for its own header before it compares with a buffer.
const DRIVER_HEADER: u32 = 32;
const SMALLEST_FRAME: u32 = 2048;
const PAGE: u32 = 4096;
/// Bytes of a ring, each way and queue, as far as that makes a sensible number of frames.
const RING_BYTES: u32 = 4 << 20;

pub(super) fn plan(spec: &AfPacketPort, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    let interface = preflight::packet_socket("af-packet", &spec.iface, spec.queues, opening)?;
    let mtu = preflight::interface_mtu(&spec.iface)?.max(opening.request.mtu.unwrap_or(0).into());
    let ring = PacketRing::for_mtu(mtu);
    warn_about_offloads(&spec.iface);
    let traits = Traits {
        partial_checksums: true,
        mtu: MtuControl::Interfaces(vec![interface.clone()]),
        max_running_mtu: ring.max_mtu(),
        min_segment: ring.min_segment(),
        ..Traits::exactly(spec.queues)
    };
    let mut plan = DevicePlan::virtual_device("af_packet", args(spec, ring)?, traits);
    plan.calm.extend(preflight::calm_interface(interface));
    Ok(plan)
}

/// Bytes that a buffer must have room for with an MTU.
pub(super) fn min_segment(mtu: u16) -> u16 {
    PacketRing::for_mtu(mtu.into()).min_segment()
}

/// The socket's memory, shared with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PacketRing {
    frame_size: u32,
    block_size: u32,
    frames: u32,
}

impl PacketRing {
    /// Frames that hold packets of this MTU: with the driver's default of 2048 longer ones would be cut. The
    /// driver wants frames to fill blocks without a rest, and blocks are whole pages.
    fn for_mtu(mtu: u32) -> Self {
        // The longest IP packet is 65535; the loopback's MTU is one more.
        let needed = mtu.min(65_535) + LINK_HEADER + FRAME_OVERHEAD;
        let frame_size =
            if needed <= SMALLEST_FRAME { SMALLEST_FRAME } else { needed.next_multiple_of(PAGE) };
        let block_size = frame_size.max(PAGE);
        let frames_per_block = block_size / frame_size;
        let frames = (RING_BYTES / frame_size).clamp(64, 2048).next_multiple_of(frames_per_block);
        Self { frame_size, block_size, frames }
    }

    /// What the driver wants to be room for in a buffer.
    fn min_segment(self) -> u16 {
        u16::try_from(self.frame_size - DRIVER_HEADER).unwrap_or(u16::MAX)
    }

    /// The largest MTU whose packets its frames hold.
    fn max_mtu(self) -> u16 {
        u16::try_from(self.frame_size - LINK_HEADER - FRAME_OVERHEAD).unwrap_or(u16::MAX)
    }
}

fn args(spec: &AfPacketPort, ring: PacketRing) -> Result<Devargs, OpenError> {
    // Several sockets make a fanout group by themselves, which spreads flows by their hash.
    Ok(Devargs::default()
        .text("iface", "iface", &spec.iface)?
        .number("qpairs", spec.queues)
        .number("blocksz", ring.block_size)
        .number("framesz", ring.frame_size)
        .number("framecnt", ring.frames))
}

/// What the other end of a veth is set to, as far as it can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OtherEnd {
    /// In this namespace.
    Here { iface: String, checksums: bool, segments: bool },
    /// In another one.
    Elsewhere { index: u32 },
}

fn warn_about_offloads(iface: &str) {
    let Ok(Some(peer)) = pmd::interface::veth_peer(iface) else { return };
    let name = pmd::interface::name_of(peer.index).ok().filter(|_| peer.same_namespace);
    let end = match name {
        Some(name) => OtherEnd::Here {
            checksums: pmd::process::tx_checksum_offload(&name).unwrap_or(true),
            segments: pmd::interface::tcp_segmentation_offload(&name).unwrap_or(true),
            iface: name,
        },
        None => OtherEnd::Elsewhere { index: peer.index },
    };
    if let Some(warning) = warning(iface, &end) {
        tracing::warn!("{warning}");
    }
}

/// What to say about a veth, if anything.
fn warning(iface: &str, end: &OtherEnd) -> Option<String> {
    let mut text = format!("interface {iface} is a veth");
    match end {
        OtherEnd::Here { checksums: false, segments: false, .. } => return None,
        OtherEnd::Here { iface: other, checksums, segments } => {
            if *checksums {
                let _ = write!(
                    text,
                    "; its other end {other} leaves checksums unfinished: the switch completes them in software"
                );
            }
            if *segments {
                let _ = write!(
                    text,
                    "; {other} sends TCP super-frames, which a packet socket cuts off: TCP will crawl or hang"
                );
            }
            let _ = write!(text, "; run `ethtool -K {other} tx off tso off gso off`");
        }
        OtherEnd::Elsewhere { index } => {
            let _ = write!(
                text,
                "; its other end (index {index}) is in another network namespace: unless done already, run there `ethtool -K <interface> tx off tso off gso off`, else the switch must complete checksums in software, and TCP super-frames arrive cut off"
            );
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let spec = AfPacketPort { iface: "v0".into(), queues: 2 };
        let golden = "iface=v0,qpairs=2,blocksz=4096,framesz=2048,framecnt=2048";
        assert_eq!(args(&spec, PacketRing::for_mtu(1500)).unwrap().finish(), golden);
        let golden = "iface=v0,qpairs=2,blocksz=12288,framesz=12288,framecnt=341";
        assert_eq!(args(&spec, PacketRing::for_mtu(9000)).unwrap().finish(), golden);
    }

    #[test]
    fn every_mtu_fits_its_frames_and_frames_fill_blocks() {
        for mtu in (68..=65_536).step_by(7).chain([1500, 1946, 1947, 65_535, 65_536]) {
            let ring = PacketRing::for_mtu(mtu);
            assert!(ring.frame_size >= mtu.min(65_535) + LINK_HEADER + FRAME_OVERHEAD, "{mtu}: {ring:?}");
            let most = u32::from(ring.max_mtu());
            assert_eq!(PacketRing::for_mtu(most).frame_size, ring.frame_size, "{mtu}: {most} needs no other");
            assert!(most == 65_535 || PacketRing::for_mtu(most + 1).frame_size > ring.frame_size, "{mtu}");
            assert!(ring.block_size.is_multiple_of(PAGE) && ring.block_size.is_multiple_of(ring.frame_size));
            assert!(ring.frames.is_multiple_of(ring.block_size / ring.frame_size), "{mtu}: {ring:?}");
        }
    }

    #[test]
    fn warnings_name_the_command() {
        let here = |checksums, segments| OtherEnd::Here { iface: "v1".into(), checksums, segments };
        assert_eq!(warning("v0", &here(false, false)), None);
        for end in [here(true, false), here(false, true), here(true, true)] {
            let text = warning("v0", &end).unwrap();
            assert!(text.contains("ethtool -K v1 tx off tso off gso off"), "{text}");
        }
        let text = warning("v0", &OtherEnd::Elsewhere { index: 7 }).unwrap();
        assert!(text.contains("index 7") && text.contains("ethtool -K"), "{text}");
    }
}
