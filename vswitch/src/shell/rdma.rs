//! Commands about RDMA devices: what the host has, whether its GIDs are tenants' addresses, what shares come to.

use std::collections::BTreeMap;
use std::net::IpAddr;

use pipelines::snapshot::Snapshot;
use pmd::rdma::{Device, DevicePort, Gid, GidKind, Inventory};
use serde_json::{Value, json};

use super::{Entry, Shell};
use crate::config::Name;
use crate::console::{Args, CommandError, Output, Table};
use crate::rdma;

pub(super) fn commands() -> Vec<Entry> {
    vec![Entry {
        syntax: "show rdma devices [<device:name>]",
        help: "RDMA devices of the host: limits, ports, GIDs against VIPs, shares; of one device also counters",
        run: devices,
    }]
}

fn devices(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let mut inventory = rdma::look().map_err(|error| CommandError::new(error.to_string()))?;
    let quotas = quotas(shell)?;
    let wanted: Option<Name> = args.maybe("device");
    if let Some(wanted) = &wanted {
        let devices = rdma::Devices::from(&inventory);
        if inventory.get(wanted).is_none() {
            let error = devices.max_qp(wanted).err().map(|error| error.to_string()).unwrap_or_default();
            return Err(args.error("device", error));
        }
        inventory.devices.retain(|device| *wanted == device.name.as_str());
        inventory.notes.retain(|note| note.starts_with(&format!("{wanted}:")));
    }
    Ok(shown(&inventory, &vips(shell.switch.snapshot()), &quotas, wanted.is_some()))
}

/// The VIPs of this host's vNICs: of each, the vNICs that have it and their VPCs.
type Vips = BTreeMap<IpAddr, Vec<(String, String)>>;

fn vips(snapshot: &Snapshot) -> Vips {
    let mut vips = Vips::new();
    for vnic in snapshot.vnics.iter().flatten() {
        let vpc = snapshot.vpcs.get(vnic.vpc as usize).and_then(Option::as_ref);
        let vpc = vpc.map(|vpc| vpc.name.clone()).unwrap_or_default();
        for address in vnic.addresses() {
            vips.entry(address).or_default().push((vnic.name.clone(), vpc.clone()));
        }
    }
    vips
}

/// A quota that is a share of a device, and the number in force.
struct ShareInForce {
    whose: String,
    quota: String,
    queue_pairs: u32,
}

fn quotas(shell: &Shell) -> Result<Vec<ShareInForce>, CommandError> {
    let config = shell.switch.config();
    let of = |(whose, quota): (String, &crate::config::QuotaConfig)| {
        let queue_pairs = rdma::resolve(quota, shell.switch.rdma_devices())?;
        let queue_pairs = queue_pairs.min(config.rcft.entries);
        Ok(ShareInForce { whose, quota: quota.to_string(), queue_pairs })
    };
    let shares: Result<_, rdma::Error> = rdma::shares(&config).map(of).collect();
    shares.map_err(|error| CommandError::new(error.to_string()))
}

fn shown(inventory: &Inventory, vips: &Vips, quotas: &[ShareInForce], counters: bool) -> Output {
    let mut text = String::new();
    let mut add = |table: &Table| {
        if !table.is_empty() {
            text += if text.is_empty() { "" } else { "\n" };
            text += &table.to_string();
        }
    };
    add(&device_table(inventory));
    add(&port_table(inventory));
    add(&gid_table(inventory, vips));
    if counters {
        add(&counter_table(inventory));
    }
    let mut shares = Table::new(["quota", "share", "queue pairs"]);
    for share in quotas {
        shares.row([share.whose.clone(), share.quota.clone(), share.queue_pairs.to_string()]);
    }
    add(&shares);
    if inventory.devices.is_empty() {
        text += "no RDMA device\n";
    }
    let stray = gids(inventory).filter(|(.., gid)| is_stray(gid, vips)).count();
    if stray > 0 {
        text += &format!("RoCE v2 GIDs that match no VIP of this host's vNICs: {stray}\n");
    }
    for note in &inventory.notes {
        text += &format!("note: {note}\n");
    }
    let json = json!({
        "devices": inventory.devices.iter().map(|device| device_json(device, vips)).collect::<Vec<_>>(),
        "quotas": quotas.iter().map(|share| json!({
            "of": share.whose, "quota": share.quota, "queue-pairs": share.queue_pairs,
        })).collect::<Vec<_>>(),
        "gids-without-vip": stray,
        "notes": inventory.notes,
    });
    Output::new(text, json)
}

