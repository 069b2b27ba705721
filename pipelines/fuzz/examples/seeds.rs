//! Writes the inputs that fuzzing begins with into `seeds/` beside this crate's manifest:
//!
//! ```text
//! cargo run --example seeds
//! ```
//!
//! They are the same every time. Found inputs worth keeping are added by hand under names of their own.

use std::path::Path as FilePath;
use std::{fs, io};

use wire::build::Path;
use wire::cm::{Answered, Cm, CmMessage, Gid, RejectReason, Req, Transport};
use wire::roce::opcode::{self, Operation};
use wire::roce::{Bth, extended};
use wire::{MacAddr, Psn, Qpn, Vni, protocol, tcp};

fn main() -> io::Result<()> {
    let seeds = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    for (name, frame) in frames() {
        save(&seeds.join("roce"), &name, &frame)?;
    }
    for message in messages() {
        let frame =
            v4().cm(0xc000, &Cm { psn: Psn::truncated(5), ..Cm::new(0x0102_0304_0506_0708, message) });
        save(&seeds.join("roce"), &format!("cm-{}", message.name()), &frame)?;
        save(&seeds.join("mad"), message.name(), &frame[42..])?;
        // The second way to read an input: a choice, and the body.
        let choice = [(message.attribute() - 0x10) as u8];
        save(&seeds.join("mad"), &format!("{}-body", message.name()), &[&choice, &frame[86..318]].concat())?;
    }
    for (name, input) in fuzz::overlay::seeds() {
        save(&seeds.join("overlay"), &name, &input)?;
    }
    for (number, sequence) in sequences().iter().enumerate() {
        save(&seeds.join("rcft"), &format!("sequence-{number}"), sequence)?;
    }
    Ok(())
}

/// Operations on the RC flow table, as `fuzz::rcft` reads them: sizes, then four bytes each.
fn sequences() -> Vec<Vec<u8>> {
    const OFFER: u8 = 0;
    const RECEIVE: u8 = 6;
    const REMOVE: u8 = 7;
    const ADVANCE: u8 = 8;
    const TEND: u8 = 10;
    const LIMIT: u8 = 11;
    const SWEEP: u8 = 12;
    const TIME: u8 = 13;
    const IDLE: u8 = 14;
    const OTHER: u8 = 15;
    let mut sequences = Vec::new();
    for (size, workers) in [(0, 0), (1, 1), (2, 2), (3, 1)] {
        let mut bytes = vec![size, workers];
        let mut go = |operation: [u8; 4]| bytes.extend(operation);
        // A quota of two and a rate: three are offered to each worker, one is taken out, the third comes back.
        go([LIMIT, 0, 2, 0]);
        for who in [0x00, 0x10, 0x20] {
            (1..4).for_each(|qpn| go([OFFER, who, qpn, 4]));
        }
        go([REMOVE, 0, 1, 0]);
        for who in [0x00, 0x10, 0x20, 0x00] {
            go([ADVANCE, 0, 0, 0]);
            go([TEND, who, 0, 0]);
            go([OFFER, who, 3, 6]);
        }
        go([LIMIT, 1, 0xff, 2 | 5 << 2]);
        (1..30).for_each(|qpn| go([OFFER, 0x11, qpn, 10]));
        go([IDLE, 1, 40, 0]);
        go([OFFER, 0x11, 40, 12]);
        go([TIME, 0, 30, 10]);
        (1..30).for_each(|qpn| go([OFFER, 0x01, qpn, 17]));
        go([SWEEP, 0, 200, 3]);
        for who in [0x00, 0x10, 0x20] {
            go([ADVANCE, 0, 0, 0]);
            go([TEND, who, 0, 0]);
            go([RECEIVE, who, 9, 1]);
            go([RECEIVE, who, 9, 0]);
        }
        go([OTHER, 0x10, 0xff, 0]);
        go([REMOVE, 1, 5, 0]);
        go([ADVANCE, 0, 0, 0]);
        go([OTHER, 0x00, 0, 7]);
        sequences.push(bytes);
    }
    sequences
}

fn save(folder: &FilePath, name: &str, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join(name), bytes)
}

const A: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 2]);

fn v4() -> Path {
    Path::v4((A, [10, 0, 0, 1].into()), (B, [10, 0, 0, 2].into()))
}

fn v6() -> Path {
    let ip = |last| std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    Path::v6((A, ip(1)), (B, ip(2)))
}

