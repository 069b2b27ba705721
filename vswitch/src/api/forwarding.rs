//! The service `Forwarding`: whether and how packets go through, what became of them, what workers take for it.

use pipelines::counters::PipelineTotals;
use pipelines::watch::Stage;
use vswitch_api::v1;
use vswitch_api::v1::forwarding_server::Forwarding;
use worker::{Mode, WorkerCommand, WorkerStats, laps};

use super::observe::by_reason;
use super::refusal::{Problem, Problems};
use super::service::{counted, service};
use crate::controller::Controller;
use crate::view;
use crate::view::buffers::{PortHolds, buffers};

service! { Forwarding {
    changes start_forwarding(StartForwardingRequest) -> StartForwardingResponse: "starting to forward",
    changes stop_forwarding(StopForwardingRequest) -> StopForwardingResponse: "stopping to forward",
    changes set_mode(SetModeRequest) -> SetModeResponse: "changing the forwarding mode",
    reads get_forwarding_stats(GetForwardingStatsRequest) -> GetForwardingStatsResponse: "reading counters",
    changes clear_forwarding_stats(ClearForwardingStatsRequest) -> ClearForwardingStatsResponse: "clearing counters",
    reads list_workers(ListWorkersRequest) -> ListWorkersResponse: "looking at workers",
    changes watch_stages(WatchStagesRequest) -> WatchStagesResponse: "watching stages",
    reads get_stages(GetStagesRequest) -> GetStagesResponse: "looking at stages",
    reads get_buffers(GetBuffersRequest) -> GetBuffersResponse: "looking at packet buffers",
    changes shutdown(ShutdownRequest) -> ShutdownResponse: "ending the switch",
} }

const MODES: [(&str, Mode); 3] = [("overlay", Mode::Overlay), ("io", Mode::Io), ("mac", Mode::Mac)];

fn start_forwarding(
    controller: &mut Controller,
    _: v1::StartForwardingRequest,
) -> Result<v1::StartForwardingResponse, Problems> {
    controller.switch.set_forwarding(true)?;
    Ok(v1::StartForwardingResponse {})
}

fn stop_forwarding(
    controller: &mut Controller,
    _: v1::StopForwardingRequest,
) -> Result<v1::StopForwardingResponse, Problems> {
    controller.switch.withdrawing(|switch| switch.set_forwarding(false))?;
    Ok(v1::StopForwardingResponse {})
}

fn set_mode(
    controller: &mut Controller,
    request: v1::SetModeRequest,
) -> Result<v1::SetModeResponse, Problems> {
    let Some((_, mode)) = MODES.into_iter().find(|(name, _)| *name == request.mode) else {
        let modes = MODES.map(|(name, _)| name).join(", ");
        let message = format!("{:?} is no forwarding mode; set one of {modes}", request.mode);
        return Err(Problem::invalid("mode", message).into());
    };
    controller.switch.set_mode(mode)?;
    Ok(v1::SetModeResponse {})
}

fn get_forwarding_stats(
    controller: &mut Controller,
    _: v1::GetForwardingStatsRequest,
) -> Result<v1::GetForwardingStatsResponse, Problem> {
    let switch = &controller.switch;
    let totals = view::totals(switch);
    let mode = MODES.into_iter().find(|(_, mode)| *mode == switch.mode()).map_or("", |(name, _)| name);
    let [(_, rx_nombuf), (_, imissed), (_, ierrors), (_, oerrors)] = view::drivers(switch);
    let pool = switch.mempool();
    Ok(counted!(
        PipelineTotals {
            received,
            originated,
            offloaded,
            copies,
            sent,
            consumed,
            queued,
            waiting,
            waited,
            rdma_marked,
            tcp_marked,
            nft_hits,
            nft_misses,
            nft_stale,
            encapsulated,
            decapsulated,
            local,
            ecn_ce,
            fragments,
            roce_unknown,
            cm_unknown,
            checksums_filled,
            neighbours_answered,
            service_requests,
            bfd_packets,
            probe_answers,
            bfd_repeated,
        } = totals.pipeline => v1::GetForwardingStatsResponse {
            mode: mode.into(),
            state: if switch.is_forwarding() { "forwarding" } else { "stopped" }.into(),
            dropped: totals.dropped(),
            drops: by_reason(&totals),
            ports: Some(v1::DriverTotals { rx_nombuf, imissed, ierrors, oerrors }),
            mbufs: Some(v1::BufferUse {
                in_use: pool.in_use() as u64,
                capacity: (pool.capacity() + pool.long().size) as u64,
            }),
        }
    ))
}

fn clear_forwarding_stats(
    controller: &mut Controller,
    _: v1::ClearForwardingStatsRequest,
) -> Result<v1::ClearForwardingStatsResponse, Problem> {
    let baseline = view::baseline(&controller.switch, false, true);
    controller.switch.set_baseline(baseline);
    Ok(v1::ClearForwardingStatsResponse {})
}

