//! The connection manager's messages: round trips, what is refused and why, and the REJ that answers a REQ.

#![allow(clippy::unwrap_used)] // helpers of tests, outside of test functions

mod common;

use common::{v4, v6};
use proptest::prelude::*;
use wire::build::{self, Pair, Path, Reject};
use wire::cm::{Answered, Cm, CmMalformed, CmMessage, Gid, RejectReason, Req, Transport, UDP_PAYLOAD_LEN};
use wire::l4::{self, ChecksumVerdict};
use wire::parse::parse;
use wire::roce::{self, Bth, Deth, RoceClass};
use wire::{Flags, Headers, HeapBuf, MacAddr, Psn, Qpn, View, icrc, protocol};

fn req() -> Req {
    Req {
        local_comm_id: 0xc0ff_ee01,
        service_id: 0x0000_0000_0106_1234,
        local_ca_guid: 0x5054_00ff_fe00_0001,
        local_qpn: Qpn::truncated(0x11_2233),
        transport: Transport::Rc,
        starting_psn: Psn::truncated(0xabcdef),
        pkey: 0xffff,
        path_mtu: Some(1024),
        local_gid: Gid::from(std::net::IpAddr::from([10, 0, 0, 1])),
        remote_gid: Gid::from(std::net::IpAddr::from([10, 0, 0, 2])),
    }
}

fn request() -> Cm {
    Cm { psn: Psn::truncated(77), ..Cm::new(0x0102_0304_0506_0708, CmMessage::Req(req())) }
}

fn parsed(frame: &[u8]) -> Headers {
    parse(frame, frame.len()).unwrap()
}

fn paths() -> Vec<Path> {
    let mut paths = vec![Path { options: vec![0x94, 4, 0, 0], ..v4() }];
    paths.push(Path { extensions: vec![(protocol::DESTINATION_OPTIONS, vec![1, 4, 0, 0, 0, 0])], ..v6() });
    for base in [v4(), v6()] {
        paths.extend([base.clone(), base.clone().tagged(0x2064), base.tagged(5).tagged(6)]);
    }
    paths
}

fn any_qpn() -> impl Strategy<Value = Qpn> {
    any::<u32>().prop_map(Qpn::truncated)
}

fn any_psn() -> impl Strategy<Value = Psn> {
    any::<u32>().prop_map(Psn::truncated)
}

fn any_gid() -> impl Strategy<Value = Gid> {
    any::<[u8; 16]>().prop_map(Gid)
}

fn any_answered() -> impl Strategy<Value = Answered> {
    prop::sample::select(vec![Answered::Req, Answered::Rep, Answered::Other, Answered::Reserved])
}

fn any_transport() -> impl Strategy<Value = Transport> {
    let all = [Transport::Rc, Transport::Uc, Transport::Rd, Transport::Xrc];
    let reserved = [0, 2, 3, 7].map(Transport::Reserved);
    prop::sample::select([all, reserved].concat())
}

fn any_req() -> impl Strategy<Value = Req> {
    let mtu = prop::option::of(prop::sample::select(vec![256u16, 512, 1024, 2048, 4096]));
    (any::<(u32, u64, u64, u16)>(), any_qpn(), any_transport(), any_psn(), mtu, any_gid(), any_gid())
        .prop_map(
            |(
                (local_comm_id, service_id, local_ca_guid, pkey),
                local_qpn,
                transport,
                starting_psn,
                path_mtu,
                a,
                b,
            )| Req {
                local_comm_id,
                service_id,
                local_ca_guid,
                local_qpn,
                transport,
                starting_psn,
                pkey,
                path_mtu,
                local_gid: a,
                remote_gid: b,
            },
        )
}

