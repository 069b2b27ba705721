//! Takes a VxLAN packet apart by hand, byte by byte, and checks all that must hold for any of them.

use std::net::IpAddr;

/// What was around the inner frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    pub dst_mac: [u8; 6],
    pub src_mac: [u8; 6],
    pub vlan: Option<u16>,
    pub src: IpAddr,
    pub dst: IpAddr,
    pub tos: u8,
    pub ttl: u8,
    pub source_port: u16,
    pub checksum: u16,
    pub vni: u32,
    pub inner: Vec<u8>,
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn be(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

/// Opens a frame; panics where it is not a sound VxLAN packet.
#[track_caller]
pub fn open(frame: &[u8]) -> Opened {
    let (dst_mac, src_mac) = (frame[..6].try_into().unwrap(), frame[6..12].try_into().unwrap());
    let mut at = 12;
    let mut vlan = None;
    if be(&frame[at..]) == 0x8100 {
        vlan = Some(be(&frame[at + 2..]));
        at += 4;
    }
    let ethertype = be(&frame[at..]);
    let ip = &frame[at + 2..];
    let (src, dst, tos, ttl, udp, pseudo): (IpAddr, IpAddr, u8, u8, &[u8], u32);
    if ethertype == 0x0800 {
        assert_eq!(ip[0], 0x45);
        assert_eq!(usize::from(be(&ip[2..])), ip.len(), "total length");
        assert_eq!(be(&ip[4..]), 0, "identification");
        assert_eq!(be(&ip[6..]), 0x4000, "DF, no fragment");
        assert_eq!(ip[9], 17);
        assert_eq!(fold(sum(&ip[..20])), 0xffff, "IPv4 header checksum");
        (tos, ttl) = (ip[1], ip[8]);
        src = <[u8; 4]>::try_from(&ip[12..16]).unwrap().into();
        dst = <[u8; 4]>::try_from(&ip[16..20]).unwrap().into();
        udp = &ip[20..];
        pseudo = sum(&ip[12..20]) + 17 + udp.len() as u32;
    } else {
        assert_eq!(ethertype, 0x86dd);
        assert_eq!(ip[0] >> 4, 6);
        assert_eq!([ip[1] & 0x0f, ip[2], ip[3]], [0, 0, 0], "flow label");
        assert_eq!(usize::from(be(&ip[4..])), ip.len() - 40, "payload length");
        assert_eq!(ip[6], 17);
        (tos, ttl) = (ip[0] << 4 | ip[1] >> 4, ip[7]);
        src = <[u8; 16]>::try_from(&ip[8..24]).unwrap().into();
        dst = <[u8; 16]>::try_from(&ip[24..40]).unwrap().into();
        udp = &ip[40..];
        pseudo = sum(&ip[8..40]) + 17 + udp.len() as u32;
    }
    assert_eq!(be(&udp[2..]), 4789);
    assert_eq!(usize::from(be(&udp[4..])), udp.len(), "UDP length");
    let checksum = be(&udp[6..]);
    if checksum != 0 {
        assert_eq!(fold(pseudo + sum(udp)), 0xffff, "UDP checksum");
    }
    let vxlan = &udp[8..16];
    assert_eq!((vxlan[0], &vxlan[1..4], vxlan[7]), (8, &[0u8; 3][..], 0), "VxLAN flags and reserved bits");
    Opened {
        dst_mac,
        src_mac,
        vlan,
        src,
        dst,
        tos,
        ttl,
        source_port: be(udp),
        checksum,
        vni: u32::from_be_bytes([0, vxlan[4], vxlan[5], vxlan[6]]),
        inner: udp[16..].to_vec(),
    }
}
