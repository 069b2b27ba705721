//! What one change of a large configuration takes, from the text of a console command to its answer: parsed, sent through the API's
//! socket, checked, published to a worker that runs, and saved.
//!
//! `cargo bench -p vswitch --bench config_changes`. It needs a core for the worker, and no network: the trunks' ports are
//! DPDK's null device and are not polled. The state file is in `$TMPDIR` (else /tmp), on whatever disk that is: the answer
//! to a change waits until it is there, and a line says how long a bare append takes to be there.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench ends at the first surprise"
)]

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use vswitch::config::{Config, Source};
use vswitch::control::in_process::InProcess;
use vswitch::controller::Controller;
use vswitch::switch::Switch;

/// Locations of machines on other hosts.
const LOCATIONS: u32 = 100_000;
/// vNICs of this host: what three trunks and a part of a fourth carry.
const VNICS: u32 = 10_000;
/// Tenant networks, among which both are divided.
const VPCS: u32 = 16;
/// Hosts behind the uplink.
const VTEPS: u32 = 1000;
/// VLANs of a trunk.
const VLANS: u32 = 4000;
/// Changes of each kind.
const ROUNDS: usize = 200;

fn main() {
    // `cargo test --benches` only wants to know that it runs.
    let quick = std::env::args().any(|argument| argument == "--test");
    let (locations, vnics, rounds) = if quick { (500, 100, 3) } else { (LOCATIONS, VNICS, ROUNDS) };
    let text = config(locations, vnics);
    let began = Instant::now();
    let file = Source::parse(&text, "bench.toml").unwrap_or_else(|errors| panic!("{errors}"));
    println!("{locations} locations and {vnics} vNICs, {VPCS} VPCs, {VTEPS} VTEPs");
    say("read and check the file", began.elapsed());
    let mut switch =
        Switch::start(Config { vnics: Default::default(), locations: Vec::new(), ..file.config.clone() })
            .unwrap_or_else(|error| panic!("{error}"));
    let state = State::new();
    switch.set_state_file(Some(&state.path()), None);
    say("a bare append, synced", median(&state.appends(rounds)));
    let began = Instant::now();
    switch.load_file(file).unwrap_or_else(|error| panic!("{error}"));
    say("apply and save it", began.elapsed());
    let inside = InProcess::start(Controller::new(switch, None), &state.socket());
    let mut bench = Bench { inside: inside.unwrap_or_else(|error| panic!("{error:#}")), rounds };

    let vni = |n: usize| 100 + n as u32 % VPCS;
    bench.each("vlt set, a new location", |n| {
        format!(
            "vlt set {} 10.9.{}.{} mac 02:00:09:00:{:02x}:{:02x} vtep 172.16.0.9",
            vni(n),
            n / 250,
            n % 250 + 1,
            n / 250,
            n % 250
        )
    });
    bench.each("vlt set, one that moves", |n| {
        format!("vlt set {} 10.9.{}.{} vtep 172.16.1.{}", vni(n), n / 250, n % 250 + 1, n % 250 + 1)
    });
    bench.each("vlt del", |n| format!("vlt del {} 10.9.{}.{}", vni(n), n / 250, n % 250 + 1));
    bench.each("vnic add", |n| {
        format!(
            "vnic add new{n} vpc vpc{} mac 02:00:08:00:{:02x}:{:02x} vips 10.8.{}.{} vlan {} port trunk{}",
            n as u32 % VPCS,
            n / 250,
            n % 250,
            n / 250,
            n % 250 + 1,
            VLANS + 1 + n as u32 % 90,
            n / 90
        )
    });
    bench.each("vnic del", |n| format!("vnic del new{n}"));
    bench.each("vpc add", |n| format!("vpc add more{n} vni {}", 5000 + n));
    bench.each("subnet add", |n| format!("subnet add more{n} 10.1.0.0/16"));
    bench.each("vpc del", |n| format!("vpc del more{n}"));
    bench.each("qos set vnic", |n| {
        format!("qos set vnic vnic{} out ceil {}Mbit", n * 7 % vnics as usize, n + 1)
    });
    bench.each("qos set vpc", |n| format!("qos set vpc vpc{} in ceil {}Mbit", n as u32 % VPCS, n + 1));
    bench.each("rcft set quota", |n| format!("rcft set vnic{} quota {}", n * 7 % vnics as usize, n + 1));
    // DPDK has room for few.
    bench.rounds = rounds.div_ceil(10);
    bench.each("port attach", |n| format!("port attach plain{n} null"));
    bench.each("port detach", |n| format!("port detach plain{n}"));
    // Every vNIC's part of the link changes with it.
    bench.each("qos set link", |n| format!("qos set link out ceil {}Mbit", n + 1000));
    bench.inside.controller.switch.stop();
}