fn any_message() -> impl Strategy<Value = CmMessage> {
    let ids = any::<(u32, u32)>();
    prop_oneof![
        any_req().prop_map(CmMessage::Req),
        (ids, any_answered()).prop_map(|((local_comm_id, remote_comm_id), answers)| CmMessage::Mra {
            local_comm_id,
            remote_comm_id,
            answers
        }),
        (ids, any_answered(), any::<u16>()).prop_map(|((local_comm_id, remote_comm_id), answers, reason)| {
            CmMessage::Rej { local_comm_id, remote_comm_id, answers, reason: RejectReason(reason) }
        }),
        (ids, any_qpn(), any_psn(), any::<u64>()).prop_map(
            |((local_comm_id, remote_comm_id), local_qpn, starting_psn, local_ca_guid)| CmMessage::Rep {
                local_comm_id,
                remote_comm_id,
                local_qpn,
                starting_psn,
                local_ca_guid,
            }
        ),
        ids.prop_map(|(local_comm_id, remote_comm_id)| CmMessage::Rtu { local_comm_id, remote_comm_id }),
        (ids, any_qpn()).prop_map(|((local_comm_id, remote_comm_id), remote_qpn)| CmMessage::Dreq {
            local_comm_id,
            remote_comm_id,
            remote_qpn
        }),
        ids.prop_map(|(local_comm_id, remote_comm_id)| CmMessage::Drep { local_comm_id, remote_comm_id }),
        (ids, any_qpn(), any_gid(), any_gid()).prop_map(
            |((local_comm_id, remote_comm_id), remote_qpn, local_gid, remote_gid)| CmMessage::Lap {
                local_comm_id,
                remote_comm_id,
                remote_qpn,
                local_gid,
                remote_gid,
            }
        ),
        (ids, any::<u8>()).prop_map(|((local_comm_id, remote_comm_id), status)| CmMessage::Apr {
            local_comm_id,
            remote_comm_id,
            status
        }),
        any::<(u32, u16, u64)>().prop_map(|(request_id, pkey, service_id)| CmMessage::SidrReq {
            request_id,
            pkey,
            service_id
        }),
        (any::<(u32, u8, u64, u32)>(), any_qpn()).prop_map(
            |((request_id, status, service_id, qkey), qpn)| {
                CmMessage::SidrRep { request_id, status, qpn, service_id, qkey }
            }
        ),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(message in any_message(), transaction in any::<u64>(), pkey in any::<u16>(),
            psn in any_psn(), src_qp in any_qpn(), path in prop::sample::select(paths())) {
        let cm = Cm { transaction, pkey, psn, src_qp, message };
        let frame = path.cm(0xc000, &cm);
        let h = parsed(&frame);
        prop_assert_eq!(Cm::of(&h, &frame), Ok(cm));
        prop_assert_eq!(icrc::verify(&h, [&frame[..]]), Some(true));
        let bth = Bth::parse(h.payload(&frame)).unwrap();
        prop_assert_eq!(bth.class(), RoceClass::Cm);
        prop_assert_eq!(Some(h.payload(&frame).len()), roce::opcode::control_len(bth.opcode, bth.dest_qp()));
    }

    #[test]
    fn any_body_is_read_and_written_to_the_same_message(bytes in prop::collection::vec(any::<u8>(), 232),
            attribute in 0x10u16..=0x1a) {
        let mut payload = plain_payload(&request());
        payload[36..38].copy_from_slice(&attribute.to_be_bytes());
        payload[44..276].copy_from_slice(&bytes);
        let cm = Cm::parse(&payload).unwrap();
        prop_assert_eq!(cm.message.attribute(), attribute);
        prop_assert_eq!(Cm::parse(&plain_payload(&cm)), Ok(cm));
    }

    #[test]
    fn every_req_is_rejected_and_nothing_else(message in any_message(), transaction in any::<u64>(),
            psn in any_psn(), local_comm_id in any::<u32>(), path in prop::sample::select(paths())) {
        let cm = Cm { ..Cm::new(transaction, message) };
        let frame = path.cm(0xc000, &cm);
        let mut out = [0; build::MAX_REJECT_LEN];
        let with = Reject { psn, local_comm_id, ..Reject::default() };
        let len = build::cm_reject(&parsed(&frame), &frame, with, &mut out);
        prop_assert_eq!(len.is_some(), matches!(message, CmMessage::Req(_)));
        if let Some(len) = len {
            check_reject(&path, &cm, &out[..len], with);
        }
    }
}

/// The UDP payload of a packet with this message.
fn plain_payload(cm: &Cm) -> Vec<u8> {
    let frame = v4().cm(0xc000, cm);
    parsed(&frame).payload(&frame).to_vec()
}

#[test]
fn fields_lie_where_filters_look_for_them() {
    let frame = v4().cm(0xc000, &request());
    assert_eq!(frame.len(), 42 + UDP_PAYLOAD_LEN);
    assert_eq!(frame[42], 0x64);
    assert_eq!(frame[54..58], 0x8001_0000u32.to_be_bytes());
    assert_eq!(frame[62..66], [1, 7, 2, 3]);
    assert_eq!(frame[78..80], [0, 0x10]);
    assert_eq!(frame[86..90], 0xc0ff_ee01u32.to_be_bytes());
    assert_eq!(frame[118..121], [0x11, 0x22, 0x33]);
    assert_eq!(frame[129] >> 1 & 3, 0);
    assert_eq!(frame[130..133], [0xab, 0xcd, 0xef]);
    assert_eq!(frame[136] >> 4, 3);
    assert_eq!(frame[142..158], *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01");
    let (local_comm_id, remote_comm_id, qpn) = (1, 2, Qpn::truncated(0x44_5566));
    let rep = CmMessage::Rep {
        local_comm_id,
        remote_comm_id,
        local_qpn: qpn,
        starting_psn: Psn::truncated(0),
        local_ca_guid: 0,
    };
    assert_eq!(v4().cm(1, &Cm::new(0, rep))[98..101], [0x44, 0x55, 0x66]);
    let dreq = CmMessage::Dreq { local_comm_id, remote_comm_id, remote_qpn: qpn };
    assert_eq!(v4().cm(1, &Cm::new(0, dreq))[94..97], [0x44, 0x55, 0x66]);
    let (answers, reason) = (Answered::Rep, RejectReason::NO_RESOURCES);
    let rej = CmMessage::Rej { local_comm_id, remote_comm_id, answers, reason };
    assert_eq!(v4().cm(1, &Cm::new(0, rej))[94..98], [0x40, 0, 0, 3]);
}

#[test]
fn transports_and_path_mtus_of_every_code() {
    let read = |byte_43: u8, byte_50: u8, byte_51: u8| {
        let mut payload = plain_payload(&request());
        (payload[44 + 43], payload[44 + 50], payload[44 + 51]) = (byte_43, byte_50, byte_51);
        match Cm::parse(&payload).unwrap().message {
            CmMessage::Req(req) => (req.transport, req.path_mtu),
            other => panic!("{other:?}"),
        }
    };
    for noise in [0, 0xf9] {
        assert_eq!(read(noise, 0, 0).0, Transport::Rc);
        assert_eq!(read(noise | 2, 0, 1).0, Transport::Uc);
        assert_eq!(read(noise | 4, 0, 1).0, Transport::Rd);
        assert_eq!(read(noise | 6, 0, 0xf9).0, Transport::Xrc);
        assert_eq!(read(noise | 6, 0, 0).0, Transport::Reserved(0));
        assert_eq!(read(noise | 6, 0, 6).0, Transport::Reserved(6));
    }
    assert!(Transport::Rc.is_reliable_connection() && Transport::Xrc.is_reliable_connection());
    assert!(!Transport::Uc.is_reliable_connection() && !Transport::Reserved(2).is_reliable_connection());
    let mtus: Vec<_> = (0..16).map(|code| read(0, code << 4 | 0xf, 0).1).collect();
    assert_eq!(mtus[..6], [None, Some(256), Some(512), Some(1024), Some(2048), Some(4096)]);
    assert!(mtus[6..].iter().all(Option::is_none));
}

/// One byte of the payload changed, and what is then wrong.
#[test]
fn what_is_wrong_has_a_name() {
    let changed = |at: usize, value: u8| {
        let mut payload = plain_payload(&request());
        payload[at] = value;
        Cm::parse(&payload)
    };
    assert_eq!(changed(0, 0x65), Err(CmMalformed::Opcode(0x65)));
    assert_eq!(changed(0, 0x04), Err(CmMalformed::Opcode(0x04)));
    assert_eq!(changed(1, 0x01), Err(CmMalformed::BthVersion(1)));
    assert_eq!(changed(1, 0x10), Err(CmMalformed::Length(280)));
    assert_eq!(changed(7, 0), Err(CmMalformed::DestQp(Qpn::truncated(0))));
    assert_eq!(changed(5, 1), Err(CmMalformed::DestQp(Qpn::truncated(0x01_0001))));
    assert_eq!(changed(12, 0), Err(CmMalformed::QKey(0x0001_0000)));
    assert_eq!(changed(20, 2), Err(CmMalformed::BaseVersion(2)));
    assert_eq!(changed(21, 4), Err(CmMalformed::Class(4)));
    assert_eq!(changed(22, 1), Err(CmMalformed::ClassVersion(1)));
    assert_eq!(changed(23, 0x83), Err(CmMalformed::Method(0x83)));
    assert_eq!(changed(37, 0x0f), Err(CmMalformed::Attribute(0x0f)));
    assert_eq!(changed(37, 0x1b), Err(CmMalformed::Attribute(0x1b)));
    assert_eq!(changed(36, 0x01), Err(CmMalformed::Attribute(0x110)));
    assert_eq!(
        CmMalformed::Class(4).to_string(),
        "management class 0x04, not the connection manager's (0x07)"
    );
    // Reserved and unused bits, MigReq, SE, P_Key and the PSN matter to nobody.
    for (at, value) in [(1, 0xc0), (2, 0), (4, 0x3f), (8, 0x7f), (16, 9), (24, 0xff), (38, 1), (43, 1)] {
        assert!(changed(at, value).is_ok(), "byte {at}");
    }
}

#[test]
fn every_other_length_is_refused() {
    let mut payload = plain_payload(&request());
    for cut in 0..payload.len() {
        assert_eq!(Cm::parse(&payload[..cut]), Err(CmMalformed::Length(cut)));
    }
    payload.push(0);
    assert_eq!(Cm::parse(&payload), Err(CmMalformed::Length(281)));
    assert!(Cm::parse(&[0xff; 2000]).is_err());
    // The UDP header's word counts, not what trails the datagram.
    for path in paths() {
        let mut frame = path.cm(0xc000, &request());
        let whole = frame.len();
        frame.extend_from_slice(&[0xee; 20]);
        assert_eq!(Cm::of(&parsed(&frame), &frame), Ok(request()));
        let h = parsed(&frame);
        for cut in h.payload_offset()..whole {
            let split = CmMalformed::Split(cut - h.payload_offset());
            assert_eq!(Cm::of(&h, &frame[..cut]), Err(split));
            let mut out = [0; build::MAX_REJECT_LEN];
            assert_eq!(build::cm_reject(&h, &frame[..cut], Reject::default(), &mut out), None);
        }
        let ip_cut = parse(&frame[..whole - 1], whole - 1);
        assert!(ip_cut.is_err());
    }
    let datagram = v4().udp(1, 4791, &[0x64; 279]);
    assert_eq!(Cm::of(&parsed(&datagram), &datagram), Err(CmMalformed::Length(279)));
    let pieces = v4().fragments(protocol::UDP, &build::udp_datagram(1, 4791, &[0; 280]), 7, 200);
    assert!(parsed(&pieces[0]).is(Flags::FRAGMENT) && Cm::of(&parsed(&pieces[0]), &pieces[0]).is_err());
}

/// Every byte of a frame with a REQ, changed in every way: the parser and the answer stay within bounds, and what
/// is answered is a right REJ.
#[test]
fn changed_requests_do_no_harm() {
    let mut out = [0; build::MAX_REJECT_LEN];
    let mut answered = 0;
    for path in [v4(), v6().tagged(3)] {
        let frame = path.cm(0xc000, &request());
        for at in 0..frame.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff, frame[at] ^ 1, frame[at].wrapping_add(1)] {
                let mut changed = frame.clone();
                changed[at] = value;
                let Ok(h) = parse(&changed, changed.len()) else { continue };
                let Some(len) = build::cm_reject(&h, &changed, Reject::default(), &mut out) else { continue };
                let answer = &out[..len];
                let back = parsed(answer);
                let cm = Cm::of(&back, answer).unwrap();
                assert!(matches!(cm.message, CmMessage::Rej { .. }), "byte {at} = {value}");
                assert_eq!(icrc::verify(&back, [answer]), Some(true));
                answered += 1;
            }
        }
    }
    assert!(answered > 1000, "{answered}");
}

