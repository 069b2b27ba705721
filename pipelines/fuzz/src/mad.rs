//! A UDP payload as a connection manager's message; and, since few inputs have the fixed fields right, the same
//! bytes as the body of one that has. What is read is written and read again; a REQ is answered by a right REJ, and
//! nothing else is answered.

use wire::build::{MAX_REJECT_LEN, Path, Reject, cm_reject};
use wire::cm::{Answered, Cm, CmMalformed, CmMessage, MAD_OFFSET, UDP_PAYLOAD_LEN};
use wire::l4::{self, ChecksumVerdict};
use wire::parse::parse;
use wire::roce::{Deth, QP_GSI};
use wire::{Flags, MacAddr, Psn, View, icrc, mad};

/// The input is a UDP payload; and its first byte chooses a message whose body are the rest.
pub fn run(data: &[u8]) {
    let _ = payload(data);
    let Some((choice, body)) = data.split_first() else { return };
    let attribute = 0x10 + u16::from(choice % 11);
    let template = Cm::new(0x1122_3344, CmMessage::Rtu { local_comm_id: 0, remote_comm_id: 0 });
    let (bth, deth) = template.headers();
    let mut bytes = [bth.bytes(), deth.bytes(), mad::Header::cm(attribute, 0x1122_3344).bytes()].concat();
    bytes.extend_from_slice(&body[..body.len().min(mad::BODY_LEN)]);
    bytes.resize(UDP_PAYLOAD_LEN, 0);
    let cm = payload(&bytes).expect("header and length are right");
    assert_eq!((cm.message.attribute(), cm.transaction), (attribute, 0x1122_3344));
}

fn payload(bytes: &[u8]) -> Result<Cm, CmMalformed> {
    let read = Cm::parse(bytes);
    for path in paths() {
        let frame = path.udp(0xc000, 4791, bytes);
        let Ok(h) = parse(&frame, frame.len()) else { continue };
        if bytes.len() <= 1024 {
            assert_eq!(Cm::of(&h, &frame).ok(), read.ok());
        }
        let mut out = [0xa5; MAX_REJECT_LEN];
        let with = Reject { psn: Psn::truncated(bytes.len() as u32), ..Reject::default() };
        match (cm_reject(&h, &frame, with, &mut out), read) {
            (Some(len), Ok(asked)) => rejected(&path, &asked, &out[..len], with),
            (Some(_), Err(malformed)) => panic!("{malformed}, but answered"),
            (None, Ok(asked)) => assert!(!matches!(asked.message, CmMessage::Req(_))),
            (None, Err(_)) => {}
        }
    }
    if let Ok(cm) = read {
        assert_eq!(bytes.len(), UDP_PAYLOAD_LEN);
        let (bth, deth) = cm.headers();
        let again = [bth.bytes(), deth.bytes(), &cm.mad(), &[0; 4]].concat();
        assert_eq!(again[MAD_OFFSET..MAD_OFFSET + mad::HEADER_LEN].len(), mad::HEADER_LEN);
        assert_eq!(Cm::parse(&again), Ok(cm));
        assert!(!cm.message.name().is_empty());
    }
    read
}

fn rejected(path: &Path, asked: &Cm, answer: &[u8], with: Reject) {
    let h = parse(answer, answer.len()).expect("an answer can be read");
    assert!(h.ipv4_checksum_ok(answer) && h.is(Flags::L4) && !h.is(Flags::PADDED));
    assert_eq!(icrc::verify(&h, [answer]), Some(true));
    assert_ne!(l4::verify(&h, [answer]), ChecksumVerdict::Bad);
    assert_eq!((h.sport, h.dport, usize::from(h.vlan_count)), (0xc000, 4791, path.tags.len()));
    let eth = h.ethernet(answer).expect("an Ethernet header");
    assert_eq!((eth.src, eth.dst), (path.dst_mac, path.src_mac));
    let CmMessage::Req(req) = asked.message else { panic!("answered {:?}", asked.message) };
    let message = CmMessage::Rej {
        local_comm_id: 0,
        remote_comm_id: req.local_comm_id,
        answers: Answered::Req,
        reason: with.reason,
    };
    assert_eq!(Cm::of(&h, answer), Ok(Cm { psn: with.psn, src_qp: QP_GSI, message, ..*asked }));
    let deth = Deth::view_at(h.payload(answer), 12).expect("a DETH");
    assert_eq!(deth.qkey.get(), Deth::GSI_QKEY);
}

fn paths() -> [Path; 2] {
    let (a, b) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let v6 = |last| std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    [
        Path::v4((a, [10, 0, 0, 1].into()), (b, [10, 0, 0, 2].into())),
        Path::v6((a, v6(1)), (b, v6(2))).tagged(7),
    ]
}
