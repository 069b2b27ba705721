//! Ways out over real queues: rings that fill, links that go, drivers that refuse.

mod buffers;

use pipelines::counters::PipelineCounters;
use pmd::{Burst, Eal, EalConfig, Hugepages, Mempool, MempoolConfig, Port, PortConfig, RxQueue, StartedPort};

use wire::TxRequest;

use super::refusal::DOUBT_NS;
use super::*;

/// Packets that a port of rings takes before it is full.
const RING: usize = 1023;

/// A port whose packets come back on its receive queues, and what a worker has of it.
struct Rig {
    pool: Mempool,
    port: StartedPort,
    rx: Vec<RxQueue>,
    tx: Vec<TxQueue>,
    state: Arc<PortState>,
}

impl Rig {
    fn new(queues: u16) -> Self {
        Self::on("net_ring0", "", queues)
    }

    fn on(device: &str, args: &str, queues: u16) -> Self {
        Self::with(queues, |eal| Port::attach(eal, device, args).unwrap())
    }

    /// A port on one end of a veth, with both ends in a network namespace of this test's own.
    fn on_veth() -> Self {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network namespace takes root");
        ip("link add va mtu 1500 type veth peer name vb");
        ip("link set va up");
        ip("link set vb up");
        Self::with(1, |eal| Port::on_interface(eal, "veth0", "va").unwrap())
    }

    fn with(queues: u16, attach: impl FnOnce(&Eal) -> Port) -> Self {
        let file_prefix = format!("tx-test-{}", std::process::id());
        let config =
            EalConfig { file_prefix, memory_mb: 64, hugepages: Hugepages::Never, ..EalConfig::default() };
        let eal = Eal::init(&config).unwrap();
        let config = MempoolConfig { mbufs: 8191, cache: 0, long: 64, ..MempoolConfig::default() };
        let pool = Mempool::new(&eal, &config).unwrap();
        let config = PortConfig { rx_queues: queues, tx_queues: queues, ..PortConfig::default() };
        let (port, rx, tx) = attach(&eal).start(&config, &pool).map_err(|(_, error)| error).unwrap();
        Self { pool, port, rx, tx, state: Arc::new(PortState::new(u32::MAX)) }
    }

    /// A worker that owns the next queue.
    fn worker(&mut self, rings: Vec<Ring>) -> TxPaths {
        let mut paths = worker();
        let queues = self.rx.len();
        let own = OwnQueue { queue: self.tx.remove(0), rings, port: self.state.clone(), queues };
        paths.own(0, own);
        paths
    }

    /// A worker that owns the next queue, one that hands over to it, and the ring between them.
    fn two_workers(&mut self) -> (TxPaths, TxPaths, Ring) {
        let ring = ring(1);
        let owner = self.worker(vec![ring.clone()]);
        let mut other = worker();
        other.hand_off(0, ring.clone());
        (owner, other, ring)
    }

    fn packet(&self, length: usize) -> Mbuf {
        self.pool.alloc_from(&vec![7; length]).unwrap()
    }

    /// A packet in a long buffer.
    fn long_packet(&self, length: usize) -> Mbuf {
        let mut packet = self.pool.alloc_long().unwrap();
        packet.append(length).unwrap().fill(7);
        packet
    }

    /// Fills a queue.
    fn saturate(&self, paths: &mut TxPaths) {
        for _ in 0..RING {
            send(paths, self.packet(60));
        }
        assert_eq!((paths.stats.pipeline.sent.get(), paths.queued), (RING as u64, 0));
    }

    /// Waits until the port's link is so, and tells the workers as control does. The kernel tells of a carrier a little later.
    fn await_link(&self, up: bool) {
        let start = std::time::Instant::now();
        while self.port.link().unwrap().up != up {
            assert!(start.elapsed() < std::time::Duration::from_secs(5), "the link is up: {}", !up);
        }
        self.state.set_link(up);
    }

    /// Takes out what has arrived.
    fn arrived(&mut self) -> usize {
        self.rx.iter_mut().map(|queue| queue.receive(&mut Burst::with_capacity(RING))).sum()
    }
}

fn ip(line: &str) {
    assert!(std::process::Command::new("ip").args(line.split(' ')).status().unwrap().success(), "ip {line}");
}