fn check_reject(path: &Path, asked: &Cm, answer: &[u8], with: Reject) {
    let h = parsed(answer);
    let eth = h.ethernet(answer).unwrap();
    assert_eq!((eth.src, eth.dst), (path.dst_mac, path.src_mac));
    assert_eq!(usize::from(h.vlan_count), path.tags.len());
    assert!((0..path.tags.len()).all(|at| h.vlan_tci[at] == path.tags[at].1));
    assert_eq!((h.tos, h.ttl, h.sport, h.dport), (path.tos & 0xfc, 64, 0xc000, 4791));
    assert!(h.ipv4_checksum_ok(answer));
    assert!(!h.flags.intersects(Flags::EXT_HEADERS | Flags::IP_OPTIONS | Flags::PADDED));
    let verdict = l4::verify(&h, [answer]);
    match path.ip {
        Pair::V4(src, dst) => {
            let ip = h.ipv4(answer).unwrap();
            assert_eq!((ip.src(), ip.dst(), verdict), (dst, src, ChecksumVerdict::Zero));
        }
        Pair::V6(src, dst) => {
            let ip = h.ipv6(answer).unwrap();
            assert_eq!((ip.src(), ip.dst(), verdict), (dst, src, ChecksumVerdict::Good));
        }
    }
    assert_eq!(icrc::verify(&h, [answer]), Some(true));
    let payload = h.payload(answer);
    let (bth, rest) = Bth::view(payload).unwrap();
    let (deth, _) = Deth::view(rest).unwrap();
    assert_eq!((bth.opcode, bth.dest_qp(), bth.psn(), bth.flags), (0x64, roce::QP_GSI, with.psn, 0));
    assert_eq!((bth.pkey.get(), bth.congestion, bth.ack), (asked.pkey, 0, 0));
    assert_eq!(*deth, Deth::new(Deth::GSI_QKEY, roce::QP_GSI));
    let message = CmMessage::Rej {
        local_comm_id: with.local_comm_id,
        remote_comm_id: asked.message.comm_ids().unwrap().0,
        answers: Answered::Req,
        reason: with.reason,
    };
    let expected = Cm { transaction: asked.transaction, psn: with.psn, message, ..*asked };
    assert_eq!(Cm::parse(payload), Ok(Cm { src_qp: roce::QP_GSI, ..expected }));
}

