//! Checks of the process's own sections: workers, DPDK, tables, protocols, sockets.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use worker::{MAX_VNICS, MAX_VPCS};

use super::super::buffers;
use super::super::datapath::{NftConfig, VltConfig};
use super::super::error::quote;
use super::super::etcd::EtcdConfig;
use super::super::name::Name;
use super::super::process::WorkersConfig;
use super::super::rcft::{QuotaConfig, RcftConfig};
use super::super::units::ByteSize;
use super::ports::{check_pci_address, check_socket_path};
use super::{Checker, is_unicast};
use crate::handover::socket_beside;

/// Less than this and no port starts.
const LEAST_MEMORY: ByteSize = ByteSize::mebibytes(32);

pub(super) fn check(checker: &mut Checker<'_>) {
    workers(checker);
    eal(checker);
    tables(checker);
    numbers(checker);
    vlt(checker);
    rcft(checker);
    sockets(checker);
    tcp(checker);
    evpn(checker);
    if checker.config.control.state.as_deref() == Some(Path::new("")) {
        checker.fail("control.state", "[control] state is empty; write a path or leave the key out");
    }
    etcd(checker);
}

/// The control socket, and the sockets beside it, whose names are longer.
fn sockets(checker: &mut Checker<'_>) {
    let api = &checker.config.api;
    let readers = api
        .group
        .as_ref()
        .map(|_| ("socket: the one of its group, with -read in its name,", api.read_socket()));
    let upgrade =
        ("socket: the one for upgrades, with .upgrade behind its name,", socket_beside(&api.socket));
    let all = [Some(("socket", api.socket.clone())), readers, Some(upgrade)];
    let problem =
        |(what, path): &(&str, PathBuf)| Some(format!("[api] {what} {}", check_socket_path(path).err()?));
    if let Some(problem) = all.iter().flatten().find_map(problem) {
        checker.fail("api.socket", problem);
    }
}

/// The etcd of the cluster.
fn etcd(checker: &mut Checker<'_>) {
    let Some(etcd) = &checker.config.control.etcd else { return };
    if etcd.endpoints.is_empty() {
        let message = "[control] etcd has no endpoints; name the URL of a member at least, such as \"http://192.0.2.1:2379\"";
        checker.fail("control.etcd.endpoints", message);
    }
    let mut secure = HashSet::new();
    for (at, endpoint) in etcd.endpoints.iter().enumerate() {
        let scheme =
            endpoint.split_once("://").filter(|(_, rest)| !rest.is_empty()).map(|(scheme, _)| scheme);
        match scheme {
            Some("http") => drop(secure.insert(false)),
            Some("https") => drop(secure.insert(true)),
            _ => {
                let message = format!(
                    "[control] etcd: {} is no URL of a member; write http://<address>:2379, or https:// with tls",
                    quote(endpoint)
                );
                checker.fail(format!("control.etcd.endpoints[{at}]"), message);
            }
        }
    }
    if secure.contains(&true) && etcd.tls.is_none() {
        let message = "[control] etcd has https endpoints and no tls; name the CAs of its certificates with tls = { ca = ... }";
        checker.fail("control.etcd", message);
    }
    if secure.contains(&false) && etcd.tls.is_some() {
        let message =
            "[control] etcd has tls and an http endpoint, whose traffic anybody could read; write https://";
        checker.fail("control.etcd.endpoints", message);
    }
    if etcd.tls.as_ref().is_some_and(|tls| tls.certificate.is_some() != tls.key.is_some()) {
        let message = "[control] etcd tls has one of certificate and key; give both, or neither";
        checker.fail("control.etcd.tls", message);
    }
    if !etcd.prefix.ends_with('/') || etcd.prefix.len() > 256 {
        let message = format!(
            "[control] etcd prefix {} does not end with /, or is longer than 256 characters; write one such as \"/vswitch/\"",
            quote(&etcd.prefix)
        );
        checker.fail("control.etcd.prefix", message);
    }
    if let Some(vtep) = etcd.vteps.iter().find(|vtep| !is_unicast(**vtep)) {
        checker.fail(
            "control.etcd.vteps",
            format!(
                "[control] etcd vteps: {vtep} is not a unicast address; name addresses of this host's uplinks"
            ),
        );
    }
    let (shortest, longest) = (EtcdConfig::SHORTEST_LEASE, EtcdConfig::LONGEST_LEASE);
    if !(shortest..=longest).contains(&etcd.lease) || etcd.lease.subsec_nanos() != 0 {
        let message = format!(
            "[control] etcd lease is not whole seconds from {} to {}; write one such as \"10s\"",
            shortest.as_secs(),
            longest.as_secs()
        );
        checker.fail("control.etcd.lease", message);
    }
}

