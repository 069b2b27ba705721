//! Captures of what soft-RoCE itself sends: the packets of each kind, over both families, with and without a VLAN tag.
//!
//! The files of `pipelines/wire/tests/rxe/` were made by this scenario: set RXE_CAPTURES to a folder to have them written.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::path::PathBuf;
use tests::guest::rdma::{self, Path, Tool};
use tests::guest::{self, Site, site, wire};
use tests::lab::{Lab, vpc};
use tests::{Family, Workdir};

/// One file: its name, the tools that make its packets, and how many of each kind it takes.
struct Case {
    name: &'static str,
    tools: Vec<Tool>,
    kinds: Vec<String>,
}

/// A path MTU that keeps packets small: `size` bytes take four packets of it.
const SMALL: &str = "-m 256";
const SIZE: u32 = 900;

fn cases(path: &Path<'_>) -> Vec<Case> {
    let perftest = |program: &str, size| rdma::perftest(path, &format!("{program} {SMALL}"), 18515, size, 5);
    let of = |class: &str, operation: &str, positions: &[&str]| -> Vec<String> {
        positions.iter().map(|position| format!("{class} {operation}{position}=1")).collect()
    };
    let long = ["_FIRST", "_MIDDLE", "_LAST"];
    let one = |kind: &str| vec![format!("{kind}=1")];
    vec![
        Case {
            name: "rc-send",
            tools: vec![perftest("ib_send_bw", SIZE), perftest("ib_send_bw", 61)],
            kinds: [of("RC", "SEND", &long), one("RC SEND_ONLY"), one("RC ACKNOWLEDGE")].concat(),
        },
        Case {
            // ECT(0) with a DSCP: fields that the ICRC leaves out.
            name: "rc-write",
            tools: vec![perftest("ib_write_bw --tclass=106", SIZE), perftest("ib_write_bw --tclass=106", 62)],
            kinds: [of("RC", "WRITE", &long), one("RC WRITE_ONLY")].concat(),
        },
        Case {
            name: "rc-read",
            tools: vec![perftest("ib_read_bw", SIZE), perftest("ib_read_bw", 63)],
            kinds: [one("RC READ_REQUEST"), of("RC", "READ_RESPONSE", &long), one("RC READ_RESPONSE_ONLY")]
                .concat(),
        },
        Case {
            name: "rc-atomic",
            tools: vec![perftest("ib_atomic_lat", 8), perftest("ib_atomic_lat -A CMP_AND_SWAP", 8)],
            kinds: [one("RC FETCH_ADD"), one("RC COMPARE_SWAP"), vec!["RC ATOMIC_ACKNOWLEDGE=2".to_owned()]]
                .concat(),
        },
        Case {
            name: "uc-send",
            tools: vec![perftest("ib_send_bw -c UC", SIZE), perftest("ib_send_bw -c UC", 64)],
            kinds: [of("UC", "SEND", &long), one("UC SEND_ONLY")].concat(),
        },
        Case {
            name: "ud-send",
            tools: vec![perftest("ib_send_bw -c UD", 64)],
            kinds: vec!["UD SEND_ONLY=2".to_owned()],
        },
        Case {
            name: "cm-connect",
            tools: vec![rdma::rping(path, 7174, 2)],
            kinds: ["REQ", "REP", "RTU", "DREQ", "DREP"].map(|message| format!("CM {message}=1")).to_vec(),
        },
        Case {
            name: "cm-resolve",
            tools: vec![rdma::udaddy(path)],
            kinds: ["SIDR_REQ", "SIDR_REP"].map(|message| format!("CM {message}=1")).to_vec(),
        },
    ]
}

#[test]
#[ignore = "takes minutes: scripts/test --only guest, or --full"]
fn guest_captures_of_soft_roce() {
    if !guest::can_run() {
        return;
    }
    let dir = Workdir::new("captures");
    let keep = std::env::var_os("RXE_CAPTURES").map(PathBuf::from);
    let out = keep.clone().unwrap_or_else(|| dir.path().to_path_buf());
    std::fs::create_dir_all(&out).unwrap();
    let [a, b, _, _] = site::two_tenants();
    let a = a.with_vlan(7, &["10.0.7.1/24", "fd00:7::1/64"]);
    let b = b.with_vlan(7, &["10.0.7.2/24", "fd00:7::2/64"]);
    let subnets = ["10.0.0.0/24", "fd00:1::/64", "10.0.7.0/24", "fd00:7::/64"];
    let vpcs = vpc("red", 100, &subnets, "inner-vlan = \"keep\"");
    let site = Site::start(Lab::new(Family::V4), &vpcs, &[a, b], &[]);
    let mut packets = 0;
    for (vlan, v6) in [(false, false), (false, true), (true, false), (true, true)] {
        let path = if vlan { Path::on_vlan(&site, "b", "a", v6) } else { Path::new(&site, "b", "a", v6) };
        let label = format!("{}{}", if vlan { "vlan-" } else { "" }, if v6 { "v6" } else { "v4" });
        let inside = wire::Inside::start(site.guest("b"), "", 5000, 2000);
        let cases = cases(&path);
        for tool in cases.iter().flat_map(|case| &case.tools) {
            rdma::run(&path, tool);
        }
        let all = dir.path().join("all.pcap");
        let seen = inside.stop(&all);
        assert_eq!((seen.kind("").icrc_wrong, seen.kind("").icrc_unseen), (0, 0), "{seen}");
        let tagged = seen.sum(|s| s["vlan"] == 7).packets;
        assert_eq!(tagged, if vlan { seen.kind("").packets } else { 0 }, "{seen}");
        // The first packets of a kind are those of the first tool that sends them.
        for case in &cases {
            wire::pick(&all, &out.join(format!("{label}-{}.pcap", case.name)), &case.kinds);
            packets += case.kinds.len();
        }
    }
    // Nobody listens: the connection manager says so with a REJ.
    let inside = wire::Inside::start(site.guest("b"), "udp port 4791", 100, 2000);
    let refused = site.guest("b").try_run("rping -c -a 10.0.0.1 -p 7999 -C 1", guest::SCRIPT);
    assert!(!refused.ok(), "{}", refused.output);
    let all = dir.path().join("all.pcap");
    inside.stop(&all);
    wire::pick(&all, &out.join("v4-cm-reject.pcap"), &["CM REQ=1".to_owned(), "CM REJ=1".to_owned()]);
    eprintln!("{packets} kinds of packets and a REJ in {}", out.display());
    site.stop();
}
