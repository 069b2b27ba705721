//! What tells a vNIC and its network from others: over a restart, for its number is each process's own, and from one snapshot to the next.

use pipelines::snapshot::Snapshot;
use wire::Vni;

/// The name of a vNIC and the VNI of its network, as in `one 100`: in another network its peers are others. `None` for a number that no
/// vNIC has.
pub(super) fn name_of(snapshot: &Snapshot, vnic: u32) -> Option<String> {
    let vnic = snapshot.vnic(vnic)?;
    Some(format!("{} {}", vnic.name, snapshot.vpc(vnic.vpc)?.vni))
}

/// The network that a vNIC is in: the index of its VPC, and the VNI, which another network may have under the same name. `None` for a
/// number that no vNIC has.
fn network_of(snapshot: &Snapshot, vnic: u32) -> Option<(u32, Vni)> {
    let vpc = snapshot.vpc(snapshot.vnic(vnic)?.vpc)?;
    Some((vpc.index, vpc.vni))
}

/// True for a vNIC that is in another network after a change, or in none: the machines behind the addresses of its peers are others, or
/// may be.
pub(super) fn has_left(vnic: u32, before: &Snapshot, after: &Snapshot) -> bool {
    network_of(before, vnic) != network_of(after, vnic)
}
