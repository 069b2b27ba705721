//! What of `[offload]` would be used on the device, and which chains of rules it takes.

use pmd::flow::BUILD;

use super::DeviceLook;
use super::commands;
use super::finding::Finding;
use super::probe::{ProbeAnswer, Probed};
use crate::config::offload::{Engine, Entropy};

pub(super) fn config(look: &DeviceLook<'_>) -> Finding {
    const NAME: &str = "[offload]";
    const WANTED: &str = "offload = \"rte-flow\" at the uplink and the representors";
    let wanted = look.wanted;
    let pci = look.pci.as_str();
    if !wanted.by_config {
        let command = commands::CONFIG.with(&[("pci", pci)]);
        return Finding::noted(NAME, "not looked at: no config was given", WANTED).by(command);
    }
    let check = commands::CHECK_CONFIG.with(&[("file", look.file)]);
    if wanted.ports.is_empty() {
        let kind = if pci.starts_with("net_") { "\"raw\", vdev" } else { "\"pci\", address" };
        let value = format!("the config has no port on this device: port = {{ kind = {kind} = ... }}");
        return Finding::change(NAME, value, WANTED).by(check);
    }
    if wanted.offloaded.is_empty() {
        let lab = match wanted.simulated.is_empty() {
            true => String::new(),
            false => format!("; {} on the simulated e-switch, a lab device", wanted.simulated.join(", ")),
        };
        let value = format!("no rules on this device for {}{lab}", wanted.ports.join(", "));
        return Finding::noted(NAME, value, WANTED).by(check);
    }
    let offload = &wanted.offload;
    let entropy = match offload.entropy {
        Entropy::Exact => "exact",
        Entropy::Hardware => "hardware",
    };
    let value = format!(
        "{} for {}: at most {} rules, {} a second, entropy {entropy}, dv_flow_en={}",
        if offload.enabled { "on" } else { "off until `offload on`" },
        wanted.offloaded.join(", "),
        offload.rules,
        offload.rules_per_second,
        wanted.dv_flow_en().unwrap_or("the driver's default"),
    );
    Finding::fine(NAME, value, WANTED).by(check)
}

/// What the DPDK that this was built with can say to a NIC at all.
pub(super) fn build() -> Finding {
    const NAME: &str = "DPDK";
    const WANTED: &str = "23.07 or later for queue pairs (ib_bth)";
    match BUILD.ib_bth {
        true => Finding::fine(NAME, BUILD.version, WANTED),
        false => Finding::noted(NAME, format!("{}: RC flows stay in software", BUILD.version), WANTED),
    }
}

/// Whether software can choose outer source ports as the NIC does, where the config leaves them to that.
pub(super) fn source_ports(look: &DeviceLook<'_>) -> Finding {
    const NAME: &str = "outer source ports";
    const WANTED: &str =
        "DPDK 24.03 or later and dv_flow_en=2 for entropy = \"hardware\": flows keep their path";
    let wanted = look.wanted;
    if wanted.offloaded.is_empty() {
        return Finding::fine(NAME, "software's own: the device has no rules", WANTED);
    }
    if wanted.offload.entropy == Entropy::Exact {
        return Finding::fine(NAME, "software's own, in a rule for each (entropy = \"exact\")", WANTED);
    }
    let is_virtual = look.pci.starts_with("net_");
    let value = match (BUILD.encap_hash, wanted.offload.engine, wanted.dv_flow_en()) {
        (false, ..) => format!("{} cannot ask for them", BUILD.version),
        (true, Engine::Sync, _) => "not told with engine = \"sync\"".into(),
        (true, _, dv_flow_en) if is_virtual || dv_flow_en == Some("2") => {
            let value = "asked for when the switch starts: `show offload` says whether software follows";
            return Finding::fine(NAME, value, WANTED);
        }
        (true, _, Some(dv_flow_en)) => format!("not told with dv_flow_en={dv_flow_en}"),
        (true, _, None) => "not told with the driver's default of dv_flow_en".into(),
    };
    let value = format!("{value}: a flow changes its path when it moves between software and the NIC");
    Finding::noted(NAME, value, WANTED).by(commands::CHECK_CONFIG.with(&[("file", look.file)]))
}

/// Which chains the device takes.
pub(super) fn chains(look: &DeviceLook<'_>, probed: Option<&Result<Probed, String>>) -> Vec<Finding> {
    const NAME: &str = "chains";
    const WANTED: &str = "taken";
    let ask = commands::PROBE.with(&[("pci", &look.pci)]);
    let report = match probed {
        None => {
            let value =
                "not asked: with --probe the switch that runs with it asks, or a process of its own does";
            return vec![Finding::noted(NAME, value, WANTED).by(ask)];
        }
        Some(Err(why)) => return vec![Finding::unknown(NAME, why, WANTED).by(ask)],
        Some(Ok(report)) => report,
    };
    let one = |kind: &str, (name, taken): &ProbeAnswer| {
        let name = format!("{kind} {name}");
        match taken {
            Ok(()) => Finding::fine(&name, "taken", WANTED),
            // Flows of this kind stay in software: that is no fault of the device's settings by itself.
            Err(words) => {
                Finding::noted(&name, format!("refused: {words}"), WANTED).by(commands::RUNNING.with(&[]))
            }
        }
    };
    let by = Finding::noted("asked by", &report.by, "");
    let chains = report.chains.iter().map(|answer| one("chain", answer));
    std::iter::once(by)
        .chain(chains)
        .chain(report.features.iter().map(|answer| one("rule", answer)))
        .collect()
}
