//! Routes of VPCs that cannot be.

use super::{added, refused};

#[test]
pub(in crate::config::tests) fn routing_targets_and_prefixes() {
    let routes = |to: &str, target: &str| format!("vni = 100\nroutes = [{{ to = \"{to}\", {target} }}]");
    let refused = |to: &str, target: &str, column, words: &[&str]| {
        refused("vni = 100", &routes(to, target), (9, column), words);
    };
    let hop = |last: u8| format!("{{ vtep = \"172.16.0.{last}\", mac = \"52:54:00:00:00:fe\" }}");
    let hops = |list: &[String]| format!("next-hops = [{}]", list.join(", "));
    refused("10.9.0.0/16", "blackhole = false", 10, &["10.9.0.0/16 needs one target"]);
    refused("10.9.0.0/16", "blackhole = true, vpc = \"blue\"", 10, &["needs one target"]);
    refused("10.9.0.0/16", "next-hops = []", 10, &["needs one target"]);
    refused("10.9.0.0/16", "vtep = \"172.16.0.3\"", 10, &["needs one target"]);
    refused("10.9.0.0/16", "vtep = \"172.16.0.3\", vnic = \"vm1\"", 10, &["needs one target"]);
    refused("10.9.0.0/16", "mac = \"52:54:00:00:00:01\", vnic = \"vm1\"", 10, &["needs one target"]);
    refused("10.9.0.0/16", "vnic = \"vm2\"", 40, &["vNIC \"vm2\"", "does not have", "add a [[vnic]]"]);
    refused("10.9.0.0/16", "mac = \"33:33:00:00:00:01\"", 39, &["not the address of one station"]);
    refused("169.254.0.0/16", "vnic = \"vm1\"", 18, &["write for example 169.254.0.0/32"]);
    refused("224.0.0.0/4", "vnic = \"vm1\"", 18, &["no router forwards"]);
    refused("10.9.0.0/16", &hops(&[hop(3), hop(1)]), 107, &["172.16.0.1 is our own"]);
    refused("10.9.0.0/16", &hops(&[hop(3), hop(3)]), 107, &["given twice as a next hop"]);
    let many: Vec<String> = (2..19).map(hop).collect();
    refused("10.9.0.0/16", &hops(&many), 45, &["17 next hops", "16 at most"]);
    for never in ["127.0.0.0/8", "224.0.0.0/4", "239.1.1.1/32", "::1/128", "ff00::/8"] {
        refused(never, "blackhole = true", 18, &["no router forwards"]);
    }
    refused("169.254.0.0/16", "blackhole = true", 18, &["write for example 169.254.0.0/32"]);
    refused("fe80::/10", "blackhole = true", 18, &["write for example fe80::/128"]);
}

#[test]
pub(in crate::config::tests) fn routing_to_a_vnic_of_another_vpc() {
    let green = "[[vpc]]\nname = \"green\"\nvni = 200\nroutes = [{ to = \"10.9.0.0/16\", vnic = \"vm1\" }]\n";
    added(green, (26, 40), &["vNIC vm1", "in VPC blue", "vpc = \"blue\""]);
    let router = "[[vpc]]\nname = \"green\"\nvni = 200\nrouter-mac = \"02:00:00:00:09:09\"\n\
                  routes = [{ to = \"10.9.0.0/16\", mac = \"02:00:00:00:09:09\" }]\n";
    added(router, (27, 39), &["the virtual router itself"]);
}
