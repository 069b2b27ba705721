//! vhost-user ports that connect to a socket of their peer's: peers and switches that are killed and come back, in any order, and a
//! peer that answers with anything but the protocol.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use tests::lab::vpc;
use tests::runtime::{port_count, port_row};
use tests::vhost::honest::{Honest, receive_some};
use tests::vhost::{FrontEnd, OFFLOADS, PLAIN, Station, datagram};
use tests::{Daemon, Family, Lab, Process, Workdir, wait_for};

const PATIENCE: Duration = Duration::from_secs(30);
/// Who asks, who answers on a socket of its own, and two others.
const PROBER: Station = Station(1);
const ECHO: Station = Station(2);
const OTHERS: [Station; 2] = [Station(3), Station(4)];

struct Bench {
    daemon: Daemon,
    dir: Workdir,
    lab: Lab,
}

impl Bench {
    fn start() -> Bench {
        let (lab, dir) = (Lab::new(Family::V4), Workdir::new("vhost"));
        let mut config = lab.uplink("") + &vpc("red", 100, &["10.0.0.0/16"], "");
        for station in [PROBER, ECHO].into_iter().chain(OTHERS) {
            config += &station.vnic_by("red", dir.path(), station != ECHO);
        }
        Bench { daemon: Daemon::start(&lab.host, &config), dir, lab }
    }

    /// A peer on a socket that the switch made.
    #[track_caller]
    fn peer(&self, station: Station) -> FrontEnd {
        let path = station.socket(self.dir.path());
        wait_for("the switch's socket", PATIENCE, || FrontEnd::ready(&path, PLAIN).ok())
    }

    /// dpdk-testpmd on a socket of its own: a driver that sends every packet back to where it came from.
    #[track_caller]
    fn echo(&self, features: &str) -> Process {
        let path = ECHO.socket(self.dir.path());
        let _ = std::fs::remove_file(&path);
        let mac = ECHO.mac().map(|byte| format!("{byte:02x}")).join(":");
        let device = format!("net_virtio_user0,path={},server=1,mac={mac}{features}", path.display());
        let prefix = format!("--file-prefix=vsecho{}", std::process::id());
        let program = ["dpdk-testpmd", "--no-huge", "-m", "64", "--no-pci", "--no-telemetry", "-l", "0,1"];
        let rest = [&prefix, "--vdev", &device, "--", "--forward-mode=5tswap", "--total-num-mbufs=4096"];
        let more = ["--auto-start", "--rxd=256", "--txd=256", "--stats-period=1"];
        let line: Vec<&str> = program.into_iter().chain(rest.map(|word| word as &str)).chain(more).collect();
        self.lab.host.spawn("echo", &line, &self.dir)
    }

    #[track_caller]
    fn link(&self, state: &str) {
        let name = ECHO.name();
        wait_for(&format!("the link to be {state}"), PATIENCE, || {
            (port_row(&self.daemon, &name)["link"] == state).then_some(())
        });
    }

    /// Packets that came from the peer, as its vNIC and as its port count them.
    #[track_caller]
    fn received(&self) -> [i64; 2] {
        let vnic = self.daemon.figure(&format!("show vnic {}", ECHO.name()), "/0/rx-packets");
        [vnic, port_count(&self.daemon, &ECHO.name(), "rx-packets")]
    }
}

/// Sends until so many datagrams have come back; how many were sent, beginning with a number.
#[track_caller]
fn exchange(prober: &mut FrontEnd, next: &mut u32, wanted: usize) {
    let end = Instant::now() + PATIENCE;
    let first = *next;
    let mut came = 0;
    while came < wanted {
        assert!(Instant::now() < end, "{came} of {wanted} came back");
        *next += u32::from(prober.send(&datagram(PROBER, ECHO, *next)).is_ok());
        std::thread::sleep(Duration::from_millis(1));
        came += receive_some(prober).into_iter().filter(|number| (first..*next).contains(number)).count();
    }
}

#[test]
fn ports_vhost_client_finds_a_peer_that_was_killed_again() {
    let bench = Bench::start();
    let honest = Honest::start(OTHERS.map(|station| bench.peer(station)), OTHERS);
    let mut prober = bench.peer(PROBER);
    let (mut next, mut before) = (0, [0; 2]);
    for features in
        ["", ",packed_vq=1", ",mrg_rxbuf=0,in_order=0", ",queues=2", ",packed_vq=1,in_order=0", ""]
    {
        let mut echo = bench.echo(features);
        bench.link("up");
        exchange(&mut prober, &mut next, 200);
        let counts = bench.received();
        assert!((0..2).all(|at| counts[at] >= before[at] + 200), "{counts:?} after {before:?}");
        before = counts;
        // In the middle of it.
        for _ in 0..50 {
            let _ = prober.send(&datagram(PROBER, ECHO, u32::MAX >> 2));
        }
        echo.signal("KILL");
        echo.wait(PATIENCE);
        bench.link("down");
    }
    honest.stop();
    bench.daemon.stop();
}

#[test]
fn ports_vhost_client_of_a_new_switch_finds_the_peer_that_stayed() {
    let mut bench = Bench::start();
    let mut echo = bench.echo("");
    for _ in 0..4 {
        bench.link("up");
        let mut prober = bench.peer(PROBER);
        exchange(&mut prober, &mut 0, 200);
        let process = bench.daemon.process();
        process.signal("KILL");
        process.wait(PATIENCE);
        assert!(echo.exited().is_none(), "{}", echo.output());
        bench.daemon.restart(&bench.lab.host);
    }
    bench.link("up");
    exchange(&mut bench.peer(PROBER), &mut 0, 200);
    bench.daemon.stop();
    echo.signal("KILL");
    echo.wait(PATIENCE);
}

#[test]
fn hostile_vhost_client_whose_peer_speaks_no_protocol() {
    let bench = Bench::start();
    let honest = Honest::start(OTHERS.map(|station| bench.peer(station)), OTHERS);
    let path = ECHO.socket(bench.dir.path());
    // The switch connects once a second.
    for round in 0..8u8 {
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        match round {
            0 => drop(socket),
            1 => socket.write_all(&[0xff; 4096]).unwrap_or_default(),
            2 => socket.write_all(&[1, 0, 0]).unwrap_or_default(),
            // Begins as it should, and goes at some step; or takes back what it shared.
            _ => {
                let mut peer = FrontEnd::on(socket).unwrap();
                let features = if round % 2 == 0 { PLAIN } else { OFFLOADS };
                peer.agree(features).unwrap();
                let _ = peer.share(tests::vhost::MEMORY).and_then(|()| peer.set_up(u32::from(round % 4)));
                if round > 5 {
                    peer.memory.set_len(0).unwrap();
                    let _ = peer.place(1, [0x3000, 0x4000, 0x5000]);
                }
                let _ = peer.send_raw(u32::from(round), 1, 4096, &[7; 64], &[]);
            }
        }
    }
    let _ = std::fs::remove_file(&path);
    let mut echo = bench.echo("");
    bench.link("up");
    exchange(&mut bench.peer(PROBER), &mut 0, 100);
    honest.stop();
    echo.signal("KILL");
    echo.wait(PATIENCE);
    bench.link("down");
    bench.daemon.stop();
}
