//! The command about packet buffers: the pool, and who holds what of it.

use serde_json::{Value, json};

use super::{Entry, Shell};
use crate::console::{Args, CommandError, Output, Table};
use crate::view::buffers::{PortHolds, buffers};

pub(super) fn commands() -> Vec<Entry> {
    vec![Entry {
        syntax: "show buffers",
        help: "Packet buffers: the pool, who holds what of it, and what ports and workers hold at their busiest",
        run: show,
    }]
}

fn row(port: &PortHolds) -> [String; 9] {
    let counts = [port.rx_rings, port.tx_rings, port.waiting, port.handed_over, port.in_front, port.shaped];
    let [rx, tx, waiting, handed_over, in_front, shaped] = counts.map(|count| count.to_string());
    let tx = if port.tx_rings_at_most > 0 { format!("0-{}", port.tx_rings_at_most) } else { tx };
    let held = port.held().to_string();
    [port.name.clone(), port.kind.into(), rx, tx, waiting, handed_over, in_front, shaped, held]
}

fn data(port: &PortHolds) -> Value {
    json!({
        "port": port.name, "kind": port.kind, "rx-rings": port.rx_rings, "tx-rings": port.tx_rings,
        "tx-rings-at-most": port.tx_rings_at_most, "waiting": port.waiting, "handed-over": port.handed_over,
        "e-switch": port.in_front, "shaped": port.shaped, "held": port.held(),
    })
}

fn show(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let buffers = buffers(&shell.switch).map_err(|error| CommandError::new(error.to_string()))?;
    let (size, in_use, need) = (buffers.size, buffers.in_use, buffers.need);
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
    buffers.ports.iter().for_each(|port| {
        table.row(row(port));
    });
    let (unaccounted, at_most) = (buffers.unaccounted(), buffers.tx_rings_at_most());
    let perhaps = match at_most {
        0 => String::new(),
        _ => format!("; transmit rings of devices hold up to {at_most} that cannot be counted"),
    };
    let text = format!(
        "{size} buffers with room for {} bytes each: {in_use} in use, {} free, {} free in caches of workers\n{table}\
         not accounted for: {unaccounted}{perhaps}\n\
         at their busiest: {} (drivers' rings {}, waiting for ports {}, caches {}, bursts {}, shaped {})\n",
        buffers.room,
        buffers.free,
        buffers.cached,
        need.total(),
        need.rings,
        need.waiting,
        need.caches,
        need.bursts,
        need.shaped,
    );
    let json = json!({
        "size": size, "room": buffers.room, "in-use": in_use, "free": buffers.free, "cached": buffers.cached,
        "ports": buffers.ports.iter().map(data).collect::<Vec<_>>(),
        "unaccounted": unaccounted, "tx-rings-at-most": at_most,
        "need": {
            "total": need.total(), "rings": need.rings, "waiting": need.waiting, "caches": need.caches,
            "bursts": need.bursts, "shaped": need.shaped,
        },
    });
    Ok(Output::new(text, json))
}