fn worker() -> TxPaths {
    TxPaths::new(Arc::new(WorkerStats::new(Arc::new(PipelineCounters::new(1)))))
}

/// A turn of the worker with one packet, which the pipeline received.
fn send(paths: &mut TxPaths, packet: Mbuf) {
    paths.stats.pipeline.received.add(1);
    paths.send(0, packet);
    paths.take_over();
    paths.flush();
}

fn turn_at(paths: &mut TxPaths, ns: u64) {
    paths.begin(Now::from_ns(ns));
    paths.take_over();
    paths.flush();
}

/// Nothing is lost without a name, over all workers.
fn assert_balance(workers: &[&TxPaths]) {
    let imbalance: i64 = workers.iter().map(|paths| paths.stats.pipeline.imbalance()).sum();
    assert_eq!(imbalance, 0, "the conservation law");
}

fn drops(paths: &TxPaths, reason: DropReason) -> u64 {
    paths.stats.pipeline.drops(reason)
}

#[test]
fn repair_a_saturated_port_that_is_removed_loses_nothing_without_a_name() {
    let mut rig = Rig::new(1);
    let (mut owner, mut other, ring) = rig.two_workers();
    rig.saturate(&mut owner);
    for _ in 0..BUFFERS {
        send(&mut owner, rig.packet(60));
    }
    for _ in 0..HAND_OFFS + 3 {
        send(&mut other, rig.packet(60));
    }
    assert_eq!((owner.queued, other.queued), (BUFFERS as u64, HAND_OFFS as u64));
    assert_eq!(drops(&other, DropReason::TX_HANDOFF_FULL), 3);
    assert_eq!(rig.pool.in_use(), RING + MAX_WAITING, "no more than this waits for a port");
    assert!(other.remove(0).is_none());
    let queue = owner.remove(0).unwrap();
    assert_eq!(drops(&owner, DropReason::PORT_DOWN), MAX_WAITING as u64);
    assert_eq!(owner.queued.wrapping_add(other.queued), 0, "nothing is queued any more");
    assert_balance(&[&owner, &other]);
    assert_eq!((ring.len(), rig.pool.in_use(), rig.arrived()), (0, RING, RING));
    drop(queue);
}

#[test]
fn repair_nothing_waits_for_a_port_without_a_link() {
    let mut rig = Rig::new(1);
    let (mut owner, mut other, _) = rig.two_workers();
    rig.saturate(&mut owner);
    rig.state.set_link(false);
    for _ in 0..1000 {
        send(&mut other, rig.packet(60));
        send(&mut owner, rig.packet(60));
    }
    assert_eq!(rig.pool.in_use(), RING, "nothing is kept");
    assert_eq!(drops(&owner, DropReason::LINK_DOWN), 2000);
    assert_balance(&[&owner, &other]);
    rig.state.set_link(true);
    assert_eq!(rig.arrived(), RING);
    send(&mut owner, rig.packet(60));
    assert_eq!(rig.arrived(), 1, "and goes on when it is back");
}

#[test]
fn repair_a_stalled_port_keeps_nothing_and_goes_on_when_it_is_read() {
    let mut rig = Rig::new(1);
    let mut owner = rig.worker(Vec::new());
    rig.saturate(&mut owner);
    turn_at(&mut owner, 1);
    send(&mut owner, rig.packet(60));
    send(&mut owner, rig.packet(60));
    turn_at(&mut owner, STALL_NS);
    assert_eq!((owner.queued, drops(&owner, DropReason::TX_STALLED)), (2, 0), "patience for a while");
    turn_at(&mut owner, STALL_NS + 2);
    assert_eq!((owner.queued, drops(&owner, DropReason::TX_STALLED)), (0, 2));
    for _ in 0..10 {
        send(&mut owner, rig.packet(60));
    }
    assert_eq!((owner.queued, drops(&owner, DropReason::TX_STALLED)), (0, 12), "what comes is tried once");
    assert_eq!(rig.arrived(), RING);
    for _ in 0..10 {
        send(&mut owner, rig.packet(60));
    }
    assert_eq!((rig.arrived(), drops(&owner, DropReason::TX_STALLED)), (10, 12));
    assert_balance(&[&owner]);
}

