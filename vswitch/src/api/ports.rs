//! The service `Ports`: what ports are, and what went through them.

use pmd::{LacpState, PortError, RssLevel};
use vswitch_api::v1::ports_server::Ports;
use vswitch_api::v1::{self, Kind};

use super::named::texts;
use super::plan::{self, Step};
use super::refusal::{Problem, Problems};
use super::service::service;
use crate::config::{Config, Name, path};
use crate::controller::Controller;
use crate::switch::{Missing, Switch, SwitchError};
use crate::topology::punt_name;
use crate::view;

service! { Ports {
    reads list_ports(ListPortsRequest) -> ListPortsResponse: "listing ports",
    reads get_port_info(GetPortInfoRequest) -> GetPortInfoResponse: "looking at ports",
    reads get_port_stats(GetPortStatsRequest) -> GetPortStatsResponse: "reading port counters",
    reads get_port_xstats(GetPortXstatsRequest) -> GetPortXstatsResponse: "reading counters of drivers",
    changes clear_port_stats(ClearPortStatsRequest) -> ClearPortStatsResponse: "clearing port counters",
    changes clear_port_xstats(ClearPortXstatsRequest) -> ClearPortXstatsResponse: "clearing counters of drivers",
    waits detach_port(DetachPortRequest) -> DetachPortResponse: "detaching a port",
    changes start_port(StartPortRequest) -> StartPortResponse: "starting a port",
    changes stop_port(StopPortRequest) -> StopPortResponse: "stopping a port",
} }

/// A port by its name or number.
pub(super) fn port(switch: &Switch, text: &str) -> Result<u16, Problem> {
    Ok(switch.ports().resolve(text)?)
}

/// The port that is asked for, or all of them.
fn wanted(switch: &Switch, text: &str) -> Result<Vec<u16>, Problem> {
    match text {
        "" => Ok(switch.ports().iter().map(|(index, _)| index).collect()),
        text => Ok(vec![port(switch, text)?]),
    }
}

/// What the driver of a port said that was asked for.
fn fault(error: PortError) -> Problem {
    Problem::of_device(&error, "port")
}

fn numbers(workers: &[usize]) -> Vec<u32> {
    workers.iter().map(|worker| *worker as u32).collect()
}

fn list_ports(
    controller: &mut Controller,
    _: v1::ListPortsRequest,
) -> Result<v1::ListPortsResponse, Problem> {
    let attached = controller.switch.ports().iter().map(|(index, port)| v1::PortState {
        id: Some(index.into()),
        name: port.name.clone(),
        kind: port.wanted.spec.kind().into(),
        driver: port.port.info().map(|info| info.driver).unwrap_or_default(),
        mac: port.mac().to_string(),
        link: if port.port.link().is_ok_and(|link| link.up) { "up" } else { "down" }.into(),
        rx_queues: port.rx_workers.len() as u32,
        tx_queues: port.tx_workers.len() as u32,
        rx_workers: numbers(&port.rx_workers),
        tx_workers: numbers(&port.tx_workers),
        state: if port.running { "started" } else { "stopped" }.into(),
        reason: None,
    });
    let absent = controller.switch.ports().absent().map(|(name, port)| v1::PortState {
        name: name.into(),
        kind: port.wanted.spec.kind().into(),
        state: port.state().into(),
        reason: port.reason.clone(),
        ..v1::PortState::default()
    });
    Ok(v1::ListPortsResponse { ports: attached.chain(absent).collect() })
}

fn get_port_info(
    controller: &mut Controller,
    request: v1::GetPortInfoRequest,
) -> Result<v1::GetPortInfoResponse, Problem> {
    let mut ports = Vec::new();
    for index in wanted(&controller.switch, &request.port)? {
        let Some(port) = controller.switch.ports().get(index) else { continue };
        let info = port.port.info().map_err(fault)?;
        let rss = port.port.rss();
        let lacp = |[actor, partner]: [LacpState; 2]| v1::Lacp {
            actor: texts(actor.names()),
            partner: texts(partner.names()),
        };
        let members = port.port.members();
        let members = members.iter().map(|member| v1::BondMember {
            device: member.name.clone(),
            up: member.up,
            lacp: member.lacp.map(lacp),
        });
        ports.push(v1::PortInfo {
            id: index.into(),
            name: port.name.clone(),
            kind: port.wanted.spec.kind().into(),
            mac: port.mac().to_string(),
            mtu: port.port.mtu().unwrap_or_default().into(),
            min_mtu: u32::from(*info.mtu_range.start()),
            max_mtu: u32::from(*info.mtu_range.end()),
            link: port.port.link().ok().map(|link| v1::Link {
                up: link.up,
                speed: link.mbps,
                full_duplex: link.full_duplex,
            }),
            rx_queues: port.rx_workers.len() as u32,
            tx_queues: port.tx_workers.len() as u32,
            max_rx_queues: info.max_rx_queues.into(),
            max_tx_queues: info.max_tx_queues.into(),
            numa: info.numa,
            rss_types: texts(info.rss.types.names()),
            rss_levels: texts(info.rss.levels().into_iter().map(RssLevel::name)),
            rss: Some(v1::Rss {
                types: texts(rss.applied.names()),
                refused: texts(rss.refused.names()),
                level: rss.level.name().to_string(),
                hash: rss.hash().to_string(),
            }),
            rss_can: info.rss.to_string(),
            rx_offloads: texts(info.rx_offloads.names()),
            tx_offloads: texts(info.tx_offloads.names()),
            tunnel_tso: port
                .cuts_in_tunnels()
                .map(|cuts| if cuts { "device" } else { "software" }.to_owned()),
            members: members.collect(),
            device: info.name,
            driver: info.driver,
        });
    }
    Ok(v1::GetPortInfoResponse { ports })
}

