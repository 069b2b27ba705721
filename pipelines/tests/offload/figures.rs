//! What the manager costs: flows and rules per second into the simulated e-switch, without its artificial latency.
//!
//! `cargo nextest run --release -p pipelines --test offload --run-ignored only --no-capture figures`

use std::time::Instant;

use pipelines::flow_key::FlowKey;
use pipelines::offload::Stamp;
use pipelines::offload::manager::{Manager, Policy, Sample};
use pipelines::offload::sim::{Config, Eswitch};
use pipelines::offload::translate::{Entropy, Options, Tables};

use crate::host::*;
use crate::support::*;

const FLOWS: u64 = 100_000;
const ROUNDS: usize = 5;

#[test]
#[ignore = "a measurement, for a release build on a quiet machine"]
fn figures_rules_per_second() {
    let mut host = Host::new(plain());
    let key = host.flow(1, &v4(A, R).tcp(1, 80, 0x10, b"data"));
    // Flows that differ in both ports.
    let keys = (0..FLOWS).map(|n| {
        let mut words = *key.words();
        words[4] = words[4] & !0xffff_ffff | n;
        FlowKey::from_words(words)
    });
    let keys: Vec<_> = keys.collect();
    for entropy in [Entropy::Hardware, Entropy::Exact] {
        let options = Options { entropy, ..Options::default() };
        let tables = Tables {
            snapshot: &host.world.snapshot,
            tree: host.world.worker.overlay.dhtb().tree(),
            ports: &host.ports,
            options: &options,
        };
        for _ in 0..ROUNDS {
            let mut eswitch = Eswitch::new(Config { capacity: 1 << 20, ..Config::default() });
            let policy = Policy { packets: 1000, rules_per_second: 1 << 30, ..Policy::default() };
            let mut manager = Manager::new(policy);
            let began = Instant::now();
            for tick in 1..=4u64 {
                let now_ns = tick * 100_000_000;
                eswitch.advance(now_ns);
                let sample =
                    |key: &FlowKey| Sample { ask: whole(*key), packets: tick * 1000, bytes: tick * 64_000 };
                let samples: Vec<_> = keys.iter().map(sample).collect();
                manager.sync(&mut eswitch, &tables, &samples, |_| Some(Stamp(0)), now_ns);
            }
            let seconds = began.elapsed().as_secs_f64();
            assert_eq!(manager.tally().installed, FLOWS);
            let rate = |n: f64| n / seconds;
            let (flows, rules) = (rate(FLOWS as f64), rate(manager.rules() as f64));
            println!(
                "{entropy:?}: {FLOWS} flows in {seconds:.3} s and four syncs: {flows:.0} flows, {rules:.0} rules a second"
            );
        }
    }
}
