//! The service `Cluster`: the hosts that share an etcd, and what they do not agree about.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use vswitch_api::v1;
use vswitch_api::v1::cluster_server::Cluster;

use super::Control;
use super::named::texts;
use super::probing::{probe, probed};
use super::refusal::Problem;
use super::service::service;
use crate::cluster::status::{Host, Status};
use crate::config::Name;
use crate::controller::Controller;
use crate::probe::Found;
use crate::switch::probing::PathState;
use crate::topology::underlay::NeighbourState;

service! { Cluster {
    reads list_hosts(ListHostsRequest) -> ListHostsResponse: "listing hosts",
    reads get_control_plane(GetControlPlaneRequest) -> GetControlPlaneResponse: "a look at the control plane",
    asks check_cluster(CheckClusterRequest) -> CheckClusterResponse: "checking the cluster",
} }

fn list_hosts(
    controller: &mut Controller,
    _: v1::ListHostsRequest,
) -> Result<v1::ListHostsResponse, Problem> {
    let Some(shared) = &controller.cluster else { return Ok(v1::ListHostsResponse::default()) };
    let status = shared.lock();
    let now = Instant::now();
    let hosts = status.hosts.iter().map(|(name, host)| {
        let record = host.record.as_ref();
        let vteps = match record {
            Some(record) => record.vteps.clone(),
            None => texts(host.seen.vteps.iter().flat_map(|vteps| vteps.iter())),
        };
        v1::HostState {
            name: name.to_string(),
            vteps,
            version: record.map(|record| record.version.clone()).unwrap_or_default(),
            mtu: record.map(|record| record.mtu).unwrap_or_default(),
            own: *name == status.own,
            vnis: host.seen.vnis.iter().map(|vni| vni.get()).collect(),
            vnics: host.seen.vnics as u32,
            addresses: host.seen.addresses as u32,
            grace_seconds: host.seen.until.map(|until| until.saturating_duration_since(now).as_secs_f64()),
        }
    });
    Ok(v1::ListHostsResponse { hosts: hosts.collect() })
}

fn get_control_plane(
    controller: &mut Controller,
    _: v1::GetControlPlaneRequest,
) -> Result<v1::GetControlPlaneResponse, Problem> {
    let Some(shared) = &controller.cluster else {
        return Ok(v1::GetControlPlaneResponse { none: true, ..Default::default() });
    };
    let status = shared.lock();
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let since = |at: Option<Instant>| at.map(|at| at.elapsed().as_secs_f64()).unwrap_or_default();
    Ok(v1::GetControlPlaneResponse {
        none: false,
        endpoints: status.endpoints.clone(),
        endpoint: status.endpoint.clone(),
        since_seconds: status.since.elapsed().as_secs_f64(),
        host: status.own.to_string(),
        prefix: status.prefix.clone(),
        revision: status.revision,
        newest: status.newest,
        lag_milliseconds: milliseconds(status.lag),
        longest_lag_milliseconds: milliseconds(status.longest_lag),
        lease: status.lease,
        lease_seconds: status.lease_time.as_secs() as u32,
        renewed_seconds: since(status.renewed),
        published: status.published as u32,
        vnis: status.networks.iter().map(|vni| vni.get()).collect(),
        vnics: status.vnics as u32,
        addresses: status.addresses as u32,
        objects: status.objects as u32,
        events: status.events,
        connections: status.connections,
        resyncs: status.resyncs,
        last_error: status.last_error.as_ref().map(|(_, text)| text.clone()),
        last_error_seconds: since(status.last_error.as_ref().map(|(at, _)| *at)),
        faults: faults(&status),
    })
}

