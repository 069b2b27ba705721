//! The service `Rdma`: what RDMA devices the host has, whether their GIDs are tenants' addresses, what shares come to.

use std::collections::BTreeMap;
use std::net::IpAddr;

use pipelines::snapshot::Snapshot;
use pmd::rdma::{Device, DevicePort, Gid, GidKind, Inventory};
use tokio::sync::Mutex;
use tonic::Code;
use vswitch_api::v1;
use vswitch_api::v1::rdma_server::Rdma;

use super::Control;
use super::refusal::{Problem, Problems};
use super::service::service;
use crate::controller::Controller;
use crate::rdma;

service! { Rdma {
    asks list_rdma_devices(ListRdmaDevicesRequest) -> ListRdmaDevicesResponse: "looking at RDMA devices",
} }

async fn list_rdma_devices(
    control: &Control,
    what: &'static str,
    request: v1::ListRdmaDevicesRequest,
) -> Result<v1::ListRdmaDevicesResponse, Problems> {
    list(control, what, request, rdma::look).await
}

/// What a look found, which may take seconds: control does what others ask meanwhile.
async fn list(
    control: &Control,
    what: &'static str,
    request: v1::ListRdmaDevicesRequest,
    look: impl FnOnce() -> Result<Inventory, rdma::Error> + Send + 'static,
) -> Result<v1::ListRdmaDevicesResponse, Problems> {
    /// Of all who ask, one has a thread look.
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    let found = tokio::task::spawn_blocking(look).await;
    drop(turn);
    let mut inventory = found.map_err(|error| Problem::internal(format!("{what}: {error}")))??;
    let known =
        control.ask(what, |controller| (quotas(controller), controller.switch.snapshot().clone())).await?;
    let (quotas, snapshot) = (known.0?, known.1);
    let wanted = (!request.device.is_empty()).then_some(request.device);
    if let Some(wanted) = &wanted {
        if inventory.get(wanted).is_none() {
            let devices = rdma::Devices::from(&inventory);
            let error = devices.max_qp(wanted).err().map(|error| error.to_string()).unwrap_or_default();
            let message = format!("{error}; `show rdma devices` lists them");
            return Err(Problem::new(Code::NotFound, "device", message).into());
        }
        inventory.devices.retain(|device| device.name == *wanted);
        inventory.notes.retain(|note| note.starts_with(&format!("{wanted}:")));
    }
    let answer = message(&inventory, &vips(&snapshot), quotas);
    Ok(v1::ListRdmaDevicesResponse { device: wanted, ..answer })
}

/// The VIPs of this host's vNICs: of each, the vNICs that have it and their VPCs.
type Vips = BTreeMap<IpAddr, Vec<v1::GidVnic>>;

fn vips(snapshot: &Snapshot) -> Vips {
    let mut vips = Vips::new();
    for vnic in snapshot.vnics.iter().flatten() {
        let vpc = snapshot.vpcs.get(vnic.vpc as usize).and_then(Option::as_ref);
        let vpc = vpc.map(|vpc| vpc.name.clone()).unwrap_or_default();
        for address in vnic.addresses() {
            let owner = v1::GidVnic { name: vnic.name.clone(), vpc: vpc.clone() };
            vips.entry(address).or_default().push(owner);
        }
    }
    vips
}

/// Quotas that are shares of devices, and the numbers in force.
fn quotas(controller: &Controller) -> Result<Vec<v1::RdmaQuota>, Problems> {
    let config = controller.switch.bare_config();
    let shares = rdma::shares(config).map(|rdma::QuotaShare { whose: of, quota, .. }| {
        let queue_pairs = rdma::resolve(quota, controller.switch.rdma_devices())?;
        let queue_pairs = queue_pairs.min(config.rcft.entries);
        Ok(v1::RdmaQuota { of, quota: quota.to_string(), queue_pairs })
    });
    shares.collect()
}

