//! How many packet buffers the switch needs: one reckoning for `check`, for the start, and for ports that come later.
//!
//! | who | how many at most |
//! |---|---|
//! | drivers | descriptors of their rings, for each queue ([`held_by_driver`]) |
//! | what waits for ports | a bound for each port, and one for all ports of a worker ([`tx::WORKER_ROOM`]) |
//! | BFD | a packet of each session |
//! | workers | their caches of free buffers, and bursts that they have in hand |
//! | what waits for tokens | a tenth of all, and 256 for each worker at least |

use pmd::mempool::HEADROOM;
use worker::tx;

use super::ports::{WantedPort, wanted};
use crate::config::{Config, buffers};
use crate::port::held_by_driver;

/// Packet buffers when the config does not say, and its ports need no more.
const DEFAULT_MBUFS: u32 = 32_767;
/// The longest super-frame: an IP packet with its link header.
const SUPER_FRAME: u64 = 65_535 + 18;
/// Bursts that a worker has in hand: one received, one released by the token buckets.
const BURSTS: u64 = 2;
/// Waiting for tokens on a worker: at least, and at most.
const SHAPED: std::ops::RangeInclusive<u64> = 256..=16_384;

/// Packet buffers that ports and workers hold at their busiest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferNeed {
    /// In rings of drivers.
    pub rings: u64,
    /// In front of transmit queues, in hand-over rings, and those of packets that are repeated.
    pub waiting: u64,
    /// In caches of workers.
    pub caches: u64,
    /// In bursts that workers have in hand.
    pub bursts: u64,
    /// Waiting for tokens.
    pub shaped: u64,
}

/// A pool that does not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Ports would not start, or not receive; else packets of others are lost when all is at its busiest.
    pub is_fatal: bool,
    /// What is short, by how much, and what to change.
    pub text: String,
}

/// Buffers that each worker and control keep for themselves, of a pool of so many; a cache overflows at one and a half times
/// that. Of a small pool all caches together keep no more than a quarter.
pub fn cache(workers: usize, pool: u32) -> u32 {
    let most = if workers > 4 { 256 } else { 512 };
    most.min(pool / 6 / (workers as u32 + 1))
}

/// What may wait for tokens on each worker, with a pool of so many buffers: a tenant that waits must not starve the
/// receiving of others.
pub fn shaped_buffers(capacity: usize, workers: usize) -> u32 {
    let share = capacity as u64 / 10 / workers.max(1) as u64;
    share.clamp(*SHAPED.start(), *SHAPED.end()) as u32
}

impl BufferNeed {
    /// What the ports and workers of a config need.
    pub fn of_config(config: &Config) -> Self {
        Self::of(wanted(config).values(), config)
    }

    /// What these ports need on the workers and with the buffers of a config.
    pub fn of<'p>(ports: impl IntoIterator<Item = &'p WantedPort>, config: &Config) -> Self {
        let workers = config.workers.workers().max(1);
        let (mut rings, mut waiting, mut super_frames) = (0, 0, false);
        for port in ports {
            let held = held_by_driver(&port.spec, port.rx_queues, port.tx_queues, workers as u16);
            rings += u64::from(held.rx) + u64::from(held.tx);
            waiting += tx::most_buffers(held.tx_queues.into(), workers) as u64;
            super_frames |= held.super_frames;
        }
        let workers = workers as u64;
        let of_packet = match super_frames {
            true => SUPER_FRAME.div_ceil(u64::from(buffers::room(config)) - u64::from(HEADROOM)),
            false => 1,
        };
        // Of each the last packet is kept.
        let sessions: usize = config.uplinks.iter().map(|uplink| uplink.bfd_sessions().len()).sum();
        // Control has a cache, too.
        let caches = (workers + 1) * u64::from(cache(workers as usize, u32::MAX)) / 2 * 3;
        let need = Self {
            rings,
            waiting: waiting.min(workers * tx::WORKER_ROOM as u64) + sessions as u64,
            caches,
            bursts: workers * BURSTS * u64::from(config.workers.burst) * of_packet,
            shaped: 0,
        };
        let tenth = need.total().div_ceil(9);
        Self { shaped: tenth.clamp(workers * SHAPED.start(), workers * SHAPED.end()), ..need }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.rings + self.caches + self.bursts + self.waiting + self.shaped
    }

    /// The size of the pool: what the config says, else as many as are needed, as far as memory has them.
    pub fn pool(&self, config: &Config, huge_pages: bool) -> u32 {
        let needed = u32::try_from(self.total()).unwrap_or(u32::MAX);
        let fitting = buffers::fitting(config, huge_pages);
        config.eal.mbufs.unwrap_or(DEFAULT_MBUFS.max(needed).min(fitting))
    }

    /// What is wrong with a pool of so many buffers, if anything.
    pub fn shortage(&self, pool: u64, config: &Config, huge_pages: bool) -> Option<Shortage> {
        let total = self.total();
        if pool >= total {
            return None;
        }
        let is_fatal = pool <= self.rings;
        let Self { rings, waiting, caches, bursts, shaped } = self;
        let busiest = format!(
            "ports and workers hold {total} at their busiest: {rings} in rings of drivers, {waiting} on their way out of ports, \
             {shaped} waiting for tokens, {caches} in caches of workers, {bursts} in their hands"
        );
        let mut text = match is_fatal {
            true => format!("{pool} packet buffers are not enough for the rings of drivers alone; {busiest}"),
            false => format!("{pool} packet buffers may be too few; {busiest}"),
        };
        let fitting = match config.eal.mbufs {
            Some(_) => buffers::most(config, huge_pages),
            None => buffers::fitting(config, huge_pages),
        };
        let memory = (total > u64::from(fitting))
            .then(|| format!("memory = \"{}MiB\"", buffers::memory_for(config, total, huge_pages)));
        let mbufs = config.eal.mbufs.map(|_| format!("mbufs = {total} (or leave it out)"));
        let settings: Vec<String> = memory.into_iter().chain(mbufs).collect();
        text += &match settings.is_empty() {
            // The pool of a switch that runs was made for the ports of before.
            true => "; start the switch anew with these ports, or give ports fewer queues".to_owned(),
            false => format!("; set [eal] {}, or give ports fewer queues", settings.join(" and ")),
        };
        Some(Shortage { is_fatal, text })
    }
}

