//! Commands about ports: testpmd's grammar.

use vswitch_api::v1::ports_client::PortsClient;
use vswitch_api::v1::{self, Kind};

use super::objects::create;
use super::{Entry, Session, View, ask, shown, told, typed};
use crate::config::error::quote;
use crate::config::{Name, PortConfig, PortSpec};
use crate::console::{Args, CommandError, Output, PortRef, Table};

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "port list",
            help: "List the ports",
            rpc: "Ports.ListPorts",
            run: |session, _| shown(ask!(session, PortsClient.list_ports(v1::ListPortsRequest {}))?),
        },
        Entry {
            syntax: "port attach <name:name> <spec:text>",
            help: "Attach a plain port: kind key=value ..., as in `port attach p0 tap iface=t0`",
            rpc: "Objects.Create",
            run: attach,
        },
        Entry {
            syntax: "port detach <port:port>",
            help: "Detach a port (a vNIC or uplink with it)",
            rpc: "Ports.DetachPort",
            run: |session, args| {
                let request = v1::DetachPortRequest { port: port(args), force: true, ..Default::default() };
                let answer = ask!(session, PortsClient.detach_port(request))?;
                told(format!("port {} detached", answer.name), answer)
            },
        },
        Entry {
            syntax: "port start <port:port>",
            help: "Poll a stopped port again",
            rpc: "Ports.StartPort",
            run: |session, args| {
                let answer =
                    ask!(session, PortsClient.start_port(v1::StartPortRequest { port: port(args) }))?;
                told(format!("port {} started", answer.name), answer)
            },
        },
        Entry {
            syntax: "port stop <port:port>",
            help: "Poll a port no more; no flow of it is in hardware",
            rpc: "Ports.StopPort",
            run: |session, args| {
                let answer = ask!(session, PortsClient.stop_port(v1::StopPortRequest { port: port(args) }))?;
                told(format!("port {} stopped", answer.name), answer)
            },
        },
        Entry {
            syntax: "show port info <port:port|all>",
            help: "What a port is and can do",
            rpc: "Ports.GetPortInfo",
            run: |session, args| {
                shown(ask!(session, PortsClient.get_port_info(v1::GetPortInfoRequest { port: port(args) }))?)
            },
        },
        Entry {
            syntax: "show port stats <port:port|all>",
            help: "Packets and bytes of a port",
            rpc: "Ports.GetPortStats",
            run: |session, args| {
                shown(ask!(
                    session,
                    PortsClient.get_port_stats(v1::GetPortStatsRequest { port: port(args) })
                )?)
            },
        },
        Entry {
            syntax: "show port xstats <port:port|all>",
            help: "The driver's own counters",
            rpc: "Ports.GetPortXstats",
            run: |session, args| {
                shown(ask!(
                    session,
                    PortsClient.get_port_xstats(v1::GetPortXstatsRequest { port: port(args) })
                )?)
            },
        },
        Entry {
            syntax: "clear port stats all",
            help: "Count port packets from zero",
            rpc: "Ports.ClearPortStats",
            run: |session, _| {
                let answer = ask!(session, PortsClient.clear_port_stats(v1::ClearPortStatsRequest {}))?;
                told("port statistics count from zero", answer)
            },
        },
        Entry {
            syntax: "clear port xstats all",
            help: "Reset the drivers' own counters",
            rpc: "Ports.ClearPortXstats",
            run: |session, _| {
                let answer = ask!(session, PortsClient.clear_port_xstats(v1::ClearPortXstatsRequest {}))?;
                told("extended statistics count from zero", answer)
            },
        },
    ]
}

/// The port that the argument `port` names, by number or name; nothing for `all`.
pub(super) fn port(args: &Args) -> String {
    args.maybe::<PortRef>("port").map(|port| port.to_string()).unwrap_or_default()
}

/// A port spec as it is typed: kind, then key=value pairs.
pub(super) fn spec_of(text: &str) -> Result<PortSpec, CommandError> {
    let mut words = text.split_whitespace();
    let mut fields = vec![("kind", words.next().unwrap_or_default())];
    for word in words {
        fields.push(word.split_once('=').ok_or_else(|| {
            CommandError::new(format!("{} is not key=value, as in iface=tap0", quote(word)))
        })?);
    }
    typed::read(&fields).map_err(|error| CommandError::new(format!("port: {error}")))
}

fn attach(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let name: Name = args.get("name")?;
    let port = spec_of(&args.get::<String>("spec")?)?;
    let port = PortConfig { name: name.clone(), port, rx_queues: None, tx_queues: None };
    let entry = create(session, Kind::Port, &port)?;
    let listed = ask!(session, PortsClient.list_ports(v1::ListPortsRequest {}))?;
    let id = listed.ports.iter().find(|port| port.name == *name.as_str()).and_then(|port| port.id);
    let text = match id {
        Some(id) => format!("port {id} ({name}) attached"),
        None => format!("port {name} is pending: it comes up when its device is ready or its peer is there"),
    };
    told(text, entry)
}

