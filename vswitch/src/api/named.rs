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

/// Most entries of a list that grows with what tenants do.
pub(super) const MOST_LISTED: u64 = 10_000;

/// How many entries of such a list are asked for, by this field.
pub(super) fn listed(field: &str, count: u64, what: &str) -> Result<usize, Problem> {
    if count > MOST_LISTED {
        let message = format!("{count} is out of range; ask for {MOST_LISTED} {what} at the most");
        return Err(Problem::invalid(field, message));
    }
    Ok(count as usize)
}

pub(super) fn texts(values: impl IntoIterator<Item = impl ToString>) -> Vec<String> {
    values.into_iter().map(|value| value.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_an_end() {
        assert_eq!(listed("count", 0, "flows"), Ok(0));
        assert_eq!(listed("count", MOST_LISTED, "flows"), Ok(10_000));
        let problem = listed("count", MOST_LISTED + 1, "flows").unwrap_err();
        assert_eq!((problem.code, problem.field.as_str()), (Code::InvalidArgument, "count"));
        assert_eq!(problem.message, "10001 is out of range; ask for 10000 flows at the most");
    }
}
