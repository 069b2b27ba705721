//! What a request names, of what there is; and the texts of what there is.

use pipelines::snapshot::{Snapshot, Vnic, Vpc};
use tonic::Code;

use super::refusal::Problem;

/// A vNIC, by the field `vnic`.
pub(super) fn vnic<'s>(snapshot: &'s Snapshot, name: &str) -> Result<&'s Vnic, Problem> {
    let found = snapshot.vnics.iter().flatten().find(|vnic| vnic.name == name);
    found.map(AsRef::as_ref).ok_or_else(|| {
        Problem::new(Code::NotFound, "vnic", format!("no vNIC {name}; `show vnic` lists them"))
    })
}

/// A VPC, by the field `vpc`.
pub(super) fn vpc<'s>(snapshot: &'s Snapshot, name: &str) -> Result<&'s Vpc, Problem> {
    let found = snapshot.vpcs.iter().flatten().find(|vpc| vpc.name == name);
    found
        .map(AsRef::as_ref)
        .ok_or_else(|| Problem::new(Code::NotFound, "vpc", format!("no VPC {name}; `show vpc` lists them")))
}

pub(super) fn texts(values: impl IntoIterator<Item = impl ToString>) -> Vec<String> {
    values.into_iter().map(|value| value.to_string()).collect()
}
