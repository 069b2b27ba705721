//! bind: which vNIC a packet from a tenant port belongs to. Takes the VLAN tag of trunk ports off.

use wire::PacketBuf;

use super::Cx;
use crate::burst::{Burst, NO_INDEX};
use crate::drops::DropReason;
use crate::flat::FlatMap;
use crate::snapshot::PortRole;

const TPID: [u8; 2] = [0x81, 0x00];

/// Sets the vNIC of each packet.
#[inline]
pub fn run<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, role: PortRole) {
    match role {
        PortRole::Vnic(vnic) => {
            let vpc = cx.snapshot.row(vnic).vpc;
            if vpc == NO_INDEX {
                return unbound(cx, burst);
            }
            for i in burst.pending() {
                let meta = &mut burst.metas[i];
                meta.vnic = vnic;
                meta.vpc = vpc;
            }
        }
        PortRole::Trunk(trunk) => match cx.snapshot.trunks.get(trunk as usize) {
            Some(vlans) => from_trunk(cx, burst, vlans),
            None => unbound(cx, burst),
        },
        _ => unbound(cx, burst),
    }
}

fn unbound<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>) {
    for i in burst.pending() {
        burst.metas[i].vnic = NO_INDEX;
        burst.drop(i, DropReason::PORT_UNBOUND, cx.counters);
    }
}

fn from_trunk<P: PacketBuf>(cx: &Cx, burst: &mut Burst<P>, vlans: &FlatMap) {
    for i in burst.pending() {
        burst.metas[i].vnic = NO_INDEX;
        let Some(packet) = burst.packets[i].as_mut() else { continue };
        let head = packet.head();
        let tagged = head.len() >= 18 && head[12..14] == TPID;
        let vid = if tagged { u16::from_be_bytes([head[14], head[15]]) & 0xfff } else { 0 };
        let vnic = if tagged { vlans.get(u128::from(vid)) } else { None };
        let bound = vnic.map(|vnic| (vnic, cx.snapshot.row(vnic).vpc)).filter(|&(_, vpc)| vpc != NO_INDEX);
        let Some((vnic, vpc)) = bound else {
            burst.drop(i, DropReason::VLAN_UNBOUND, cx.counters);
            continue;
        };
        burst.metas[i].vnic = vnic;
        burst.metas[i].vpc = vpc;
        let head = packet.head_mut();
        if head.len() < 18 {
            burst.drop(i, DropReason::NO_BUFFER, cx.counters);
            continue;
        }
        head.copy_within(..12, 4);
        packet.trim_front(4);
    }
}

/// Puts the VLAN tag of a trunk port on. `false` when there is no headroom.
#[inline]
pub fn push_tag<P: PacketBuf>(packet: &mut P, vid: u16) -> bool {
    let Some(head) = packet.prepend(4) else { return false };
    head.copy_within(4..16, 0);
    head[12..14].copy_from_slice(&TPID);
    head[14..16].copy_from_slice(&vid.to_be_bytes());
    true
}
