//! Commands about the data path as a whole: forwarding statistics, drops, workers, memory.

use pipelines::watch::Stage;
use serde_json::json;

use super::{Entry, Shell};
use crate::console::{Args, CommandError, Output, Table};
use crate::view;
use crate::worker::{Mode, WorkerCommand, WorkerStats, laps};

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
            syntax: "runtime on|off",
            help: "Watch what each stage of the workers takes, from zero on, or no more",
            run: watch,
        },
        Entry {
            syntax: "show runtime",
            help: "What each stage takes: packets, bursts, cycles per packet, share (after `runtime on`)",
            run: runtime,
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
    for (name, value) in totals.scalars() {
        table.row([name.to_string(), value.to_string()]);
    }
    table.row(["dropped".to_string(), totals.dropped().to_string()]);
    for (name, value) in totals.drops.iter().filter(|(_, value)| **value > 0) {
        table.row([format!("  {name}"), value.to_string()]);
    }
    let drivers = view::drivers(switch);
    for (name, value) in drivers {
        table.row([format!("{name} of ports"), value.to_string()]);
    }
    let (used, all) = (switch.mempool().in_use(), switch.mempool().capacity());
    table.row(["packet buffers in use".to_string(), format!("{used} of {all}")]);
    let mut object = serde_json::Map::new();
    object.insert("mode".into(), json!(mode));
    object.insert("state".into(), json!(state));
    for (name, value) in totals.scalars() {
        object.insert(name.into(), json!(value));
    }
    object.insert("dropped".into(), json!(totals.dropped()));
    object.insert("drops".into(), json!(nonzero(&totals)));
    let drivers: serde_json::Map<_, _> =
        drivers.into_iter().map(|(name, value)| (name.into(), json!(value))).collect();
    object.insert("ports".into(), drivers.into());
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
        table.row([name.to_string(), value.to_string()]);
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

fn watch(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let on = args.has("on");
    let pool = shell.switch.pool();
    let posted = pool.post_all(|| WorkerCommand::Watch(on)).and_then(|()| pool.barrier());
    posted.map_err(|error| CommandError::new(error.to_string()))?;
    shell.watching = on;
    Ok(Output::message(match on {
        true => "stages are watched; each burst costs a reading of the clock a stage until `runtime off`",
        false => "stages are not watched any more; `show runtime` shows what was seen",
    }))
}

fn runtime(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let lap_cycles = laps::own_cycles();
    let mut table =
        Table::new(["worker", "stage", "packets", "bursts", "packets/burst", "cycles/packet", "%"]);
    let mut rows = Vec::new();
    for (number, stages) in view::stages(&shell.switch, lap_cycles).into_iter().enumerate() {
        // Of all packets, not of those that met the stage: so the column adds up.
        let received = stages.iter().find(|s| s.stage == Stage::Rx).map_or(0, |s| s.packets);
        let all: u64 = stages.iter().map(|s| s.cycles).sum();
        for totals in &stages {
            let share = totals.cycles as f64 / all.max(1) as f64;
            table.row([
                number.to_string(),
                totals.stage.name().to_string(),
                totals.packets.to_string(),
                totals.bursts.to_string(),
                format!("{:.1}", totals.packets as f64 / totals.bursts as f64),
                format!("{:.1}", totals.cycles_of(received)),
                format!("{:.1}", share * 100.0),
            ]);
            rows.push(json!({
                "worker": number, "stage": totals.stage.name(), "packets": totals.packets,
                "bursts": totals.bursts, "cycles": totals.cycles,
                "cycles-per-received-packet": totals.cycles_of(received), "share": share,
            }));
        }
        if !stages.is_empty() {
            let sum = all as f64 / received.max(1) as f64;
            let blank = String::new();
            table.row([
                number.to_string(),
                "all".to_string(),
                received.to_string(),
                blank.clone(),
                blank.clone(),
                format!("{sum:.1}"),
                blank,
            ]);
        }
    }
    let gaps = view::gaps(&shell.switch);
    let told: Vec<String> = gaps
        .iter()
        .enumerate()
        .map(|(number, gaps)| {
            let view::Gaps { longest_us, long } = gaps;
            format!(
                "worker {number}: at most {longest_us:.1} us between two polls, {long} times over 100 us\n"
            )
        })
        .collect();
    let gaps: Vec<_> = gaps
        .iter()
        .enumerate()
        .map(|(number, gaps)| {
            json!({ "worker": number, "longest-gap-us": gaps.longest_us, "long-gaps": gaps.long })
        })
        .collect();
    let text = match (rows.is_empty(), shell.watching) {
        (true, false) => "stages are not watched: say `runtime on`\n".to_string(),
        (true, true) => "no packet has come since `runtime on`\n".to_string(),
        _ => format!(
            "{table}(cycles of all received packets; {lap_cycles} for reading the clock taken off each burst)\n{}",
            told.concat()
        ),
    };
    let json = json!({ "watching": shell.watching, "lap-cycles": lap_cycles, "stages": rows, "polls": gaps });
    Ok(Output::new(text, json))
}

fn version(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let switch = &shell.switch;
    let memory = if switch.eal().uses_hugepages() { "huge pages" } else { "ordinary pages" };
    let uptime = switch.started().elapsed().as_secs();
    let (own, dpdk) = (env!("CARGO_PKG_VERSION"), pmd::Eal::dpdk_version());
    let text = format!("vswitch {own}, {dpdk}, {memory}, up for {uptime} s\n");
    Ok(Output::new(text, json!({ "vswitch": own, "dpdk": dpdk, "memory": memory, "uptime": uptime })))
}
