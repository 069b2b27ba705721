//! Guests whose rings hold what no driver writes, split ones and packed ones: the thread that polls their port is not held up, nothing of
//! the switch's is written to, and a guest beside them goes on.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::enemy::Random;
use common::monitor::{Monitor, PLACES, PLAIN, SLOTS};
use common::rings::{AVAILABLE, BORDER, Descriptor, FREE, Guest, INDIRECT, LARGE, MEMORY, NEXT, USED, WRITE};
use common::{eal, frame, is_frame, pool, start, stop};
use pmd::{Burst, Eal, Mempool, MempoolConfig, Port, PortConfig, RxQueue, StartedPort, TxQueue};

/// What a call of a worker's may take, in time of its own.
const LIMIT: Duration = Duration::from_millis(50);
const BURST: usize = 32;
/// Bytes of the frames that the enemy is sent: with a virtio-net header, they fill 192 buffers of 7 bytes, and 61 of 22.
const LENGTH: usize = 1328;

/// A port, and what calls for it took.
struct Polled {
    port: StartedPort,
    rx: Vec<RxQueue>,
    tx: Vec<TxQueue>,
    path: PathBuf,
    longest: Duration,
    all: Duration,
}

/// What the calling thread has taken of a core.
#[allow(unsafe_code, reason = "asks the kernel")]
fn own_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place.
    let ret = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(ret, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Whether the processor is valgrind's, which takes its time.
fn is_slow() -> bool {
    std::env::var("LD_PRELOAD").is_ok_and(|libraries| libraries.contains("vgpreload"))
}

impl Polled {
    fn open(eal: &Eal, pool: &Mempool, name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pmd-rings-{}-{name}.sock", std::process::id()));
        let config = pmd::VhostConfig { path: path.clone(), is_server: true, queues: 1, offloads: true };
        let port = Port::on_vhost_user(eal, name, &config).unwrap();
        let (port, rx, tx) = start(port, &PortConfig::default(), pool);
        Self { port, rx, tx, path, longest: Duration::ZERO, all: Duration::ZERO }
    }

    /// Waits until its guest can be talked to.
    fn is_up(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.port.link().unwrap().up || self.port.read_queues() != Some(vec![true]) {
            assert!(Instant::now() < deadline, "nobody is there");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn timed(&mut self, call: impl FnOnce(&mut Self)) {
        let began = own_time();
        call(self);
        let took = own_time() - began;
        self.longest = self.longest.max(took);
        self.all += took;
    }

    /// Polls both ways once, as a worker does.
    fn poll(&mut self, pool: &Mempool) {
        let mut burst = Burst::with_capacity(BURST);
        self.timed(|polled| {
            polled.rx[0].receive(&mut burst);
        });
        burst.clear();
        for number in 0..BURST {
            burst.push(pool.alloc_from(&frame(number, LENGTH)).unwrap()).unwrap();
        }
        self.timed(|polled| {
            polled.tx[0].send(&mut burst);
        });
    }

    fn close(self) {
        stop(self.port, self.rx, self.tx).detach().unwrap();
    }
}

/// A guest that behaves, on a port of the same thread.
struct Honest {
    polled: Polled,
    guest: Monitor,
    number: u16,
}

impl Honest {
    fn start(eal: &Eal, pool: &Mempool) -> Self {
        let polled = Polled::open(eal, pool, "honest");
        let guest = Monitor::ready(&polled.path, PLAIN);
        polled.is_up();
        for number in 0..SLOTS as u16 {
            guest.give(PLACES[0], number);
        }
        Self { polled, guest, number: 0 }
    }

    /// Its frame comes, and it is given one.
    fn goes_on(&mut self, pool: &Mempool, what: &str) {
        self.guest.offer(PLACES[1], self.number, SLOTS as u16, &frame(7, 64));
        let deadline = Instant::now() + Duration::from_secs(5);
        let (mut came, mut sent) = (0, 0);
        while came == 0 || sent == 0 {
            assert!(Instant::now() < deadline, "{what}: {came} frames came, {sent} went");
            let mut burst = Burst::with_capacity(BURST);
            self.polled.rx[0].receive(&mut burst);
            came += burst.drain().filter(is_frame).count();
            if sent == 0 {
                burst.push(pool.alloc_from(&frame(1, 64)).unwrap()).unwrap();
                sent += self.polled.tx[0].send(&mut burst);
            }
        }
        self.number = self.number.wrapping_add(1);
        assert_eq!(self.guest.used(PLACES[0]), self.number, "{what}");
        self.guest.give(PLACES[0], self.number.wrapping_add(SLOTS as u16 - 1));
    }
}

struct Attack {
    name: &'static str,
    sizes: [u16; 2],
    /// Whether its port is taken down for chains of nothing, of split rings and of packed ones.
    caught: [bool; 2],
    mount: fn(&Guest),
}

const BOTH: [bool; 2] = [true; 2];
const PACKED: [bool; 2] = [false, true];
const NEITHER: [bool; 2] = [false; 2];

/// An attack on large rings.
const fn attack(name: &'static str, caught: [bool; 2], mount: fn(&Guest)) -> Attack {
    Attack { name, sizes: [LARGE; 2], caught, mount }
}

/// Plays attacks one after the other, on rings of both formats, each for so many rounds.
fn play(attacks: &[Attack], rounds: usize) {
    let eal = eal();
    let pool = pool(&eal, 4095);
    let mut honest = Honest::start(&eal, &pool);
    for attack in attacks {
        for packed in [false, true] {
            let what = format!("{}, {}", attack.name, if packed { "packed" } else { "split" });
            let mut enemy = Polled::open(&eal, &pool, "enemy");
            let guest = Guest::ready(&enemy.path, packed, attack.sizes);
            enemy.is_up();
            (attack.mount)(&guest);
            for _ in 0..rounds {
                enemy.poll(&pool);
                honest.goes_on(&pool, &what);
            }
            let fault = enemy.port.fault();
            println!("{what}: {:?} at most, {:?} in all, {fault:?}", enemy.longest, enemy.all);
            let is_caught = fault.is_some_and(|fault| fault.contains("chains of descriptors without length"));
            assert!(is_caught || !attack.caught[usize::from(packed)], "{what}: {fault:?}");
            assert!(is_slow() || enemy.longest < LIMIT, "{what}: {:?}", enemy.longest);
            drop(guest);
            enemy.close();
        }
    }
    // Nobody has taken the memory that others need.
    let config = MempoolConfig { name: "others".into(), mbufs: 16_383, long: 0, ..MempoolConfig::default() };
    drop(Mempool::new(&eal, &config).unwrap());
    honest.polled.close();
    assert_eq!(pool.in_use(), 0);
}

/// A descriptor of nothing, nowhere: the library takes four at a time of a packed ring whose addresses it knows.
const EMPTY: Descriptor = Descriptor { address: 1 << 60, length: 0, flags: 0, next: 0 };
/// A buffer of so many bytes.
const fn of_bytes(length: u32) -> Descriptor {
    Descriptor { address: FREE, length, flags: WRITE, next: 0 }
}
/// Just longer than a virtio-net header.
const SHORT: Descriptor = of_bytes(13);
const WHOLE: Descriptor = of_bytes(2048);

/// A table of descriptors of nothing, in a chain or not, and the descriptor for it.
fn empty_table(guest: &Guest, flags: u16) -> Descriptor {
    let last = LARGE - 2;
    let one = |at| Descriptor { flags: if at < last { flags } else { 0 }, next: at + 1, ..EMPTY };
    guest.table(2 * FREE, &(0..=last).map(one).collect::<Vec<_>>());
    Descriptor { address: 2 * FREE, length: 16 * u32::from(LARGE - 1), flags: INDIRECT, next: 0 }
}

/// A ring of tables of nothing, with so many short buffers in front of them and as many behind.
fn tables(guest: &Guest, short: usize, flags: u16) {
    let mut ring = vec![empty_table(guest, flags); usize::from(LARGE) - 1];
    let end = ring.len();
    ring[..short].fill(SHORT);
    ring[end - short..].fill(SHORT);
    guest.offer_each(0, &ring);
}

/// A ring that is one chain of nothing between these two, and begins everywhere at its first descriptor.
fn chain(guest: &Guest, first: Descriptor, last: Descriptor, available: u16) {
    let mut ring: Vec<_> = (1..=LARGE).map(|next| Descriptor { flags: NEXT, next, ..EMPTY }).collect();
    ring[0] = Descriptor { flags: NEXT | WRITE, next: 1, ..first };
    ring[usize::from(LARGE) - 1] = last;
    guest.offer(0, &ring, &[0; LARGE as usize], available);
}

#[test]
fn hostile_vhost_tables_of_nothing_hold_no_worker_up() {
    let attacks = [
        attack("tables", BOTH, |guest| tables(guest, 1, NEXT)),
        attack("tables without NEXT", PACKED, |guest| tables(guest, 1, 0)),
        attack("tables behind many others", BOTH, |guest| tables(guest, 40, NEXT)),
        attack("tables without NEXT behind many others", PACKED, |guest| tables(guest, 40, 0)),
    ];
    play(&attacks, 30);
}

#[test]
fn hostile_vhost_chains_of_nothing_are_gone_round_and_hold_no_worker_up() {
    let attacks = [
        attack("one chain", BOTH, |guest| chain(guest, of_bytes(1), EMPTY, LARGE - 1)),
        attack("one chain, again and again", BOTH, |guest| chain(guest, of_bytes(2), EMPTY, 60_000)),
        attack("one chain that is used", NEITHER, |guest| chain(guest, of_bytes(100), EMPTY, 60_000)),
        attack("a loop", NEITHER, |guest| chain(guest, SHORT, Descriptor { flags: NEXT, ..EMPTY }, LARGE)),
        attack("single ones", NEITHER, |guest| guest.offer_each(0, &[EMPTY; LARGE as usize])),
    ];
    play(&attacks, 30);
}

/// The library notes what it has used of a ring, and a guest can have it use more at a time than the ring has.
#[test]
fn hostile_vhost_more_is_used_at_a_time_than_a_ring_has() {
    let attacks = [
        attack("an index far ahead", NEITHER, |guest| {
            let heads: Vec<u16> = (0..LARGE).collect();
            guest.offer(0, &[of_bytes(6); LARGE as usize], &heads, 60_000);
        }),
        // Their descriptors, counted in 16 bits, are none.
        attack("192 chains a packet", NEITHER, |guest| chain(guest, of_bytes(7), EMPTY, 60_000)),
        Attack {
            sizes: [2, 1],
            ..attack("small rings", NEITHER, |guest| {
                guest.offer(0, &[WHOLE; 2], &[0, 1], 60_000);
                guest.offer(1, &[Descriptor { flags: 0, ..of_bytes(100) }], &[0], 60_000);
            })
        },
    ];
    play(&attacks, 30);
}

/// The place that comes next is far behind the ring then, which ends where the memory does: as far as 16 bits say.
#[test]
fn hostile_vhost_chains_of_a_packet_are_longer_than_a_ring() {
    let attacks = [
        attack("three chains", NEITHER, |guest| chain(guest, of_bytes(500), EMPTY, LARGE)),
        attack("61 chains", NEITHER, |guest| {
            let behind = guest.room_behind();
            assert!(behind >= 16 << 16, "{behind} bytes behind the memory are nobody's");
            chain(guest, of_bytes(22), EMPTY, LARGE);
        }),
    ];
    play(&attacks, 30);
}

/// The library copies such tables.
#[test]
fn hostile_vhost_tables_across_regions_take_no_memory() {
    const fn table(length: u32) -> Descriptor {
        Descriptor { address: BORDER - 160, length, flags: INDIRECT, next: 0 }
    }
    let attacks = [
        attack("a table of what is not there", NEITHER, |guest| {
            guest.table(BORDER - 160, &[Descriptor { address: MEMORY, ..WHOLE }; 1000]);
            guest.offer_each(0, &[&[SHORT], &[table(16_000); LARGE as usize - 2][..]].concat());
        }),
        attack("a table of megabytes", NEITHER, |guest| {
            guest.offer_each(0, &[&[SHORT], &[table(2 << 20); LARGE as usize - 2][..]].concat());
        }),
    ];
    play(&attacks, if is_slow() { 50 } else { 5000 });
}

#[test]
fn hostile_vhost_rings_of_both_formats_that_run_wild_harm_nobody_else() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let eal = eal();
    let pool = pool(&eal, 4095);
    let mut honest = Honest::start(&eal, &pool);
    for round in 0..if is_slow() { 6 } else { 60 } {
        let mut enemy = Polled::open(&eal, &pool, "enemy");
        let sizes = [random.one_of(&[1, 2, 4, 16, 64, 256, LARGE]), random.one_of(&[1, 8, 64, LARGE])];
        let guest = Guest::ready(&enemy.path, round % 2 == 1, sizes);
        enemy.is_up();
        for turn in 0..20 {
            for (ring, size) in sizes.into_iter().map(usize::from).enumerate() {
                let table: Vec<_> = (0..100).map(|_| wild(&mut random, size)).collect();
                guest.table(2 * FREE, &table);
                let descriptors: Vec<_> = (0..size).map(|_| wild(&mut random, size)).collect();
                let heads: Vec<u16> = (0..size).map(|_| random.next(size + size / 8 + 1) as u16).collect();
                match random.next(3) {
                    // Some of a packed ring are in this round, some are not.
                    0 => guest.describe(ring, &descriptors),
                    _ => guest.offer(ring, &descriptors, &heads, random.next(1 << 16) as u16),
                }
            }
            enemy.poll(&pool);
            honest.goes_on(&pool, &format!("round {round}, turn {turn}"));
        }
        assert!(is_slow() || enemy.longest < LIMIT, "round {round}: {:?}", enemy.longest);
        drop(guest);
        enemy.close();
    }
    honest.polled.close();
    assert_eq!(pool.in_use(), 0);
}

/// A descriptor without sense.
fn wild(random: &mut Random, size: usize) -> Descriptor {
    let address = match random.next(8) {
        0 => MEMORY - random.next(64) as u64,
        1 => BORDER - random.next(64) as u64,
        2 => u64::MAX - random.next(4096) as u64,
        3 => 1 << random.next(64),
        _ => 2 * FREE + random.next(64) as u64 * 16,
    };
    let length = match random.next(8) {
        0 => 0,
        1 => random.next(14) as u32,
        2 => u32::MAX - random.next(64) as u32,
        3 => 16 * random.next(2 * size) as u32,
        _ => random.next(3000) as u32,
    };
    let flags = [0, NEXT, WRITE, NEXT | WRITE, INDIRECT, INDIRECT | NEXT, USED, AVAILABLE | USED];
    Descriptor { address, length, flags: random.one_of(&flags), next: random.next(size + 2) as u16 }
}
