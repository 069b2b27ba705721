//! vhost-user ports close in time where others want the cores: each core has threads that never sleep, and peers come, speak and go
//! all the time.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::monitor::{GET_FEATURES, Monitor, PLAIN, SET_FEATURES, SET_OWNER};
use common::{pool, prefix, start, stop};
use pmd::{Eal, EalConfig, Hugepages, Port, PortConfig, VhostConfig, lcore};

const PORTS: usize = 20;
/// Threads that never sleep, on each core.
const POLLERS: usize = 2;
/// Milliseconds here; a stop of a switch has 20 s for all of its ports.
const LIMIT: Duration = Duration::from_secs(10);

fn path(number: usize) -> PathBuf {
    std::env::temp_dir().join(format!("pmd-close-{}-{number}.sock", std::process::id()))
}

/// Comes, says what begins the protocol, and goes; a port that is gone is nobody's fault.
fn visit(number: usize) {
    let Ok(socket) = UnixStream::connect(path(number)) else { return };
    let peer = Monitor::on(socket);
    let _ = peer.send(GET_FEATURES, 1, &[], &[]);
    let _ = peer.send(SET_OWNER, 1, &[], &[]);
    let _ = peer.send(SET_FEATURES, 1, &PLAIN.to_ne_bytes(), &[]);
    // It has heard the first, and is about to take in the last.
    let _ = peer.ask(GET_FEATURES, &[]);
}

#[test]
fn vhost_ports_close_in_time_beside_threads_that_never_sleep() {
    let cores = lcore::available();
    // As the switch has it: control, the thread that closes, and the library's own on one core.
    let eal = Eal::init(&EalConfig {
        file_prefix: prefix("close"),
        memory_mb: 128,
        hugepages: Hugepages::Never,
        main_core: cores.first().copied(),
        ..EalConfig::default()
    })
    .unwrap();
    let pool = pool(&eal, 1023);
    let open = |number: usize| {
        let config = VhostConfig { path: path(number), is_server: true, queues: 1, offloads: true };
        let port = Port::on_vhost_user(&eal, &format!("close{number}"), &config).unwrap();
        start(port, &PortConfig::default(), &pool)
    };
    let ports: Vec<_> = (0..PORTS).map(open).collect();
    // Every other one has a guest all the time, and peers that wait behind it.
    let guests: Vec<_> = (0..PORTS).step_by(2).map(|number| Monitor::ready(&path(number), PLAIN)).collect();
    let over = AtomicBool::new(false);
    let took = std::thread::scope(|scope| {
        for &core in cores.iter().cycle().take(POLLERS * cores.len()) {
            let over = &over;
            scope.spawn(move || {
                lcore::pin_current_thread(core).unwrap();
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        for first in 0..4 {
            let (over, cores) = (&over, &cores);
            scope.spawn(move || {
                // Peers are other processes, and come from where there is room.
                lcore::pin_current_thread(*cores.last().unwrap()).unwrap();
                for number in (first..PORTS).step_by(4).cycle() {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    visit(number);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(500));
        let began = Instant::now();
        let mut each = Vec::new();
        for (port, rx, tx) in ports {
            let began = Instant::now();
            stop(port, rx, tx).detach().unwrap();
            each.push(began.elapsed());
        }
        let took = began.elapsed();
        over.store(true, Ordering::Relaxed);
        println!("{took:?} for {PORTS} ports, {:?} at most: {each:?}", each.iter().max());
        took
    });
    drop(guests);
    assert!(took < LIMIT, "{took:?}");
    assert!((0..PORTS).all(|number| !path(number).exists()), "a socket was left");
}
