//! Commands about forwarding as a whole: statistics, drops, workers, memory. testpmd's grammar where it has one.

use vswitch_api::v1;
use vswitch_api::v1::forwarding_client::ForwardingClient;
use vswitch_api::v1::observe_client::ObserveClient;

use super::{Entry, Session, View, ask, count, shown, told};
use crate::api;
use crate::console::{Args, CommandError, Output, Table};

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "start",
            help: "Receive packets",
            rpc: "Forwarding.StartForwarding",
            run: |session, _| {
                let request = v1::StartForwardingRequest {};
                told("forwarding", ask!(session, ForwardingClient.start_forwarding(request))?)
            },
        },
        Entry {
            syntax: "stop",
            help: "Receive no packets, in hardware neither; those on their way go out",
            rpc: "Forwarding.StopForwarding",
            run: |session, _| {
                let request = v1::StopForwardingRequest {};
                told("stopped", ask!(session, ForwardingClient.stop_forwarding(request))?)
            },
        },
        Entry { syntax: "quit", help: "Leave the console; the switch runs on", rpc: "", run: quit },
        Entry {
            syntax: "shutdown!",
            help: "End the switch: drain, detach all ports; typed in full only",
            rpc: "Forwarding.Shutdown",
            run: |session, _| {
                told("the switch ends", ask!(session, ForwardingClient.shutdown(v1::ShutdownRequest {}))?)
            },
        },
        Entry {
            syntax: "set fwd <mode:overlay|io|mac>",
            help: "Choose the forwarding mode",
            rpc: "Forwarding.SetMode",
            run: |session, args| {
                let mode: String = args.get("mode")?;
                let text = format!("forwarding mode {mode}");
                told(text, ask!(session, ForwardingClient.set_mode(v1::SetModeRequest { mode }))?)
            },
        },
        Entry {
            syntax: "show fwd stats all",
            help: "Packets through the switch: received, sent, dropped by name",
            rpc: "Forwarding.GetForwardingStats",
            run: |session, _| {
                let request = v1::GetForwardingStatsRequest {};
                shown(ask!(session, ForwardingClient.get_forwarding_stats(request))?)
            },
        },
        Entry {
            syntax: "clear fwd stats all",
            help: "Count forwarding from zero",
            rpc: "Forwarding.ClearForwardingStats",
            run: |session, _| {
                let request = v1::ClearForwardingStatsRequest {};
                let answer = ask!(session, ForwardingClient.clear_forwarding_stats(request))?;
                told("forwarding statistics count from zero", answer)
            },
        },
        Entry {
            syntax: "show drops",
            help: "Dropped packets by reason",
            rpc: "Observe.GetDrops",
            run: |session, _| shown(ask!(session, ObserveClient.get_drops(v1::GetDropsRequest {}))?),
        },
        Entry {
            syntax: "show workers",
            help: "Workers: packets, cycles per packet, idle share, burst sizes",
            rpc: "Forwarding.ListWorkers",
            run: |session, _| shown(ask!(session, ForwardingClient.list_workers(v1::ListWorkersRequest {}))?),
        },
        Entry {
            syntax: "runtime on|off",
            help: "Watch what each stage of the workers takes, from zero on, or no more",
            rpc: "Forwarding.WatchStages",
            run: watch,
        },
        Entry {
            syntax: "show runtime",
            help: "What each stage takes: packets, bursts, cycles per packet, share (after `runtime on`)",
            rpc: "Forwarding.GetStages",
            run: |session, _| shown(ask!(session, ForwardingClient.get_stages(v1::GetStagesRequest {}))?),
        },
        Entry {
            syntax: "show buffers",
            help: "Packet buffers: the pool, who holds what of it, and what ports and workers hold at their busiest",
            rpc: "Forwarding.GetBuffers",
            run: |session, _| shown(ask!(session, ForwardingClient.get_buffers(v1::GetBuffersRequest {}))?),
        },
        Entry {
            syntax: "show version",
            help: "Versions of the switch and of DPDK, memory, uptime",
            rpc: "Observe.GetInfo",
            run: |session, _| shown(ask!(session, ObserveClient.get_info(v1::GetInfoRequest {}))?),
        },
        Entry {
            syntax: "show events [<count:uint>]",
            help: "What happened lately, the newest last; the last 20 or so many, of 256 that are remembered, and 256 that tenants cause",
            rpc: "Observe.ListEvents",
            run: |session, args| {
                let count = count(args, EVENTS);
                shown(ask!(session, ObserveClient.list_events(v1::ListEventsRequest { count }))?)
            },
        },
    ]
}

