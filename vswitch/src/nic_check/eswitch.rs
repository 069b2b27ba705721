//! The e-switch: VFs, steering, mode, representors.

use super::commands;
use super::finding::Finding;
use super::host::Unanswered;
use super::{DeviceLook, devlink};

/// Steering of the kernel's own rules that is done in the NIC's memory by the driver, or by the NIC.
const STEERING: [&str; 2] = ["smfs", "hmfs"];

pub(super) fn findings(look: &DeviceLook<'_>) -> Vec<Finding> {
    let mode = devlink::eswitch(look.host, &look.pci);
    let named = mode.as_ref().ok().map(|eswitch| eswitch.mode.as_str());
    vec![vfs(look), steering(look, named), eswitch(look, &mode), representors(look, named)]
}

fn vfs(look: &DeviceLook<'_>) -> Finding {
    const NAME: &str = "VFs";
    let (now, most) = match (look.number("sriov_numvfs"), look.number("sriov_totalvfs")) {
        (Ok(now), Ok(most)) => (now, most),
        (Err(why), _) | (_, Err(why)) => {
            let finding = match look.wanted.vfs.is_empty() {
                true => Finding::noted(NAME, format!("not known: {why}"), "one for each VM that has one"),
                false => Finding::unknown(NAME, why, "those of the config's representors"),
            };
            return finding.by(commands::QUERY_FIRMWARE.with(&[("pci", &look.pci)]));
        }
    };
    let value = format!("{now} of {most}");
    let Some(last) = look.wanted.vfs.last() else {
        return Finding::noted(NAME, value, "one for each VM that has one");
    };
    let needed = u32::from(*last) + 1;
    let wanted = format!("{needed}: the config has a representor of VF {last}");
    match needed {
        needed if needed <= now => Finding::fine(NAME, value, wanted),
        // Firmware settings say how many there can be.
        needed if needed > most => {
            Finding::change(NAME, value, wanted).by(commands::QUERY_FIRMWARE.with(&[("pci", &look.pci)]))
        }
        needed => {
            let command = commands::VFS.with(&[("vfs", &needed.to_string()), ("pci", &look.pci)]);
            Finding::change(NAME, value, wanted).by(command)
        }
    }
}

/// What devlink did not say: as a finding that says what to do.
fn unanswered(look: &DeviceLook<'_>, name: &str, why: &Unanswered, wanted: &str) -> Finding {
    match why {
        // The driver is what has to be changed first, and that is said above.
        _ if look.driver.as_deref() != Some("mlx5_core") => {
            Finding::noted(name, "not known: the driver mlx5_core would say it", wanted)
        }
        Unanswered::Missing(_) => {
            let finding = Finding::unknown(name, "install iproute2", wanted);
            finding.by(commands::INSTALL_IPROUTE2.with(&[]))
        }
        why => Finding::unknown(name, why, wanted),
    }
}

fn steering(look: &DeviceLook<'_>, mode: Option<&str>) -> Finding {
    const NAME: &str = "flow_steering_mode";
    const WANTED: &str = "smfs";
    let pci = &[("pci", look.pci.as_str())];
    match devlink::steering(look.host, &look.pci) {
        Ok(steering) if STEERING.contains(&steering.as_str()) => Finding::fine(NAME, steering, WANTED),
        Ok(steering) if !look.wanted.switchdev() => {
            Finding::noted(NAME, steering, "any: nothing is offloaded here")
        }
        Ok(steering) => {
            let command =
                if mode == Some("switchdev") { commands::STEERING_AGAIN } else { commands::STEERING };
            Finding::change(NAME, steering, WANTED).by(command.with(pci))
        }
        Err(why) => unanswered(look, NAME, &why, WANTED),
    }
}

fn eswitch(look: &DeviceLook<'_>, eswitch: &Result<devlink::EswitchModes, Unanswered>) -> Finding {
    const NAME: &str = "e-switch mode";
    const WANTED: &str = "switchdev";
    match eswitch {
        Ok(eswitch) if eswitch.mode == WANTED => Finding::fine(NAME, eswitch, WANTED),
        Ok(eswitch) if !look.wanted.switchdev() => {
            Finding::noted(NAME, eswitch, "any: the config has neither representors nor offload here")
        }
        Ok(eswitch) => {
            Finding::change(NAME, eswitch, WANTED).by(commands::SWITCHDEV.with(&[("pci", &look.pci)]))
        }
        Err(why) => unanswered(look, NAME, why, WANTED),
    }
}

fn representors(look: &DeviceLook<'_>, mode: Option<&str>) -> Finding {
    const NAME: &str = "representors";
    let by = |finding: Finding| finding.by(commands::LIST_PORTS.with(&[]));
    let found = look.representors();
    let shown = match &found[..] {
        [] => "none".to_owned(),
        found => found.iter().map(|(iface, port)| format!("{iface} ({port})")).collect::<Vec<_>>().join(", "),
    };
    // Function 1 of a card is PF 1; where the port's name says nothing else.
    let has = |vf: u16| found.iter().any(|(_, port)| port.ends_with(&format!("vf{vf}")));
    let missing: Vec<String> =
        look.wanted.vfs.iter().filter(|vf| !has(**vf)).map(|vf| format!("VF {vf}")).collect();
    let wanted = match &look.wanted.vfs[..] {
        [] => "one for each VF".to_owned(),
        vfs => format!("of VF {}", vfs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    };
    match mode {
        // They come with switchdev mode, which is said above.
        _ if !missing.is_empty() && mode == Some("switchdev") => {
            by(Finding::change(NAME, format!("{shown}; missing: {}", missing.join(", ")), wanted))
        }
        Some("switchdev") => {
            let fewer = look.number("sriov_numvfs").is_ok_and(|vfs| (found.len() as u64) < u64::from(vfs));
            match fewer {
                true => by(Finding::change(NAME, format!("{shown}: fewer than VFs"), wanted)),
                false => Finding::fine(NAME, shown, wanted),
            }
        }
        _ => Finding::noted(NAME, shown, format!("{wanted}, once the e-switch is in switchdev mode")),
    }
}