#[test]
fn rejects_in_place() {
    for path in paths().into_iter().map(|path| path.with_tos(0x6b).with_ttl(3)) {
        let asked = Cm { pkey: 0x8001, ..request() };
        let mut frame = path.cm(0xc000, &asked);
        frame.extend_from_slice(&[0; 5]);
        let h = parsed(&frame);
        let with = Reject { psn: Psn::truncated(9), local_comm_id: 4, ..Reject::default() };
        assert_eq!(with.reason.to_string(), "no-resources");
        let mut packet = HeapBuf::new(&frame);
        assert!(build::cm_reject_in_place(&mut packet, &h, with));
        check_reject(&path, &asked, &packet.to_vec(), with);

        let mut shared = HeapBuf::new(&frame);
        shared.set_shared(true);
        let mut split = HeapBuf::segmented(&frame[..200], &[&frame[200..]]);
        for packet in [&mut shared, &mut split] {
            assert!(!build::cm_reject_in_place(packet, &h, with));
            assert_eq!(packet.to_vec(), frame);
        }
    }
}

#[test]
fn rejects_go_back_to_the_port_that_was_asked() {
    for path in [v4(), v6()] {
        let (bth, deth) = request().headers();
        let payload = [bth.bytes(), deth.bytes(), &request().mad(), &[0; 4]].concat();
        let frame = path.udp(0xc000, 4790, &payload);
        let mut out = [0; build::MAX_REJECT_LEN];
        let len = build::cm_reject(&parsed(&frame), &frame, Reject::default(), &mut out).unwrap();
        let h = parsed(&out[..len]);
        assert_eq!((h.sport, h.dport), (0xc000, 4790));
        assert_eq!(icrc::verify(&h, [&out[..len]]), Some(true));
    }
}

