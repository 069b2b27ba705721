//! Routes through messages and back, and messages that nobody should believe.

use std::net::Ipv4Addr;

use super::*;

const TARGETS: Targets = Targets { asn: 4_200_065_000, form: RouteTargetForm::Plain };

fn routes() -> Vec<Route> {
    let rd = Distinguisher::Address(Ipv4Addr::new(192, 0, 2, 1), 100);
    let (vni, vtep) = (Vni::new(0xff_fffe).unwrap(), IpAddr::from([172, 16, 0, 1]));
    let v6: IpAddr = "fd00::1".parse().unwrap();
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let station = |ip| Route { sequence: 7, ..Route::new(Key::Station { rd, tag: 0, mac, ip }, vni, vtep) };
    let prefix = |to: &str| Key::Prefix { rd, tag: 0, to: to.parse().unwrap() };
    vec![
        station(None),
        station(Some(v6)),
        Route { sticky: true, vtep: v6, ..station(Some(vtep)) },
        Route::new(Key::Flood { rd, tag: 0, originator: vtep }, vni, vtep),
        Route::new(Key::Flood { rd, tag: 0, originator: v6 }, vni, v6),
        Route { router_mac: Some(mac), ..Route::new(prefix("10.9.0.0/24"), vni, vtep) },
        Route { gateway: Some(v6), ..Route::new(prefix("fd00:9::/64"), vni, vtep) },
    ]
}

#[test]
fn evpn_routes_read_back_as_they_were_written() {
    for form in [RouteTargetForm::Plain, RouteTargetForm::Rfc8365] {
        for wanted in routes() {
            let path = path(&wanted, Targets { form, ..TARGETS });
            assert_eq!(route(&path), Ok(wanted));
            assert_eq!(key(&bare(&wanted)), Ok(wanted.key));
        }
    }
}

/// A path with one attribute or community made otherwise.
fn changed(mut path: gobgp::Path, change: impl Fn(&mut gobgp::Path)) -> Result<Route, Unusable> {
    change(&mut path);
    route(&path)
}

#[test]
fn evpn_routes_that_are_not_for_this_switch_are_named() {
    let station = path(&routes()[0], TARGETS);
    let communities = |communities: Vec<Any>| {
        move |path: &mut gobgp::Path| {
            path.pattrs.retain(|any| !any.type_url.ends_with("ExtendedCommunitiesAttribute"));
            let communities = communities.clone();
            path.pattrs.push(pack(&gobgp::ExtendedCommunitiesAttribute { communities }));
        }
    };
    let target = TARGETS.of(routes()[0].vni);
    let geneve = pack(&gobgp::EncapExtended { tunnel_type: 19 });
    assert_eq!(
        changed(station.clone(), communities(vec![target.clone(), geneve])),
        Err(Unusable::OtherTunnel)
    );
    assert_eq!(changed(station.clone(), communities(vec![])), Err(Unusable::OtherTarget(0xff_fffe)));
    let other = TARGETS.of(Vni::new(5).unwrap());
    assert_eq!(changed(station.clone(), communities(vec![other])), Err(Unusable::OtherTarget(0xff_fffe)));
    // Without a word of the tunnel it is VxLAN, of which alone this switch has any.
    assert!(changed(station.clone(), communities(vec![target])).is_ok());
    let no_hop = changed(station.clone(), |path| path.pattrs.clear());
    assert!(matches!(no_hop, Err(Unusable::Malformed(_))), "{no_hop:?}");
    let auto_discovery = changed(station, |path| {
        path.nlri = Some(Any {
            type_url: "type.googleapis.com/apipb.EVPNEthernetSegmentRoute".into(),
            value: vec![],
        });
    });
    assert_eq!(auto_discovery, Err(Unusable::OtherType("apipb.EVPNEthernetSegmentRoute".into())));
}

#[test]
fn evpn_malformed_messages_are_refused_and_nothing_panics() {
    let good = path(&routes()[1], TARGETS);
    let nlri = |nlri: gobgp::EvpnmacipAdvertisementRoute| {
        changed(good.clone(), |path| path.nlri = Some(pack(&nlri)))
    };
    let rd = any_of(Distinguisher::Asn2(1, 2));
    let sound = gobgp::EvpnmacipAdvertisementRoute {
        rd: Some(rd),
        mac_address: "02:00:00:00:00:01".into(),
        labels: vec![0xff_fffe],
        ..Default::default()
    };
    assert!(nlri(sound.clone()).is_ok());
    let bad = [
        gobgp::EvpnmacipAdvertisementRoute { rd: None, ..sound.clone() },
        gobgp::EvpnmacipAdvertisementRoute { mac_address: "ff:ff:ff:ff:ff:ff".into(), ..sound.clone() },
        gobgp::EvpnmacipAdvertisementRoute { mac_address: "\u{1f642}".into(), ..sound.clone() },
        gobgp::EvpnmacipAdvertisementRoute { ip_address: "10.0.0".into(), ..sound.clone() },
        gobgp::EvpnmacipAdvertisementRoute { labels: vec![1 << 24], ..sound.clone() },
        gobgp::EvpnmacipAdvertisementRoute { ethernet_tag: 1, ..sound.clone() },
        gobgp::EvpnmacipAdvertisementRoute {
            rd: Some(pack(&gobgp::EncapExtended { tunnel_type: 1 })),
            ..sound
        },
    ];
    for message in bad {
        assert!(nlri(message.clone()).is_err(), "{message:?}");
    }
    // Each byte of each part, cut short and turned round.
    for wanted in routes() {
        let whole = path(&wanted, TARGETS).encode_to_vec();
        for at in 0..whole.len() {
            for bytes in [whole[..at].to_vec(), {
                let mut bytes = whole.clone();
                bytes[at] ^= 0xff;
                bytes
            }] {
                if let Ok(path) = gobgp::Path::decode(bytes.as_slice()) {
                    let _ = route(&path);
                    let _ = key(&path);
                }
            }
        }
    }
}
