//! Checks of `[offload]`.

use std::time::Duration;

use super::super::network::VnicPort;
use super::super::offload::{OffloadConfig, OffloadDevice, SimulatedConfig, SimulatedNic, Steering};
use super::super::port_spec::PortSpec;
use super::super::units::show_duration;
use super::Checker;

pub(super) fn check(checker: &mut Checker<'_>) {
    let offload = &checker.config.offload;
    let simulated = &offload.simulated;
    let times = [
        ("cool-after", offload.cool_after, OffloadConfig::TIMES),
        ("install-wait", offload.install_wait, OffloadConfig::TIMES),
        ("retry-after", offload.retry_after, OffloadConfig::TIMES),
        ("audit-every", offload.audit_every, OffloadConfig::TIMES),
        ("idle-timeout", offload.idle_timeout, OffloadConfig::IDLE_TIMEOUT),
        ("sync-every", offload.sync_every, OffloadConfig::SYNC_EVERY),
        ("simulated.latency", simulated.latency, (Duration::ZERO, SimulatedConfig::LONGEST)),
        ("simulated.delay", simulated.delay, (Duration::ZERO, SimulatedConfig::LONGEST)),
        ("simulated.refresh", simulated.refresh, (Duration::ZERO, SimulatedConfig::LONGEST)),
    ];
    let mut faults: Vec<(&str, String)> = Vec::new();
    for (key, time, (least, most)) in times {
        if !(least..=most).contains(&time) {
            let [time, least, most] = [time, least, most].map(show_duration);
            faults.push((
                key,
                format!("[offload] {key} {time} is not in {least} to {most}; choose a time that is"),
            ));
        }
    }
    if offload.hot_packets == 0 || offload.hot_rate.bits_per_second() == 0 {
        let text = "[offload] hot-packets and hot-rate are above 0; to have every flow in hardware, give 1 and \"1kbit\"";
        let key = if offload.hot_packets == 0 { "hot-packets" } else { "hot-rate" };
        faults.push((key, text.into()));
    }
    if offload.rules_per_second == 0 {
        let text = "[offload] rules-per-second is 0: no flow would ever come into hardware; say enabled = false instead";
        faults.push(("rules-per-second", text.into()));
    }
    for (key, rate) in [("hot-packets", offload.hot_packets), ("rules-per-second", offload.rules_per_second)]
    {
        if rate > OffloadConfig::MAX_RATE {
            faults.push((
                key,
                format!("[offload] {key} {rate} is too much; give at most {}", OffloadConfig::MAX_RATE),
            ));
        }
    }
    if offload.rules > OffloadConfig::MAX_RULES {
        let text = format!(
            "[offload] rules {} is too much; give at most {}",
            offload.rules,
            OffloadConfig::MAX_RULES
        );
        faults.push(("rules", text));
    }
    if let Some(dscp) = offload.dscps.iter().find(|dscp| **dscp > 63) {
        faults.push(("dscps", format!("[offload] dscps: {dscp} is no code point; give 0 to 63")));
    }
    let (least, most) = SimulatedConfig::RING;
    if !(least..=most).contains(&simulated.ring) {
        let text = format!(
            "[offload.simulated] ring {} is not in {least} to {most}; choose a number that is",
            simulated.ring
        );
        faults.push(("simulated.ring", text));
    }
    if simulated.nic == SimulatedNic::None && simulated.steering != Steering::default() {
        let text = "[offload.simulated] steering says how the driver of a NIC writes rules, and nic = \"none\" is no NIC: \
                    name one, or leave steering out";
        faults.push(("simulated.steering", text.into()));
    }
    let uplinks = checker.config.uplinks.iter().enumerate();
    let uplinks = uplinks.map(|(at, uplink)| (format!("uplink[{at}]"), uplink.offload));
    let vnics =
        checker.config.vnics.iter().enumerate().map(|(at, vnic)| (format!("vnic[{at}]"), vnic.offload));
    let mut devices = uplinks.chain(vnics).filter_map(|(path, device)| Some((path, device?)));
    if let Some((first, device)) = devices.next()
        && let Some((path, _)) = devices.find(|(_, other)| *other != device)
    {
        let text = format!(
            "{path}: its offload is another than that of {first}; a switch has one device: give all ports the same"
        );
        checker.fail(format!("{path}.offload"), text);
    }
    for (key, message) in faults {
        checker.fail(format!("offload.{key}"), message);
    }
    let uplinks = checker.config.uplinks.iter().enumerate();
    let uplinks = uplinks.map(|(at, uplink)| (format!("uplink[{at}]"), &uplink.port, uplink.offload));
    let vnics = checker.config.vnics.iter().enumerate();
    let vnics = vnics.filter_map(|(at, vnic)| match &vnic.port {
        VnicPort::Own(port) => Some((format!("vnic[{at}]"), port, vnic.offload)),
        VnicPort::Trunk(_) => None,
    });
    let ports: Vec<_> =
        uplinks.chain(vnics).map(|(path, port, offload)| (path, port.clone(), offload)).collect();
    for (path, port, offload) in ports {
        let text = match (port, offload) {
            (PortSpec::Veth(_), Some(OffloadDevice::Simulated)) => format!(
                "{path}: offload = \"simulated\" stands for an e-switch, which sees frames as they are on the wire, and a kernel hands a \
             port of kind veth super-frames and unfinished checksums; use a port of kind tap or af-packet, or leave offload out"
            ),
            (PortSpec::Bond(_), Some(OffloadDevice::RteFlow)) => format!(
                "{path}: offload = \"rte-flow\" is not for a port of kind bond: DPDK's bonding driver takes no rules of an e-switch; make \
                 each of its members an uplink of its own, which may share one VTEP address, or leave offload out"
            ),
            _ => continue,
        };
        checker.fail(format!("{path}.offload"), text);
    }
}
