//! Where a process is and what it may do there. Whoever takes over opens what the old process has: from another network namespace, or without
//! its capabilities, it cannot.

use std::path::Path;

use pmd::namespace;
use serde::{Deserialize, Serialize};

use crate::port::effective_capabilities;

/// Capabilities by their bits, as far as ports and their memory need them (capabilities(7)).
const NAMES: [(u32, &str); 9] = [
    (0, "CAP_CHOWN"),
    (1, "CAP_DAC_OVERRIDE"),
    (3, "CAP_FOWNER"),
    (12, "CAP_NET_ADMIN"),
    (13, "CAP_NET_RAW"),
    (14, "CAP_IPC_LOCK"),
    (17, "CAP_SYS_RAWIO"),
    (21, "CAP_SYS_ADMIN"),
    (23, "CAP_SYS_NICE"),
];

/// What a process says of itself; of a version that does not, nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Whereabouts {
    /// Device and number of its network namespace.
    network: Option<(u64, u64)>,
    /// Its effective capabilities, a bit each.
    capabilities: Option<u64>,
}

impl Whereabouts {
    /// Of this process.
    pub fn here() -> Self {
        let network = namespace::identify(Path::new(namespace::OWN)).ok();
        Self { network, capabilities: effective_capabilities() }
    }

    /// Why one that is here does not hand over to one that is there, if there is a reason.
    pub(super) fn refusal(&self, new: &Self) -> Option<String> {
        if let (Some(old), Some(new)) = (self.network, new.network)
            && old != new
        {
            let pid = std::process::id();
            return Some(format!(
                "the new process is in another network namespace, in which the interfaces of its ports are not; start it in this one \
                 (`nsenter --net=/proc/{pid}/ns/net`)"
            ));
        }
        let missing = self.capabilities? & !new.capabilities?;
        (missing != 0).then(|| {
            format!(
                "the new process does not have all of its capabilities, so that ports may not open: it lacks {}; start it with the same",
                names(missing)
            )
        })
    }
}

fn names(capabilities: u64) -> String {
    let name = |bit: u32| match NAMES.iter().find(|(of, _)| *of == bit) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("number {bit}"),
    };
    let bits = (0..u64::BITS).filter(|bit| capabilities >> bit & 1 == 1);
    bits.map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(network: u64, capabilities: u64) -> Whereabouts {
        Whereabouts { network: Some((4, network)), capabilities: Some(capabilities) }
    }

    #[test]
    fn nothing_is_handed_over_to_a_process_that_is_elsewhere_or_may_do_less() {
        const NET: u64 = 1 << 12 | 1 << 13;
        let old = at(7, NET);
        for (new, said) in [
            (at(7, NET), None),
            (at(7, u64::MAX), None),
            (at(8, NET), Some("another network namespace")),
            (at(7, 1 << 12), Some("lacks CAP_NET_RAW;")),
            (at(7, 0), Some("lacks CAP_NET_ADMIN, CAP_NET_RAW;")),
            // Of a version that does not say.
            (Whereabouts::default(), None),
        ] {
            let refusal = old.refusal(&new);
            assert_eq!(refusal.is_some(), said.is_some(), "{new:?}: {refusal:?}");
            assert!(said.is_none_or(|said| refusal.is_some_and(|refusal| refusal.contains(said))), "{new:?}");
            assert_eq!(Whereabouts::default().refusal(&new), None);
        }
        assert_eq!(names(1 << 40), "number 40");
    }

    #[test]
    fn a_process_knows_where_it_is() {
        let here = Whereabouts::here();
        assert!(here.network.is_some() && here.capabilities.is_some(), "{here:?}");
        assert_eq!(here.refusal(&here), None);
    }
}