#[test]
fn requests_that_no_single_station_sent_or_gets_are_not_answered() {
    let answered = |path: &Path| {
        let frame = path.cm(0xc000, &request());
        let mut out = [0; build::MAX_REJECT_LEN];
        build::cm_reject(&parsed(&frame), &frame, Reject::default(), &mut out).is_some()
    };
    assert!(answered(&v4()) && answered(&v6()));
    let group = MacAddr([1, 0, 0x5e, 0, 0, 1]);
    for mac in [group, MacAddr::BROADCAST, MacAddr::ZERO] {
        assert!(!answered(&Path { src_mac: mac, ..v4() }) && !answered(&Path { dst_mac: mac, ..v6() }));
    }
    let own = [10, 0, 0, 1];
    for other in [[0, 0, 0, 0], [224, 0, 0, 1], [255, 255, 255, 255], [127, 0, 0, 1]] {
        assert!(!answered(&Path { ip: Pair::V4(other.into(), own.into()), ..v4() }));
        assert!(!answered(&Path { ip: Pair::V4(own.into(), other.into()), ..v4() }));
    }
    for other in ["::", "ff02::1", "::1"] {
        let ip = Pair::V6(other.parse().unwrap(), "fd00::1".parse().unwrap());
        assert!(!answered(&Path { ip, ..v6() }) && !answered(&Path { ip, ..v6() }.reversed()));
    }
    let routing = (protocol::ROUTING, [vec![0, 1], vec![0; 20]].concat());
    assert!(!answered(&Path { extensions: vec![routing], ..v6() }));
}
