//! Commands about ports and forwarding: testpmd's grammar.

use pmd::{BondMember, LacpState, RssLevel};
use serde_json::{Value, json};

use super::{Entry, Shell};
use crate::config::{Name, PortConfig, PortSpec};
use crate::console::{Args, CommandError, Output, PortRef, Table};
use crate::view;
use crate::worker::Mode;

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry { syntax: "start", help: "Receive packets", run: start },
        Entry { syntax: "stop", help: "Receive no packets; those on their way go out", run: stop },
        Entry { syntax: "quit", help: "Leave the console; the switch runs on", run: quit },
        Entry {
            syntax: "shutdown!",
            help: "End the switch: drain, detach all ports; typed in full only",
            run: shutdown,
        },
        Entry { syntax: "set fwd <mode:overlay|io|mac>", help: "Choose the forwarding mode", run: set_fwd },
        Entry { syntax: "port list", help: "List the ports", run: list },
        Entry {
            syntax: "port attach <name:name> <spec:text>",
            help: "Attach a plain port: kind key=value ..., as in `port attach p0 tap iface=t0`",
            run: attach,
        },
        Entry {
            syntax: "port detach <id:port>",
            help: "Detach a port (a vNIC or uplink with it)",
            run: detach,
        },
        Entry { syntax: "port start <id:port>", help: "Poll a stopped port again", run: start_port },
        Entry { syntax: "port stop <id:port>", help: "Poll a port no more", run: stop_port },
        Entry { syntax: "show port info <id:port|all>", help: "What a port is and can do", run: info },
        Entry { syntax: "show port stats <id:port|all>", help: "Packets and bytes of a port", run: stats },
        Entry { syntax: "show port xstats <id:port|all>", help: "The driver's own counters", run: xstats },
        Entry { syntax: "clear port stats all", help: "Count port packets from zero", run: clear_stats },
        Entry { syntax: "clear port xstats all", help: "Reset the drivers' own counters", run: clear_xstats },
    ]
}

fn start(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    shell.switch.set_forwarding(true)?;
    Ok(Output::message("forwarding"))
}

fn stop(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    shell.switch.set_forwarding(false)?;
    Ok(Output::message("stopped"))
}

/// A console takes this word itself: here it comes from `ctl`, from a file, or abbreviated.
fn quit(_: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    Err(CommandError::new(
        "nothing was done: in a console, quit (in full) leaves the console; `shutdown` ends the switch",
    ))
}

fn shutdown(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    shell.shutdown = true;
    Ok(Output::message("the switch ends"))
}

fn set_fwd(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let word: String = args.get("mode")?;
    let mode = match word.as_str() {
        "io" => Mode::Io,
        "mac" => Mode::Mac,
        _ => Mode::Overlay,
    };
    shell.switch.set_mode(mode)?;
    Ok(Output::message(format!("forwarding mode {word}")))
}

/// The port that an argument names.
pub(super) fn port_of(shell: &Shell, args: &Args, name: &str) -> Result<u16, CommandError> {
    let text = match args.get::<PortRef>(name)? {
        PortRef::Id(id) => id.to_string(),
        PortRef::Name(name) => name,
    };
    shell.switch.ports().resolve(&text).map_err(|error| args.error(name, error.to_string()))
}

/// The name of a port, be it attached or not.
fn name_of(shell: &Shell, args: &Args, argument: &str) -> Result<String, CommandError> {
    if let Ok(PortRef::Name(name)) = args.get::<PortRef>(argument)
        && shell.switch.ports().absent().any(|(absent, _)| absent == name)
    {
        return Ok(name);
    }
    let index = port_of(shell, args, argument)?;
    Ok(shell.switch.ports().get(index).map(|port| port.name.clone()).unwrap_or_default())
}

/// The ports that `<id:port|all>` names.
fn ports_of(shell: &Shell, args: &Args) -> Result<Vec<u16>, CommandError> {
    if args.maybe::<PortRef>("id").is_some() {
        return Ok(vec![port_of(shell, args, "id")?]);
    }
    Ok(shell.switch.ports().iter().map(|(index, _)| index).collect())
}