fn faults(status: &Status) -> Vec<v1::ClusterFault> {
    let fault = |((kind, subject), text): (&(&'static str, String), &String)| v1::ClusterFault {
        kind: (*kind).to_owned(),
        subject: subject.clone(),
        text: text.clone(),
    };
    status.faults.iter().map(fault).collect()
}

async fn check_cluster(
    control: &Control,
    what: &'static str,
    request: v1::CheckClusterRequest,
) -> Result<v1::CheckClusterResponse, Problem> {
    let (mut answer, vteps) = control.ask(what, look).await??;
    if request.no_probes || vteps.is_empty() {
        return Ok(answer);
    }
    let reports = match probe(control, what, vteps.keys().copied().collect()).await {
        Ok(reports) => reports,
        // What is known without it is told all the same.
        Err(problem) => {
            let text = format!("no way to other hosts was tried: {}", problem.message);
            answer.faults.push(v1::ClusterFault { kind: "not-probed".into(), subject: "all".into(), text });
            return Ok(answer);
        }
    };
    for (report, needed) in reports {
        answer.paths += 1;
        let fault = match report.state {
            PathState::Found(Found::Less { .. }) => "path-mtu",
            _ => "unreachable-vtep",
        };
        let path = probed(&report, needed);
        // That a next hop does not answer is told above.
        if !path.advice.is_empty() && report.state != PathState::NoNextHop {
            let subject = vteps.get(&report.vtep).map(ToString::to_string).unwrap_or_default();
            answer.faults.push(v1::ClusterFault { kind: fault.into(), subject, text: path.advice });
        }
    }
    Ok(answer)
}

/// What hosts say, and the VTEPs to be probed, with whose they are.
fn look(controller: &mut Controller) -> Result<(v1::CheckClusterResponse, BTreeMap<IpAddr, Name>), Problem> {
    let Some(shared) = &controller.cluster else {
        let message = "this switch follows no etcd; write `etcd` in [control] and restart it".to_owned();
        return Err(Problem::new(tonic::Code::FailedPrecondition, "control.etcd", message));
    };
    let status = shared.lock();
    let mut found = faults(&status);
    let mut add = |kind: &str, subject: &str, text: String| {
        found.push(v1::ClusterFault { kind: kind.into(), subject: subject.into(), text });
    };
    if status.endpoint.is_none() {
        let text = format!(
            "no member of etcd has answered for {:.0} s; what is told here is from before",
            status.since.elapsed().as_secs_f64()
        );
        add("etcd", "etcd", text);
    }
    let others: BTreeMap<_, &Host> = status.hosts.iter().filter(|(name, _)| **name != status.own).collect();
    let own_mtu =
        status.hosts.get(&status.own).and_then(|host| host.record.as_ref()).map(|record| record.mtu);
    let switch = &controller.switch;
    let silent: Vec<_> = switch
        .neighbours()
        .list()
        .into_iter()
        .filter(|(_, _, neighbour)| matches!(neighbour.state, NeighbourState::Incomplete))
        .map(|(_, address, _)| address)
        .collect();
    let mut vteps = BTreeMap::new();
    for (name, host) in &others {
        if host.seen.until.is_some() {
            add(
                "gone",
                name,
                "its lease has ended; it is withdrawn after the grace, unless it comes back".into(),
            );
        }
        for vtep in host.seen.vteps.iter().flat_map(|vteps| vteps.first()) {
            match switch.topology().paths(*vtep) {
                _ if switch.is_own_vtep(*vtep) => {
                    let text = format!(
                        "it says that it is at {vtep}, which is an address of an uplink of this host: packets for one of the two go to \
                         the other; give each host addresses of its own, also where a config was copied"
                    );
                    add("duplicate-vtep", name, text);
                }
                None => {
                    let text = format!(
                        "no uplink has a route to its VTEP {vtep}; add a gateway or a route to an [[uplink]]"
                    );
                    add("unreachable-vtep", name, text);
                }
                Some(paths) if paths.paths.iter().all(|path| silent.contains(&path.hop.address)) => {
                    let hops = texts(paths.paths.iter().map(|path| path.hop.address)).join(", ");
                    let text = format!(
                        "no next hop to its VTEP {vtep} answers ({hops}); look at the link, and at that machine"
                    );
                    add("unreachable-vtep", name, text);
                }
                Some(_) if host.seen.until.is_none() => drop(vteps.insert(*vtep, Name::clone(name))),
                Some(_) => {}
            }
        }
        if let (Some(own), Some(record)) = (own_mtu, &host.record)
            && record.mtu != own
        {
            let text = format!(
                "its uplinks have an MTU of {}, those of this host one of {own}; give all hosts the same, or what is larger is lost on the way",
                record.mtu
            );
            add("mtu", name, text);
        }
    }
    let answer = v1::CheckClusterResponse {
        faults: found,
        hosts: status.hosts.len() as u32,
        addresses: status.addresses as u32,
        paths: 0,
    };
    Ok((answer, vteps))
}

#[cfg(test)]
mod tests;
