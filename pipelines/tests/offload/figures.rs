//! What the manager costs: rules per second into the simulated e-switch and out of it, without its artificial latency.
//!
//! `cargo nextest run --release -p pipelines --test offload --run-ignored only --no-capture figures`

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use pipelines::flow_key::{FlowKey, outer_source_port};
use pipelines::offload::manager::{FlowSample, Manager, Policy};
use pipelines::offload::sim::{Eswitch, EswitchConfig};
use pipelines::offload::translate::{EntropySource, Tables, TranslateOptions};
use rules::ArrivalCount;

use crate::host::*;
use testkit::*;

const FLOWS: usize = 100_000;
const ROUNDS: usize = 5;
/// Destinations: as many as the VLT of the small world has room for.
const PLACES: u32 = 200;

/// What this thread has had of a processor: others may run beside it.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// Flows of one vNIC, by ports alone (`places` 1) or to many places too; with `ports` outer source ports in all.
fn keys(base: FlowKey, places: u32, ports: u16) -> Vec<FlowKey> {
    let key = |n: u64| {
        let mut words = *base.words();
        words[4] = words[4] & !0xffff_ffff | n;
        let place = n % u64::from(places);
        words[0] = words[0] & !0xff00 | place << 8;
        words[5] += place << 24;
        FlowKey::from_words(words)
    };
    let few = |key: &FlowKey| outer_source_port(key.entropy(), key.ports().source) & 0x3fff < ports;
    (0..u64::from(u32::MAX)).map(key).filter(few).take(FLOWS).collect()
}

#[test]
#[ignore = "a measurement, for a release build on a quiet machine"]
fn figures_rules_per_second() {
    let mut host = Host::new(plain());
    let base = host.flow(1, &v4(A, R).tcp(1, 80, 0x10, b"data"));
    for place in 1..PLACES {
        let mut station = R;
        station.mac.0[4] += place as u8;
        station.v4 = (u32::from(R.v4) + (place << 8)).into();
        station.v6 = (u128::from(R.v6) + (u128::from(place) << 64)).into();
        let there = host.world.tunnel(0, 2 + (place % 8) as u8);
        host.world.locate(0, pipelines::snapshot::Destination::Mac(station.mac), station.mac, there);
    }
    for (entropy, places, ports) in [
        (EntropySource::Hardware, 1, 0x4000),
        (EntropySource::Hardware, PLACES, 0x4000),
        (EntropySource::Exact, 1, 16),
        (EntropySource::Exact, 1, 0x4000),
        (EntropySource::Exact, PLACES, 0x4000),
    ] {
        let options = TranslateOptions { entropy, ..TranslateOptions::default() };
        let tables = Tables { options: &options, ..host.tables() };
        let keys = keys(base, places, ports);
        let mut eswitch = Eswitch::new(EswitchConfig { capacity: 1 << 20, ..EswitchConfig::default() });
        let policy = Policy { packets: 1000, rules_per_second: 1 << 30, ..Policy::default() };
        let mut manager = Manager::new(policy);
        let mut tick = 0;
        // The first round finds the memory that the others use again.
        for round in 1..=ROUNDS {
            let mut sync = |manager: &mut Manager, eswitch: &mut Eswitch| {
                tick += 1;
                let now_ns = tick * 100_000_000;
                eswitch.advance(now_ns);
                let sample = |key: &FlowKey| FlowSample {
                    selector: whole(*key),
                    packets: tick * 1000,
                    bytes: tick * 64_000,
                };
                let samples: Vec<_> = keys.iter().map(sample).collect();
                let began = cpu_time();
                manager.reconcile(eswitch, &tables, &samples, |_| Some(ArrivalCount(0)), now_ns);
                cpu_time() - began
            };
            manager.switch(true);
            let all = (round * FLOWS) as u64;
            let (mut install, mut syncs) = (Duration::ZERO, 0);
            while manager.counters().installed < all {
                install += sync(&mut manager, &mut eswitch);
                syncs += 1;
            }
            let (rules, ways) = (manager.rules(), manager.adjacencies_and_bundles().0);
            manager.switch(false);
            let remove = sync(&mut manager, &mut eswitch);
            assert_eq!((manager.counters().withdrawn, eswitch.len(), manager.rules()), (all, 0, 0));
            let rate = |n: usize, spent: Duration| n as f64 / spent.as_secs_f64() / 1000.0;
            println!(
                "{entropy:?}: {FLOWS} flows, {ways} ways, {rules} rules: installed in {syncs} syncs at {:.0}k rules a second \
                 ({:.0}k flows), removed in one at {:.0}k",
                rate(rules, install),
                rate(FLOWS, install),
                rate(rules, remove)
            );
        }
    }
}
