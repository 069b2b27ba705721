//! `show services`: which vNICs the virtual router tells their addresses, and which of them asked.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use pipelines::snapshot::Services;
use serde_json::json;

use super::{Entry, Shell};
use crate::config::Name;
use crate::console::{Args, CommandError, Output, Table};
use crate::switch::services::{Client, served};

pub(super) fn commands() -> Vec<Entry> {
    vec![Entry {
        syntax: "show services [<vnic:name>]",
        help: "vNICs that DHCP or router advertisements are for: what they are told, when they asked last, and what came of it",
        run: show,
    }]
}

fn show(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let wanted: Option<Name> = args.maybe("vnic");
    let (switch, now) = (&shell.switch, Instant::now());
    let (config, snapshot) = (switch.bare_config(), switch.snapshot());
    let mut table = Table::new([
        "vnic",
        "vpc",
        "addresses",
        "host name",
        "s ago",
        "requests",
        "given",
        "told",
        "refused",
        "released",
        "declined",
        "advertised",
    ]);
    let mut rows = Vec::new();
    let named = |name: &str| wanted.as_ref().is_none_or(|wanted| wanted.as_str() == name);
    for vnic in snapshot.vnics.iter().flatten().filter(|vnic| named(&vnic.name)) {
        let told = |is_v4| served(config, snapshot, vnic, is_v4).map(|served| served.address);
        let addresses: Vec<IpAddr> = [true, false].into_iter().filter_map(told).collect();
        let hears = snapshot.serves(vnic.index, Services::ADVERTISEMENTS, Ipv6Addr::UNSPECIFIED.into());
        if addresses.is_empty() && !hears {
            continue;
        }
        let vpc = snapshot.vpc(vnic.vpc).map(|vpc| vpc.name.clone()).unwrap_or_default();
        let client = switch.services().client(vnic.index).cloned().unwrap_or_default();
        let ago = client.seen.map(|seen| now.saturating_duration_since(seen).as_secs_f64());
        let name = client.host_name.as_ref().map(ToString::to_string);
        let Client { requests, given, told, refused, released, declined, advertised, .. } = client;
        let counts = [requests, given, told, refused, released, declined, advertised];
        let list = addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ");
        let shown_ago = ago.map_or("never".into(), |ago| format!("{ago:.1}"));
        let first = [vnic.name.clone(), vpc.clone(), list, name.clone().unwrap_or_default(), shown_ago];
        table.row(first.into_iter().chain(counts.map(|count| count.to_string())));
        rows.push(json!({
            "vnic": vnic.name, "vpc": vpc, "addresses": addresses, "host-name": name, "seconds-ago": ago,
            "requests": requests, "given": given, "told": told, "refused": refused, "released": released,
            "declined": declined, "advertised": advertised,
        }));
    }
    if let (Some(name), true) = (&wanted, rows.is_empty()) {
        let message = format!(
            "{name} is no vNIC with an address in a subnet that has dhcp or ra; `show vnic` lists all"
        );
        return Err(args.error("vnic", message));
    }
    Ok(Output::table(&table, json!(rows)))
}