/// Who is announced by BGP.
fn evpn(checker: &mut Checker<'_>) {
    let Some(evpn) = &checker.config.control.evpn else { return };
    if evpn.asn == Some(0) {
        checker.fail("control.evpn.asn", "[control] evpn: asn 0 is none; leave it out for gobgpd's own");
    }
    if !(2..=1000).contains(&evpn.duplicate_moves) {
        let message = "[control] evpn: duplicate-moves is too few or too many to tell a duplicate; write a number from 2 to 1000";
        checker.fail("control.evpn.duplicate-moves", message);
    }
    if !(1..=86_400).contains(&evpn.duplicate_time.as_secs()) {
        let message = "[control] evpn: duplicate-time is too short or too long; write a time from 1s to 24h";
        checker.fail("control.evpn.duplicate-time", message);
    }
    let Some(vtep) = evpn.vtep else { return };
    let uplinks = &checker.config.uplinks;
    let is_own = uplinks.iter().any(|uplink| uplink.addresses.iter().any(|net| net.addr() == vtep));
    if !is_own {
        let message =
            format!("[control] evpn: vtep {vtep} is no uplink's address; name one of them, or leave it out");
        checker.fail("control.evpn.vtep", message);
    }
}

/// Whom the API lets in by TCP.
fn tcp(checker: &mut Checker<'_>) {
    let Some(tcp) = &checker.config.api.tcp else { return };
    if tcp.admins.is_empty() && tcp.readers.is_empty() {
        let message = "[api] tcp lets nobody in; name certificates' DNS names or URIs in admins or readers";
        checker.fail("api.tcp", message);
    }
    if tcp.admins.iter().chain(&tcp.readers).any(String::is_empty) {
        checker.fail("api.tcp", "[api] tcp has an empty name in admins or readers; remove it");
    }
    if let Some(name) = tcp.readers.iter().find(|name| tcp.admins.contains(name)) {
        let message = format!("[api] tcp has {} in admins and in readers; keep one of them", quote(name));
        checker.fail("api.tcp.readers", message);
    }
}

fn workers(checker: &mut Checker<'_>) {
    let workers = &checker.config.workers;
    if let Some(cores) = &workers.cores {
        if workers.count.is_some() {
            checker.fail("workers.count", "[workers] has both cores and count; keep one of them");
        }
        if cores.is_empty() {
            checker.fail("workers.cores", "[workers] cores is empty; name at least one core");
        }
        let mut seen = HashSet::new();
        for (index, core) in cores.iter().enumerate() {
            if !seen.insert(core) {
                let message = format!("core {core} is listed twice; one core runs one worker, so keep one");
                checker.fail(format!("workers.cores[{index}]"), message);
            }
        }
    }
    if workers.count == Some(0) {
        checker.fail(
            "workers.count",
            "[workers] count is 0; there must be at least one worker, so give 1 or more",
        );
    }
    let most = WorkersConfig::MAX_BURST;
    if !(WorkersConfig::MIN_BURST..=most).contains(&workers.burst) {
        checker.fail(
            "workers.burst",
            format!(
                "[workers] burst {} is not in {}..={most}; choose a number that is",
                workers.burst,
                WorkersConfig::MIN_BURST
            ),
        );
    }
}