fn list(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let mut table =
        Table::new(["id", "name", "kind", "driver", "mac", "link", "rx/tx queues", "workers", "state"]);
    let mut rows = Vec::new();
    for (index, port) in shell.switch.ports().iter() {
        let driver = port.port.info().map(|info| info.driver).unwrap_or_default();
        let link = port.port.link().map(|link| link.up).unwrap_or(false);
        let link = if link { "up" } else { "down" };
        let state = if port.running { "started" } else { "stopped" };
        let kind = port.wanted.spec.kind();
        let (rx, tx) = (port.rx_workers.len(), port.tx_workers.len());
        let workers: Vec<String> = port.rx_workers.iter().map(usize::to_string).collect();
        table.row([
            index.to_string(),
            port.name.clone(),
            kind.into(),
            driver.clone(),
            port.mac().to_string(),
            link.into(),
            format!("{rx}/{tx}"),
            workers.join(","),
            state.into(),
        ]);
        rows.push(json!({
            "id": index, "name": port.name, "kind": kind, "driver": driver, "mac": port.mac().to_string(),
            "link": link, "rx-queues": rx, "tx-queues": tx, "rx-workers": port.rx_workers,
            "tx-workers": port.tx_workers, "state": state,
        }));
    }
    for (name, port) in shell.switch.ports().absent() {
        let kind = port.wanted.spec.kind();
        let state = match &port.reason {
            Some(reason) => format!("{}: {reason}", port.state()),
            None => port.state().into(),
        };
        let none = || "-".to_owned();
        table.row([none(), name.into(), kind.into(), none(), none(), none(), none(), none(), state]);
        rows.push(json!({
            "id": null, "name": name, "kind": kind, "state": port.state(), "reason": port.reason,
        }));
    }
    Ok(Output::table(&table, json!(rows)))
}

/// A port spec as it is typed: kind, then key=value pairs.
pub(super) fn spec_of(text: &str) -> Result<PortSpec, CommandError> {
    let mut words = text.split_whitespace();
    let kind = words.next().unwrap_or_default();
    let mut table = toml::Table::new();
    table.insert("kind".into(), kind.into());
    for word in words {
        let Some((key, value)) = word.split_once('=') else {
            let shown: String = word.chars().take(40).collect();
            return Err(CommandError::new(format!("{shown:?} is not key=value, as in iface=tap0")));
        };
        let list = value.starts_with('[').then(|| format!("list = {value}").parse::<toml::Table>());
        if let Some(list) = list {
            let read = list.map_err(|error| CommandError::new(format!("{key}: {}", error.message())))?;
            table.extend(read.into_iter().map(|(_, list)| (key.to_owned(), list)));
            continue;
        }
        let value = match (value.parse::<i64>(), value.parse::<bool>()) {
            (Ok(number), _) => toml::Value::Integer(number),
            (_, Ok(truth)) => toml::Value::Boolean(truth),
            _ => toml::Value::String(value.into()),
        };
        table.insert(key.into(), value);
    }
    let spec = toml::Value::Table(table).try_into::<PortSpec>();
    spec.map_err(|error| CommandError::new(format!("port: {}", error.message())))
}

fn attach(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let name: Name = args.get("name")?;
    let port = spec_of(&args.get::<String>("spec")?)?;
    shell.switch.add_port(PortConfig { name: name.clone(), port, rx_queues: None, tx_queues: None })?;
    let Some(index) = shell.switch.ports().index(&name) else {
        let text =
            format!("port {name} is pending: it comes up when its device is ready or its peer is there");
        return Ok(Output::new(text.clone(), json!({ "message": text, "id": null, "name": name.as_str() })));
    };
    let text = format!("port {index} ({name}) attached");
    Ok(Output::new(text.clone(), json!({ "message": text, "id": index, "name": name.as_str() })))
}

fn detach(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let name = name_of(shell, args, "id")?;
    shell.switch.remove_port(&name)?;
    Ok(Output::message(format!("port {name} detached")))
}

fn start_port(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let name = name_of(shell, args, "id")?;
    shell.switch.start_port(&name)?;
    Ok(Output::message(format!("port {name} started")))
}

fn stop_port(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let name = name_of(shell, args, "id")?;
    shell.switch.stop_port(&name)?;
    Ok(Output::message(format!("port {name} stopped")))
}

