//! The baselines that testpmd also has: `io` forwards between paired ports untouched, `mac` also sets the MACs.
//!
//! But for what a sender left to its device and the partner's device would not do: checksums and super-frames that a port
//! marked as such are finished on the way.

use wire::PacketBuf;

use crate::Sink;
use crate::burst::Burst;
use crate::counters::PipelineCounters;
use crate::drops::DropReason;
use crate::snapshot::{NO_PORT, PortIndex, Snapshot};
use crate::stage::super_frame;

/// Forwards a burst to the partner of its port. With `mac` set the source MAC becomes that of the way out and
/// the destination MAC 02:00:00:00:00:NN, NN the port, as testpmd's `mac` mode does.
#[inline]
pub fn run<P: PacketBuf, S: Sink<P>>(
    snapshot: &Snapshot,
    counters: &PipelineCounters,
    port: PortIndex,
    mac: bool,
    burst: &mut Burst<P>,
    sink: &mut S,
) {
    counters.received.add(u64::from(burst.pending.count_ones()));
    let partner = snapshot.ports.get(usize::from(port)).map_or(NO_PORT, |row| row.partner);
    let source = snapshot.ports.get(usize::from(partner)).map(|row| row.mac).unwrap_or_default();
    for i in burst.pending() {
        if partner == NO_PORT {
            burst.metas[i].vnic = crate::burst::NO_INDEX;
            burst.drop(i, DropReason::NO_PARTNER, counters);
            continue;
        }
        let Some(mut packet) = burst.take(i) else { continue };
        if mac && let Some(macs) = packet.head_mut().first_chunk_mut::<12>() {
            macs[..6].copy_from_slice(&[2, 0, 0, 0, 0, partner as u8]);
            macs[6..].copy_from_slice(&source.0);
        }
        super_frame::send_finished(snapshot, counters, sink, partner, packet);
    }
}
