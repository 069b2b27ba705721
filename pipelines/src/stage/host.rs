//! host: the host's own traffic, from a punt port to its uplink. It goes out as it is, but for what it left to its device:
//! checksums and super-frames. It has the uplink's MAC, so that nobody on the link takes another one for the VTEP's.

use wire::PacketBuf;

use super::{Cx, super_frame};
use crate::Sink;
use crate::burst::{Burst, NO_INDEX};
use crate::drops::DropReason;
use crate::flow_key::be64;
use crate::snapshot::Uplink;

/// Sends the pending packets out, or drops them.
#[inline(never)]
pub fn run<P: PacketBuf, S: Sink<P>>(cx: &Cx, burst: &mut Burst<P>, uplink: &Uplink, sink: &mut S) {
    for i in burst.pending() {
        let source = |packet: &P| be64(packet.head(), 4) & 0xffff_ffff_ffff;
        let is_ours = burst.packets[i].as_ref().is_some_and(|packet| source(packet) == uplink.mac);
        match is_ours.then(|| burst.take(i)).flatten() {
            Some(packet) => super_frame::send_finished(cx.snapshot, cx.counters, sink, uplink.port, packet),
            None => {
                burst.metas[i].vnic = NO_INDEX;
                burst.drop(i, DropReason::HOST_MAC, cx.counters);
            }
        }
    }
}