fn info(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let mut text = String::new();
    let mut rows = Vec::new();
    for index in ports_of(shell, args)? {
        let Some(port) = shell.switch.ports().get(index) else { continue };
        let info = port.port.info().map_err(|error| CommandError::new(error.to_string()))?;
        let mtu = port.port.mtu().unwrap_or_default();
        let link = port.port.link().ok();
        let rss = port.port.rss();
        let levels: Vec<&str> = info.rss.levels().into_iter().map(RssLevel::name).collect();
        let mut table = Table::bare(2);
        let range = &info.mtu_range;
        table
            .row(["port".to_string(), format!("{index} ({})", port.name)])
            .row(["kind".to_string(), port.wanted.spec.kind().into()])
            .row(["device".to_string(), info.name.clone()])
            .row(["driver".to_string(), info.driver.clone()])
            .row(["mac".to_string(), port.mac().to_string()])
            .row(["mtu".to_string(), format!("{mtu} (of {} to {})", range.start(), range.end())])
            .row(["link".to_string(), format!("{link:?}")])
            .row(["rx queues".to_string(), format!("{} of {}", port.rx_workers.len(), info.max_rx_queues)])
            .row(["tx queues".to_string(), format!("{} of {}", port.tx_workers.len(), info.max_tx_queues)])
            .row(["numa node".to_string(), info.numa.map_or("any".into(), |node| node.to_string())])
            .row(["rss can hash".to_string(), info.rss.to_string()])
            .row(["rss in use".to_string(), rss.hash().to_string()])
            .row(["rx offloads".to_string(), info.rx_offloads.names().join(" ")])
            .row(["tx offloads".to_string(), info.tx_offloads.names().join(" ")]);
        let members = port.port.members();
        for member in &members {
            table.row([format!("member {}", member.name), member_words(member)]);
        }
        text.push_str(&table.to_string());
        text.push('\n');
        rows.push(json!({
            "id": index, "name": port.name, "kind": port.wanted.spec.kind(), "device": info.name,
            "members": members.iter().map(member_json).collect::<Vec<_>>(),
            "driver": info.driver, "mac": port.mac().to_string(), "mtu": mtu,
            "max-rx-queues": info.max_rx_queues, "max-tx-queues": info.max_tx_queues, "numa": info.numa,
            "rss-types": info.rss.types.names(), "rss-levels": levels,
            "rss": {
                "types": rss.applied.names(), "refused": rss.refused.names(), "level": rss.level.name(),
            },
            "rx-offloads": info.rx_offloads.names(),
            "tx-offloads": info.tx_offloads.names(),
        }));
    }
    Ok(Output::new(text, json!(rows)))
}

/// A member of a bond in words: its link, and what both ends say by LACP.
fn member_words(member: &BondMember) -> String {
    let link = if member.up { "link up" } else { "link down" };
    match member.lacp {
        None => link.to_owned(),
        Some([actor, partner]) => {
            format!("{link}; LACP here: {}; there: {}", actor.names().join(" "), partner.names().join(" "))
        }
    }
}

fn member_json(member: &BondMember) -> Value {
    let states = member.lacp.map(|states| states.map(LacpState::names));
    json!({
        "device": member.name, "up": member.up,
        "lacp": states.map(|[actor, partner]| json!({ "actor": actor, "partner": partner })),
    })
}

fn stats(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let mut table = Table::new([
        "id",
        "name",
        "rx packets",
        "rx bytes",
        "tx packets",
        "tx bytes",
        "tx drops",
        "imissed",
        "ierrors",
        "rx nombuf",
        "oerrors",
    ]);
    let mut rows = Vec::new();
    for index in ports_of(shell, args)? {
        let Some(port) = shell.switch.ports().get(index) else { continue };
        let (own, driver) = (view::port(&shell.switch, index), view::driver(&shell.switch, index));
        table.row([
            index.to_string(),
            port.name.clone(),
            own.rx_packets.to_string(),
            own.rx_bytes.to_string(),
            own.tx_packets.to_string(),
            own.tx_bytes.to_string(),
            own.tx_drops.to_string(),
            driver.rx_missed.to_string(),
            driver.rx_errors.to_string(),
            driver.rx_no_mbuf.to_string(),
            driver.tx_errors.to_string(),
        ]);
        rows.push(json!({
            "id": index, "name": port.name,
            "rx-packets": own.rx_packets, "rx-bytes": own.rx_bytes,
            "tx-packets": own.tx_packets, "tx-bytes": own.tx_bytes, "tx-drops": own.tx_drops,
            "imissed": driver.rx_missed, "ierrors": driver.rx_errors, "rx-nombuf": driver.rx_no_mbuf,
            "oerrors": driver.tx_errors,
        }));
    }
    Ok(Output::table(&table, json!(rows)))
}

fn xstats(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let mut table = Table::new(["port", "counter", "value"]);
    let mut rows = Vec::new();
    for index in ports_of(shell, args)? {
        let Some(port) = shell.switch.ports().get(index) else { continue };
        let values = port.port.xstats().map_err(|error| CommandError::new(error.to_string()))?;
        for (name, value) in &values {
            table.row([port.name.clone(), name.clone(), value.to_string()]);
        }
        let values: serde_json::Map<_, _> =
            values.into_iter().map(|(name, value)| (name, json!(value))).collect();
        rows.push(json!({ "id": index, "name": port.name, "xstats": values }));
    }
    Ok(Output::table(&table, json!(rows)))
}

fn clear_stats(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let baseline = view::baseline(&shell.switch, true, false);
    shell.switch.set_baseline(baseline);
    for (_, port) in shell.switch.ports().iter() {
        port.port.reset_stats().map_err(|error| CommandError::new(error.to_string()))?;
    }
    Ok(Output::message("port statistics count from zero"))
}

fn clear_xstats(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    for (_, port) in shell.switch.ports().iter() {
        port.port.reset_xstats().map_err(|error| CommandError::new(error.to_string()))?;
    }
    Ok(Output::message("extended statistics count from zero"))
}