fn list_workers(
    controller: &mut Controller,
    _: v1::ListWorkersRequest,
) -> Result<v1::ListWorkersResponse, Problem> {
    let of = |worker: view::WorkerTotals| v1::WorkerState {
        worker: worker.number as u32,
        core: worker.core as u32,
        state: if worker.alive { "running" } else { "ended" }.into(),
        packets: worker.packets,
        cycles_per_packet: worker.cycles_per_packet(),
        idle_share: worker.idle_share(),
        polls: worker.polls,
        busy_cycles: worker.busy_cycles,
        idle_cycles: worker.idle_cycles,
        sleeps: worker.sleeps,
        nft_hits: worker.hits,
        nft_misses: worker.misses,
        bursts: WorkerStats::BURST_NAMES
            .iter()
            .zip(worker.bursts)
            .map(|(size, bursts)| v1::BurstClass { size: (*size).into(), bursts })
            .collect(),
    };
    Ok(v1::ListWorkersResponse {
        tsc_hz: controller.switch.pool().clock.hz(),
        workers: view::workers(&controller.switch).into_iter().map(of).collect(),
    })
}

fn watch_stages(
    controller: &mut Controller,
    request: v1::WatchStagesRequest,
) -> Result<v1::WatchStagesResponse, Problems> {
    let pool = controller.switch.pool();
    pool.post_all(|| WorkerCommand::Watch(request.on)).and_then(|()| pool.barrier())?;
    controller.watching = request.on;
    Ok(v1::WatchStagesResponse {})
}

fn get_stages(
    controller: &mut Controller,
    _: v1::GetStagesRequest,
) -> Result<v1::GetStagesResponse, Problem> {
    let lap_cycles = laps::own_cycles();
    let mut rows = Vec::new();
    for (worker, stages) in view::stages(&controller.switch, lap_cycles).into_iter().enumerate() {
        // Of all packets, not of those that met the stage: so the column adds up.
        let received = stages.iter().find(|s| s.stage == Stage::Rx).map_or(0, |s| s.packets);
        let all: u64 = stages.iter().map(|s| s.cycles).sum();
        rows.extend(stages.iter().map(|totals| v1::StageState {
            worker: worker as u32,
            stage: totals.stage.name().into(),
            packets: totals.packets,
            bursts: totals.bursts,
            cycles: totals.cycles,
            cycles_per_received_packet: totals.cycles_of(received),
            share: totals.cycles as f64 / all.max(1) as f64,
        }));
    }
    let gaps = view::gaps(&controller.switch).into_iter().enumerate();
    let polls = gaps.map(|(worker, gaps)| v1::PollGaps {
        worker: worker as u32,
        longest_gap_us: gaps.longest_us,
        long_gaps: gaps.long,
    });
    Ok(v1::GetStagesResponse {
        watching: controller.watching,
        lap_cycles,
        stages: rows,
        polls: polls.collect(),
    })
}

fn port_buffers(port: &PortHolds) -> v1::PortBuffers {
    v1::PortBuffers {
        port: port.name.clone(),
        kind: port.kind.into(),
        rx_rings: port.rx_rings as u64,
        tx_rings: port.tx_rings as u64,
        tx_rings_at_most: port.tx_rings_at_most as u64,
        waiting: port.waiting as u64,
        handed_over: port.handed_over as u64,
        e_switch: port.in_front as u64,
        shaped: port.shaped as u64,
        held: port.held() as u64,
    }
}

fn get_buffers(
    controller: &mut Controller,
    _: v1::GetBuffersRequest,
) -> Result<v1::GetBuffersResponse, Problems> {
    let buffers = buffers(&controller.switch)?;
    let need = &buffers.need;
    Ok(v1::GetBuffersResponse {
        size: buffers.size as u64,
        room: buffers.room as u64,
        in_use: buffers.in_use as u64,
        free: buffers.free as u64,
        cached: buffers.cached as u64,
        ports: buffers.ports.iter().map(port_buffers).collect(),
        unaccounted: buffers.unaccounted(),
        tx_rings_at_most: buffers.tx_rings_at_most() as u64,
        long: buffers.long.size as u64,
        long_in_use: buffers.long.in_use as u64,
        need: Some(v1::BufferNeed {
            total: need.total(),
            rings: need.rings,
            waiting: need.waiting,
            caches: need.caches,
            bursts: need.bursts,
            shaped: need.shaped,
        }),
    })
}

fn shutdown(controller: &mut Controller, _: v1::ShutdownRequest) -> Result<v1::ShutdownResponse, Problem> {
    controller.shutdown = true;
    Ok(v1::ShutdownResponse {})
}