#[test]
fn repair_a_frame_over_the_limit_of_the_driver_is_dropped_at_once() {
    let mut rig = Rig::new(1);
    rig.state.set_max_frame(1522);
    let (mut owner, mut other, _) = rig.two_workers();
    for length in [60, 1523, 1522, 9000] {
        send(&mut owner, rig.packet(length));
        send(&mut other, rig.packet(length));
    }
    turn_at(&mut owner, 0);
    assert_eq!((rig.arrived(), drops(&owner, DropReason::MTU_EXCEEDED)), (4, 4));
    assert_balance(&[&owner, &other]);
    // What the device is asked to cut is not one: its pieces were compared with the MTU.
    for paths in [&mut owner, &mut other] {
        let mut super_frame = rig.packet(9000);
        super_frame.request_tx(TxRequest { tso_size: 1400, ..TxRequest::default() });
        send(paths, super_frame);
    }
    turn_at(&mut owner, 0);
    assert_eq!((rig.arrived(), drops(&owner, DropReason::MTU_EXCEEDED)), (2, 4));
    assert_balance(&[&owner, &other]);
    rig.state.set_max_frame(9000);
    send(&mut owner, rig.packet(9000));
    assert_eq!(rig.arrived(), 1, "a limit that grows counts at once");
    rig.state.set_max_frame(100);
    send(&mut owner, rig.packet(60));
    send(&mut owner, rig.packet(101));
    assert_eq!((rig.arrived(), drops(&owner, DropReason::MTU_EXCEEDED)), (1, 5), "one that shrinks, too");
    assert_balance(&[&owner]);
}

/// A tap's driver leaves a frame that is longer than its MTU at the head of the burst for ever, with all that is behind it.
#[test]
fn repair_a_frame_that_a_driver_refuses_lets_those_behind_it_pass() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network namespace takes root");
    let mut rig = Rig::on("net_tap0", "iface=refuses", 1);
    let mut owner = rig.worker(Vec::new());
    turn_at(&mut owner, 0);
    for length in [60, 1600, 60, 60, 60] {
        send(&mut owner, rig.packet(length));
    }
    let sent = |paths: &TxPaths| paths.stats.pipeline.sent.get();
    assert_eq!((sent(&owner), owner.queued), (1, 4), "the long one is at the head");
    turn_at(&mut owner, DOUBT_NS);
    assert_eq!(sent(&owner), 1, "a queue may be full for a while");
    turn_at(&mut owner, DOUBT_NS + 1);
    assert_eq!((sent(&owner), owner.queued, drops(&owner, DropReason::TX_REFUSED)), (4, 0, 1));
    // Alone, it goes with those that come after it.
    send(&mut owner, rig.packet(1600));
    turn_at(&mut owner, 3 * DOUBT_NS);
    send(&mut owner, rig.packet(60));
    turn_at(&mut owner, 5 * DOUBT_NS);
    turn_at(&mut owner, 7 * DOUBT_NS);
    assert_eq!((sent(&owner), owner.queued, drops(&owner, DropReason::TX_REFUSED)), (5, 0, 2));
    assert_balance(&[&owner]);
}

/// As a super-frame for a guest that has too few free buffers for it, and enough for the packets behind it.
#[test]
fn ports_a_packet_of_many_buffers_waits_as_long_as_a_full_queue_may() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network namespace takes root");
    let mut rig = Rig::on("net_tap0", "iface=waits", 1);
    let mut owner = rig.worker(Vec::new());
    let all = |paths: &TxPaths| {
        let refused = drops(paths, DropReason::TX_REFUSED);
        (paths.stats.pipeline.sent.get(), paths.queued, refused, drops(paths, DropReason::TX_STALLED))
    };
    turn_at(&mut owner, 0);
    for length in [60, 9000, 60, 60] {
        send(&mut owner, rig.packet(length));
    }
    turn_at(&mut owner, DOUBT_NS + 1);
    assert_eq!(all(&owner), (3, 1, 0, 0), "those behind it pass");
    turn_at(&mut owner, 6 * DOUBT_NS);
    send(&mut owner, rig.packet(60));
    turn_at(&mut owner, STALL_NS);
    assert_eq!(all(&owner), (4, 1, 0, 0), "and it waits");
    assert_balance(&[&owner]);
}

