//! The interface of the function: link, MTU, PFC, trust, ECN, queues.

use super::commands;
use super::devlink;
use super::finding::Finding;
use super::host::{Unanswered, Unread};
use super::probe::Probed;
use super::{DeviceLook, commands::Template};

/// The priority of RoCE where nothing says another.
const USUAL_PRIORITY: usize = 3;
/// Who marks and who slows down (DCQCN's notification and reaction point), as the vendor's driver names their folders.
const ECN: [&str; 2] = ["roce_np", "roce_rp"];

pub(super) fn link(look: &DeviceLook<'_>) -> Finding {
    const NAME: &str = "link";
    const WANTED: &str = "up";
    let netdev = match no_netdev(look, NAME, WANTED) {
        Ok(netdev) => netdev,
        Err(finding) => return finding,
    };
    match look.host.read(of(netdev, "operstate")) {
        Ok(state) if state == WANTED => {
            let speed = look.host.number::<u64>(of(netdev, "speed"));
            let speed = speed.map(|speed| format!(", {speed} Mb/s")).unwrap_or_default();
            Finding::fine(NAME, format!("{netdev} {state}{speed}"), WANTED)
        }
        Ok(state) => {
            Finding::change(NAME, format!("{netdev} {state}"), WANTED).by(filled(commands::LINK_UP, netdev))
        }
        Err(why) => Finding::unknown(NAME, why, WANTED),
    }
}

pub(super) fn mtu(look: &DeviceLook<'_>) -> Finding {
    const NAME: &str = "MTU";
    let least = look.wanted.mtu;
    let whose = if look.wanted.by_config { "of the config" } else { "1500 in VxLAN, with room" };
    let wanted = format!("at least {least} ({whose})");
    let netdev = match no_netdev(look, NAME, &wanted) {
        Ok(netdev) => netdev,
        Err(finding) => return finding,
    };
    match look.host.number::<u32>(of(netdev, "mtu")) {
        Ok(mtu) if mtu >= u32::from(least) => Finding::fine(NAME, mtu, wanted),
        Ok(mtu) => {
            let command = commands::MTU.with(&[("netdev", netdev), ("mtu", &least.to_string())]);
            Finding::change(NAME, mtu, wanted).by(command)
        }
        Err(why) => Finding::unknown(NAME, why, wanted),
    }
}

/// PFC, trust and ECN: whether they are right, the network as a whole decides; what contradicts itself is to be changed.
pub(super) fn lossless(look: &DeviceLook<'_>) -> Vec<Finding> {
    let Some(netdev) = look.netdev.as_deref() else {
        let hidden = |name| Finding::noted(name, "not known: the device has no kernel interface", "");
        return ["PFC", "trust", "ECN of RDMA"].map(hidden).into();
    };
    let pfc = devlink::pfc(look.host, netdev);
    let on = pfc.as_ref().ok().and_then(|on| on.first().copied());
    vec![pfc_finding(netdev, &pfc), trust(look, netdev, on), ecn(look, netdev, on.unwrap_or(USUAL_PRIORITY))]
}

fn pfc_finding(netdev: &str, pfc: &Result<Vec<usize>, Unanswered>) -> Finding {
    const NAME: &str = "PFC";
    const WANTED: &str = "as the switches of the network have it";
    match pfc {
        Ok(on) if on.is_empty() => Finding::noted(NAME, "off", WANTED).by(filled(commands::SHOW_PFC, netdev)),
        Ok(on) => Finding::noted(NAME, format!("on for priority {}", numbers(on)), WANTED)
            .by(filled(commands::SHOW_PFC, netdev)),
        Err(why) => unasked(NAME, why, WANTED, filled(commands::SHOW_PFC, netdev)),
    }
}

/// mlx5 trusts DSCPs as soon as one leads to a priority (dcbnl of the kernel's driver).
fn trust(look: &DeviceLook<'_>, netdev: &str, lossless: Option<usize>) -> Finding {
    const NAME: &str = "trust";
    let wanted = match lossless {
        Some(priority) => format!("DSCP, with RoCE's leading to priority {priority}, which PFC is on for"),
        None => "as the switches of the network have it".to_owned(),
    };
    match (devlink::dscps(look.host, netdev), lossless) {
        (Ok(0), Some(priority)) => {
            let places = [("netdev", netdev), ("priority", &priority.to_string())];
            Finding::change(NAME, "no DSCP leads to a priority", wanted)
                .by(commands::TRUST_DSCP.with(&places))
        }
        (Ok(0), None) => Finding::noted(NAME, "no DSCP leads to a priority", wanted)
            .by(filled(commands::SHOW_TRUST, netdev)),
        (Ok(dscps), _) => Finding::fine(NAME, format!("DSCP, {dscps} of them lead to a priority"), wanted),
        (Err(why), _) => unasked(NAME, &why, wanted, filled(commands::SHOW_TRUST, netdev)),
    }
}