/// Events shown when no number is given.
const EVENTS: u32 = 20;

/// A console takes this word itself: here it comes from `ctl`, from a file, or abbreviated.
fn quit(_: &mut Session, _: &Args) -> Result<Output, CommandError> {
    Err(CommandError::new(
        "nothing was done: in a console, quit (in full) leaves the console; `shutdown` ends the switch",
    ))
}

fn watch(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let on = args.has("on");
    let text = match on {
        true => "stages are watched; each burst costs a reading of the clock a stage until `runtime off`",
        false => "stages are not watched any more; `show runtime` shows what was seen",
    };
    told(text, ask!(session, ForwardingClient.watch_stages(v1::WatchStagesRequest { on }))?)
}

/// Counts by name, in the order of names.
fn sorted(counts: &std::collections::HashMap<String, u64>) -> Vec<(&String, &u64)> {
    let mut sorted: Vec<_> = counts.iter().filter(|(_, count)| **count > 0).collect();
    sorted.sort();
    sorted
}

impl View for v1::GetForwardingStatsResponse {
    fn text(&self) -> String {
        let mut table = Table::bare(2);
        for (name, value) in api::counts(self) {
            table.row([name, value.to_string()]);
        }
        for (name, value) in sorted(&self.drops) {
            table.row([format!("  {name}"), value.to_string()]);
        }
        let v1::DriverTotals { rx_nombuf, imissed, ierrors, oerrors } = self.ports.unwrap_or_default();
        let drivers =
            [("rx-nombuf", rx_nombuf), ("imissed", imissed), ("ierrors", ierrors), ("oerrors", oerrors)];
        for (name, value) in drivers {
            table.row([format!("{name} of ports"), value.to_string()]);
        }
        let v1::BufferUse { in_use, capacity } = self.mbufs.unwrap_or_default();
        table.row(["packet buffers in use".to_string(), format!("{in_use} of {capacity}")]);
        format!("mode {}, {}\n{table}", self.mode, self.state)
    }
}

impl View for v1::Drops {
    fn text(&self) -> String {
        let mut table = Table::new(["reason", "packets"]);
        for (name, value) in sorted(&self.by_reason) {
            table.row([name.clone(), value.to_string()]);
        }
        if table.is_empty() { "no packet was dropped\n".into() } else { table.to_string() }
    }
}

impl View for v1::ListWorkersResponse {
    fn text(&self) -> String {
        let mut head: Vec<&str> =
            vec!["worker", "core", "state", "packets", "cycles/packet", "idle %", "sleeps", "hits", "misses"];
        let sizes = self.workers.first().map(|worker| worker.bursts.as_slice()).unwrap_or_default();
        head.extend(sizes.iter().map(|class| class.size.as_str()));
        let mut table = Table::new(head);
        for worker in &self.workers {
            let mut cells = vec![
                worker.worker.to_string(),
                worker.core.to_string(),
                worker.state.clone(),
                worker.packets.to_string(),
                format!("{:.0}", worker.cycles_per_packet),
                format!("{:.1}", worker.idle_share * 100.0),
                worker.sleeps.to_string(),
                worker.nft_hits.to_string(),
                worker.nft_misses.to_string(),
            ];
            cells.extend(worker.bursts.iter().map(|class| class.bursts.to_string()));
            table.row(cells);
        }
        format!("{table}(columns on the right: bursts received, by size)\n")
    }
}

