//! The vNICs that a change concerns, for those who keep something of each.

use pipelines::snapshot::{Snapshot, Vnic};

use crate::config::VnicConfig;

/// A vNIC that a change may have altered something for.
#[derive(Clone, Copy)]
pub struct Concerned<'c> {
    /// As the snapshot has it.
    pub vnic: &'c Vnic,
    /// As the config has it.
    pub config: &'c VnicConfig,
}

/// Indices that have another vNIC, or none, after a change.
pub(super) struct Turnover {
    /// vNICs of one snapshot that the next one has not.
    pub gone: Vec<u32>,
    /// vNICs of the next snapshot that this one has not.
    pub come: Vec<u32>,
}

impl Turnover {
    /// From one snapshot to the next. Rows that both share cost no more than a look at each.
    pub fn between(before: &Snapshot, after: &Snapshot) -> Self {
        let mut turnover = Self { gone: Vec::new(), come: Vec::new() };
        for index in 0..before.vnics.len().max(after.vnics.len()) as u32 {
            let (old, new) = (before.vnic(index), after.vnic(index));
            let is_same = match (old, new) {
                (Some(old), Some(new)) => std::ptr::eq(old, new) || old.name == new.name,
                (None, None) => true,
                _ => false,
            };
            if !is_same {
                turnover.gone.extend(old.map(|_| index));
                turnover.come.extend(new.map(|_| index));
            }
        }
        turnover
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use crate::config::Config;

    /// What a change of everything concerns.
    pub fn all<'c>(
        before: &Snapshot,
        after: &'c Snapshot,
        config: &'c Config,
    ) -> (Vec<u32>, Vec<Concerned<'c>>) {
        let find = |name: &str| after.vnics.iter().flatten().find(|vnic| vnic.name == name);
        let concerned =
            config.vnics.iter().filter_map(|config| Some(Concerned { vnic: find(&config.name)?, config }));
        (Turnover::between(before, after).gone, concerned.collect())
    }
}

#[cfg(test)]
mod tests;
