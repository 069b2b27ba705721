//! What tables that outlive the process tell a vNIC by: its number is each process's own.

use pipelines::snapshot::Snapshot;

/// The name of a vNIC and the VNI of its network, as in `one 100`: in another network its peers are others. `None` for a number that no
/// vNIC has.
pub(super) fn name_of(snapshot: &Snapshot, vnic: u32) -> Option<String> {
    let vnic = snapshot.vnic(vnic)?;
    Some(format!("{} {}", vnic.name, snapshot.vpc(vnic.vpc)?.vni))
}
