//! How many rules a second go through a flow queue, into the device net_eswitch (crate `testdev`) and out of it.
//!
//! `cargo run --release -p pmd --example flow_rate [rules] [microseconds from push to result]`. The device only keeps rules: what is
//! measured is this crate, DPDK's calls, and the device's own bookkeeping. It says nothing of a NIC.

use std::time::Instant;

use pmd::{Eal, EalConfig, FlowEngine, FlowQueues, Hugepages, Mempool, MempoolConfig, Port, PortConfig};
use rules::{Action, Attr, BackEnd, FlowRule, Item, ItemKind, RuleId, items};

const ROUNDS: usize = 5;

/// A 5-tuple that is counted and goes on.
fn rule(number: u32) -> FlowRule {
    let ports = Item::with(items::tcp::SRC, number as u16).is(items::tcp::DST, 443u16);
    FlowRule {
        attr: Attr::transfer(1, 0),
        pattern: vec![
            Item::any(ItemKind::Eth),
            Item::with(items::ipv4::SRC, 0x0a00_0001u32).is(items::ipv4::DST, 0x0a01_0000 + (number >> 16)),
            ports,
        ],
        actions: vec![Action::Count, Action::Drop],
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let number =
        |at: usize, usual: u32| std::env::args().nth(at).map_or(Ok(usual), |text| text.parse::<u32>());
    let (count, delay) = (number(1, 200_000)?, number(2, 20)?);
    let folder = std::env::temp_dir().join(format!("flow-rate-{}", std::process::id()));
    let plugin = testdev::ESWITCH.build(&folder)?;
    std::fs::remove_dir_all(&folder)?;
    let config = EalConfig { hugepages: Hugepages::Never, plugins: vec![plugin], ..EalConfig::default() };
    let eal = Eal::init(&config)?;
    let pool = Mempool::new(&eal, &MempoolConfig::default())?;
    let port = Port::attach(&eal, "net_eswitch0", &format!("delay={delay}"))?;
    let config =
        PortConfig { flow_engine: FlowEngine::Async(FlowQueues::for_rules(count)), ..PortConfig::default() };
    let (port, rx, tx) = port.start(&config, &pool).map_err(|(_, error)| error)?;
    let mut queue = port.flow_queue(0)?;
    println!("{count} rules, results {delay} us after their push; rules a second in, out:");
    for _ in 0..ROUNDS {
        let rules: Vec<FlowRule> = (0..count).map(rule).collect();
        let begin = Instant::now();
        let made = rules.iter().map(|rule| queue.create(rule)).collect::<Result<Vec<RuleId>, _>>()?;
        queue.drain()?;
        let created = begin.elapsed();
        let mut results = Vec::new();
        queue.completed(&mut results);
        if results.len() != made.len() || results.iter().any(|(_, result)| result.is_err()) {
            return Err(format!("{} of {} rules are in force", results.len(), made.len()).into());
        }
        let begin = Instant::now();
        for id in made {
            queue.destroy(id)?;
        }
        queue.drain()?;
        let rate = |time: std::time::Duration| f64::from(count) / time.as_secs_f64();
        println!("{:>12.0} {:>12.0}", rate(created), rate(begin.elapsed()));
    }
    drop(queue);
    port.stop(rx, tx).map_err(|(_, _, _, error)| error)?.detach()?;
    Ok(())
}