pub(super) fn check_cores(checker: &mut Checker<'_>, available: &[usize]) {
    let workers = &checker.config.workers;
    let list = available.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    for (index, core) in workers.cores.iter().flatten().enumerate() {
        if !available.contains(core) {
            let message = format!(
                "no worker can run on core {core}; this process has the cores {list}: choose one of them"
            );
            checker.fail(format!("workers.cores[{index}]"), message);
        }
    }
    let wanted = workers.workers();
    if workers.cores.is_none() && wanted > available.len() {
        let message = format!(
            "{wanted} workers do not fit: this process has the cores {list}; set count to {} or less",
            available.len()
        );
        checker.fail("workers.count", message);
    }
}

fn eal(checker: &mut Checker<'_>) {
    let eal = &checker.config.eal;
    if eal.memory < LEAST_MEMORY {
        let message = format!("[eal] memory {} is too little; give at least {LEAST_MEMORY}", eal.memory);
        checker.fail("eal.memory", message);
    }
    if !eal.memory.bytes().is_multiple_of(1 << 20) {
        checker.fail(
            "eal.memory",
            format!("[eal] memory {} is not a whole number of MiB; write for example \"512MiB\"", eal.memory),
        );
    }
    if let Err(error) = Name::new(&eal.file_prefix) {
        checker.fail("eal.file-prefix", format!("[eal] file-prefix: {error}; choose one that is"));
    }
    if eal.mbufs == Some(0) {
        checker.fail("eal.mbufs", "[eal] mbufs is 0; give at least some hundreds per port, or leave it out");
    }
    if let Some(problem) = buffers::problem(checker.config, buffers::may_have_huge_pages(checker.config)) {
        checker.fail("eal.mbufs", problem);
    }
    for (index, plugin) in eal.plugins.iter().enumerate() {
        let text = plugin.to_string_lossy();
        if text.is_empty() || text.contains(char::is_control) {
            let message = format!("[eal] plugins: {} is not a path; write one, or remove it", quote(&text));
            checker.fail(format!("eal.plugins[{index}]"), message);
        }
    }
    for (index, device) in eal.pci.iter().enumerate() {
        let (address, arguments) = device.split_once(',').unwrap_or((device, ""));
        let path = format!("eal.pci[{index}]");
        if let Err(problem) = check_pci_address(address) {
            checker.fail(&path, format!("[eal] pci: {problem}"));
        }
        if arguments.contains(|c: char| c.is_control() || c.is_whitespace()) {
            let message =
                format!("[eal] pci: {} has blanks or control characters; remove them", quote(arguments));
            checker.fail(&path, message);
        }
    }
}

fn tables(checker: &mut Checker<'_>) {
    let config = checker.config;
    let entries = [
        ("nft", config.nft.entries, NftConfig::MAX_ENTRIES),
        ("vlt", config.vlt.entries, VltConfig::MAX_ENTRIES),
    ];
    for (table, entries, most) in entries {
        if !(1..=most).contains(&entries) {
            let message =
                format!("[{table}] entries {entries} is not in 1..={most}; choose a number that is");
            checker.fail(format!("{table}.entries"), message);
        }
    }
    if config.nft.idle_timeout.is_zero() {
        checker.fail(
            "nft.idle-timeout",
            "[nft] idle-timeout is 0; no flow would stay; write for example \"30s\"",
        );
    }
    if config.nft.miss_budget == 0 {
        checker.fail(
            "nft.miss-budget",
            "[nft] miss-budget is 0; no flow would ever be learned; give at least 1, the default is 32",
        );
    }
    if config.nft.flood_budget == 0 {
        checker.fail(
            "nft.flood-budget",
            "[nft] flood-budget is 0; nothing would be flooded; give at least 1, the default is 256, and a VPC floods only with flood = true",
        );
    }
    for (section, port) in [("vxlan", config.vxlan.udp_port), ("rdma", config.rdma.udp_port)] {
        if port == 0 {
            checker.fail(
                format!("{section}.udp-port"),
                format!("[{section}] udp-port 0 is not a UDP port; give 1 to 65535"),
            );
        }
    }
    if config.vxlan.ttl == 0 {
        checker.fail(
            "vxlan.ttl",
            "[vxlan] ttl is 0; no packet would leave the host; give at least 1, the default is 64",
        );
    }
}

