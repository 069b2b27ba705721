//! `[offload]`: what cannot be is refused at its place, and anything valid reads back to the same.

use proptest::prelude::*;
use std::time::Duration;

use crate::config::*;

#[test]
pub(super) fn it_reads_with_defaults_and_in_full() {
    assert_eq!(Config::parse("[offload]\n", "f").unwrap().offload, OffloadConfig::default());
    let text = "[offload]\nengine = \"async\"\nhot-packets = 500\nhot-rate = \"1Mbit\"\nbarrier = \"all\"\nentropy = \"hardware\"\n\
                sync-every = \"50ms\"\n[offload.simulated]\nring = 256\ndelay = \"20us\"\ncapacity = 0\nsteering = \"software\"\n";
    let offload = Config::parse(text, "f").unwrap().offload;
    assert_eq!((offload.hot_packets, offload.hot_rate), (500, BitRate(1_000_000)));
    assert_eq!(
        (offload.barrier, offload.entropy, offload.engine),
        (Barrier::All, Entropy::Hardware, Engine::Async)
    );
    assert_eq!(offload.sync_every, Duration::from_millis(50));
    let simulated = offload.simulated;
    assert_eq!((simulated.ring, simulated.delay, simulated.capacity), (256, Duration::from_micros(20), 0));
    assert_eq!((simulated.nic, simulated.steering), (SimulatedNic::ConnectX7, Steering::Software));
}

#[test]
pub(super) fn veth_ports_are_refused_behind_a_simulated_device() {
    let with = |kind: &str| {
        let port =
            format!("port = {{ kind = \"{kind}\", iface = \"e0\" }}\naddresses = [\"172.16.0.1/24\"]\n");
        Config::parse(&format!("[[uplink]]\nname = \"up\"\n{port}offload = \"simulated\"\n"), "f")
    };
    with("tap").unwrap();
    let errors = with("veth").unwrap_err().to_string();
    assert!(
        errors.contains("f:5:11") && errors.contains("super-frames") && errors.contains("kind tap"),
        "{errors}"
    );
}

#[test]
pub(super) fn what_cannot_be_is_refused_at_its_place() {
    for (line, words) in [
        ("hot-packets = 0", "above 0"),
        ("hot-rate = \"0bit\"", "above 0"),
        ("rules-per-second = 0", "enabled = false"),
        ("rules = 99999999", "at most 16777216"),
        ("sync-every = \"1ms\"", "20ms to 10s"),
        ("idle-timeout = \"10ms\"", "1s to"),
        ("cool-after = \"0s\"", "10ms to"),
        ("dscps = [0, 64]", "64 is no code point"),
        ("simulated = { ring = 1 }", "64 to 65536"),
        ("simulated = { delay = \"1h\" }", "0ns to 10s"),
        ("simulated = { steering = \"firmware\" }", "expected `software` or `hardware`"),
        ("simulated = { nic = \"none\", steering = \"software\" }", "leave steering out"),
        ("barrier = \"tcp\"", "expected one of `rdma`, `all`, `none`"),
        ("engine = \"queue\"", "expected one of `auto`, `sync`, `async`"),
        ("hot = 1", "unknown field `hot`"),
    ] {
        let errors = Config::parse(&format!("[offload]\n{line}\n"), "f").unwrap_err();
        let [error] = &errors.0[..] else { panic!("{line}: {errors}") };
        assert!(error.message.contains(words), "{line}: {error}");
        assert_eq!(error.place.map(|(line, _)| line), Some(2), "{line}: {error}");
    }
}

#[test]
pub(super) fn a_vnic_on_a_trunk_has_no_rules_of_its_own() {
    let text = "[[vpc]]\nname = \"red\"\nvni = 1\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n\
                [[trunk]]\nname = \"lab\"\nport = { kind = \"tap\", iface = \"t\" }\n\
                [[vnic]]\nname = \"a\"\nvpc = \"red\"\nmac = \"52:54:00:00:00:01\"\nvips = [\"10.0.0.1\"]\n\
                port = \"lab\"\nvlan = 1\noffload = \"simulated\"\n";
    let error = Config::parse(text, "f").unwrap_err().to_string();
    assert!(error.contains("offload") && error.contains("trunk"), "{error}");
}

proptest! {
    #[test]
    fn any_valid_section_round_trips(
        hot in (1..=OffloadConfig::MAX_RATE, 1u64..1 << 40, 1..=OffloadConfig::MAX_RATE, 0..=OffloadConfig::MAX_RULES),
        times in (20u64..10_000, 10u64..1_000_000, 1u64..86_400),
        picks in (0..2usize, 0..3usize, any::<bool>(), proptest::collection::vec(0u8..64, 0..4)),
        simulated in (any::<u32>(), any::<u32>(), 64u32..65_536, any::<u32>(), 0u64..10_000_000_000),
    ) {
        let offload = OffloadConfig {
            enabled: picks.2,
            hot_packets: hot.0,
            hot_rate: BitRate(hot.1),
            rules_per_second: hot.2,
            rules: hot.3,
            sync_every: Duration::from_millis(times.0),
            cool_after: Duration::from_millis(times.1),
            idle_timeout: Duration::from_secs(times.2),
            entropy: [Entropy::Exact, Entropy::Hardware][picks.0],
            barrier: [Barrier::Rdma, Barrier::All, Barrier::None][picks.1],
            engine: [Engine::Auto, Engine::Sync, Engine::Async][picks.1],
            dscps: picks.3,
            simulated: SimulatedConfig {
                steering: [Steering::Software, Steering::Hardware][picks.0],
                capacity: simulated.0,
                insertion_rate: simulated.1,
                ring: simulated.2,
                fail_one_in: simulated.3,
                latency: Duration::from_nanos(simulated.4),
                ib_bth: picks.2,
                encap_hash: [SimulatedHash::None, SimulatedHash::Crc, SimulatedHash::Product][picks.1],
                ..SimulatedConfig::default()
            },
            ..OffloadConfig::default()
        };
        let config = Config { offload, ..Config::default() };
        prop_assert!(config.validate().is_ok(), "{}", config.validate().unwrap_err());
        let text = config.to_toml().unwrap();
        prop_assert_eq!(Config::parse(&text, "f").unwrap(), config);
    }
}
