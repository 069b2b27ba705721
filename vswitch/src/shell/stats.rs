//! Commands about the data path as a whole: forwarding statistics, drops, workers, memory.

use serde_json::json;

use super::{Entry, Shell};
use crate::console::{Args, CommandError, Output, Table};
use crate::view;
use crate::worker::{Mode, WorkerStats};

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "show fwd stats all",
            help: "Packets through the switch: received, sent, dropped by name",
            run: fwd_stats,
        },
        Entry { syntax: "clear fwd stats all", help: "Count forwarding from zero", run: clear_fwd },
        Entry { syntax: "show drops", help: "Dropped packets by reason", run: drops },
        Entry {
            syntax: "show workers",
            help: "Workers: packets, cycles per packet, idle share, burst sizes",
            run: workers,
        },
        Entry {
            syntax: "show version",
            help: "Versions of the switch and of DPDK, memory, uptime",
            run: version,
        },
    ]
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Overlay => "overlay",
        Mode::Io => "io",
        Mode::Mac => "mac",
    }
}

fn fwd_stats(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let switch = &shell.switch;
    let totals = view::totals(switch);
    let state = if switch.is_forwarding() { "forwarding" } else { "stopped" };
    let mode = mode_name(switch.mode());
    let mut table = Table::bare(2);
    for (name, value) in &totals.scalars {
        table.row([(*name).to_string(), value.to_string()]);
    }
    table.row(["dropped".to_string(), totals.dropped().to_string()]);
    for (name, value) in totals.drops.iter().filter(|(_, value)| **value > 0) {
        table.row([format!("  {name}"), value.to_string()]);
    }
    let (used, all) = (switch.mempool().in_use(), switch.mempool().capacity());
    table.row(["packet buffers in use".to_string(), format!("{used} of {all}")]);
    let mut object = serde_json::Map::new();
    object.insert("mode".into(), json!(mode));
    object.insert("state".into(), json!(state));
    for (name, value) in &totals.scalars {
        object.insert((*name).into(), json!(value));
    }
    object.insert("dropped".into(), json!(totals.dropped()));
    object.insert("drops".into(), json!(nonzero(&totals)));
    object.insert("mbufs".into(), json!({ "in-use": used, "capacity": all }));
    Ok(Output::new(format!("mode {mode}, {state}\n{table}"), object.into()))
}

fn nonzero(totals: &view::Totals) -> serde_json::Map<String, serde_json::Value> {
    let drops = totals.drops.iter().filter(|(_, value)| **value > 0);
    drops.map(|(name, value)| ((*name).into(), json!(value))).collect()
}

fn clear_fwd(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let baseline = view::baseline(&shell.switch, false, true);
    shell.switch.set_baseline(baseline);
    Ok(Output::message("forwarding statistics count from zero"))
}

fn drops(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let totals = view::totals(&shell.switch);
    let mut table = Table::new(["reason", "packets"]);
    for (name, value) in totals.drops.iter().filter(|(_, value)| **value > 0) {
        table.row([(*name).to_string(), value.to_string()]);
    }
    let text = if table.is_empty() { "no packet was dropped\n".to_string() } else { table.to_string() };
    Ok(Output::new(text, json!(nonzero(&totals))))
}

fn workers(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let mut head =
        vec!["worker", "core", "state", "packets", "cycles/packet", "idle %", "sleeps", "hits", "misses"];
    head.extend(WorkerStats::BURST_NAMES);
    let mut table = Table::new(head);
    let mut rows = Vec::new();
    for worker in view::workers(&shell.switch) {
        let state = if worker.alive { "running" } else { "ended" };
        let mut cells = vec![
            worker.number.to_string(),
            worker.core.to_string(),
            state.to_string(),
            worker.packets.to_string(),
            format!("{:.0}", worker.cycles_per_packet()),
            format!("{:.1}", worker.idle_share() * 100.0),
            worker.sleeps.to_string(),
            worker.hits.to_string(),
            worker.misses.to_string(),
        ];
        cells.extend(worker.bursts.iter().map(u64::to_string));
        table.row(cells);
        let bursts: serde_json::Map<_, _> = WorkerStats::BURST_NAMES
            .iter()
            .zip(worker.bursts)
            .map(|(name, count)| ((*name).into(), json!(count)))
            .collect();
        rows.push(json!({
            "worker": worker.number, "core": worker.core, "state": state, "packets": worker.packets,
            "cycles-per-packet": worker.cycles_per_packet(), "idle-share": worker.idle_share(),
            "polls": worker.polls, "busy-cycles": worker.busy_cycles, "idle-cycles": worker.idle_cycles,
            "sleeps": worker.sleeps, "nft-hits": worker.hits, "nft-misses": worker.misses, "bursts": bursts,
        }));
    }
    let text = format!("{table}(columns on the right: bursts received, by size)\n");
    Ok(Output::new(text, json!({ "tsc-hz": shell.switch.pool().clock.hz(), "workers": rows })))
}

fn version(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let switch = &shell.switch;
    let memory = if switch.eal().uses_hugepages() { "huge pages" } else { "ordinary pages" };
    let uptime = switch.started().elapsed().as_secs();
    let (own, dpdk) = (env!("CARGO_PKG_VERSION"), pmd::Eal::dpdk_version());
    let text = format!("vswitch {own}, {dpdk}, {memory}, up for {uptime} s\n");
    Ok(Output::new(text, json!({ "vswitch": own, "dpdk": dpdk, "memory": memory, "uptime": uptime })))
}
