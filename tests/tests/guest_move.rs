//! A guest moves to the other host, memory and all, while the others go on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::{Duration, Instant};
use tests::Family;
use tests::guest::rdma::{self, Path, Running, Tool};
use tests::guest::{self, Site, Vm, site};
use tests::lab::Lab;

/// Traffic that goes on: one round of a tool after the other, each of which must end well.
struct Steady<'a> {
    path: Path<'a>,
    tool: Tool,
    running: Option<Running<'a>>,
    rounds: u32,
}

impl<'a> Steady<'a> {
    fn begin(path: Path<'a>, tool: Tool) -> Steady<'a> {
        let running = Some(rdma::begin(&path, &tool));
        Steady { path, tool, running, rounds: 0 }
    }

    /// Begins another round when the last one is over.
    fn keep_going(&mut self) {
        if !self.running.as_ref().unwrap().goes_on() {
            self.finish_round();
            self.running = Some(rdma::begin(&self.path, &self.tool));
        }
    }

    fn finish_round(&mut self) {
        self.running.take().unwrap().finish().assert_ok();
        self.rounds += 1;
    }
}

#[test]
#[ignore = "takes minutes: scripts/test --only guest, or --full"]
fn guest_move_breaks_nothing() {
    if !guest::can_run() {
        return;
    }
    // Before: a and m on the first host, b on the second. After: m on the second too.
    let [a, b, _, _] = site::two_tenants();
    let m = Vm::new("m", ("red", 100), "02:00:00:00:0a:03", &["10.0.0.3/24", "fd00:1::3/64"]);
    let site = Site::start(Lab::new(Family::V4), &site::vpcs(""), &[a, m], &[b]);
    let [first, second] = &site.switches[..] else { panic!("two switches") };
    let (to_a, to_b) = (Path::new(&site, "m", "a", false), Path::new(&site, "m", "b", false));
    rdma::run(&to_a, &rdma::rc_pingpong(&to_a, 18520, 4096, 50));
    rdma::run(&to_b, &rdma::rc_pingpong(&to_b, 18520, 4096, 50));
    let local = first.counters().get("fwd.local");
    assert!(local > 0, "a and m are on one host");

    let ab = Path::new(&site, "b", "a", false);
    let mut steady = [
        Steady::begin(ab, rdma::rc_pingpong(&ab, 18515, 4096, 400)),
        Steady::begin(ab, rdma::perftest(&ab, "ib_write_bw", 18516, 65536, 40)),
        Steady::begin(ab, rdma::iperf3(&ab, 5201, 3)),
    ];
    // What the guest itself is at when it is moved: its queue pairs and its connection wait for the other host, for seconds.
    let own = [
        rdma::begin(&to_b, &rdma::perftest(&to_b, "ib_write_bw", 18521, 65536, 1500)),
        rdma::begin(&to_a, &rdma::iperf3(&to_a, 5301, 20)),
    ];
    // The order of a live migration: the new place is made ready, then the guest goes. One command on each side.
    let socket = site.new_plug("m").display().to_string();
    second.ctl(&format!(
        "vnic add m vpc red mac 02:00:00:00:0a:03 vips 10.0.0.3,fd00:1::3 mtu {} port vhost-user path={socket}",
        site::MTU
    ));
    first.ctl(&format!("vnic move m vtep {}", Family::V4.remote_vtep()));
    let moved = Instant::now();
    // It is the same machine, with the same memory: it is reached at its new place by either of the others.
    for from in ["a", "b"] {
        let reached = site.guest(from).start("until ping -c 1 -W 1 10.0.0.3; do :; done");
        loop {
            steady.iter_mut().for_each(Steady::keep_going);
            if let Some(ended) = site.guest(from).ended(&reached, Duration::from_millis(200)) {
                assert!(ended.ok(), "{}", ended.output);
                break;
            }
        }
    }
    eprintln!("reached by both others {:?} after it left", moved.elapsed());
    for own in own {
        own.finish().assert_ok();
    }
    for tool in [rdma::rc_pingpong(&to_a, 18520, 4096, 50), rdma::rping(&to_a, 7174, 5)] {
        rdma::run(&to_a, &tool);
    }
    rdma::run(&to_b, &rdma::rc_pingpong(&to_b, 18520, 4096, 50));
    for steady in &mut steady {
        steady.finish_round();
        eprintln!("{} rounds of {}", steady.rounds, steady.tool.name);
    }
    // The first host tunnels to it now, the second delivers.
    assert!(second.counters().get("fwd.local") > 0, "m and b are on one host");
    let local_before = first.counters().get("fwd.local");
    rdma::run(&to_a, &rdma::rc_pingpong(&to_a, 18520, 4096, 50));
    assert_eq!(first.counters().get("fwd.local"), local_before, "nothing of it is local to the first host");
    site.stop();
}
