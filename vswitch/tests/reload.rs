//! Any history of config files, run-time changes and restarts: made-up ones here, and those that the fuzz target `reload`
//! began with or found. The laws are in `reload_support`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod reload_support;

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use reload_support::{Host, Step};

const VTEPS: [&str; 4] = ["172.16.0.2", "172.16.0.3", "172.17.0.2", "fd16::2"];

/// Objects that a file may have, each in some ways of saying it. Not all of them go together.
fn object(which: u8, how: u8) -> String {
    let (bit, more) = (how & 1, how >> 1);
    let host = u32::from(more % 3) + 1;
    match which {
        0 | 1 => {
            let extra = ["", "host = \"punt\"\n", "vlan = 9\n", "peers = [\"172.16.0.77\"]\n"];
            let extra = extra[usize::from(more) % extra.len()];
            format!(
                "[[uplink]]\nname = \"up{which}\"\nport = {{ kind = \"null\" }}\nmtu = {}\naddresses = [\"172.{}.0.1/24\", \
                 \"fd{}::1/64\"]\n{extra}",
                1600 + u32::from(bit),
                16 + which,
                16 + which
            )
        }
        2..=4 => {
            let name = ['a', 'b', 'c'][usize::from(which - 2)];
            let routes = [
                "",
                "flood = true\n",
                "routes = [{ to = \"10.200.0.0/24\", vtep = \"172.16.0.4\", mac = \"02:00:00:00:07:07\" }]\n",
                "routes = [{ to = \"10.98.0.0/24\", vpc = \"b\" }]\n",
                "routes = [{ to = \"10.0.0.0/8\", blackhole = true }]\n",
            ];
            let routes = routes[usize::from(more) % routes.len()];
            format!("[[vpc]]\nname = \"{name}\"\nvni = {}\n{routes}", u32::from(which) + 8 * u32::from(bit))
        }
        5 | 6 => {
            let (name, net) = if which == 5 { ("a", 97) } else { ("b", 98) };
            format!("[[subnet]]\nvpc = \"{name}\"\nprefix = \"10.{net}.0.0/{}\"\n", 24 - bit)
        }
        7 => {
            format!("[[trunk]]\nname = \"t\"\nport = {{ kind = \"null\", size = {} }}\n", 64 + u32::from(bit))
        }
        8..=11 => {
            let vpc = if bit == 0 { "a" } else { "b" };
            let net = if bit == 0 { 97 } else { 98 };
            let port = match which {
                10 => "port = \"t\"\nvlan = 5\n",
                _ => "port = { kind = \"null\" }\n",
            };
            format!(
                "[[vnic]]\nname = \"v{which}\"\nvpc = \"{vpc}\"\nmac = \"02:00:00:00:00:{which:02x}\"\n\
                 vips = [\"10.{net}.0.{}\"]\n{port}",
                u32::from(which) * 4 + host
            )
        }
        12..=14 => {
            let (vni, net) = if bit == 0 { (2, 97) } else { (3, 98) };
            let vtep = VTEPS[usize::from(more / 3) % VTEPS.len()];
            format!(
                "[[location]]\nvni = {vni}\nvip = \"10.{net}.0.{}\"\nmac = \"02:00:00:00:01:{:02x}\"\nvtep = \"{vtep}\"\n",
                u32::from(which) * 4 + host,
                more % 2
            )
        }
        15 => {
            format!("[[port]]\nname = \"p\"\nport = {{ kind = \"null\", size = {} }}\n", 64 + u32::from(bit))
        }
        16 => format!("[vxlan]\nttl = {}\n", 60 + u32::from(more)),
        17 => format!("[offload]\nhot-packets = {}\n", 1000 + u32::from(more)),
        _ => format!("[forward]\nmode = \"{}\"\n", if bit == 0 { "overlay" } else { "io" }),
    }
}

/// The config file with these objects.
fn file(has: u32, hows: &[u8]) -> String {
    let all = (0..19u8).filter(|which| has & 1 << which != 0);
    all.map(|which| object(which, hows[usize::from(which) % hows.len()])).collect()
}

/// One step, as text with the character that `Step` reads it by.
fn step() -> impl Strategy<Value = String> {
    // Files mostly have what the others need.
    let file = || {
        (any::<u32>(), prop::collection::vec(any::<u8>(), 19), any::<u8>()).prop_map(|(has, hows, sure)| {
            let sure = if sure < 200 { 0b0_0110_1111 } else { 0 };
            let hows: Vec<u8> =
                hows.iter().enumerate().map(|(at, how)| if at < 7 { how & 0b110 } else { *how }).collect();
            file(has | sure, &hows)
        })
    };
    let name = || prop::sample::select(vec!["up1", "a", "c", "a 10.97.0.0/24", "t", "v8", "v9", "v10", "p"]);
    prop_oneof![
        3 => file(),
        1 => file().prop_map(|text| format!("={text}")),
        3 => (2u8..16, any::<u8>()).prop_map(|(which, how)| format!("+{}", object(which, how))),
        2 => name().prop_map(|name| format!("-{name}")),
        3 => (12u8..15, any::<u8>()).prop_map(|(which, how)| format!("@{}", object(which, how))),
        1 => (any::<bool>(), 49u8..60).prop_map(|(b, host)| format!("!{} 10.{}.0.{host}", 2 + u8::from(b), 97 + u8::from(b))),
        1 => Just("^".to_owned()),
        1 => file().prop_map(|text| format!("^{text}")),
    ]
}

/// What fuzzing begins with, and what it found, goes through on every run.
#[test]
fn repair_reload_seeds_of_the_fuzz_target_hold() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/reload");
    let mut runs = 0;
    for seed in fs::read_dir(&seeds).unwrap() {
        reload_support::run(&fs::read(seed.unwrap().path()).unwrap());
        runs += 1;
    }
    assert!(runs > 2, "{} has {runs} seeds", seeds.display());
}

/// The made-up histories are no string of refusals.
#[test]
fn repair_reload_histories_are_mostly_accepted() {
    let mut host = Host::new();
    let hows = [0; 19];
    let steps = [
        file(0b0_0110_1111, &hows),
        format!("+{}", object(8, 0)),
        format!("@{}", object(12, 0)),
        file(0b1_0000_0110_1111, &hows),
        "^".to_owned(),
        "-v8".to_owned(),
        "!2 10.97.0.49".to_owned(),
        file(0b111_1111_1110_1111, &hows),
        format!("={}", file(0b1_0110_1111, &hows)),
    ];
    for step in steps {
        assert!(host.go(&Step::read(&step)), "refused: {step}");
    }
    host.end();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn repair_reload_any_history_keeps_what_was_acknowledged(steps in prop::collection::vec(step(), 1..12)) {
        reload_support::run(steps.join("\0").as_bytes());
    }
}
