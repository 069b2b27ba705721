//! Scenarios that are right, and what is said of those that are not.

use super::check::{Content, Plan};
use super::*;

const PORTS: &str = "[[port]]\nname = \"a\"\nkind = \"memif\"\nsocket = \"/run/a.sock\"\nrole = \"client\"\n\
                     [[port]]\nname = \"b\"\nkind = \"loopback\"\n";

fn stream(lines: &str) -> String {
    format!("{PORTS}[[stream]]\nname = \"s\"\nfrom = \"a\"\nto = \"b\"\n{lines}\n")
}

fn check(text: &str) -> Result<Plan, String> {
    let (scenario, source) =
        Scenario::parse("x.toml".into(), text.into()).map_err(|error| error.to_string())?;
    scenario.check(&source).map_err(|error| error.to_string())
}

/// The text is wrong in the line that holds `place`, and the error says all of `words`.
fn refused(text: &str, place: &str, words: &[&str]) {
    let error = check(text).expect_err(text);
    let line = text.lines().position(|line| line.contains(place)).unwrap() + 1;
    assert!(error.starts_with(&format!("x.toml:{line}: ")), "line {line}: {error}");
    for word in words.iter().chain([&place]) {
        assert!(error.contains(word), "no `{word}` in: {error}");
    }
}

#[test]
fn defaults_make_a_stream_of_the_shortest_frames() {
    let plan = check(&stream("protocol = \"udp\"")).unwrap();
    let stream = &plan.streams[0];
    assert_eq!((stream.from, stream.to, stream.flows, stream.rate), (0, 1, 1, Rate::Max));
    assert_eq!(stream.sizes, [(64, 1)]);
    let memif = "role=client,id=0,socket=/run/a.sock,socket-abstract=no,rsize=12";
    let attachment = Attachment::Virtual { name: "net_memif_gen0".into(), args: memif.into() };
    assert_eq!(plan.ports[0].attachment, attachment);
    assert_eq!(plan.ports[1].attachment, Attachment::Loopback);
}

#[test]
fn every_example_makes_sense() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let (scenario, source) = Scenario::load(&path).unwrap();
        scenario.check(&source).unwrap();
        seen += 1;
    }
    assert!(seen >= 2);
}

#[test]
fn sizes_and_opcodes_are_what_is_asked_for() {
    let plan = check(&stream("protocol = \"roce-rc\"\nsize = \"imix\"")).unwrap();
    assert_eq!(plan.streams[0].sizes, [(94, 7), (594, 4), (1518, 1)]);
    let mean = f64::from(94 * 7 + 594 * 4 + 1518) / 12.0;
    assert!((plan.streams[0].mean_bytes() - mean).abs() < 1e-9);
    let text = stream("protocol = \"roce-rc\"\nopcodes = [\"send-first\", \"send-last\"]\nsize = 78");
    let Content::Made { opcodes, .. } = &check(&text).unwrap().streams[0].content else { panic!() };
    assert_eq!(*opcodes, [0, 2]);
    let tunnel = "protocol = \"tcp\"\nsize = [[128, 3], [256, 1]]\n[stream.vxlan]\nvni = \"1..4\"\nsrc-ip = \"1.1.1.1\"\n\
                  dst-ip = \"1.1.1.2\"\nsrc-mac = \"02:00:00:00:00:01\"\ndst-mac = \"02:00:00:00:00:02\"";
    let plan = check(&stream(tunnel)).unwrap();
    assert!((plan.streams[0].mean_bytes() - 210.0).abs() < 1e-9);
    assert_eq!(plan.streams[0].with_size(70).unwrap_err(), 74);
    assert_eq!(plan.streams[0].with_size(256).unwrap().sizes, [(256, 1)]);
}