fn message(inventory: &Inventory, vips: &Vips, quotas: Vec<v1::RdmaQuota>) -> v1::ListRdmaDevicesResponse {
    let gids = inventory.devices.iter().flat_map(|device| &device.ports).flat_map(|port| &port.gids);
    v1::ListRdmaDevicesResponse {
        devices: inventory.devices.iter().map(|device| self::device(device, vips)).collect(),
        quotas,
        gids_without_vip: gids.filter(|gid| is_stray(gid, vips)).count() as u64,
        notes: inventory.notes.clone(),
        device: None,
    }
}

/// The vNICs that have a GID's address as a VIP; nothing for a GID that is not of RoCE v2.
fn owners<'v>(gid: &Gid, vips: &'v Vips) -> Option<&'v [v1::GidVnic]> {
    (gid.kind == GidKind::RoceV2).then(|| vips.get(&gid.ip()).map_or(&[][..], Vec::as_slice))
}

/// A GID that should be somebody's. Every port has link-local ones by itself: those are nobody's.
fn is_stray(gid: &Gid, vips: &Vips) -> bool {
    owners(gid, vips).is_some_and(<[_]>::is_empty) && !gid.address.is_unicast_link_local()
}

fn device(device: &Device, vips: &Vips) -> v1::RdmaDevice {
    let limits = device.limits.as_ref();
    v1::RdmaDevice {
        name: device.name.clone(),
        r#type: device.node_type.clone(),
        node_guid: device.node_guid.map(|guid| guid.to_string()),
        firmware: device.firmware.clone(),
        model: device.model.clone(),
        bus: device.bus.clone(),
        limits: limits.ok().map(|limits| v1::RdmaLimits {
            vendor_id: limits.vendor_id,
            vendor_part_id: limits.vendor_part_id,
            hardware_version: limits.hardware_version,
            max_qp: limits.max_qp,
            max_qp_wr: limits.max_qp_wr,
            max_cq: limits.max_cq,
            max_cqe: limits.max_cqe,
            max_mr: limits.max_mr,
            max_mr_size: limits.max_mr_size,
            max_pd: limits.max_pd,
            max_srq: limits.max_srq,
        }),
        limits_unknown: limits.err().map(ToString::to_string),
        ports: device.ports.iter().map(|port| self::port(port, vips)).collect(),
    }
}

fn port(port: &DevicePort, vips: &Vips) -> v1::RdmaPort {
    let counters = |counters: &BTreeMap<String, u64>| {
        counters.iter().map(|(name, value)| (name.clone(), *value)).collect()
    };
    v1::RdmaPort {
        port: port.number,
        state: port.state.clone(),
        physical_state: port.physical_state.clone(),
        link_layer: port.link_layer.clone(),
        rate: port.rate.clone(),
        active_mtu: port.active_mtu.map(u32::from),
        max_mtu: port.max_mtu.map(u32::from),
        gids: port.gids.iter().map(|gid| self::gid(gid, vips)).collect(),
        counters: counters(&port.counters),
        hw_counters: counters(&port.hw_counters),
    }
}

fn gid(gid: &Gid, vips: &Vips) -> v1::RdmaGid {
    v1::RdmaGid {
        index: gid.index,
        gid: gid.address.to_string(),
        ip: gid.ip().to_string(),
        r#type: gid.kind.to_string(),
        interface: gid.netdev.clone(),
        vnics: owners(gid, vips).unwrap_or_default().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::switch::testing;

    #[tokio::test]
    async fn control_does_what_others_ask_while_devices_are_looked_at() {
        let mut controller = Controller::new(testing::start(""), None);
        let (jobs, mut asked) = mpsc::channel(1);
        let control = Control::new(jobs);
        let (found, waits) = std::sync::mpsc::channel();
        let look = move || {
            waits.recv().unwrap();
            Ok(Inventory { devices: Vec::new(), notes: vec!["none".into()] })
        };
        let others = async {
            control.ask("a question of somebody else", |_| ()).await.unwrap();
            found.send(()).unwrap();
        };
        let serve = async {
            for _ in 0..2 {
                asked.recv().await.unwrap()(&mut controller);
            }
        };
        let request = v1::ListRdmaDevicesRequest::default();
        let (listed, (), ()) = tokio::join!(list(&control, "a look", request, look), others, serve);
        assert_eq!(listed.unwrap().notes, ["none"]);
        controller.switch.stop();
    }
}
