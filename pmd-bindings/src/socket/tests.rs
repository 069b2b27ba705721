//! What goes as one is cut into what it was: runs against the cut of `wire` and against [`Datagrams`], frame by frame.

use proptest::prelude::*;
use wire::segment::Segmentation;
use wire::{ChecksumState, PacketBuf, RxFacts, checksum};

use super::datagrams::Datagrams;
use super::ring::Slot;
use crate::Mbuf;
use crate::testing::pool;
use crate::vnet::VnetHeader;
use crate::vnet::coalesce::{HEADERS, Run};

/// A flow of which frames are made.
#[derive(Clone, Copy, Debug)]
struct Flow {
    is_ipv6: bool,
    is_tcp: bool,
    /// DF is set, and the identification stays.
    df: bool,
    options: bool,
}

impl Flow {
    const fn l4(self) -> usize {
        if self.is_ipv6 { 54 } else { 34 }
    }

    fn headers(self) -> usize {
        self.l4()
            + if !self.is_tcp {
                8
            } else if self.options {
                32
            } else {
                20
            }
    }

    /// Frame `number` of the flow, whose payload begins at `offset`.
    fn frame(self, number: u16, offset: u32, payload: usize, pushes: bool) -> Vec<u8> {
        let headers = self.headers();
        let l4_len = (headers - self.l4() + payload) as u16;
        let mut bytes = vec![0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1];
        let protocol = if self.is_tcp { 6 } else { 17 };
        if self.is_ipv6 {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend(l4_len.to_be_bytes());
            bytes.extend([protocol, 64]);
            bytes.extend([0xfd; 16]);
            bytes.extend([0xfc; 16]);
        } else {
            bytes.extend([8, 0, 0x45, 0]);
            bytes.extend((20 + l4_len).to_be_bytes());
            bytes.extend(if self.df { 7 } else { 65_534u16.wrapping_add(number) }.to_be_bytes());
            bytes.extend([if self.df { 0x40 } else { 0 }, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            let sum = checksum::of(&bytes[14..34]);
            bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        if self.is_tcp {
            bytes.extend([0x1f, 0x90, 0x00, 0x50]);
            bytes.extend(0xffff_f000u32.wrapping_add(offset).to_be_bytes());
            bytes.extend([
                0,
                0,
                0,
                9,
                if self.options { 0x80 } else { 0x50 },
                if pushes { 0x18 } else { 0x10 },
            ]);
            bytes.extend([0x10, 0, 0, 0, 0, 0]);
            bytes.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2].iter().take(if self.options {
                12
            } else {
                0
            }));
        } else {
            bytes.extend([0xc0, 0x01]);
            bytes.extend(4789u16.to_be_bytes());
            bytes.extend(l4_len.to_be_bytes());
            bytes.extend([0, 0]);
        }
        bytes.extend((0..payload).map(|at| (at as u32 + offset) as u8));
        if self.is_tcp {
            let at = self.l4();
            let pseudo = self.pseudo(&bytes, l4_len);
            let mut sum = checksum::Sum::ZERO;
            sum.add_u16(pseudo);
            sum.add(&bytes[at..]);
            bytes[at + 16..at + 18].copy_from_slice(&sum.checksum().to_be_bytes());
        }
        bytes
    }

    fn pseudo(self, frame: &[u8], l4_len: u16) -> u16 {
        let protocol = if self.is_tcp { 6 } else { 17 };
        if self.is_ipv6 {
            checksum::pseudo_v6(&[0xfd; 16], &[0xfc; 16], protocol, l4_len.into()).fold()
        } else {
            let four = |at: usize| [frame[at], frame[at + 1], frame[at + 2], frame[at + 3]];
            checksum::pseudo_v4(four(26), four(30), protocol, l4_len).fold()
        }
    }
}

fn flows() -> impl Strategy<Value = Flow> {
    (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>())
        .prop_map(|(is_ipv6, is_tcp, df, options)| Flow { is_ipv6, is_tcp, df, options })
}

/// Where an identification may differ: with DF it means nothing (RFC 6864).
fn comparable(mut frame: Vec<u8>, is_datagram: bool, flow: Flow) -> Vec<u8> {
    if !flow.is_ipv6 && flow.df {
        frame[18..20].fill(0);
        frame[24..26].fill(0);
    }
    if is_datagram {
        let at = flow.l4();
        frame[at + 6..at + 8].fill(0);
    }
    frame
}

/// The whole of a run, as it would be in the kernel, and what is said of it.
fn whole(run: &Run, packets: &[Mbuf]) -> (Vec<u8>, VnetHeader) {
    let mut space = [0; HEADERS];
    let vnet = run.write(packets[0].segment(), &mut space).expect("a run has headers");
    let mut bytes = space[..run.headers()].to_vec();
    for packet in &packets[..run.frames] {
        bytes.extend_from_slice(&packet.head()[run.headers()..]);
    }
    (bytes, vnet)
}

/// The frames of a run, cut again by somebody else.
fn cut(flow: Flow, bytes: &[u8], vnet: VnetHeader, size: usize) -> Vec<Vec<u8>> {
    if let Some(datagram) = vnet.datagrams() {
        let slot = Slot { bytes, len: bytes.len(), queued: false, vnet, tag: None };
        let plan = Datagrams::of(slot, datagram.into(), 2048).expect("it can be cut");
        let mut rest = &bytes[plan.headers.len()..];
        return (0..plan.count())
            .map(|number| {
                let (here, behind) = rest.split_at(plan.payload(number));
                rest = behind;
                let mut frame = vec![0; plan.headers.len()];
                frame.extend_from_slice(here);
                plan.write(number, &mut frame);
                let at = flow.l4();
                let length = (frame.len() - at) as u16;
                let sum = if flow.is_ipv6 { flow.pseudo(&frame, length) } else { 0 };
                assert_eq!(
                    (frame[at + 6..at + 8].to_vec(), plan.is_partial()),
                    (sum.to_be_bytes().to_vec(), sum != 0)
                );
                frame
            })
            .collect();
    }
    let packet = wire::heap::HeapBuf::new(bytes);
    let mut headers = wire::Headers::default();
    wire::parse::parse_into(bytes, bytes.len(), &mut headers).unwrap();
    let facts = RxFacts { gso_size: size as u16, l4_checksum: ChecksumState::Partial, ..RxFacts::default() };
    let Segmentation::Several(super_frame) = Segmentation::of(&headers, bytes, bytes.len(), &facts) else {
        panic!("the whole of a run is a super-frame")
    };
    super_frame.cut(&packet).map(|piece| piece.unwrap().segments().flatten().copied().collect()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// Frames of one flow, some of them changed: whatever goes as one is cut into exactly those frames, and a change that
    /// could not be made again ends the run before it.
    #[test]
    fn what_goes_as_one_comes_out_as_it_was(
        flow in flows(),
        size in 536usize..1400,
        frames in 1usize..50,
        last in 1usize..1400,
        pushes in prop::option::of(0usize..50),
        change in prop::option::of((0usize..50, 0usize..120, 1u8..)),
    ) {
        let pool = pool(&format!("runs{}", std::process::id()));
        let mut made = Vec::new();
        let mut offset = 0;
        for number in 0..frames {
            let payload = if number + 1 == frames { last.min(size) } else { size };
            made.push(flow.frame(number as u16, offset, payload, pushes == Some(number)));
            offset += payload as u32;
        }
        if let Some((which, at, bits)) = change
            && let Some(frame) = made.get_mut(which)
        {
            let at = at % flow.headers();
            frame[at] ^= bits;
        }
        let packets: Vec<Mbuf> = made.iter().map(|frame| pool.alloc_from(frame).unwrap()).collect();
        let Some(run) = Run::of(packets.iter().map(Mbuf::segment)) else {
            let alone = frames == 1 || pushes == Some(0) || change.is_some_and(|(which, ..)| which < 2)
                || frames == 2 && last > size;
            prop_assert!(alone, "two frames of a flow go as one");
            return Ok(());
        };
        prop_assert!((2..=frames).contains(&run.frames));
        if change.is_none() && flow.is_tcp {
            let ends = pushes.filter(|at| *at < frames).map_or(frames, |at| at + 1);
            let room = (65_535 - (flow.headers() - 14)) / size;
            prop_assert!(run.frames >= ends.min(room), "{} of {ends} frames", run.frames);
        }
        let (bytes, vnet) = whole(&run, &packets);
        let pieces = cut(flow, &bytes, vnet, made[0].len() - flow.headers());
        prop_assert_eq!(pieces.len(), run.frames);
        for (piece, frame) in pieces.into_iter().zip(&made) {
            let (piece, frame) =
                (comparable(piece, !flow.is_tcp, flow), comparable(frame.clone(), !flow.is_tcp, flow));
            prop_assert_eq!(piece, frame);
        }
    }

    /// Whatever the kernel, or a guest through it, says of a frame: no panic, and no datagram longer than its buffer.
    #[test]
    fn any_frame_that_is_to_be_cut_is_cut_or_left_alone(
        flow in flows(),
        payload in 0usize..3000,
        size in 1usize..3000,
        len in 0usize..70_000,
        queued in any::<bool>(),
        change in (0usize..100, any::<u8>()),
        cut_to in 0usize..2100,
    ) {
        let mut bytes = flow.frame(1, 1, payload, false);
        let at = change.0 % bytes.len();
        bytes[at] = change.1;
        bytes.truncate(cut_to);
        let vnet = VnetHeader::of_run(flow.is_ipv6, false, 42, size as u16, flow.l4() as u16);
        for len in [len, bytes.len()] {
            let slot = Slot { bytes: &bytes, len, queued, vnet, tag: None };
            let Some(plan) = Datagrams::of(slot, size, 2048) else { continue };
            prop_assert!((1..=Datagrams::MOST).contains(&plan.count()));
            let lengths: Vec<usize> = (0..plan.count()).map(|number| plan.payload(number)).collect();
            prop_assert_eq!(lengths.iter().sum::<usize>() + plan.headers.len(), len);
            for (number, length) in lengths.into_iter().enumerate() {
                prop_assert!(length > 0 && plan.headers.len() + length <= 2048);
                let mut frame = vec![0; plan.headers.len() + length];
                plan.write(number, &mut frame);
            }
        }
    }
}