/// What `check` says of a config's packet buffers.
pub fn check(config: &Config) -> Option<Shortage> {
    let need = BufferNeed::of_config(config);
    let huge_pages = buffers::may_have_huge_pages(config);
    need.shortage(need.pool(config, huge_pages).into(), config, huge_pages)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    fn with_ports(ports: usize, port: impl Fn(usize) -> String, top: &str) -> Config {
        let mut text = format!("{top}\n");
        for n in 0..ports {
            let _ = writeln!(text, "[[port]]\nname = \"p{n}\"\nport = {}", port(n));
        }
        Config::parse(&text, "test.toml").unwrap()
    }

    fn veth(n: usize) -> String {
        format!("{{ kind = \"veth\", iface = \"h{n}\" }}")
    }

    fn nic(n: usize) -> String {
        format!("{{ kind = \"pci\", address = \"0000:01:{n:02x}.0\" }}")
    }

    #[test]
    fn ports_buffers_of_hundreds_of_veths_fit_what_there_is() {
        let config = with_ports(500, veth, "");
        let need = BufferNeed::of_config(&config);
        assert_eq!(
            (need.rings, need.waiting),
            (0, tx::WORKER_ROOM as u64),
            "they share the room of the worker"
        );
        assert_eq!(check(&config), None);
        assert_eq!(need.pool(&config, true), DEFAULT_MBUFS);
    }

    #[test]
    fn ports_buffers_grow_with_queues_descriptors_and_workers() {
        let workers = |count| format!("[workers]\ncores = {:?}\n", (0..count).collect::<Vec<usize>>());
        let need = |ports, count| BufferNeed::of_config(&with_ports(ports, nic, &workers(count)));
        assert_eq!((need(2, 1).rings, need(4, 1).rings, need(2, 8).rings), (4096, 8192, 8 * 4096));
        assert!(need(1, 8).caches > need(1, 2).caches && need(1, 8).bursts > need(1, 2).bursts);
        assert_eq!(need(1, 2).caches, 3 * 768);
        // A queue for each worker, none hands over.
        assert_eq!(need(1, 8).waiting, 8 * 64);
        for (ports, count) in [(1, 1), (2, 8), (20, 8)] {
            let need = need(ports, count);
            assert!(need.shaped >= (need.total() - need.shaped) / 9 || need.shaped == count as u64 * 16_384);
            let config = with_ports(ports, nic, &format!("[eal]\nmemory = \"4GiB\"\n{}", workers(count)));
            let pool = need.pool(&config, true);
            assert!(u64::from(pool) >= need.total() && need.shortage(pool.into(), &config, true).is_none());
        }
    }

    #[test]
    fn ports_buffers_that_do_not_fit_are_told_with_numbers_and_a_remedy() {
        let short = |ports, eal: &str| check(&with_ports(ports, nic, &format!("[eal]\n{eal}\n")));
        let Shortage { is_fatal, text } = short(4, "mbufs = 12000").unwrap();
        let need = BufferNeed::of_config(&with_ports(4, nic, ""));
        assert!(!is_fatal, "{text}");
        for word in
            ["12000 packet buffers may", "8192 in rings", &format!("hold {} at their busiest", need.total())]
        {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(
            text.contains(&format!("[eal] mbufs = {}", need.total())) && !text.contains("memory ="),
            "{text}"
        );
        assert_eq!(short(4, &format!("mbufs = {}", need.total())), None);
        let Shortage { is_fatal, text } = short(4, "mbufs = 8000").unwrap();
        assert!(
            is_fatal && text.contains("8000 packet buffers are not enough for the rings of drivers alone"),
            "{text}"
        );
        let Shortage { text, .. } = short(30, "memory = \"64MiB\"").unwrap();
        assert!(text.contains("set [eal] memory = \"") && !text.contains("mbufs ="), "{text}");
        // What it says to do does.
        let memory = text.split("memory = ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
        assert_eq!(short(30, &format!("memory = {memory}")), None);
    }
}
