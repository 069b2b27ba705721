//! Whatever happened before, a config decides as it does after a fresh start.

use proptest::prelude::*;

use super::*;
use crate::topology::underlay::State;

/// A config from numbers: few names, few MAC addresses and VTEPs, so that they meet.
fn made(a: u8, b: u8, vnics: u8, places: &[(bool, u8, u8, u8)]) -> Config {
    let options = |bits: u8, peer: Option<&str>| {
        let mut text = String::new();
        if bits & 1 != 0 {
            text += "flood = true\n";
        }
        if bits & 2 != 0 {
            text += "router-mac = \"02:00:00:00:09:09\"\n";
        }
        let mut routes = Vec::new();
        if let Some(peer) = peer.filter(|_| bits & 4 != 0) {
            routes.push(format!("{{ to = \"10.98.0.0/24\", vpc = \"{peer}\" }}"));
        }
        if bits & 8 != 0 {
            routes.push(
                "{ to = \"10.200.0.0/24\", vtep = \"172.16.0.4\", mac = \"02:00:00:00:07:07\" }".into(),
            );
        }
        format!("{text}routes = [{}]", routes.join(", "))
    };
    let has_b = b & 16 != 0;
    let mut parts = vec![vpc("a", 1 + u32::from(a & 32), &options(a, has_b.then_some("b")))];
    if has_b {
        parts.push(vpc("b", 2 + u32::from(b & 32), &options(b, None)));
    }
    let mut local = Vec::new();
    for (bit, name, net, host) in [(1, "va", "a", 1), (2, "vb", "b", 1), (4, "vc", "a", 2), (8, "vc", "b", 2)]
    {
        let taken = bit == 8 && vnics & 4 != 0;
        if vnics & bit != 0 && (net == "a" || has_b) && !taken {
            parts.push(vnic(name, net, host));
            local.push((net == "b", host));
        }
    }
    let mut seen = HashSet::new();
    for &(in_b, host, mac, vtep) in places {
        let vni = if in_b { 2 + u32::from(b & 32) } else { 1 + u32::from(a & 32) };
        if (in_b && !has_b) || local.contains(&(in_b, host)) || !seen.insert((in_b, host)) {
            continue;
        }
        parts.push(location(vni, if in_b { b'b' } else { b'a' }, host, mac, vtep));
    }
    config(&parts)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_history_decides_as_a_fresh_start(
        steps in prop::collection::vec(
            (0u8..64, 0u8..64, 0u8..16, prop::collection::vec((any::<bool>(), 1u8..6, 1u8..5, 2u8..6), 0..8), 2u8..6),
            1..8,
        ),
    ) {
        let mut lab = Lab::new(14);
        let mut cache: HashMap<FlowKey, Action> = HashMap::new();
        for (a, b, vnics, places, host) in steps {
            let config = made(a, b, vnics, &places);
            let before = (lab.decisions(), lab.used());
            if lab.try_set(&config).is_err() {
                prop_assert_eq!((lab.decisions(), lab.used()), before);
                continue;
            }
            lab.hear(host, a);
            let mut fresh = Lab::new(64);
            fresh.set(&config);
            for (_, address, neighbour) in lab.neighbours.list() {
                if let (IpAddr::V4(v4), State::Reachable(mac)) = (address, neighbour.state) {
                    fresh.hear(v4.octets()[3], mac.0[5]);
                }
            }
            prop_assert_eq!(lab.decisions(), fresh.decisions());
            prop_assert_eq!(lab.used(), fresh.used());
            // What a worker remembers is stale or still right.
            for (who, key) in keys(lab.topology.snapshot()) {
                let now = decide(lab.topology.snapshot(), &key);
                if let Some(old) = cache.insert(key, now)
                    && valid(&lab, &old)
                {
                    prop_assert_eq!(tell(&lab, &old), tell(&lab, &now), "{}", who);
                }
            }
        }
    }
}
