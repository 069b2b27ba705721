//! Frames as RDMA adapters make them: templates that are patched packet by packet, and what is read back.
//!
//! The payload of every data packet begins with the tick at which it was made and a number of the sender's.

use wire::build::Path;
use wire::roce::{self, Bth, opcode};
use wire::{Headers, Psn, Qpn, View, icrc};

/// Bytes of Ethernet, IPv4 and UDP in front of the BTH.
pub const BTH_AT: usize = 42;
/// Bytes of stamp and serial number at the start of the payload.
pub const MARK: usize = 16;
const RETH: usize = 16;
const DETH: usize = 8;
const AETH: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Write,
    Ack,
    Datagram,
}

impl Kind {
    const fn opcode(self) -> u8 {
        match self {
            Self::Write => opcode::RC_WRITE_ONLY,
            Self::Ack => opcode::RC_ACK,
            Self::Datagram => opcode::UD_SEND_ONLY,
        }
    }

    const fn extended(self) -> usize {
        match self {
            Self::Write => RETH,
            Self::Ack => AETH,
            Self::Datagram => DETH,
        }
    }
}

/// A frame of one kind from one station to another, all but queue pair, sequence number, stamp and serial number.
#[derive(Debug, Clone)]
pub struct Template {
    headers: Headers,
    frame: Vec<u8>,
    mark: Option<usize>,
}

impl Template {
    /// A template over an IPv4 path without VLAN tags. `payload` bytes are at least [`MARK`] where there are any.
    /// `None` for a path of another kind.
    pub fn new(path: &Path, kind: Kind, payload: usize) -> Option<Self> {
        let mut body = match kind {
            Kind::Write => roce::Reth::new(0x1000, 0x77, payload as u32).bytes().to_vec(),
            Kind::Ack => roce::Aeth::new(0x1f, 0).bytes().to_vec(),
            Kind::Datagram => roce::Deth::new(0x1111_1111, Qpn::truncated(0x11)).bytes().to_vec(),
        };
        let mark = (kind != Kind::Ack).then_some(BTH_AT + roce::BTH_LEN + body.len());
        if mark.is_some() {
            body.resize(body.len() + payload.max(MARK), 0x5a);
        }
        let mut bth = Bth::new(kind.opcode(), Qpn::default(), Psn::default());
        bth.set_ack_requested(kind == Kind::Write);
        let frame = path.roce(0xc000, bth, &body);
        let headers = wire::parse::parse(&frame, frame.len()).ok()?;
        (headers.payload_offset() == BTH_AT).then_some(Self { headers, frame, mark })
    }

    /// Length of the frames.
    pub fn len(&self) -> usize {
        self.frame.len()
    }

    /// True for no frame that exists.
    pub fn is_empty(&self) -> bool {
        self.frame.is_empty()
    }

    /// The frame for a queue pair, with a right ICRC. Each queue pair has a UDP source port of its own, as with
    /// real adapters.
    #[inline]
    pub fn fill(&mut self, to: Qpn, psn: u32, mark: Mark) -> &[u8] {
        let [_, q1, q2, q3] = to.get().to_be_bytes();
        let [_, p1, p2, p3] = psn.to_be_bytes();
        self.frame[34] = 0xc0 | q2 & 0x3f;
        self.frame[35] = q3;
        self.frame[BTH_AT + 5..BTH_AT + 8].copy_from_slice(&[q1, q2, q3]);
        self.frame[BTH_AT + 9..BTH_AT + 12].copy_from_slice(&[p1, p2, p3]);
        if let Some(at) = self.mark {
            self.frame[at..at + 8].copy_from_slice(&mark.stamp.to_le_bytes());
            self.frame[at + 8..at + MARK].copy_from_slice(&mark.serial.to_le_bytes());
        }
        icrc::fill(&self.headers, &mut self.frame);
        &self.frame
    }
}

/// The beginning of the payload of every data packet; zeros of acknowledgements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark {
    /// The tick at which the packet was made.
    pub stamp: u64,
    /// A number of the sender's.
    pub serial: u64,
}

/// What is read back of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub kind: Kind,
    /// To which queue pair.
    pub qpn: u32,
    pub psn: u32,
    pub mark: Mark,
}

/// Reads a frame that lies `skip` bytes into another one. `None` for anything a [`Template`] does not make.
#[inline]
pub fn read(frame: &[u8], skip: usize) -> Option<Seen> {
    let inner = frame.get(skip..)?;
    let (bth, _) = Bth::view(inner.get(BTH_AT..)?)?;
    let kind = match bth.opcode {
        opcode::RC_WRITE_ONLY => Kind::Write,
        opcode::RC_ACK => Kind::Ack,
        opcode::UD_SEND_ONLY => Kind::Datagram,
        _ => return None,
    };
    let ports_and_type = [inner[12], inner[13], inner[23], inner[36], inner[37]];
    if ports_and_type != [0x08, 0x00, 17, 0x12, 0xb7] {
        return None;
    }
    let mark = match kind {
        Kind::Ack => Mark::default(),
        _ => {
            let mark = inner.get(BTH_AT + roce::BTH_LEN + kind.extended()..)?;
            let (stamp, rest) = mark.split_first_chunk::<8>()?;
            let (serial, _) = rest.split_first_chunk::<8>()?;
            Mark { stamp: u64::from_le_bytes(*stamp), serial: u64::from_le_bytes(*serial) }
        }
    };
    Some(Seen { kind, qpn: bth.dest_qp().get(), psn: bth.psn().get(), mark })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use wire::MacAddr;

    fn path() -> Path {
        let station = |n: u8| (MacAddr([2, 0, 0, 0, 0, n]), Ipv4Addr::new(10, 0, 0, n));
        Path::v4(station(1), station(2))
    }

    #[test]
    fn what_is_written_is_read_and_its_icrc_is_right() {
        for (kind, payload) in [(Kind::Write, 16), (Kind::Write, 64), (Kind::Ack, 0), (Kind::Datagram, 32)] {
            let mut template = Template::new(&path(), kind, payload).unwrap();
            let marks = [Mark { stamp: 1, serial: 2 }, Mark { stamp: u64::MAX, serial: 7 }];
            for ((qpn, psn), mark) in [(0x2, 0), (0xab_cdef, 0xff_ffff)].into_iter().zip(marks) {
                let frame = template.fill(Qpn::truncated(qpn), psn, mark).to_vec();
                let headers = wire::parse::parse(&frame, frame.len()).unwrap();
                assert_eq!(icrc::verify(&headers, [&frame[..]]), Some(true), "{kind:?}");
                let packet = roce::RocePacket::of(&headers, &frame).unwrap().unwrap();
                assert_eq!(packet.bth.opcode, kind.opcode());
                let expected = if kind == Kind::Ack { Mark::default() } else { mark };
                assert_eq!(read(&frame, 0), Some(Seen { kind, qpn, psn, mark: expected }));
                let outer = [vec![0; 50], frame].concat();
                assert_eq!(read(&outer, 50).unwrap().qpn, qpn);
            }
        }
    }

    #[test]
    fn other_frames_are_nothing() {
        let mut template = Template::new(&path(), Kind::Write, 16).unwrap();
        let frame = template.fill(Qpn::truncated(9), 1, Mark::default()).to_vec();
        assert!(read(&frame[..70], 0).is_none() && read(&[], 50).is_none());
        let mut other = frame.clone();
        other[37] = 0xb8;
        assert!(read(&other, 0).is_none());
        assert!(read(&path().roce(1, Bth::new(0x05, Qpn::default(), Psn::default()), &[0; 40]), 0).is_none());
    }
}
