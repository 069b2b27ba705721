//! A minute of ten thousand new flows a second, of virtual time: they come, are hot for a moment, and stop. Nothing of
//! them is left, and nothing grows meanwhile.

use pipelines::Direction;
use pipelines::flow_key::FlowKey;
use pipelines::offload::arrival::{FlowOrigin, flow_of};
use pipelines::offload::manager::{FlowSample, Manager, Policy};
use pipelines::offload::sim::{Eswitch, EswitchConfig};
use pipelines::offload::translate::{EntropySource, FlowSelector, Tables, TranslateOptions};
use pipelines::qos::Class;
use rules::{ArrivalCount, BackEnd};

use crate::host::*;
use testkit::*;

const SYNC_NS: u64 = 100_000_000;
/// New flows in a tenth of a second.
const NEW: u64 = 1000;
/// Tenths of a second that a flow is seen in.
const LIFE: u64 = 3;

#[test]
fn churn_leaves_nothing() {
    let mut host = Host::new(plain());
    // Rates that nothing here reaches: there are meters, too.
    host.limit(Direction::Out, 0, Class::Tcp, 80_000_000_000);
    let base = host.flow(1, &v4(A, R).tcp(1, 80, 0x10, b"data"));
    let key = |n: u64| {
        let mut words = *base.words();
        words[4] = words[4] & !0xffff_ffff | n;
        whole(FlowKey::from_words(words))
    };
    let mut eswitch = Eswitch::new(EswitchConfig::default());
    let policy = Policy {
        packets: 1000,
        cool_ns: 500_000_000,
        retry_ns: 1_000_000_000,
        refresh_ns: 500_000_000,
        rules_per_second: 1_000_000,
        ..Policy::default()
    };
    let mut manager = Manager::new(policy);
    // The most in each ten seconds.
    let mut most = [[0; 4]; 6];
    let mut run = |tenth: u64, most: &mut [usize; 4]| {
        // In the first half of the minute flows age before they have cooled, in the second they cool.
        let age = if tenth < 300 { 1 } else { 5 };
        // Now and then flows have ways of their own.
        let entropy = if tenth.is_multiple_of(10) { EntropySource::Exact } else { EntropySource::Hardware };
        let options = TranslateOptions { entropy, age, ..TranslateOptions::default() };
        let tables = Tables { options: &options, ..host.tables() };
        let now_ns = tenth * SYNC_NS;
        eswitch.advance(now_ns);
        let mut samples = Vec::new();
        for back in 0..LIFE {
            let Some(born) = tenth.checked_sub(back).filter(|born| (1..=600).contains(born)) else {
                continue;
            };
            let count = (back + 1) * 500;
            samples.extend((0..NEW).map(|n| FlowSample {
                selector: key(born * NEW + n),
                packets: count,
                bytes: count * 64,
            }));
        }
        let arrivals = eswitch.all_arrivals();
        let quiet = |selector: &FlowSelector| {
            Some(ArrivalCount(arrivals.of(flow_of(selector, FlowOrigin::of(&tables, &selector.key)?))))
        };
        manager.reconcile(&mut eswitch, &tables, &samples, quiet, now_ns);
        let (ways, bundles) = manager.adjacencies_and_bundles();
        let now = [manager.flows().count(), eswitch.len() + eswitch.remembered(), ways, bundles];
        most.iter_mut().zip(now).for_each(|(most, now)| *most = now.max(*most));
        assert_eq!(eswitch.len(), manager.rules());
    };
    for tenth in 1..=600 {
        run(tenth, &mut most[(tenth as usize - 1) / 100]);
    }
    let mut rest = [0; 4];
    for tenth in 601..=700 {
        run(tenth, &mut rest);
    }
    let counters = manager.counters();
    assert_eq!((counters.installed, counters.withdrawn), (600 * NEW, 600 * NEW), "{counters:?}");
    assert!(counters.aged > 100 * NEW && counters.aged < 500 * NEW, "some aged, some cooled: {counters:?}");
    assert_eq!(
        (counters.no_gap, counters.refused, counters.refused_by_device, counters.unknown_aged),
        (0, 0, 0, 0)
    );
    // What there is at a time does not grow; ten seconds are for coming to rest.
    for (first, second) in [(1, 2), (4, 5)].map(|(a, b)| (most[a], most[b])) {
        let grew = first.iter().zip(second).any(|(first, second)| second * 10 > first * 11);
        assert!(!grew && first[0] > 0, "{most:?}");
    }
    assert_eq!((manager.flows().count(), manager.rules(), manager.adjacencies_and_bundles()), (0, 0, (0, 0)));
    assert_eq!((eswitch.len(), eswitch.remembered()), (0, 0));
    assert!(eswitch.set_meter(1, None).is_err(), "no meter is left");
}
