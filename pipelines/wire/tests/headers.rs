//! Every header for every value: what a constructor or setter writes, the accessors read back, and no setter
//! touches a neighbouring field.

#![allow(clippy::unwrap_used)] // helpers of tests, outside of test functions

use proptest::prelude::*;
use wire::view::View;
use wire::{Ecn, MacAddr, Psn, Qpn, Vni};
use wire::{arp, checksum, ethernet, icmp, icmpv6, ipv4, ipv6, roce, tcp, udp, vlan, vxlan};

/// A copy of the layout out of random bytes, seen to be the same bytes again.
fn any_layout<T: View + Copy>(bytes: &[u8; 64]) -> T {
    let (view, rest) = T::view(bytes).unwrap();
    assert_eq!(rest.len(), bytes.len() - T::LEN);
    assert_eq!(view.bytes(), &bytes[..T::LEN]);
    let copy = *view;
    let mut other = [0u8; 64];
    *T::view_mut(&mut other).unwrap().0 = copy;
    assert_eq!(other[..T::LEN], bytes[..T::LEN]);
    copy
}

fn bytes() -> impl Strategy<Value = [u8; 64]> {
    prop::array::uniform32(any::<[u8; 2]>()).prop_map(|pairs| {
        let mut bytes = [0; 64];
        bytes.copy_from_slice(&pairs.concat());
        bytes
    })
}