impl View for v1::ListPortsResponse {
    fn text(&self) -> String {
        let mut table =
            Table::new(["id", "name", "kind", "driver", "mac", "link", "rx/tx queues", "workers", "state"]);
        for port in &self.ports {
            let v1::PortState { name, kind, driver, mac, link, state, .. } = port.clone();
            let Some(id) = port.id else {
                let none = || "-".to_owned();
                let state = match &port.reason {
                    Some(reason) => format!("{state}: {reason}"),
                    None => state,
                };
                table.row([none(), name, kind, none(), none(), none(), none(), none(), state]);
                continue;
            };
            let workers: Vec<String> = port.rx_workers.iter().map(u32::to_string).collect();
            let queues = format!("{}/{}", port.rx_queues, port.tx_queues);
            table.row([id.to_string(), name, kind, driver, mac, link, queues, workers.join(","), state]);
        }
        table.to_string()
    }
}

/// A link in words.
fn link(link: Option<&v1::Link>) -> String {
    let Some(link) = link else { return "unknown".into() };
    let speed = link.speed.map(|speed| format!(", {speed} Mbit/s")).unwrap_or_default();
    let duplex = if link.full_duplex { ", full duplex" } else { "" };
    format!("{}{speed}{duplex}", if link.up { "up" } else { "down" })
}

/// A member of a bond in words: its link, and what both ends say by LACP.
fn member(member: &v1::BondMember) -> String {
    let link = if member.up { "link up" } else { "link down" };
    match &member.lacp {
        None => link.to_owned(),
        Some(v1::Lacp { actor, partner }) => {
            format!("{link}; LACP here: {}; there: {}", actor.join(" "), partner.join(" "))
        }
    }
}

impl View for v1::GetPortInfoResponse {
    fn text(&self) -> String {
        let mut text = String::new();
        for port in &self.ports {
            let mut table = Table::bare(2);
            let rss = port.rss.clone().unwrap_or_default();
            table
                .row(["port".to_string(), format!("{} ({})", port.id, port.name)])
                .row(["kind".to_string(), port.kind.clone()])
                .row(["device".to_string(), port.device.clone()])
                .row(["driver".to_string(), port.driver.clone()])
                .row(["mac".to_string(), port.mac.clone()])
                .row(["mtu".to_string(), format!("{} (of {} to {})", port.mtu, port.min_mtu, port.max_mtu)])
                .row(["link".to_string(), link(port.link.as_ref())])
                .row(["rx queues".to_string(), format!("{} of {}", port.rx_queues, port.max_rx_queues)])
                .row(["tx queues".to_string(), format!("{} of {}", port.tx_queues, port.max_tx_queues)])
                .row(["numa node".to_string(), port.numa.map_or("any".into(), |node| node.to_string())])
                .row(["rss can hash".to_string(), port.rss_can.clone()])
                .row(["rss in use".to_string(), rss.hash])
                .row(["rx offloads".to_string(), port.rx_offloads.join(" ")])
                .row(["tx offloads".to_string(), port.tx_offloads.join(" ")]);
            if let Some(by) = &port.tunnel_tso {
                table.row(["super-frames cut by".to_string(), by.clone()]);
            }
            for one in &port.members {
                table.row([format!("member {}", one.device), member(one)]);
            }
            text.push_str(&table.to_string());
            text.push('\n');
        }
        text
    }
}

impl View for v1::GetPortStatsResponse {
    fn text(&self) -> String {
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
        for port in &self.ports {
            let counts = [
                port.rx_packets,
                port.rx_bytes,
                port.tx_packets,
                port.tx_bytes,
                port.tx_drops,
                port.imissed,
                port.ierrors,
                port.rx_nombuf,
                port.oerrors,
            ];
            let first = [port.id.to_string(), port.name.clone()];
            table.row(first.into_iter().chain(counts.map(|count| count.to_string())));
        }
        table.to_string()
    }
}

impl View for v1::GetPortXstatsResponse {
    fn text(&self) -> String {
        let mut table = Table::new(["port", "counter", "value"]);
        for port in &self.ports {
            let mut counters: Vec<_> = port.xstats.iter().collect();
            counters.sort();
            for (name, value) in counters {
                table.row([port.name.clone(), name.clone(), value.to_string()]);
            }
        }
        table.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn console_ports_take_owner_group_and_mode_of_a_socket_as_they_are_typed() {
        let typed = "vhost-user path=/run/v/vm1.sock queues=2 owner=1000 group=107 mode=0660 server=false";
        let PortSpec::VhostUser(port) = spec_of(typed).unwrap() else { panic!("another kind") };
        let [owner, group, mode] = [&port.owner, &port.group, &port.mode].map(Option::as_deref);
        assert_eq!((owner, group, mode), (Some("1000"), Some("107"), Some("0660")));
        assert_eq!((port.queues, port.server), (2, false));
        assert!(spec_of("vhost-user path=/run/v/vm1.sock queues=0").is_ok(), "a zero is a number");
    }
}