/// Of the NIC's own queue pairs: those of the host and of VFs. What the switch marks is a matter of its config.
fn ecn(look: &DeviceLook<'_>, netdev: &str, priority: usize) -> Finding {
    const NAME: &str = "ECN of RDMA";
    let wanted = format!("on for priority {priority}, in both roles");
    let mut shown = Vec::new();
    let mut off = None;
    for role in ECN {
        let folder = of(netdev, &format!("ecn/{role}/enable"));
        let mut on = Vec::new();
        for name in look.host.names(&folder) {
            match (name.parse::<usize>(), look.host.number::<u8>(format!("{folder}/{name}"))) {
                (Ok(priority), Ok(value)) if value != 0 => on.push(priority),
                (Ok(_), Err(why)) if why != Unread::Absent => {
                    let finding = Finding::noted(NAME, format!("not known: {why}"), wanted);
                    return finding.by(filled(commands::SHOW_ECN, netdev));
                }
                _ => {}
            }
        }
        if !look.host.exists(&folder) {
            let why = "not known: the driver does not say (the vendor's package does)";
            return Finding::noted(NAME, why, wanted).by(filled(commands::SHOW_ECN, netdev));
        }
        if !on.contains(&priority) {
            off = off.or(Some(role));
        }
        let on = if on.is_empty() { "none".into() } else { numbers(&on) };
        shown.push(format!("{role} {on}"));
    }
    let shown = shown.join(", ");
    match off {
        None => Finding::fine(NAME, shown, wanted),
        Some(role) => {
            let places = [("netdev", netdev), ("protocol", role), ("priority", &priority.to_string())];
            Finding::change(NAME, shown, wanted).by(commands::ENABLE_ECN.with(&places))
        }
    }
}

/// Queues of the kernel's driver. Those of the switch are made when it starts: one for each worker.
pub(super) fn queues(look: &DeviceLook<'_>, probed: Option<&Result<Probed, String>>) -> Finding {
    const NAME: &str = "queues, RSS";
    let workers = look.wanted.workers;
    let wanted = format!("{workers} for the switch, which it makes itself");
    let netdev = match no_netdev(look, NAME, &wanted) {
        Ok(netdev) => netdev,
        Err(finding) => return finding,
    };
    let all = look.host.names(of(netdev, "queues"));
    let count = |way: &str| all.iter().filter(|name| name.starts_with(way)).count();
    let value = match all.len() {
        0 => "not known: the kernel does not say".into(),
        _ => format!("the kernel has {} rx, {} tx", count("rx-"), count("tx-")),
    };
    let rss = match probed {
        Some(Ok(Probed { rss: Some(types), .. })) => format!("; DPDK can hash {types}"),
        _ => String::new(),
    };
    Finding::noted(NAME, value + &rss, wanted).by(filled(commands::SHOW_RSS, netdev))
}

fn no_netdev<'a>(look: &'a DeviceLook<'_>, name: &str, wanted: &str) -> Result<&'a str, Finding> {
    look.netdev.as_deref().ok_or_else(|| match look.driver.as_deref() {
        Some("mlx5_core") => {
            Finding::unknown(name, "the device has no interface in this network namespace", wanted)
        }
        _ => Finding::noted(name, "not known: the device has no kernel interface", wanted),
    })
}

fn unasked(name: &str, why: &Unanswered, wanted: impl ToString, show: String) -> Finding {
    match why {
        Unanswered::Missing(_) => Finding::noted(name, "not known: install iproute2", wanted)
            .by(commands::INSTALL_IPROUTE2.with(&[])),
        why => Finding::noted(name, format!("not known: {why}"), wanted).by(show),
    }
}

fn of(netdev: &str, file: &str) -> String {
    format!("sys/class/net/{netdev}/{file}")
}

fn filled(template: Template, netdev: &str) -> String {
    template.with(&[("netdev", netdev)])
}

fn numbers(of: &[usize]) -> String {
    of.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