proptest! {
    #[test]
    fn link_layer(raw in bytes()) {
        let eth: ethernet::Header = any_layout(&raw);
        prop_assert_eq!(ethernet::Header::new(eth.dst, eth.src, eth.ethertype.get()), eth);
        let tag: vlan::Tag = any_layout(&raw);
        let tci = u16::from(tag.pcp()) << 13 | u16::from(tag.dei()) << 12 | tag.vid();
        prop_assert_eq!(vlan::Tag::new(tci, tag.ethertype.get()), tag);
        let packet: arp::ArpPacket = any_layout(&raw);
        let again = arp::ArpPacket::new(
            packet.operation.get(),
            (packet.sender_mac, packet.sender()),
            (packet.target_mac, packet.target()),
        );
        prop_assert!(again.is_ipv4_over_ethernet());
        prop_assert_eq!(&again.bytes()[6..], &packet.bytes()[6..]);
        let mac = MacAddr(*raw.first_chunk().unwrap());
        prop_assert_eq!(mac.to_string().parse::<MacAddr>(), Ok(mac));
    }

    #[test]
    fn ipv4_setters(raw in bytes(), tos in any::<u8>(), ecn in 0usize..4) {
        let mut header: ipv4::Header = any_layout(&raw);
        // A checksum field can be kept right only if it was: and data of zeros alone has two right ones.
        header.version_ihl = 0x45;
        header.fill_checksum();
        let before = header;
        header.set_tos(tos);
        prop_assert!(ipv4::checksum_ok(header.bytes()));
        prop_assert_eq!(ipv4::Header { tos, checksum: header.checksum, ..before }, header);
        header.set_ecn(Ecn::ALL[ecn]);
        prop_assert_eq!((header.ecn(), header.tos & !3), (Ecn::ALL[ecn], tos & !3));
        prop_assert_eq!(header.decrement_ttl(), before.ttl > 0);
        prop_assert_eq!(header.ttl, before.ttl.saturating_sub(1));
        prop_assert!(ipv4::checksum_ok(header.bytes()));
        let right = header.checksum;
        header.fill_checksum();
        prop_assert_eq!(header.checksum, right);
    }

    #[test]
    fn address_changes_update_l4_checksums(raw in bytes(), new in any::<[u32; 2]>(), six in any::<[u128; 2]>()) {
        let (src, dst) = (new[0].to_be_bytes(), [10, 0, 0, 2]);
        let sum = |src, payload: &[u8]| {
            let mut sum = checksum::pseudo_v4(src, dst, 6, payload.len() as u16);
            sum.add(payload);
            sum.checksum()
        };
        let moved = new[1].to_be_bytes();
        let updated = checksum::update_ipv4(sum(src, &raw), src.into(), moved.into());
        prop_assert_eq!(updated, sum(moved, &raw));
        let sum = |src: u128| {
            let mut sum = checksum::pseudo_v6(&src.to_be_bytes(), &[7; 16], 17, 64);
            sum.add(&raw);
            sum.checksum()
        };
        prop_assert_eq!(checksum::update_ipv6(sum(six[0]), six[0].into(), six[1].into()), sum(six[1]));
    }

    #[test]
    fn ipv6_setters(raw in bytes(), class in any::<u8>(), label in any::<u32>()) {
        let before: ipv6::Header = any_layout(&raw);
        let mut header = before;
        header.set_traffic_class(class);
        prop_assert_eq!((header.version(), header.traffic_class()), (before.version(), class));
        prop_assert_eq!(header.flow_label(), before.flow_label());
        header.set_flow_label(label);
        prop_assert_eq!((header.version(), header.traffic_class()), (before.version(), class));
        prop_assert_eq!(header.flow_label(), label & 0xf_ffff);
        prop_assert_eq!(&header.bytes()[4..], &before.bytes()[4..]);
        let fragment: ipv6::Fragment = any_layout(&raw);
        let again = ipv6::Fragment::new(fragment.next_header, fragment.offset() as u16, fragment.more(), 5);
        prop_assert_eq!((again.offset(), again.more()), (fragment.offset(), fragment.more()));
    }

    #[test]
    fn transport(raw in bytes()) {
        let tcp: tcp::Header = any_layout(&raw);
        let (ports, seq) = ((tcp.src_port.get(), tcp.dst_port.get()), (tcp.seq.get(), tcp.ack.get()));
        let again = tcp::Header::new(ports.0, ports.1, seq.0, seq.1, tcp.flags);
        prop_assert_eq!(&again.bytes()[..12], &tcp.bytes()[..12]);
        prop_assert_eq!(again.flags, tcp.flags);
        let udp: udp::Header = any_layout(&raw);
        let again = udp::Header::new(udp.src_port.get(), udp.dst_port.get(), udp.len.get().saturating_sub(8));
        prop_assert_eq!(&again.bytes()[..4], &udp.bytes()[..4]);
        prop_assert_eq!(again.len.get(), udp.len.get().max(8));
        let echo: icmp::Header = any_layout(&raw);
        let six: icmpv6::Header = any_layout(&raw);
        prop_assert_eq!((six.kind, six.code), (echo.kind, echo.code));
        prop_assert_eq!((six.echo_id(), six.echo_seq()), (echo.id.get(), echo.seq_or_mtu.get()));
    }

    #[test]
    fn overlay_and_rdma(raw in bytes(), pad in 0u8..4, bits in any::<[bool; 2]>()) {
        let vxlan: vxlan::Header = any_layout(&raw);
        prop_assert_eq!(vxlan::Header::new(vxlan.vni()).vni, vxlan.vni);
        let before: roce::Bth = any_layout(&raw);
        let again = roce::Bth::new(before.opcode, before.dest_qp(), before.psn());
        prop_assert_eq!((again.dest_qp, again.psn), (before.dest_qp, before.psn));
        let mut bth = before;
        bth.set_pad_count(pad);
        bth.set_becn(bits[0]);
        bth.set_ack_requested(bits[1]);
        prop_assert_eq!((bth.pad_count(), bth.becn(), bth.ack_requested()), (pad, bits[0], bits[1]));
        prop_assert_eq!((bth.solicited(), bth.version()), (before.solicited(), before.version()));
        prop_assert_eq!(bth.fecn(), before.fecn());
        prop_assert_eq!((bth.flags ^ before.flags) & !0x30, 0);
        prop_assert_eq!((bth.congestion ^ before.congestion) & !0x40, 0);
        prop_assert_eq!((bth.ack ^ before.ack) & !0x80, 0);
        let deth: roce::Deth = any_layout(&raw);
        prop_assert_eq!(roce::Deth::new(deth.qkey.get(), deth.src_qp()).src_qp, deth.src_qp);
        let reth: roce::Reth = any_layout(&raw);
        prop_assert_eq!(roce::Reth::new(reth.va.get(), reth.rkey.get(), reth.len.get()), reth);
        let aeth: roce::Aeth = any_layout(&raw);
        prop_assert_eq!(roce::Aeth::new(aeth.syndrome, aeth.msn()), aeth);
        prop_assert_eq!(Vni::new(vxlan.vni().get()), Ok(vxlan.vni()));
        prop_assert_eq!(Qpn::new(bth.dest_qp().get()), Ok(bth.dest_qp()));
        prop_assert_eq!(Psn::new(bth.psn().get()), Ok(bth.psn()));
    }
}