fn ports(inventory: &Inventory) -> impl Iterator<Item = (&Device, &DevicePort)> {
    inventory.devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)))
}

fn gids(inventory: &Inventory) -> impl Iterator<Item = (&Device, &DevicePort, &Gid)> {
    ports(inventory).flat_map(|(device, port)| port.gids.iter().map(move |gid| (device, port, gid)))
}

/// The vNICs that have a GID's address as a VIP; nothing for a GID that is not of RoCE v2.
fn owners<'v>(gid: &Gid, vips: &'v Vips) -> Option<&'v [(String, String)]> {
    (gid.kind == GidKind::RoceV2).then(|| vips.get(&gid.ip()).map_or(&[][..], Vec::as_slice))
}

/// A GID that should be somebody's. Every port has link-local ones by itself: those are nobody's.
fn is_stray(gid: &Gid, vips: &Vips) -> bool {
    owners(gid, vips).is_some_and(<[_]>::is_empty) && !gid.address.is_unicast_link_local()
}

/// A cell for what may not be known.
fn known<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

fn device_table(inventory: &Inventory) -> Table {
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
    for device in &inventory.devices {
        let limits = device.limits.as_ref().ok();
        table.row([
            device.name.clone(),
            known(device.node_type.as_ref()),
            known(device.node_guid),
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

fn port_table(inventory: &Inventory) -> Table {
    let mut table =
        Table::new(["device", "port", "state", "link", "link layer", "rate", "mtu", "max mtu", "gids"]);
    for (device, port) in ports(inventory) {
        table.row([
            device.name.clone(),
            port.number.to_string(),
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

fn gid_table(inventory: &Inventory, vips: &Vips) -> Table {
    let mut table = Table::new(["device", "port", "index", "gid", "type", "interface", "vnic"]);
    for (device, port, gid) in gids(inventory) {
        let vnic = match owners(gid, vips) {
            None => "-".into(),
            Some([]) if gid.address.is_unicast_link_local() => "no VIP (link-local)".into(),
            Some([]) => "no VIP".into(),
            Some(owners) => {
                let told = owners.iter().map(|(vnic, vpc)| format!("{vnic} (VPC {vpc})"));
                told.collect::<Vec<_>>().join(", ")
            }
        };
        table.row([
            device.name.clone(),
            port.number.to_string(),
            gid.index.to_string(),
            gid.ip().to_string(),
            gid.kind.to_string(),
            known(gid.netdev.as_ref()),
            vnic,
        ]);
    }
    table
}

fn counter_table(inventory: &Inventory) -> Table {
    let mut table = Table::new(["device", "port", "counter", "value"]);
    for (device, port) in ports(inventory) {
        for (name, value) in port.counters.iter().chain(&port.hw_counters) {
            table.row([device.name.clone(), port.number.to_string(), name.clone(), value.to_string()]);
        }
    }
    table
}

fn device_json(device: &Device, vips: &Vips) -> Value {
    let limits = device.limits.as_ref().ok().map(|limits| {
        json!({
            "vendor-id": limits.vendor_id, "vendor-part-id": limits.vendor_part_id,
            "hardware-version": limits.hardware_version, "max-qp": limits.max_qp,
            "max-qp-wr": limits.max_qp_wr, "max-cq": limits.max_cq, "max-cqe": limits.max_cqe,
            "max-mr": limits.max_mr, "max-mr-size": limits.max_mr_size, "max-pd": limits.max_pd,
            "max-srq": limits.max_srq,
        })
    });
    json!({
        "name": device.name, "type": device.node_type, "node-guid": device.node_guid.map(|guid| guid.to_string()),
        "firmware": device.firmware, "model": device.model, "bus": device.bus, "limits": limits,
        "limits-unknown": device.limits.as_ref().err().map(ToString::to_string),
        "ports": device.ports.iter().map(|port| port_json(port, vips)).collect::<Vec<_>>(),
    })
}

fn port_json(port: &DevicePort, vips: &Vips) -> Value {
    json!({
        "port": port.number, "state": port.state, "physical-state": port.physical_state,
        "link-layer": port.link_layer, "rate": port.rate, "active-mtu": port.active_mtu,
        "max-mtu": port.max_mtu,
        "gids": port.gids.iter().map(|gid| gid_json(gid, vips)).collect::<Vec<_>>(),
        "counters": port.counters, "hw-counters": port.hw_counters,
    })
}

fn gid_json(gid: &Gid, vips: &Vips) -> Value {
    let vnic = |(vnic, vpc): &(String, String)| json!({ "name": vnic, "vpc": vpc });
    let vnics = owners(gid, vips).map(|owners| owners.iter().map(vnic).collect::<Vec<_>>());
    json!({
        "index": gid.index, "gid": gid.address, "ip": gid.ip(), "type": gid.kind.to_string(),
        "interface": gid.netdev, "vnics": vnics,
    })
}

#[cfg(test)]
mod tests {
    use pmd::rdma::{Guid, Limits, Unopened};

    use super::*;

    fn gid(index: u32, address: &str, kind: GidKind) -> Gid {
        Gid { index, address: address.parse().unwrap(), kind, netdev: Some("eth0".into()) }
    }

    fn rxe0(limits: Result<Limits, Unopened>) -> Inventory {
        let port = DevicePort {
            number: 1,
            state: Some("ACTIVE".into()),
            link_layer: Some("Ethernet".into()),
            active_mtu: Some(1024),
            gids: vec![
                gid(0, "fe80::1", GidKind::RoceV2),
                gid(1, "::ffff:10.0.0.1", GidKind::RoceV2),
                gid(2, "::ffff:10.0.0.1", GidKind::IbOrRoceV1),
                gid(3, "fd00::9", GidKind::RoceV2),
            ],
            hw_counters: BTreeMap::from([("sent_pkts".into(), 34)]),
            ..DevicePort::default()
        };
        let device = Device {
            name: "rxe0".into(),
            node_type: Some("CA".into()),
            node_guid: Some(Guid(0x5054_00ff_fe00_0001)),
            firmware: None,
            model: None,
            bus: None,
            limits,
            ports: vec![port],
        };
        Inventory { devices: vec![device], notes: vec!["rxe0: a note".into()] }
    }

    fn tenants() -> Vips {
        let ip = "10.0.0.1".parse().unwrap();
        Vips::from([(ip, vec![("one".into(), "red".into()), ("two".into(), "blue".into())])])
    }

    #[test]
    fn devices_are_shown_with_ports_gids_and_shares() {
        let limits = Limits { max_qp: 131_072, max_cq: 9, vendor_id: 0xff_ffff, ..Limits::default() };
        let quota =
            ShareInForce { whose: "[rcft] quota".into(), quota: "25% of rxe0".into(), queue_pairs: 32_768 };
        let output = shown(&rxe0(Ok(limits)), &tenants(), &[quota], true);
        for words in [
            "5054:00ff:fe00:0001",
            "131072",
            "0xffffff:0x0000",
            "ACTIVE",
            "1024",
            "Ethernet",
            "sent_pkts",
            "one (VPC red), two (VPC blue)",
            "no VIP (link-local)",
            "25% of rxe0",
            "32768",
            "note: rxe0: a note",
            "RoCE v2 GIDs that match no VIP of this host's vNICs: 1",
        ] {
            assert!(output.text().contains(words), "{words:?} is not in\n{}", output.text());
        }
        let counter = ["rxe0", "1", "sent_pkts", "34"];
        assert!(output.text().lines().any(|line| line.split_whitespace().eq(counter)), "{}", output.text());
        let json = &output.json();
        assert_eq!(json["devices"][0]["limits"]["max-qp"], 131_072);
        assert_eq!(json["devices"][0]["ports"][0]["hw-counters"]["sent_pkts"], 34);
        let vnics = |index: usize| &json["devices"][0]["ports"][0]["gids"][index]["vnics"];
        assert_eq!(vnics(1), &json!([{ "name": "one", "vpc": "red" }, { "name": "two", "vpc": "blue" }]));
        assert_eq!((vnics(2), vnics(3)), (&Value::Null, &json!([])));
        assert_eq!(json["gids-without-vip"], 1);
        assert_eq!(json["quotas"][0]["queue-pairs"], 32_768);
        assert!(!shown(&rxe0(Ok(limits)), &tenants(), &[], false).text.contains("sent_pkts"));
    }

    #[test]
    fn what_is_not_known_is_said() {
        let output = shown(&rxe0(Err(Unopened::NoUverbs)), &Vips::new(), &[], false);
        assert_eq!(output.json()["devices"][0]["limits"], Value::Null);
        let why = output.json()["devices"][0]["limits-unknown"].as_str().unwrap();
        assert!(why.contains("modprobe ib_uverbs"), "{why}");
        assert_eq!(output.json()["gids-without-vip"], 2);
        let none = Inventory { devices: Vec::new(), notes: vec!["no driver".into()] };
        let output = shown(&none, &Vips::new(), &[], false);
        assert_eq!(output.text(), "no RDMA device\nnote: no driver\n");
        assert_eq!(output.json()["devices"], json!([]));
    }
}
