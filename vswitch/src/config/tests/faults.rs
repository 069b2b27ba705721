//! Every fault that a check finds says which value it is about and what to do about it.

use std::collections::BTreeSet;
use std::path::Path;

use super::bad::GOOD;
use super::{bad, bad_networks, bfd, offload, qos};
use crate::config::validate::told;
use crate::config::*;

/// Words with which somebody is told what to do.
const REMEDIES: &[&str] = &[
    "add", "allow", "choose", "give", "keep", "leave", "let", "list", "lower", "make", "name", "put",
    "raise", "remove", "say", "set", "take", "use", "write",
];
/// Words that may come before them.
const BEFORE: &[&str] = &["and ", "else ", "or ", "so ", "then "];

fn has_remedy(message: &str) -> bool {
    tells(message, &[])
}

/// True where a part of a sentence begins with what to do, by words of a config or by one of these.
pub(crate) fn tells(message: &str, more: &[&str]) -> bool {
    message.split([';', ':', ',', '(']).any(|part| {
        let part = part.trim();
        let part = BEFORE.iter().find_map(|before| part.strip_prefix(before)).unwrap_or(part).trim();
        let first = part.split(' ').next().unwrap_or_default();
        REMEDIES.contains(&first) || more.contains(&first)
    })
}

/// Faults that no other test has.
fn others() {
    let refused = |text: &str| assert!(Config::parse(text, "f.toml").is_err(), "{text}");
    let instead = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "{from}");
        refused(&GOOD.replacen(from, to, 1));
    };
    let uplink = |more: &str| {
        instead("addresses = [\"172.16.0.1/24\"]\n", &format!("addresses = [\"172.16.0.1/24\"]\n{more}\n"))
    };
    let vnic = |more: &str| instead("vlan = 1\n", &format!("vlan = 1\n{more}\n"));
    let subnet =
        |more: &str| instead("gateway = \"10.0.0.254\"\n", &format!("gateway = \"10.0.0.254\"\n{more}\n"));
    let added = |more: &str| refused(&format!("{GOOD}{more}"));
    let v6 = |more: &str| added(&format!("[[subnet]]\nvpc = \"blue\"\nprefix = \"fd00::/64\"\n{more}\n"));
    // The process.
    for more in [
        "[api]\ntcp = { listen = \"127.0.0.1:1\", certificate = \"/c\", key = \"/k\", client-ca = \"/a\" }\n",
        "[api]\ntcp = { listen = \"127.0.0.1:1\", certificate = \"/c\", key = \"/k\", client-ca = \"/a\", admins = [\"\"] }\n",
        "[api]\ntcp = { listen = \"127.0.0.1:1\", certificate = \"/c\", key = \"/k\", client-ca = \"/a\", admins = [\"x\"], readers = [\"x\"] }\n",
        "[control]\nstate = \"\"\n",
        "[workers]\nburst = 1\n",
        "[eal]\nmemory = \"1MiB\"\n",
        "[eal]\nmemory = \"33000KiB\"\n",
        "[eal]\nmbufs = 0\n",
        "[eal]\nmbufs = 4000000000\n",
        "[eal]\nplugins = [\"\"]\n",
        "[eal]\npci = [\"0000:01:00.0,a b\"]\n",
        "[nft]\nidle-timeout = \"0s\"\n",
        "[nft]\nmiss-budget = 0\n",
        "[nft]\nflood-budget = 0\n",
        "[vxlan]\nudp-port = 0\n",
        "[security]\nconnections = 1\nconnections-per-vnic = 1\n",
        "[security]\nconnections = 2048\nconnections-per-vnic = 4096\n",
        "[qos]\nlink = \"0bit\"\n",
        "[offload]\ncool-after = \"1ns\"\n",
        "[offload]\nhot-packets = 0\n",
        "[offload]\nrules-per-second = 0\n",
        "[offload]\nhot-packets = 4000000000\n",
        "[offload]\nrules = 4000000000\n",
        "[offload]\nsimulated = { ring = 1 }\n",
    ] {
        refused(more);
    }
    // The underlay.
    uplink("gateway = [\"224.0.0.1\"]");
    uplink("routes = [{ to = \"fd00::/64\", via = \"172.16.0.9\" }]");
    uplink(&format!("routes = [{0}, {0}]", "{ to = \"10.0.0.0/8\", via = \"172.16.0.9\" }"));
    uplink("neighbours = [{ ip = \"172.16.0.9\", mac = \"01:00:00:00:00:01\" }]");
    uplink(&format!("neighbours = [{0}, {0}]", "{ ip = \"172.16.0.9\", mac = \"02:00:00:00:00:01\" }"));
    uplink("mac = \"01:00:00:00:00:01\"");
    uplink("host = \"punt\"\nhost-tap = \"a/b\"");
    uplink("tx-queues = 0");
    uplink("bfd = { peers = [\"172.16.0.9\", \"172.16.0.9\"] }");
    instead("addresses = [\"172.16.0.1/24\"]\n", "addresses = []\n");
    let uplinks = |count: usize| {
        let peers =
            (1..=count).map(|n| format!("\"172.16.{}.{}\"", n / 250, n % 250 + 1)).collect::<Vec<_>>();
        format!("addresses = [\"172.16.255.1/16\"]\nbfd = {{ peers = [{}] }}\n", peers.join(", "))
    };
    instead("addresses = [\"172.16.0.1/24\"]\n", &uplinks(200));
    // Tenants' networks.
    instead("vni = 100", "vni = 100\nrouter-mac = \"01:00:00:00:00:01\"");
    instead("mac = \"52:54:00:00:00:01\"", "mac = \"02:00:5e:00:00:64\"");
    instead("mac = \"52:54:00:00:00:01\"", "mac = \"0a:5e:ac:10:00:01\"");
    instead("vpc = \"blue\"\nprefix", "vpc = \"red\"\nprefix");
    instead("prefix = \"10.0.0.0/24\"\ngateway = \"10.0.0.254\"", "prefix = \"224.0.0.0/24\"");
    vnic("mtu = 60");
    vnic("queues = 0");
    vnic("queues = 2");
    vnic("security-groups = [\"web\"]");
    let group = |more: &str| {
        format!(
            "security-groups = [\"web\", \"web\"]\n[[security-group]]\nname = \"web\"\nvpc = \"blue\"\n{more}"
        )
    };
    vnic(&group(""));
    vnic(&group("[[security-group]]\nname = \"web\"\nvpc = \"blue\"\n"));
    vnic(
        "security-groups = [\"web\"]\n[[security-group]]\nname = \"web\"\nvpc = \"red\"\n[[vpc]]\nname = \"red\"\nvni = 7\n",
    );
    let rule = |peer: &str| {
        format!(
            "[[security-group]]\nname = \"web\"\nvpc = \"blue\"\nrules = [{{ direction = \"in\", {peer} }}]\n"
        )
    };
    added(&rule("prefix = \"10.0.0.1/8\""));
    added(&rule("group = \"none\""));
    added(&rule("prefix = \"10.0.0.0/8\"").replace("blue", "red"));
    let location = |more: &str, mac: &str, vip: &str| {
        format!("[[location]]\nvni = 100\nvip = \"{vip}\"\nmac = \"{mac}\"\nvtep = \"172.16.0.2\"\n{more}\n")
    };
    added(&location("", "02:00:00:00:00:09", "224.0.0.1"));
    added(&location("", "01:00:00:00:00:09", "10.0.0.9"));
    added(&location("groups = [\"none\"]", "02:00:00:00:00:09", "10.0.0.9"));
    let other = "[[security-group]]\nname = \"web\"\nvpc = \"red\"\n[[vpc]]\nname = \"red\"\nvni = 7\n";
    added(&format!("{}{other}", location("groups = [\"web\"]", "02:00:00:00:00:09", "10.0.0.9")));
    let pairs = (0..65).map(|n| format!("{{ ip = \"10.9.{n}.0/24\" }}")).collect::<Vec<_>>();
    vnic(&format!("allowed = [{}]", pairs.join(", ")));
    vnic("allowed = [{ ip = \"10.0.0.254\" }]");
    vnic(
        "allowed = [{ ip = \"10.0.0.9\", mac = \"52:54:00:00:00:02\" }]\n[[vnic]]\nname = \"vm2\"\nvpc = \"blue\"\n\
         mac = \"52:54:00:00:00:02\"\nvips = []\nport = \"lab\"\nvlan = 2\n",
    );
    // Services.
    instead("gateway = \"10.0.0.254\"\n", "dhcp = { lease = \"1h\" }\n");
    subnet("dhcp = { lease = \"1ms\" }");
    subnet("dhcp = { lease = \"1h\", dns = [\"fd00::1\"] }");
    subnet(&format!("dhcp = {{ lease = \"1h\", dns = [{}] }}", vec!["\"10.0.0.1\""; 200].join(", ")));
    subnet("dhcp = { lease = \"1h\", mtu = 60 }");
    subnet("dhcp = { lease = \"1h\", routes = [{ to = \"10.0.0.1/8\" }] }");
    subnet("dhcp = { lease = \"1h\", routes = [{ to = \"10.0.0.0/8\", via = \"10.1.0.1\" }] }");
    subnet(&format!(
        "dhcp = {{ lease = \"1h\", routes = [{}] }}",
        vec!["{ to = \"10.0.0.0/8\" }"; 200].join(", ")
    ));
    subnet("ra = { lifetime = \"30min\" }");
    v6("dhcp = { lease = \"1h\", mtu = 1400 }");
    v6("dhcp = { lease = \"1h\", routes = [{ to = \"10.0.0.0/8\" }] }");
    v6("ra = { lifetime = \"1s\" }");
    // Ports.
    let port = |port: &str| added(&format!("[[port]]\nname = \"p\"\nport = {{ {port} }}\n"));
    for bad in [
        "kind = \"pci\", address = \"0000:01:00.0\", devargs = \"a b\"",
        "kind = \"representor\", pf = \"x\", vf = 1",
        "kind = \"virtio-user\", path = \"\"",
        "kind = \"virtio-user\", path = \"/v\", queues = 0",
        "kind = \"tap\", iface = \"a b\"",
        "kind = \"tap\", iface = \"a\", netns = \"a/b\"",
        "kind = \"tap\", iface = \"a\", mac = \"01:00:00:00:00:01\"",
        "kind = \"af-packet\", iface = \"..\"",
        "kind = \"veth\", iface = \"a\", queues = 0",
        "kind = \"af-xdp\", iface = \"\"",
        "kind = \"memif\", socket = \"/m\", secret = \"abcdefghijklmnopqrstuvwxyz\"",
        "kind = \"pcap\", rx-pcap = \"a\", rx-iface = \"b\"",
        "kind = \"pcap\", tx-pcap = \"a\", tx-iface = \"b\"",
        "kind = \"pcap\", rx-pcap = \"a\", iface = \"b\"",
        "kind = \"ring\", peer = \"a\"",
        "kind = \"ring\", name = \"a\", peer = \"a\"",
        "kind = \"null\", size = 1",
        "kind = \"raw\", vdev = \"net_x0,a b\"",
        "kind = \"vhost-user\", path = \"/a\\nb\"",
    ] {
        port(bad);
    }
    let ports = |kind: &str, count: usize| {
        let port = |n: usize| {
            format!("[[port]]\nname = \"p{n}\"\nport = {{ kind = \"{kind}\", iface = \"e{n}\" }}\n")
        };
        refused(&(0..count).map(port).collect::<String>());
    };
    ports("veth", MAX_PORTS + 1);
    ports("af-packet", 4000);
    // Routes, one of each.
    let route = |route: &str| instead("vni = 100", &format!("vni = 100\nroutes = [{route}]"));
    let to = "to = \"10.9.0.0/16\", vtep = \"172.16.0.2\", mac";
    route(&format!("{{ {to} = \"01:00:00:00:00:01\" }}"));
    route(&["{ to = \"10.9.0.0/16\", blackhole = true }"; 2].join(", "));
    let hop = "{ vtep = \"172.16.0.2\", mac = \"02:00:00:00:00:01\" }";
    route(&format!("{{ to = \"10.9.0.0/16\", next-hops = [{}] }}", [hop; 2].join(", ")));
    route(&format!("{{ to = \"10.9.0.0/16\", next-hops = [{}] }}", vec![hop; 100].join(", ")));
    route("{ to = \"10.9.0.1/16\", blackhole = true }");
    route("{ to = \"10.9.0.9/32\", mac = \"01:00:00:00:00:01\" }");
    route("{ to = \"10.9.0.9/32\", mac = \"02:00:5e:00:00:64\" }");
}