fn get_port_stats(
    controller: &mut Controller,
    request: v1::GetPortStatsRequest,
) -> Result<v1::GetPortStatsResponse, Problem> {
    let switch = &controller.switch;
    let of = |index| {
        let (own, driver) = (view::port(switch, index), view::driver(switch, index));
        let name = switch.ports().get(index).map(|port| port.name.clone()).unwrap_or_default();
        v1::PortStats {
            id: index.into(),
            name,
            rx_packets: own.rx_packets,
            rx_bytes: own.rx_bytes,
            tx_packets: own.tx_packets,
            tx_bytes: own.tx_bytes,
            tx_drops: own.tx_drops,
            imissed: driver.rx_missed,
            ierrors: driver.rx_errors,
            rx_nombuf: driver.rx_no_mbuf,
            oerrors: driver.tx_errors,
        }
    };
    Ok(v1::GetPortStatsResponse { ports: wanted(switch, &request.port)?.into_iter().map(of).collect() })
}

fn get_port_xstats(
    controller: &mut Controller,
    request: v1::GetPortXstatsRequest,
) -> Result<v1::GetPortXstatsResponse, Problem> {
    let mut ports = Vec::new();
    for index in wanted(&controller.switch, &request.port)? {
        let Some(port) = controller.switch.ports().get(index) else { continue };
        let xstats = port.port.xstats().map_err(fault)?.into_iter().collect();
        ports.push(v1::PortXstats { id: index.into(), name: port.name.clone(), xstats });
    }
    Ok(v1::GetPortXstatsResponse { ports })
}

fn clear_port_stats(
    controller: &mut Controller,
    _: v1::ClearPortStatsRequest,
) -> Result<v1::ClearPortStatsResponse, Problems> {
    let baseline = view::baseline(&controller.switch, true, false);
    controller.switch.set_baseline(baseline);
    let ports = controller.switch.ports().iter();
    all_cleared(ports.map(|(_, port)| port.port.reset_stats()))?;
    Ok(v1::ClearPortStatsResponse {})
}

fn clear_port_xstats(
    controller: &mut Controller,
    _: v1::ClearPortXstatsRequest,
) -> Result<v1::ClearPortXstatsResponse, Problems> {
    let ports = controller.switch.ports().iter();
    all_cleared(ports.map(|(_, port)| port.port.reset_xstats()))?;
    Ok(v1::ClearPortXstatsResponse {})
}

/// Goes through all ports, and says in the end which of them refused.
fn all_cleared(ports: impl Iterator<Item = Result<(), PortError>>) -> Result<(), Problems> {
    let refused = ports.filter_map(Result::err).map(|error| {
        let problem = fault(error);
        Problem { message: format!("{}; what is not named here is cleared", problem.message), ..problem }
    });
    let refused: Vec<Problem> = refused.collect();
    if refused.is_empty() { Ok(()) } else { Err(Problems(refused)) }
}

fn detach_port(
    controller: &mut Controller,
    request: v1::DetachPortRequest,
) -> Result<v1::DetachPortResponse, Problems> {
    let switch = &mut controller.switch;
    let name = match switch.ports().absent().any(|(name, _)| name == request.port) {
        true => request.port,
        false => name_of(switch, &request.port)?,
    };
    let key = v1::Key { kind: kind_of(switch.bare_config(), &name)?.into(), id: name.clone() };
    let (owner, force) = (request.owner, request.force);
    let step = Step::delete(v1::DeleteRequest { key: Some(key), owner, force, wait: true })?;
    plan::carry_out(switch, vec![step], None, Missing::Refused)?;
    Ok(v1::DetachPortResponse { name })
}

