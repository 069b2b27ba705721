//! The device and what drives it: model, the kernel's driver, firmware, DPDK's driver, PCIe link.

use super::DeviceLook;
use super::commands;
use super::finding::Finding;

/// Vendor of the NICs that mlx5 drives.
pub(super) const VENDOR: &str = "0x15b3";
/// The kernel's driver, beside which DPDK's works.
const DRIVER: &str = "mlx5_core";
/// The first firmware with which `dv_flow_en=2` works, without the part that tells models apart (nics guide).
const HARDWARE_STEERING: (u32, u32) = (35, 1012);

/// Models, by PCI device number (pci.ids), and whether rules were put to the driver's code for them.
const MODELS: &[(&str, &str)] = &[
    ("0x1017", "ConnectX-5"),
    ("0x1019", "ConnectX-5 Ex"),
    ("0x101b", "ConnectX-6"),
    ("0x101d", "ConnectX-6 Dx"),
    ("0x101f", "ConnectX-6 Lx"),
    ("0x1021", "ConnectX-7"),
    ("0x1023", "ConnectX-8"),
    ("0xa2d6", "BlueField-2"),
    ("0xa2dc", "BlueField-3"),
];
/// Models for which `mlx5-gate` puts rules to the driver's code.
const JUDGED: [&str; 3] = ["ConnectX-6 Dx", "ConnectX-7", "BlueField-3"];

pub(super) fn findings(look: &DeviceLook<'_>) -> Vec<Finding> {
    vec![model(look), driver(look), driver_version(look), firmware(look), dpdk_driver(look)]
}

fn model(look: &DeviceLook<'_>) -> Finding {
    const NAME: &str = "model";
    const WANTED: &str = "ConnectX-6 Dx, ConnectX-7 or BlueField-3";
    let (vendor, device) = match (look.text("vendor"), look.text("device")) {
        (Ok(vendor), Ok(device)) => (vendor, device),
        (Err(why), _) | (_, Err(why)) => return Finding::unknown(NAME, why, WANTED),
    };
    let numbers = format!("{vendor}:{device}");
    if vendor != VENDOR {
        let value = format!("{numbers}, not driven by mlx5");
        return Finding::change(NAME, value, WANTED).by(commands::LIST_NICS.with(&[]));
    }
    match MODELS.iter().find(|(number, _)| *number == device) {
        Some((_, model)) if JUDGED.contains(model) => {
            Finding::fine(NAME, format!("{model} ({numbers})"), WANTED)
        }
        Some((_, model)) => Finding::noted(NAME, format!("{model} ({numbers})"), WANTED),
        None => Finding::noted(NAME, format!("{numbers}, not in the list of this check"), WANTED),
    }
}

fn driver(look: &DeviceLook<'_>) -> Finding {
    const NAME: &str = "driver";
    let pci = &[("pci", look.pci.as_str())];
    let ours = look.text("vendor").is_ok_and(|vendor| vendor == VENDOR);
    match look.driver.as_deref() {
        Some(DRIVER) => Finding::fine(NAME, DRIVER, DRIVER),
        Some(other) if ours => Finding::change(NAME, other, DRIVER).by(commands::BIND_DRIVER.with(pci)),
        None if ours => Finding::change(NAME, "none is bound", DRIVER).by(commands::LOAD_DRIVER.with(pci)),
        // What is to be changed is said of the model.
        other => Finding::noted(NAME, other.unwrap_or("none is bound"), DRIVER),
    }
}

/// The driver's own version where it has one (the vendor's package), else the kernel's, which it is part of.
fn driver_version(look: &DeviceLook<'_>) -> Finding {
    const NAME: &str = "driver version";
    let own = look.driver.as_ref().map(|driver| look.host.read(format!("sys/module/{driver}/version")));
    match (own, look.host.read("proc/sys/kernel/osrelease")) {
        (Some(Ok(version)), _) => Finding::noted(NAME, version, ""),
        (_, Ok(kernel)) => Finding::noted(NAME, format!("of the kernel, {kernel}"), ""),
        (_, Err(why)) => Finding::noted(NAME, format!("not known: {why}"), ""),
    }
}

fn firmware(look: &DeviceLook<'_>) -> Finding {
    const NAME: &str = "firmware";
    let by = |finding: Finding| finding.by(commands::QUERY_FIRMWARE.with(&[("pci", &look.pci)]));
    // Only hardware steering asks for one.
    let steered = look.wanted.offloads() && look.wanted.dv_flow_en() != Some("1");
    let (minor, sub) = HARDWARE_STEERING;
    let wanted = if steered { format!("xx.{minor}.{sub} or later for dv_flow_en=2") } else { String::new() };
    let told = look
        .rdma_devices()
        .iter()
        .find_map(|device| look.host.read(look.path.join("infiniband").join(device).join("fw_ver")).ok());
    let Some(version) = look.devlink_firmware().or(told) else {
        let why = "neither devlink nor an RDMA device says it";
        return by(match look.driver.as_deref() {
            Some(DRIVER) => Finding::unknown(NAME, why, wanted),
            _ => Finding::noted(NAME, format!("not known: the driver {DRIVER} would say it"), wanted),
        });
    };
    let parts: Vec<Option<u32>> = version.split('.').map(|part| part.parse().ok()).collect();
    match parts[..] {
        [Some(_), Some(major), Some(build)] if (major, build) >= HARDWARE_STEERING || !steered => {
            Finding::fine(NAME, version, wanted)
        }
        [Some(_), Some(_), Some(_)] => by(Finding::change(NAME, version, wanted)),
        _ => by(Finding::unknown(NAME, format_args!("{version:?} is not understood"), wanted)),
    }
}

/// `librte_net_mlx5`, where Debian and others keep DPDK's drivers.
fn dpdk_driver(look: &DeviceLook<'_>) -> Finding {
    const NAME: &str = "DPDK driver";
    const WANTED: &str = "librte_net_mlx5";
    let mut places: Vec<String> = Vec::new();
    for base in ["usr/lib", "usr/local/lib", "usr/lib64"] {
        let below = look.host.names(base).into_iter().map(|name| format!("{base}/{name}/dpdk"));
        places.push(format!("{base}/dpdk"));
        places.extend(below);
    }
    let found = places.iter().find_map(|place| {
        let folders = look.host.names(place).into_iter().filter(|name| name.starts_with("pmds-"));
        folders.map(|folder| format!("{place}/{folder}/librte_net_mlx5.so")).find(|so| look.host.exists(so))
    });
    match found {
        Some(so) => Finding::fine(NAME, format!("/{so}"), WANTED),
        None => Finding::change(NAME, "not installed", WANTED).by(commands::INSTALL_DPDK.with(&[])),
    }
}

/// Generation and width that the PCIe link has, and that the device could have.
pub(super) fn pcie(look: &DeviceLook<'_>) -> Finding {
    const NAME: &str = "PCIe link";
    let by = |finding: Finding| finding.by(commands::PCIE_LINK.with(&[("pci", &look.pci)]));
    let both = |what: &str| {
        Some((look.text(&format!("current_link_{what}")).ok()?, look.text(&format!("max_link_{what}")).ok()?))
    };
    match (both("speed"), both("width")) {
        (Some((speed, most_speed)), Some((width, most_width))) => {
            let (now, most) = (format!("{speed} x{width}"), format!("{most_speed} x{most_width}"));
            if now == most { Finding::fine(NAME, now, most) } else { by(Finding::change(NAME, now, most)) }
        }
        _ => by(Finding::noted(NAME, "not known: the kernel does not say", "what the device can do")),
    }
}
