//! Routes of VPCs that cannot be.

use super::refused;

#[test]
fn routing_targets_and_prefixes() {
    let routes = |to: &str, target: &str| format!("vni = 100\nroutes = [{{ to = \"{to}\", {target} }}]");
    let refused = |to: &str, target: &str, column, words: &[&str]| {
        refused("vni = 100", &routes(to, target), (9, column), words);
    };
    let hop = |last: u8| format!("{{ vtep = \"172.16.0.{last}\", mac = \"52:54:00:00:00:fe\" }}");
    let hops = |list: &[String]| format!("next-hops = [{}]", list.join(", "));
    refused("10.9.0.0/16", "blackhole = false", 10, &["10.9.0.0/16 needs one target"]);
    refused("10.9.0.0/16", "blackhole = true, vpc = \"blue\"", 10, &["needs one target"]);
    refused("10.9.0.0/16", "next-hops = []", 10, &["needs one target"]);
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
