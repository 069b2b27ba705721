//! Commands about RDMA devices: what the host has, whether its GIDs are tenants' addresses, what shares come to.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use pmd::rdma::GidKind;
use vswitch_api::v1;
use vswitch_api::v1::rdma_client::RdmaClient;

use super::{Entry, View, ask, optional, shown};

use crate::console::Table;

pub(super) fn commands() -> Vec<Entry> {
    vec![Entry {
        syntax: "show rdma devices [<device:name>]",
        help: "RDMA devices of the host: limits, ports, GIDs against VIPs, shares; of one device also counters",
        rpc: "Rdma.ListRdmaDevices",
        run: |session, args| {
            let device = optional(args, "device");
            shown(ask!(session, RdmaClient.list_rdma_devices(v1::ListRdmaDevicesRequest { device }))?)
        },
    }]
}

impl View for v1::ListRdmaDevicesResponse {
    fn text(&self) -> String {
        let mut text = String::new();
        let mut add = |table: &Table| {
            if !table.is_empty() {
                text += if text.is_empty() { "" } else { "\n" };
                text += &table.to_string();
            }
        };
        add(&device_table(&self.devices));
        add(&port_table(&self.devices));
        add(&gid_table(&self.devices));
        if self.device.is_some() {
            add(&counter_table(&self.devices));
        }
        let mut shares = Table::new(["quota", "share", "queue pairs"]);
        for share in &self.quotas {
            shares.row([share.of.clone(), share.quota.clone(), share.queue_pairs.to_string()]);
        }
        add(&shares);
        if self.devices.is_empty() {
            text += "no RDMA device\n";
        }
        if self.gids_without_vip > 0 {
            let stray = self.gids_without_vip;
            text += &format!("RoCE v2 GIDs that match no VIP of this host's vNICs: {stray}\n");
        }
        for note in &self.notes {
            text += &format!("note: {note}\n");
        }
        text
    }
}

fn ports(devices: &[v1::RdmaDevice]) -> impl Iterator<Item = (&v1::RdmaDevice, &v1::RdmaPort)> {
    devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)))
}

/// A cell for what may not be known.
fn known<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

fn device_table(devices: &[v1::RdmaDevice]) -> Table {
    let mut table = Table::new([
        "device",
        "type",
        "node guid",
        "firmware",
        "model",
        "vendor:part",
        "bus",
        "max qp",
        "max cq",
        "max mr",
    ]);
    for device in devices {
        let limits = device.limits.as_ref();
        table.row([
            device.name.clone(),
            known(device.r#type.as_ref()),
            known(device.node_guid.as_ref()),
            known(device.firmware.as_ref()),
            known(device.model.as_ref()),
            known(limits.map(|limits| format!("{:#06x}:{:#06x}", limits.vendor_id, limits.vendor_part_id))),
            known(device.bus.as_ref()),
            known(limits.map(|limits| limits.max_qp)),
            known(limits.map(|limits| limits.max_cq)),
            known(limits.map(|limits| limits.max_mr)),
        ]);
    }
    table
}

fn port_table(devices: &[v1::RdmaDevice]) -> Table {
    let mut table =
        Table::new(["device", "port", "state", "link", "link layer", "rate", "mtu", "max mtu", "gids"]);
    for (device, port) in ports(devices) {
        table.row([
            device.name.clone(),
            port.port.to_string(),
            known(port.state.as_ref()),
            known(port.physical_state.as_ref()),
            known(port.link_layer.as_ref()),
            known(port.rate.as_ref()),
            known(port.active_mtu),
            known(port.max_mtu),
            port.gids.len().to_string(),
        ]);
    }
    table
}

/// Whose a GID is.
fn owner(gid: &v1::RdmaGid) -> String {
    let link_local = || gid.gid.parse::<Ipv6Addr>().is_ok_and(|gid| gid.is_unicast_link_local());
    match &gid.vnics[..] {
        _ if gid.r#type != GidKind::RoceV2.to_string() => "-".into(),
        [] if link_local() => "no VIP (link-local)".into(),
        [] => "no VIP".into(),
        vnics => {
            let told = vnics.iter().map(|vnic| format!("{} (VPC {})", vnic.name, vnic.vpc));
            told.collect::<Vec<_>>().join(", ")
        }
    }
}

fn gid_table(devices: &[v1::RdmaDevice]) -> Table {
    let mut table = Table::new(["device", "port", "index", "gid", "type", "interface", "vnic"]);
    for (device, port) in ports(devices) {
        for gid in &port.gids {
            table.row([
                device.name.clone(),
                port.port.to_string(),
                gid.index.to_string(),
                gid.ip.clone(),
                gid.r#type.clone(),
                known(gid.interface.as_ref()),
                owner(gid),
            ]);
        }
    }
    table
}

fn counter_table(devices: &[v1::RdmaDevice]) -> Table {
    let mut table = Table::new(["device", "port", "counter", "value"]);
    for (device, port) in ports(devices) {
        for counters in [&port.counters, &port.hw_counters] {
            for (name, value) in counters.iter().collect::<BTreeMap<_, _>>() {
                table.row([device.name.clone(), port.port.to_string(), name.clone(), value.to_string()]);
            }
        }
    }
    table
}
