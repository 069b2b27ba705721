//! A thousand routes, of which some cannot be.

use std::collections::BTreeSet;

use ipnet::IpNet;
use proptest::prelude::*;

use super::*;
use crate::config::{GatewayConfig, RouteTargetConfig};

fn route(to: &str, vtep: &str) -> RouteChange {
    let gateway = GatewayConfig { vtep: vtep.parse().unwrap(), mac: wire::MacAddr([2, 0, 0, 0, 0, 9]) };
    RouteChange {
        vni: 100,
        vpc: Name::new("red").unwrap(),
        to: to.parse().unwrap(),
        target: Some(RouteTargetConfig::Gateways(vec![gateway])),
        was_refused: false,
    }
}

fn many(count: u16, vtep: &str) -> Vec<RouteChange> {
    (0..count).map(|n| route(&format!("10.{}.{}.0/24", n >> 8, n & 255), vtep)).collect()
}

fn config() -> Config {
    let text = "[[uplink]]\nname = \"up\"\nport = { kind = \"null\" }\naddresses = [\"172.16.0.1/24\"]\n\
        [[vpc]]\nname = \"red\"\nvni = 100\n";
    Config::parse(text, "test").unwrap_or_else(|errors| panic!("{errors}"))
}

/// What a switch with this config would say to some routes as one change, and how often it was asked.
fn of_switch(routes: &[RouteChange], asked: &mut usize) -> Result<(), SwitchError> {
    *asked += 1;
    let mut config = config();
    let all =
        routes.iter().filter_map(|route| Some(VpcRoute { to: route.to, target: route.target.clone()? }));
    config.vpcs[0].routes.extend(all);
    Ok(config.validate()?)
}

/// The prefixes that are refused of some routes, and how often the switch was asked for a change.
fn refused(routes: Vec<RouteChange>) -> (BTreeSet<IpNet>, usize) {
    let (config, mut asked) = (config(), 0);
    let mut possible = Possible::of(&config);
    let all = |routes: &[RouteChange]| of_switch(routes, &mut asked);
    let brought = bring(routes, |route| possible.refusal(route), all).unwrap();
    assert!(brought.unclear.is_empty());
    let prefix = |(item, why): (Item, String)| match item {
        Item::Prefix(_, to) => {
            assert!(!why.is_empty());
            to
        }
        other => panic!("{other}"),
    };
    (brought.refused.into_iter().map(prefix).collect(), asked)
}

#[test]
fn evpn_refused_prefixes_cost_two_changes_whatever_their_number() {
    assert_eq!(refused(many(1000, "172.16.0.2")), (BTreeSet::new(), 1));
    // Next hops that no uplink has an address for.
    let bad = many(1000, "fd00::2");
    let all: BTreeSet<IpNet> = bad.iter().map(|route| route.to).collect();
    assert_eq!(refused(bad), (all, 1));
    // One among many.
    let mut one = many(1000, "172.16.0.2");
    one.insert(500, route("169.254.0.0/16", "172.16.0.2"));
    assert_eq!(refused(one), (["169.254.0.0/16".parse().unwrap()].into(), 2));
    // Those that were refused before cost no change at all.
    let mut again = many(1000, "fd00::2");
    again.iter_mut().for_each(|route| route.was_refused = true);
    let found = refused(again);
    assert_eq!((found.0.len(), found.1), (1000, 0));
    // What goes cannot be refused by itself.
    let gone = RouteChange { target: None, ..route("10.0.0.0/24", "fd00::2") };
    assert_eq!(refused(vec![gone]), (BTreeSet::new(), 1));
}

#[test]
fn evpn_routes_of_which_a_worker_took_none_are_tried_again() {
    let stuck = |_: &[RouteChange]| {
        Err(SwitchError::Worker(worker::mailbox::WorkerError::Stuck { worker: 0, core: 0 }))
    };
    assert!(bring(many(10, "172.16.0.2"), |_| None, stuck).is_err());
}

proptest! {
    /// What no check of a route alone finds: against trying each by itself.
    #[test]
    fn evpn_halves_refuse_what_singles_would(count in 1u16..300, bad: BTreeSet<u8>) {
        let routes = many(count, "172.16.0.2");
        let is_bad = |route: &RouteChange| match route.to {
            IpNet::V4(to) => bad.contains(&to.addr().octets()[2]) && to.addr().octets()[1] == 0,
            IpNet::V6(_) => false,
        };
        let mut pieces = Pieces::of(routes.clone());
        let (mut good, mut refused, mut asked) = (Vec::new(), Vec::new(), 0_usize);
        while let Some(piece) = pieces.next() {
            asked += 1;
            match piece.iter().any(is_bad) {
                true => refused.extend(pieces.refused(piece).map(|route| route.to)),
                false => good.extend(piece.iter().map(|route| route.to)),
            }
        }
        let singles = |wanted: bool| {
            routes.iter().filter(|route| is_bad(route) == wanted).map(|route| route.to).collect::<Vec<_>>()
        };
        let bad = singles(true).len();
        prop_assert_eq!((good, refused), (singles(false), singles(true)));
        prop_assert!(asked <= 2 + 2 * bad * 9, "{} for {}", asked, bad);
    }
}
