//! What is announced when gobgpd does not answer.

use std::collections::BTreeSet;

use tonic::transport::Endpoint;

use super::*;
use crate::config::Config;

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