/// Where checks tell of faults, as the text of this program has it: file and line.
fn places() -> BTreeSet<(String, u32)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config/validate");
    let mut places = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let tells = |line: &&str| line.contains(".fail(") && !line.trim_start().starts_with("//");
        let lines = text.lines().enumerate().filter(|(_, line)| tells(line));
        places.extend(lines.map(|(at, _)| (name.clone(), at as u32 + 1)));
    }
    places
}

#[test]
fn every_fault_is_told_with_its_path_and_what_to_do() {
    bad::all_errors_are_shown_in_order();
    bad::names();
    bad::duplicates();
    bad::devices_used_twice();
    bad::networks();
    bad::locations();
    bad::underlay();
    bad::failover_uplinks_of_one_address_are_alike();
    bad::mtu_says_the_numbers();
    bad::ports();
    bad::repair_mtu_super_frames_are_let_in_by_no_port();
    bad::process();
    bad::quotas();
    bad::cores_of_this_machine();
    bad::a_config_without_text_is_checked_too();
    bad::a_switch_has_one_device_for_rules();
    bad::ports_vhost_sockets_are_as_many_as_the_library_takes();
    bad::ports_vhost_queues_are_as_many_as_the_library_knows();
    bad::a_vhost_socket_is_given_away_by_the_end_that_makes_it();
    bad::repair_tenants_share_no_memory_unless_trusted();
    bad::repair_link_local_vips_are_of_nobodys_mac_but_ones_own();
    bad::bonds::bonds_are_made_of_nics_of_one_kind();
    bad::punt::a_punt_tap_has_a_name_that_interfaces_can_have();
    bad::punt::a_punt_tap_is_nobody_elses_interface();
    bad::punt::a_punt_tap_counts_as_a_port();
    bad::room::vpcs_are_as_many_as_there_are_nodes_for();
    bad::room::vnics_are_as_many_as_the_switch_takes();
    bad::room::vnics_and_locations_are_as_many_as_the_vlt_has_entries();
    bad::routing::routing_targets_and_prefixes();
    bad::routing::routing_to_a_vnic_of_another_vpc();
    bad_networks::guard_pairs_are_of_stations_and_of_nobody_else();
    bad_networks::bum_vteps_of_a_vpc_are_other_hosts();
    bad_networks::evpn_names_an_end_point_of_this_host();
    bad_networks::etcd_is_somewhere_and_is_not_asked_in_the_open();
    bfd::bfd_speaks_from_an_address_that_no_other_uplink_has();
    bfd::bfd_that_cannot_work_is_refused();
    qos::dhtb_single_values_that_are_wrong();
    qos::dhtb_promises_that_cannot_be_kept();
    qos::dhtb_laws_that_make_no_sense();
    offload::veth_ports_are_refused_behind_a_simulated_device();
    offload::what_cannot_be_is_refused_at_its_place();
    offload::a_vnic_on_a_trunk_has_no_rules_of_its_own();
    others();
    let faults = told::take();
    assert!(faults.len() > 300, "{}", faults.len());
    let mut missed = places();
    let mut bad = BTreeSet::new();
    for (from, error) in &faults {
        missed.remove(&(from.file().rsplit('/').next().unwrap().to_owned(), from.line()));
        let ConfigError { path, message, .. } = error;
        // What a list says is told by name, and no bracket is left open.
        let list = path.split('[').next().unwrap();
        let is_told = !path.is_empty()
            && (!merge::LISTS.iter().any(|(known, _)| *known == list) || path.contains('='))
            && path.matches('[').count() == path.matches(']').count();
        if !is_told || !has_remedy(message) {
            bad.insert(format!("{from}: {path}: {message}"));
        }
    }
    assert!(bad.is_empty(), "{} without a path or a remedy:\n{}", bad.len(), Vec::from_iter(bad).join("\n"));
    assert!(missed.is_empty(), "no test has the faults that are told here: {missed:?}");
}