/// What has a port.
fn kind_of(config: &Config, port: &str) -> Result<Kind, SwitchError> {
    let (of, mut uplinks) = (|name: &Name| name.as_str() == port, config.uplinks.iter());
    if config.vnics.iter().any(|vnic| of(&vnic.name)) {
        return Ok(Kind::Vnic);
    }
    if config.trunks.iter().any(|trunk| of(&trunk.name)) {
        return Ok(Kind::Trunk);
    }
    if config.ports.iter().any(|plain| of(&plain.name)) {
        return Ok(Kind::Port);
    }
    match uplinks.find(|uplink| of(&uplink.name) || punt_name(&uplink.name) == port) {
        Some(uplink) if of(&uplink.name) => Ok(Kind::Uplink),
        Some(uplink) => {
            let by = format!("uplink {} (host = \"punt\")", uplink.name);
            let path = format!("{}.host", path::of("uplink", &uplink.name));
            Err(SwitchError::InUse { what: "port", name: port.into(), by, path })
        }
        None => {
            let (name, path) = (port.into(), "port".to_owned());
            Err(SwitchError::Unknown { what: "port", name, list: "port list", path })
        }
    }
}

/// The name of an attached port.
fn name_of(switch: &Switch, text: &str) -> Result<String, Problem> {
    let index = port(switch, text)?;
    Ok(switch.ports().get(index).map(|port| port.name.clone()).unwrap_or_default())
}

/// Starts or stops a port; its name.
fn set_running(
    switch: &mut Switch,
    text: &str,
    set: fn(&mut Switch, &str) -> Result<(), SwitchError>,
) -> Result<String, Problems> {
    let name = name_of(switch, text)?;
    set(switch, &name)?;
    Ok(name)
}

fn start_port(
    controller: &mut Controller,
    request: v1::StartPortRequest,
) -> Result<v1::StartPortResponse, Problems> {
    let name = set_running(&mut controller.switch, &request.port, Switch::start_port)?;
    Ok(v1::StartPortResponse { name })
}

fn stop_port(
    controller: &mut Controller,
    request: v1::StopPortRequest,
) -> Result<v1::StopPortResponse, Problems> {
    let name = set_running(&mut controller.switch, &request.port, Switch::stop_port)?;
    Ok(v1::StopPortResponse { name })
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use vswitch_api::v1::Owner;

    use super::super::owned::{assert_refused, controller};
    use super::*;

    #[test]
    fn a_port_is_detached_by_who_made_what_has_it() {
        let mut controller = controller();
        let mut detach = |port: &str, owner: Owner, force| {
            let (port, owner) = (port.to_owned(), owner.into());
            detach_port(&mut controller, v1::DetachPortRequest { port, owner, force })
        };
        assert_refused(detach("of-file", Owner::Api, false), Code::FailedPrecondition, "f.toml:");
        assert_refused(detach("up", Owner::Unspecified, false), Code::FailedPrecondition, "f.toml:");
        assert_refused(detach("pod", Owner::Api, false), Code::FailedPrecondition, "owner cni");
        assert_refused(detach("of-api", Owner::Cni, false), Code::FailedPrecondition, "owner api");
        assert_refused(detach("pod", Owner::Etcd, true), Code::InvalidArgument, "OWNER_CNI");
        assert_refused(detach("nobody", Owner::Cni, false), Code::NotFound, "port list");
        for (port, owner, force) in
            [("pod", Owner::Cni, false), ("of-api", Owner::Unspecified, false), ("of-file", Owner::Api, true)]
        {
            assert_eq!(detach(port, owner, force).unwrap().name, port);
        }
        let left: Vec<&str> = controller.switch.ports().iter().map(|(_, port)| port.name.as_str()).collect();
        assert_eq!(left, ["up"]);
        controller.switch.stop();
    }

    #[test]
    fn a_port_that_refuses_keeps_no_other_from_being_cleared() {
        let refusal = |name: &str| Err(PortError::Busy(name.to_owned()));
        let mut asked = 0;
        let ports = [Ok(()), refusal("first"), Ok(()), refusal("second"), Ok(())];
        let Problems(problems) = all_cleared(ports.into_iter().inspect(|_| asked += 1)).unwrap_err();
        assert_eq!((asked, problems.len()), (5, 2));
        for (problem, name) in problems.iter().zip(["first", "second"]) {
            assert_eq!(problem.field, "port");
            let told =
                problem.message.contains(name) && problem.message.contains("not named here is cleared");
            assert!(told, "{problem:?}");
        }
        assert_eq!(all_cleared([Ok(()), Ok(())].into_iter()), Ok(()));
    }

    #[test]
    fn a_port_is_of_an_object_or_of_an_uplink_that_punts() {
        let text = "[[uplink]]\nname = \"up\"\nport = { kind = \"null\" }\naddresses = [\"172.16.0.1/24\"]\nhost = \"punt\"\n\
                    [[trunk]]\nname = \"lab\"\nport = { kind = \"null\" }\n[[port]]\nname = \"p\"\nport = { kind = \"null\" }\n";
        let config = Config::parse(text, "test").unwrap();
        for (name, kind) in [("up", Kind::Uplink), ("lab", Kind::Trunk), ("p", Kind::Port)] {
            assert_eq!(kind_of(&config, name).unwrap(), kind);
        }
        assert!(kind_of(&config, "up:punt").unwrap_err().to_string().contains("in use by uplink up"));
        assert!(kind_of(&config, "x").unwrap_err().to_string().contains("no port \"x\""));
    }
}
