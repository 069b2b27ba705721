//! Commands about the hosts of a cluster and the etcd that they share.

use vswitch_api::v1;
use vswitch_api::v1::cluster_client::ClusterClient;

use super::{Entry, View, ask, shown};
use crate::console::Table;

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "show hosts",
            help: "The hosts of the cluster: VTEPs, MTU, networks that both take part in, vNICs, and what is left of the grace of one that is gone",
            rpc: "Cluster.ListHosts",
            run: |session, _| shown(ask!(session, ClusterClient.list_hosts(v1::ListHostsRequest {}))?),
        },
        Entry {
            syntax: "show control",
            help: "The control plane: the member of etcd in use, revision, lag, lease, what is published and followed, the last error",
            rpc: "Cluster.GetControlPlane",
            run: |session, _| {
                shown(ask!(session, ClusterClient.get_control_plane(v1::GetControlPlaneRequest {}))?)
            },
        },
        Entry {
            syntax: "cluster check",
            help: "What the hosts do not agree about: addresses claimed twice, VTEPs that are not reached, MTUs, keys that cannot be read; and whether large packets pass to each of them",
            rpc: "Cluster.CheckCluster",
            run: |session, _| {
                let request = v1::CheckClusterRequest { no_probes: false };
                shown(ask!(session, ClusterClient.check_cluster(request))?)
            },
        },
    ]
}

impl View for v1::ListHostsResponse {
    fn text(&self) -> String {
        let mut table =
            Table::new(["host", "VTEPs", "MTU", "VNIs", "vNICs", "addresses", "version", "state"]);
        for host in &self.hosts {
            let state = match (host.own, host.grace_seconds) {
                (true, _) => "this host".to_owned(),
                (_, Some(left)) => format!("gone, withdrawn in {left:.0} s"),
                (_, None) => "there".to_owned(),
            };
            table.row([
                host.name.clone(),
                host.vteps.join(" "),
                host.mtu.to_string(),
                host.vnis.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
                host.vnics.to_string(),
                host.addresses.to_string(),
                host.version.clone(),
                state,
            ]);
        }
        format!("{table}{} hosts\n", self.hosts.len())
    }
}

impl View for v1::GetControlPlaneResponse {
    fn text(&self) -> String {
        if self.none {
            return "no control plane: this switch follows no etcd; `etcd` in [control] of the config says which\n".into();
        }
        let state = match &self.endpoint {
            Some(endpoint) => format!("at {endpoint} for {:.0} s", self.since_seconds),
            None => format!("lost for {:.0} s; what it said last holds", self.since_seconds),
        };
        let lease = match self.lease {
            Some(lease) => {
                format!("{lease:x}, of {} s, renewed {:.1} s ago", self.lease_seconds, self.renewed_seconds)
            }
            None => "none".into(),
        };
        let mut text = format!(
            "etcd: {state}\nmembers: {}\nhost: {} under {}\nrevision: {} of {}\nlag: {:.1} ms, the longest {:.1} ms\nlease: {lease}\n\
             published: {} vNICs\nfollowed: VNIs {}: {} vNICs, {} addresses; {} objects\nevents: {}; connections: {}; read anew: {}\n",
            self.endpoints.join(" "),
            self.host,
            self.prefix,
            self.revision,
            self.newest,
            self.lag_milliseconds,
            self.longest_lag_milliseconds,
            self.published,
            self.vnis.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            self.vnics,
            self.addresses,
            self.objects,
            self.events,
            self.connections,
            self.resyncs,
        );
        if let Some(error) = &self.last_error {
            text.push_str(&format!("last error: {:.0} s ago: {error}\n", self.last_error_seconds));
        }
        text + &listed(&self.faults)
    }
}

impl View for v1::CheckClusterResponse {
    fn text(&self) -> String {
        format!(
            "{}{} hosts, {} addresses, {} paths: {} faults\n",
            listed(&self.faults),
            self.hosts,
            self.addresses,
            self.paths,
            self.faults.len()
        )
    }
}

/// Only a fault begins at the margin.
fn listed(faults: &[v1::ClusterFault]) -> String {
    let told = |fault: &v1::ClusterFault| {
        format!("{} {}: {}", fault.kind, fault.subject, fault.text).replace('\n', "\n    ") + "\n"
    };
    faults.iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_faults_are_a_line_each_whatever_is_in_them() {
        let fault = |subject: &str, text: &str| v1::ClusterFault {
            kind: "unreadable".into(),
            subject: subject.into(),
            text: text.into(),
        };
        let forged = fault("k\x1b]52;c;eA\x07\n0 hosts, 0 addresses, 0 paths: 0 faults", "first\nsecond");
        let view = v1::CheckClusterResponse { faults: vec![forged], hosts: 3, ..Default::default() };
        let text = crate::console::command::Output::message(view.text()).text();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with(' ')).collect();
        assert!(lines.len() == 2 && lines[1].starts_with("3 hosts"), "{text}");
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
}