#[test]
fn what_is_wrong_is_told_with_its_line_and_what_to_do() {
    refused(&stream("protocol = \"icmp\""), "icmp", &["udp", "roce-rc"]);
    refused(&stream("protocol = \"udp\"\nrate = \"fast\""), "rate = \"fast\"", &["1.5Mpps", "10Gbit"]);
    refused(&stream("protocol = \"udp\"\nspeed = 1"), "speed", &["unknown field", "rate"]);
    refused(&stream("protocol = \"udp\"\nsize = 63"), "size = 63", &["64", "9018"]);
    refused(&stream("protocol = \"tcp\"\nsize = 64"), "size = 64", &["74", "signature"]);
    refused(&stream("protocol = \"roce-rc\"\nsize = 97"), "size = 97", &["multiple of 4", "write 94"]);
    refused(&stream("protocol = \"udp\"\nsize = \"mixed\""), "size = \"mixed\"", &["imix"]);
    refused(&stream("protocol = \"udp\"\nflows = 2"), "flows = 2", &["1 to 1;", "src-port"]);
    refused(&stream("protocol = \"udp\"\nchurn = 5"), "churn = 5", &["widen"]);
    let twice = "protocol = \"udp\"\nchurn = 5\ndistribution = \"new\"";
    refused(&stream(twice), "churn = 5", &["new flow already"]);
    refused(&stream("protocol = \"udp\"\nsrc-port = \"1..70000\""), "1..70000", &["65535"]);
    refused(&stream("protocol = \"udp\"\nqp = 5"), "qp = 5", &["roce-rc"]);
    refused(&stream("protocol = \"roce-rc\"\ndst-port = 5"), "dst-port", &["4791"]);
    refused(
        &stream("protocol = \"roce-rc\"\nopcodes = [\"read-request\"]"),
        "opcodes",
        &["payload", "write-only", "send-only"],
    );
    refused(
        &stream("protocol = \"udp\"\nsrc-ip = \"10.0.0.1\"\ndst-ip = \"fd00::1\""),
        "dst-ip",
        &["two IP versions"],
    );
    refused(&stream("protocol = \"udp\"\nsrc-ip = \"10.0.0.9..10.0.0.1\""), "src-ip", &["lower"]);
    refused(&stream("protocol = \"udp\"\nzipf-exponent = 1.0"), "zipf-exponent", &["zipf"]);
    refused(&stream("protocol = \"udp\"\nvlan = 4095"), "vlan", &["4094"]);
    refused(&stream("protocol = \"pcap\""), "protocol", &["file ="]);
    refused(&stream("protocol = \"pcap\"\nfile = \"/nowhere.pcap\""), "file", &["No such file"]);
    refused(&stream("protocol = \"udp\"").replace("to = \"b\"", "to = \"c\""), "to = \"c\"", &["a, b"]);
}

#[test]
fn ports_refuse_what_is_not_theirs() {
    let with = |from: &str, to: &str| stream("protocol = \"udp\"").replace(from, to);
    refused(&with("socket = \"/run/a.sock\"\n", ""), "kind = \"memif\"", &["`socket`", "add"]);
    refused(&with("/run/a.sock", "/run/a,b"), "/run/a,b", &["comma"]);
    refused(&with("kind = \"loopback\"", "kind = \"loopback\"\niface = \"x\""), "iface", &["none", "remove"]);
    refused(&with("kind = \"loopback\"", "kind = \"vdev\"\nvdev = \"memif0\""), "vdev = ", &["net_ring0"]);
    refused(&with("kind = \"loopback\"", "kind = \"loopback\"\nring = 1"), "ring = 1", &["64 to 16384"]);
    refused(
        &with("kind = \"loopback\"", "kind = \"loopback\"\nqueues = 2"),
        "queues = 2",
        &["no key `queues`"],
    );
    refused(&with("kind = \"memif\"", "kind = \"memif\"\nqueues = 0"), "queues = 0", &["1 to 64"]);
    let twice = with("name = \"b\"", "name = \"a\"");
    assert!(check(&twice).unwrap_err().starts_with("x.toml:7: "), "{:?}", check(&twice));
}

#[test]
fn settings_out_of_range_are_refused() {
    let with = |lines: &str| check(&format!("{lines}\n{}", stream("protocol = \"udp\""))).unwrap_err();
    assert!(with("[run]\nseconds = 0.0").contains("seconds"));
    assert!(with("[run]\nloss = 101.0").contains("loss"));
    assert!(with("[run]\ntests = []").contains("tests"));
    assert!(with("[generator]\nbacklog = 0").contains("backlog"));
    assert!(with("[run]\nsizes = [64,\n 63]").starts_with("x.toml:3: "));
    assert!(check("").unwrap_err().contains("port"));
    assert!(check("[[port]").unwrap_err().starts_with("x.toml:1: "));
}
