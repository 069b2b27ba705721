//! Checks of bidirectional forwarding detection: who is asked, how often, and from which address.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use pipelines::bfd::MAX_SESSIONS;

use super::super::bfd::{BfdConfig, is_link_local};
use super::super::network::UplinkConfig;
use super::super::units::show_duration;
use super::underlay::{next_hop, own_addresses};
use super::{Checker, is_unicast};

pub(super) fn check(checker: &mut Checker<'_>) {
    let mut sessions = 0;
    for (index, uplink) in checker.config.uplinks.iter().enumerate() {
        let Some(bfd) = &uplink.bfd else { continue };
        let path = format!("uplink[{index}].bfd");
        intervals(checker, &path, uplink, bfd);
        peers(checker, &path, uplink, bfd);
        vteps(checker, &path, uplink, bfd);
        sources(checker, &path, index, uplink);
        sessions += uplink.bfd_sessions().len();
        if sessions > MAX_SESSIONS {
            let message = format!(
                "uplink {}: with it there are {sessions} BFD sessions, and a switch has {MAX_SESSIONS} at most; list fewer \
                 peers or vteps",
                uplink.name
            );
            checker.fail(&path, message);
            return;
        }
    }
}

fn intervals(checker: &mut Checker<'_>, path: &str, uplink: &UplinkConfig, bfd: &BfdConfig) {
    let (name, [least, most]) = (&uplink.name, [BfdConfig::SHORTEST, BfdConfig::LONGEST]);
    for (key, interval) in [("min-tx", bfd.min_tx), ("min-rx", bfd.min_rx)] {
        let shown = show_duration(interval);
        if interval < least {
            let message = format!(
                "uplink {name}: bfd {key} {shown} is shorter than {}, the shortest that control, which has a turn every {}, \
                 can keep; raise it",
                show_duration(least),
                show_duration(Duration::from_millis(crate::switch::TEND_EVERY_MS))
            );
            checker.fail(format!("{path}.{key}"), message);
        } else if interval > most || !interval.subsec_nanos().is_multiple_of(1000) {
            let message = format!(
                "uplink {name}: bfd {key} {shown} is not in whole microseconds up to {}; choose a time that is",
                show_duration(most)
            );
            checker.fail(format!("{path}.{key}"), message);
        }
    }
    if bfd.multiplier < BfdConfig::LEAST_MULTIPLIER {
        let message = format!(
            "uplink {name}: bfd multiplier {} is less than {}: one packet that is lost or late would take the path away; \
             3 is usual, so give that",
            bfd.multiplier,
            BfdConfig::LEAST_MULTIPLIER
        );
        checker.fail(format!("{path}.multiplier"), message);
    }
}

fn peers(checker: &mut Checker<'_>, path: &str, uplink: &UplinkConfig, bfd: &BfdConfig) {
    let name = &uplink.name;
    let mut seen = HashSet::new();
    for (index, &peer) in bfd.peers.iter().enumerate() {
        let path = format!("{path}.peers[{index}]");
        next_hop(checker, &path, uplink, "bfd peer", peer);
        if !seen.insert(peer) {
            checker.fail(&path, format!("uplink {name}: bfd peer {peer} is listed twice; keep one"));
        }
    }
    if uplink.bfd_sessions().is_empty() {
        let message = format!(
            "uplink {name}: bfd has nobody to ask, for it has neither a gateway nor routes; list stations on its link as \
             peers = [\"...\"]"
        );
        checker.fail(path, message);
    }
}

fn vteps(checker: &mut Checker<'_>, path: &str, uplink: &UplinkConfig, bfd: &BfdConfig) {
    let name = &uplink.name;
    let own = own_addresses(checker.config);
    let mut seen = HashSet::new();
    for (index, vtep) in bfd.vteps.iter().enumerate() {
        let path = format!("{path}.vteps[{index}]");
        let leads = |net: Option<ipnet::IpNet>| net.is_some_and(|net| net.contains(vtep));
        let routed = uplink.gateway.iter().any(|gateway| gateway.is_ipv4() == vtep.is_ipv4())
            || uplink.routes.iter().any(|route| leads(Some(route.to)));
        let problem = if !is_unicast(*vtep) || is_link_local(*vtep) {
            "is not the address of a VTEP behind routers; give a unicast one that is not link-local"
        } else if own.contains_key(vtep) {
            "is one of our own; list those of other hosts"
        } else if uplink.addresses.iter().any(|net| net.contains(vtep)) {
            "is on the link of the uplink, with no router between; list it under peers"
        } else if !routed {
            "is not reached by the uplink, which has no gateway and no route that leads there; add one, or remove it"
        } else if !seen.insert(*vtep) {
            "is listed twice; keep one"
        } else {
            continue;
        };
        checker.fail(&path, format!("uplink {name}: bfd vtep {vtep} {problem}"));
    }
}

/// Each session needs an address to which the answers come by this uplink.
fn sources(checker: &mut Checker<'_>, path: &str, index: usize, uplink: &UplinkConfig) {
    let uplinks = &checker.config.uplinks;
    let others = || uplinks.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, other)| other);
    let reaches = |peer: IpAddr| uplink.addresses.iter().any(|net| net.contains(&peer));
    let without = uplink.bfd_sessions().into_iter().find(|session| {
        // Those that are not on the link have been told.
        let is_asked = session.multihop || reaches(session.peer);
        is_asked && !is_link_local(session.peer) && uplink.bfd_source(*session, others()).is_none()
    });
    if let Some(session) = without {
        let message = format!(
            "uplink {}: bfd asks {} from an address that no other uplink has, so that the answers come by this one; add such an \
             address of its network",
            uplink.name, session.peer
        );
        checker.fail(path, message);
    }
}