struct Bench {
    inside: InProcess,
    rounds: usize,
}

impl Bench {
    fn each(&mut self, what: &str, command: impl Fn(usize) -> String) {
        let times: Vec<Duration> = (0..self.rounds)
            .map(|n| {
                let line = command(n);
                let began = Instant::now();
                if let Err(error) = self.inside.execute(&line) {
                    panic!("{line}: {}", error.message);
                }
                began.elapsed()
            })
            .collect();
        let longest = times.iter().max().copied().unwrap_or_default();
        println!("{what:<28} median {:>9.3} ms   longest {:>9.3} ms", ms(median(&times)), ms(longest));
    }
}

fn say(what: &str, time: Duration) {
    println!("{what:<28} {:>16.3} ms", ms(time));
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// The folder of the state file; it goes with this.
struct State(PathBuf);

impl State {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("vswitch-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.join("state")
    }

    fn socket(&self) -> PathBuf {
        self.0.join("s.sock")
    }

    /// How long the disk takes for a line.
    fn appends(&self, rounds: usize) -> Vec<Duration> {
        let mut file: File = OpenOptions::new().create(true).append(true).open(self.0.join("bare")).unwrap();
        (0..rounds)
            .map(|_| {
                let began = Instant::now();
                file.write_all(&[b'x'; 200]).unwrap();
                file.sync_data().unwrap();
                began.elapsed()
            })
            .collect()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn config(locations: u32, vnics: u32) -> String {
    let core = pmd::lcore::available().into_iter().last().unwrap_or(0);
    let mut text = format!(
        "[eal]\nhuge-pages = \"never\"\nmemory = \"256MiB\"\nfile-prefix = \"bench-{}\"\nmbufs = 8191\n\
         [workers]\ncores = [{core}]\nidle = \"sleep\"\n[forward]\nauto-start = false\n[vlt]\nentries = 262144\n\
         [[uplink]]\nname = \"up\"\nport = {{ kind = \"null\" }}\naddresses = [\"172.16.255.254/16\"]\nmtu = 1600\n",
        std::process::id()
    );
    for n in 0..VPCS {
        write!(
            text,
            "[[vpc]]\nname = \"vpc{n}\"\nvni = {}\n[[subnet]]\nvpc = \"vpc{n}\"\nprefix = \"10.0.0.0/8\"\n",
            100 + n
        )
        .unwrap();
    }
    for n in 0..4 {
        write!(text, "[[trunk]]\nname = \"trunk{n}\"\nport = {{ kind = \"null\" }}\n").unwrap();
    }
    for n in 0..vnics {
        let [_, a, b, c] = n.to_be_bytes();
        write!(
            text,
            "[[vnic]]\nname = \"vnic{n}\"\nvpc = \"vpc{}\"\nmac = \"02:00:01:{a:02x}:{b:02x}:{c:02x}\"\n\
             vips = [\"10.1.{b}.{c}\"]\nport = \"trunk{}\"\nvlan = {}\n",
            n % VPCS,
            n / VLANS,
            n % VLANS + 1
        )
        .unwrap();
    }
    for n in 0..locations {
        let [_, a, b, c] = n.to_be_bytes();
        let vtep = n % VTEPS + 1;
        write!(
            text,
            "[[location]]\nvni = {}\nvip = \"10.{}.{b}.{c}\"\nmac = \"02:00:02:{a:02x}:{b:02x}:{c:02x}\"\nvtep = \"172.16.{}.{}\"\n",
            100 + n % VPCS,
            2 + a,
            vtep / 250,
            vtep % 250 + 1
        )
        .unwrap();
    }
    text
}