/// The switch has room for so many vNICs and VPCs.
fn numbers(checker: &mut Checker<'_>) {
    let config = checker.config;
    let (vnics, vpcs) = (config.vnics.len(), config.vpcs.len());
    if let Some(vnic) = config.vnics.get(MAX_VNICS) {
        let message = format!(
            "vnic {}: the config has {vnics} vNICs, and the switch takes {MAX_VNICS}; put tenants on another host",
            vnic.name
        );
        checker.fail(format!("vnic[{MAX_VNICS}]"), message);
    }
    if let Some(vpc) = config.vpcs.get(MAX_VPCS) {
        let message = format!(
            "vpc {}: the config has {vpcs} VPCs, and the switch takes {MAX_VPCS}; remove those that have no vNIC here",
            vpc.name
        );
        checker.fail(format!("vpc[{MAX_VPCS}]"), message);
    }
}

/// Each vNIC and each location takes an entry of the VLT at least.
fn vlt(checker: &mut Checker<'_>) {
    let config = checker.config;
    let (vnics, entries) = (config.vnics.len(), config.vlt.entries as usize);
    // vNICs have theirs first.
    let beyond = match entries.checked_sub(vnics) {
        None => {
            config.vnics.get(entries).map(|vnic| (format!("vnic[{entries}]"), format!("vnic {}", vnic.name)))
        }
        Some(free) => config.locations.get(free).map(|location| {
            (format!("location[{free}]"), format!("location {} of VNI {}", location.vip, location.vni))
        }),
    };
    if let Some((path, who)) = beyond.filter(|_| entries > 0) {
        let message = format!(
            "{who}: the config has {} vNICs and locations, each of which takes one of the {entries} entries of [vlt]{}; raise entries, or \
             remove what nobody needs",
            vnics + config.locations.len(),
            checker.line("vlt.entries")
        );
        checker.fail(path, message);
    }
}

fn rcft(checker: &mut Checker<'_>) {
    let config = &checker.config.rcft;
    let (least, most) = (RcftConfig::MIN_ENTRIES, RcftConfig::MAX_ENTRIES);
    if !(least..=most).contains(&config.entries) {
        let message =
            format!("[rcft] entries {} is not in {least}..={most}; choose a number that is", config.entries);
        checker.fail("rcft.entries", message);
    }
    let quota = |quota: &Option<QuotaConfig>| match quota {
        Some(QuotaConfig::Count(count)) if *count > config.entries => Some(*count),
        _ => None,
    };
    let more = |count| {
        let line = checker.line("rcft.entries");
        format!(
            "{count} is more than the {} queue pairs of [rcft] entries{line}; lower it, leave it out for as many \
             as the table holds, or raise entries",
            config.entries
        )
    };
    let default =
        quota(&config.quota).map(|count| ("rcft.quota".into(), format!("[rcft] quota {}", more(count))));
    let vnics = checker.config.vnics.iter().enumerate().filter_map(|(index, vnic)| {
        let message = format!("vnic {}: qp-quota {}", vnic.name, more(quota(&vnic.qp_quota)?));
        Some((format!("vnic[{index}].qp-quota"), message))
    });
    let faults: Vec<(String, String)> = default.into_iter().chain(vnics).collect();
    for (path, message) in faults {
        checker.fail(path, message);
    }
    for (key, time, example) in [
        ("idle-timeout", config.idle_timeout, "10min"),
        ("half-open-timeout", config.half_open_timeout, "5s"),
    ] {
        if time.is_zero() {
            let message =
                format!("[rcft] {key} is 0; no queue pair would stay; write for example \"{example}\"");
            checker.fail(format!("rcft.{key}"), message);
        }
    }
    if config.silent_after < RcftConfig::MIN_SILENT_AFTER {
        checker.fail(
            "rcft.silent-after",
            "[rcft] silent-after is below 1s; queue pairs that are in use pause for longer; write for example \"30s\"",
        );
    }
}
