//! What is announced when gobgpd does not answer.

use std::collections::BTreeSet;

use tonic::transport::Endpoint;

use super::*;
use crate::config::{Config, RouteTargetForm};
use crate::evpn::route::Key;
use wire::Vni;

/// A client of a gobgpd that was reached once, and that nobody reaches any more.
fn unreachable() -> Evpn {
    let text = "[control]\nevpn = { gobgpd = \"127.0.0.1:1\" }\n";
    let config = Config::parse(text, "f.toml").unwrap().control.evpn.unwrap();
    let (jobs, _) = mpsc::channel(1);
    let status = Shared::new(config.gobgpd.clone());
    let mut evpn = Evpn::new(config, jobs, status);
    let client = Client::new(Endpoint::from_static("http://127.0.0.1:1").connect_lazy());
    let router_id = Ipv4Addr::new(192, 0, 2, 1);
    evpn.connected = Some(Connected { client, asn: 65000, router_id, first: None });
    evpn.vtep = Some(IpAddr::from([172, 16, 0, 5]));
    evpn
}

#[tokio::test]
async fn evpn_what_nobody_answered_to_is_announced_again_soon() {
    let mut evpn = unreachable();
    evpn.local.stations.insert((7, MacAddr([2, 0, 0, 0, 0, 1])), BTreeSet::new());
    evpn.announces = true;
    let now = Instant::now();
    assert!(evpn.announce(now).await.is_ok());
    assert_eq!(evpn.publisher.announced().count(), 0);
    assert!(evpn.announces && !evpn.may_announce(now), "not before some time has passed");
    assert!(evpn.may_announce(now + AGAIN));
    // With nothing to announce there is nothing to say again.
    evpn.local.stations.clear();
    assert!(evpn.announce(now + AGAIN).await.is_ok());
    assert!(!evpn.announces);
}

/// What an earlier run announced from another VTEP is this host's to withdraw, and nobody is heard or flooded there; what others say under
/// numbers of their own, or of this router by a peer, is not.
#[tokio::test]
async fn evpn_routes_of_an_earlier_vtep_are_ours_to_withdraw() {
    let mut evpn = unreachable();
    let (ours, theirs) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 9));
    let before = IpAddr::from([172, 16, 0, 4]);
    let flood = |admin: Ipv4Addr, vtep: IpAddr| {
        let key = Key::Flood { rd: Distinguisher::Address(admin, 1), tag: 0, originator: vtep };
        Route::new(key, Vni::new(7).unwrap(), vtep)
    };
    let path = |admin: Ipv4Addr, from: &str| gobgp::Path {
        neighbor_ip: from.to_owned(),
        ..codec::path(&flood(admin, before), Targets { asn: 65000, form: RouteTargetForm::Plain })
    };
    for (admin, from, is_ours) in [(ours, "", true), (theirs, "", false), (ours, "10.0.0.1", false)] {
        evpn.book = Book::default();
        evpn.begin(&[path(admin, from)]);
        let found = (evpn.publisher.announced().count(), evpn.book.floods(7).len());
        assert_eq!(found, if is_ours { (1, 0) } else { (0, 1) }, "{admin} {from:?}");
        evpn.take(&path(admin, from));
        assert_eq!(evpn.book.floods(7).len(), usize::from(!is_ours), "{admin} {from:?}, said later");
    }
    evpn.begin(&[path(ours, "")]);
    let speaker = Speaker { vtep: IpAddr::from([172, 16, 0, 5]), router_id: ours };
    let steps = evpn.publisher.steps(&evpn.local, &evpn.book, speaker, Instant::now(), &mut Vec::new());
    assert_eq!(steps, [Step::Withdraw(flood(ours, before))]);
}