/// Whoever reads again just when a full queue is doubted takes the packet that was doubted, too.
#[test]
fn repair_a_queue_that_has_room_again_while_it_is_doubted_takes_all() {
    let mut rig = Rig::new(1);
    let mut owner = rig.worker(Vec::new());
    turn_at(&mut owner, 0);
    rig.saturate(&mut owner);
    for length in [60, 61, 62] {
        send(&mut owner, rig.packet(length));
    }
    assert_eq!(owner.queued, 3, "the queue is full");
    assert!(rig.arrived() > 3);
    owner.pass_by_first(0);
    assert_eq!((owner.stats.pipeline.sent.get(), owner.queued), (RING as u64 + 3, 0));
    owner.flush();
    assert_balance(&[&owner]);
}

#[test]
fn repair_a_diverted_queue_hands_over_and_takes_back() {
    let mut rig = Rig::new(2);
    let mut first = rig.worker(Vec::new());
    let mut second = rig.worker(Vec::new());
    // A third worker hands over to the second, whose queue then is not read any more.
    let (third_ring, to_first) = (ring(2), ring(2));
    second.add_ring(0, third_ring.clone());
    let mut third = worker();
    third.hand_off(0, third_ring);
    for _ in 0..RING + 5 {
        send(&mut second, rig.packet(60));
    }
    send(&mut third, rig.packet(61));
    assert_eq!(second.queued, 5, "the queue is full");
    first.add_ring(0, to_first.clone());
    second.divert(0, Some(to_first));
    send(&mut second, rig.packet(62));
    turn_at(&mut first, 0);
    assert_eq!(first.stats.pipeline.sent.get(), 7, "what waited goes there, too");
    assert_eq!(rig.arrived(), RING + 7);
    assert_eq!(first.queued.wrapping_add(second.queued).wrapping_add(third.queued), 0);
    second.divert(0, None);
    send(&mut second, rig.packet(63));
    assert_eq!((rig.arrived(), second.stats.pipeline.sent.get()), (1, RING as u64 + 1));
    assert_balance(&[&first, &second, &third]);
    assert!(second.remove(0).is_some() && first.remove(0).is_some());
    assert_eq!(rig.pool.in_use(), 0);
}

#[test]
fn repair_what_waits_for_a_port_is_bounded_whatever_the_number_of_workers() {
    for workers in 2..=64 {
        let slots: usize = (1..workers).map(|_| ring(workers - 1).capacity()).sum();
        assert!(slots <= HAND_OFFS, "{workers} workers: {slots}");
    }
}

#[test]
fn repair_what_the_kernel_refuses_of_a_veth_port_does_not_count_as_sent() {
    let mut rig = Rig::on_veth();
    let mut owner = rig.worker(Vec::new());
    for length in [60, 4000, 60, 4000, 4000, 1500] {
        owner.stats.pipeline.received.add(1);
        owner.send(0, rig.packet(length));
    }
    owner.flush();
    assert_eq!((owner.stats.pipeline.sent.get(), drops(&owner, DropReason::TX_REFUSED)), (3, 3));
    let counters = &owner.stats.ports[0];
    assert_eq!((counters.tx_packets.get(), counters.tx_bytes.get()), (3, 60 + 60 + 1500));
    assert_eq!((counters.tx_drops.get(), rig.port.stats().unwrap().tx_errors), (3, 3));
    assert_balance(&[&owner]);
    assert_eq!(rig.pool.in_use(), 0);
}

#[test]
fn repair_what_goes_to_a_veth_whose_other_end_is_down_does_not_count_as_sent() {
    let mut rig = Rig::on_veth();
    let mut owner = rig.worker(Vec::new());
    ip("link set vb down");
    rig.await_link(false);
    for _ in 0..300 {
        send(&mut owner, rig.packet(60));
    }
    assert_eq!((owner.stats.pipeline.sent.get(), drops(&owner, DropReason::LINK_DOWN)), (0, 300));
    assert_balance(&[&owner]);
    ip("link set vb up");
    rig.await_link(true);
    send(&mut owner, rig.packet(60));
    assert_eq!((owner.stats.pipeline.sent.get(), rig.pool.in_use()), (1, 0), "and goes on when it is back");
}