fn frames() -> Vec<(String, Vec<u8>)> {
    let mut frames = Vec::new();
    for opcode in 0..=255u8 {
        let Some(operation) = Operation::of(opcode) else { continue };
        let path = match opcode % 4 {
            0 => v4(),
            1 => v6(),
            2 => v4().tagged(5),
            _ => v6().tagged(5).tagged(6),
        };
        let payload = if operation.carries_payload() { 5 } else { 0 };
        let len = extended::Extended::of(opcode).map_or(0, |extended| extended.len()) + payload;
        let body: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let bth = Bth::new(opcode, Qpn::truncated(0x1234), Psn::truncated(0xfffffe));
        frames.push((format!("{opcode:02x}-{}", operation.name()), path.roce(0xc123, bth, &body)));
        if opcode < 0x20 {
            let payload = v4().roce(0xc123, bth, &body).split_off(42);
            frames.push((format!("{opcode:02x}-{}-payload", operation.name()), payload));
        }
    }
    let bth = Bth::new(opcode::RC_SEND_ONLY, Qpn::truncated(9), Psn::truncated(1));
    let mut others = vec![
        ("vendor-opcode", v4().roce(1, Bth { opcode: 0xc4, ..bth }, b"vendor")),
        ("ipv4-options", Path { options: vec![0x94, 4, 0, 0], ..v4() }.roce(1, bth, b"options")),
        ("tcp", v4().tcp(1, 2, tcp::flags::SYN, b"data")),
        ("echo", v6().echo_request(1, 2, b"ping")),
        ("vxlan", v4().vxlan(0xc000, Vni::truncated(7), &v6().roce(1, bth, b"inner"))),
        ("arp", wire::build::control::arp_request((A, [10, 0, 0, 1].into()), [10, 0, 0, 2].into())),
    ];
    let extensions = [protocol::HOP_BY_HOP, protocol::DESTINATION_OPTIONS, protocol::FRAGMENT];
    for kind in extensions {
        let path = Path { extensions: vec![(kind, vec![0, 0, 0, 0, 0, 0])], ..v6() };
        others.push(("ipv6-extension", path.roce(1, bth, b"extended")));
    }
    for piece in v4().fragments(protocol::UDP, &wire::build::udp_datagram(1, 4791, &[4; 64]), 7, 60) {
        others.push(("fragment", piece));
    }
    let numbered = others.into_iter().enumerate();
    frames.extend(numbered.map(|(number, (name, frame))| (format!("{name}-{number}"), frame)));
    frames
}

fn messages() -> Vec<CmMessage> {
    let (local_comm_id, remote_comm_id) = (0x1111_1111, 0x2222_2222);
    let (qpn, psn) = (Qpn::truncated(0x11_2233), Psn::truncated(0xabcdef));
    let gid = |last| Gid::from(std::net::IpAddr::from([10, 0, 0, last]));
    vec![
        CmMessage::Req(Req {
            local_comm_id,
            service_id: 0x0106_4321,
            local_ca_guid: 0x5054_00ff_fe00_0001,
            local_qpn: qpn,
            transport: Transport::Rc,
            starting_psn: psn,
            pkey: 0xffff,
            path_mtu: Some(1024),
            local_gid: gid(1),
            remote_gid: gid(2),
        }),
        CmMessage::Mra { local_comm_id, remote_comm_id, answers: Answered::Req },
        CmMessage::Rej {
            local_comm_id: 0,
            remote_comm_id,
            answers: Answered::Req,
            reason: RejectReason::NO_RESOURCES,
        },
        CmMessage::Rep { local_comm_id, remote_comm_id, local_qpn: qpn, starting_psn: psn, local_ca_guid: 1 },
        CmMessage::Rtu { local_comm_id, remote_comm_id },
        CmMessage::Dreq { local_comm_id, remote_comm_id, remote_qpn: qpn },
        CmMessage::Drep { local_comm_id, remote_comm_id },
        CmMessage::Lap {
            local_comm_id,
            remote_comm_id,
            remote_qpn: qpn,
            local_gid: gid(1),
            remote_gid: gid(2),
        },
        CmMessage::Apr { local_comm_id, remote_comm_id, status: 1 },
        CmMessage::SidrReq { request_id: 7, pkey: 0xffff, service_id: 0x0106_4321 },
        CmMessage::SidrRep { request_id: 7, status: 0, qpn, service_id: 0x0106_4321, qkey: 0x0123_4567 },
    ]
}