/// The stages of one worker after the other, and a line with their sum below each.
fn table_of(stages: &[v1::StageState]) -> Table {
    let mut table =
        Table::new(["worker", "stage", "packets", "bursts", "packets/burst", "cycles/packet", "%"]);
    for stages in stages.chunk_by(|one, next| one.worker == next.worker) {
        let received = stages.iter().find(|stage| stage.stage == "rx").map_or(0, |stage| stage.packets);
        for stage in stages {
            table.row([
                stage.worker.to_string(),
                stage.stage.clone(),
                stage.packets.to_string(),
                stage.bursts.to_string(),
                format!("{:.1}", stage.packets as f64 / stage.bursts as f64),
                format!("{:.1}", stage.cycles_per_received_packet),
                format!("{:.1}", stage.share * 100.0),
            ]);
        }
        let all: u64 = stages.iter().map(|stage| stage.cycles).sum();
        let sum = format!("{:.1}", all as f64 / received.max(1) as f64);
        let worker = stages.first().map(|stage| stage.worker.to_string()).unwrap_or_default();
        let blank = String::new;
        table.row([worker, "all".to_string(), received.to_string(), blank(), blank(), sum, blank()]);
    }
    table
}

impl View for v1::GetStagesResponse {
    fn text(&self) -> String {
        match (self.stages.is_empty(), self.watching) {
            (true, false) => return "stages are not watched: say `runtime on`\n".to_string(),
            (true, true) => return "no packet has come since `runtime on`\n".to_string(),
            _ => {}
        }
        let mut text = format!(
            "{}(cycles of all received packets; {} for reading the clock taken off each burst)\n",
            table_of(&self.stages),
            self.lap_cycles
        );
        for v1::PollGaps { worker, longest_gap_us, long_gaps } in &self.polls {
            text.push_str(&format!(
                "worker {worker}: at most {longest_gap_us:.1} us between two polls, {long_gaps} times over 100 us\n"
            ));
        }
        text
    }
}

impl View for v1::GetBuffersResponse {
    fn text(&self) -> String {
        let mut table = Table::new([
            "port",
            "kind",
            "rx rings",
            "tx rings",
            "waiting",
            "handed over",
            "e-switch",
            "shaped",
            "held",
        ]);
        for port in &self.ports {
            let tx = match port.tx_rings_at_most {
                0 => port.tx_rings.to_string(),
                most => format!("0-{most}"),
            };
            let rest = [port.waiting, port.handed_over, port.e_switch, port.shaped, port.held];
            let first = [port.port.clone(), port.kind.clone(), port.rx_rings.to_string(), tx];
            table.row(first.into_iter().chain(rest.map(|count| count.to_string())));
        }
        let perhaps = match self.tx_rings_at_most {
            0 => String::new(),
            most => format!("; transmit rings of devices hold up to {most} that cannot be counted"),
        };
        let need = self.need.unwrap_or_default();
        format!(
            "{} buffers with room for {} bytes each: {} in use, {} free, {} free in caches of workers\n\
             {} long ones for super-frames: {} in use\n{table}\
             not accounted for: {}{perhaps}\n\
             at their busiest: {} (drivers' rings {}, waiting for ports {}, caches {}, bursts {}, shaped {})\n",
            self.size,
            self.room,
            self.in_use,
            self.free,
            self.cached,
            self.long,
            self.long_in_use,
            self.unaccounted,
            need.total,
            need.rings,
            need.waiting,
            need.caches,
            need.bursts,
            need.shaped,
        )
    }
}

impl View for v1::Info {
    fn text(&self) -> String {
        let uptime = self.uptime_ms / 1000;
        format!("vswitch {}, {}, {}, up for {uptime} s\n", self.version, self.dpdk, self.memory)
    }
}

impl View for v1::ListEventsResponse {
    fn text(&self) -> String {
        if self.events.is_empty() {
            return "nothing happened\n".into();
        }
        let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default().as_millis() as u64;
        let mut table = Table::new(["number", "s ago", "event", "what"]);
        for event in &self.events {
            let ago = now.saturating_sub(event.time_ms) as f64 / 1000.0;
            table.row([
                event.number.to_string(),
                format!("{ago:.1}"),
                event.kind.clone(),
                event.message.clone(),
            ]);
        }
        table.to_string()
    }
}
