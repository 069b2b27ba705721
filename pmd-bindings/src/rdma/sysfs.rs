//! What the kernel's sysfs says of RDMA devices.
//!
//! Everything below takes the folder that stands for `/sys/class`, so that it can be tested on any machine. A file that
//! is missing or makes no sense leaves its field empty: kernels and drivers differ in what they show.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::Ipv6Addr;
use std::path::Path;

use super::{Device, DevicePort, Gid, GidKind, Guid, Unopened};
use crate::error::Errno;

/// The names of the devices, sorted.
pub(super) fn names(class: &Path) -> Vec<String> {
    let mut names = entries(&class.join("infiniband"));
    names.sort();
    names
}

/// The devices, sorted by name; what only verbs know is left open.
pub(super) fn devices(class: &Path) -> Vec<Device> {
    names(class).into_iter().map(|name| device(&class.join("infiniband").join(&name), name)).collect()
}

/// Makes a fault about a device more precise by what sysfs says of its verbs, and by whether its file is there:
/// libibverbs leaves devices without one out of its list.
pub(super) fn explain((class, files): (&Path, &Path), device: &str, fault: Unopened) -> Unopened {
    if fault == Unopened::NotBuilt {
        return fault;
    }
    let verbs = class.join("infiniband_verbs");
    let of_device = |file: &String| text(&verbs.join(file).join("ibdev")).is_some_and(|name| name == device);
    let Some(file) = entries(&verbs).into_iter().find(of_device) else {
        return Unopened::NoUverbs;
    };
    if !files.join(&file).exists() {
        return Unopened::NoFile(file);
    }
    match fault {
        Unopened::Failed { errno, .. } | Unopened::NoList(errno) if denied(errno, &files.join(&file)) => {
            Unopened::NotAllowed(file)
        }
        _ => fault,
    }
}

/// Whether rights are what is missing. libibverbs reports ENOENT then: it goes on to look for the device under other
/// names, and keeps the errno of that.
fn denied(errno: Errno, file: &Path) -> bool {
    let refused = || {
        fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(file)
            .is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    };
    matches!(errno.code(), libc::EPERM | libc::EACCES) || refused()
}

fn device(folder: &Path, name: String) -> Device {
    let mut ports: Vec<u32> = numbers(&folder.join("ports"));
    ports.sort_unstable();
    Device {
        name,
        node_type: text(&folder.join("node_type")).map(after_colon),
        node_guid: text(&folder.join("node_guid")).and_then(|text| guid(&text)),
        firmware: text(&folder.join("fw_ver")),
        model: text(&folder.join("hca_type")),
        bus: bus(folder),
        limits: Err(Unopened::NoUverbs),
        ports: ports.into_iter().map(|number| port(&folder.join("ports"), number)).collect(),
    }
}

/// The last part of where `device` points.
fn bus(folder: &Path) -> Option<String> {
    let target = fs::read_link(folder.join("device")).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

fn port(ports: &Path, number: u32) -> DevicePort {
    let folder = ports.join(number.to_string());
    let word = |file: &str| text(&folder.join(file));
    DevicePort {
        number,
        state: word("state").map(after_colon),
        physical_state: word("phys_state").map(after_colon),
        link_layer: word("link_layer"),
        rate: word("rate"),
        max_mtu: None,
        active_mtu: None,
        gids: gids(&folder),
        counters: counters(&folder.join("counters")),
        hw_counters: counters(&folder.join("hw_counters")),
    }
}

/// The entries in use. An empty one is all zeros, and its attributes cannot be read.
fn gids(port: &Path) -> Vec<Gid> {
    let mut indices: Vec<u32> = numbers(&port.join("gids"));
    indices.sort_unstable();
    let gid = |index: u32| {
        let read = |folder: &str| text(&port.join(folder).join(index.to_string()));
        let address: Ipv6Addr = read("gids")?.parse().ok()?;
        if address.is_unspecified() {
            return None;
        }
        let kind = match read("gid_attrs/types").as_deref() {
            Some("RoCE v2") => GidKind::RoceV2,
            Some("IB/RoCE v1") => GidKind::IbOrRoceV1,
            _ => GidKind::Unknown,
        };
        Some(Gid { index, address, kind, netdev: read("gid_attrs/ndevs") })
    };
    indices.into_iter().filter_map(gid).collect()
}

fn counters(folder: &Path) -> BTreeMap<String, u64> {
    let value = |name: String| {
        let value = text(&folder.join(&name))?.parse().ok()?;
        Some((name, value))
    };
    // How long the kernel caches counters is among them, and is none.
    entries(folder).into_iter().filter(|name| name != "lifespan").filter_map(value).collect()
}

/// The names in a folder; none when there is no folder.
fn entries(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn numbers(folder: &Path) -> Vec<u32> {
    entries(folder).iter().filter_map(|name| name.parse().ok()).collect()
}

/// The text of a file without the blanks around it; nothing when it cannot be read or is empty.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// `ACTIVE` of `4: ACTIVE`.
fn after_colon(text: String) -> String {
    match text.split_once(':') {
        Some((_, word)) => word.trim().to_owned(),
        None => text,
    }
}

/// A GUID in four groups; zero is none.
fn guid(text: &str) -> Option<Guid> {
    let groups: Vec<&str> = text.split(':').collect();
    if groups.len() != 4 || groups.iter().any(|group| group.len() != 4) {
        return None;
    }
    let value = u64::from_str_radix(&groups.concat(), 16).ok()?;
    (value != 0).then_some(Guid(value))
}
