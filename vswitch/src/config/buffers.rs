//! Packet buffers against memory: how much room each has, what it costs, and how many fit.
//!
//! `check` and the start of the switch ask the same functions, so that what one finds good the other can make.

use pmd::mempool::LONG_DATA_ROOM;

use super::{Config, HugePages};

/// Bytes in front of and behind a frame in a buffer: headroom, tunnel headers, tags.
const EXTRA: u32 = 128 + 128;
/// Largest frame that one buffer is made for; longer ones use several.
const LARGEST: u32 = 12_288;
/// Ethernet header with two tags, and what an af_packet ring keeps in front of a frame.
const LINK_AND_RING: u32 = 22 + 80;
/// What DPDK adds to the room of each: the mbuf (128), the pool's header (64), padding that spreads them over channels.
const BOOKKEEPING: u64 = 128 + 64 + 64;
/// A small page.
const PAGE: u64 = 4096;
/// Long buffers for each worker, in which super-frames of kernel ports lie in one piece: more than it has in its hands while readers
/// keep up, and some for those that wait for one that does not.
const LONG: u64 = 128;
/// Memory for everything but buffers.
const REST: u64 = 4 << 20;

/// The room of a packet buffer, for the largest MTU of a config.
pub fn room(config: &Config) -> u32 {
    let uplinks = config.uplinks.iter().map(|uplink| uplink.mtu);
    let largest = uplinks.chain(config.vnics.iter().map(|vnic| vnic.mtu)).max().unwrap_or(1500);
    // Whole pages beyond the usual 2 KiB: af_packet rings have frames of that size.
    let frame = match u32::from(largest) + LINK_AND_RING {
        small if small <= 2048 => 2048,
        large => large.next_multiple_of(4096).min(LARGEST),
    };
    frame + EXTRA
}

/// Bytes that one buffer takes. Without huge pages DPDK lays none across the end of a page, which leaves gaps.
pub fn cost(room: u32, huge_pages: bool) -> u64 {
    let bytes = u64::from(room) + BOOKKEEPING;
    match bytes {
        _ if huge_pages => bytes,
        small if small <= PAGE => PAGE / (PAGE / small),
        large => large.next_multiple_of(PAGE),
    }
}

/// Most buffers that fit into the memory of a config.
pub fn most(config: &Config, huge_pages: bool) -> u32 {
    let memory = config.eal.memory.bytes().saturating_sub(REST);
    u32::try_from(memory / cost(room(config), huge_pages)).unwrap_or(u32::MAX)
}

/// Buffers that a pool is given at most unless the config says how many: three quarters of what fits, for ports have rings and
/// tables in the same memory.
pub fn fitting(config: &Config, huge_pages: bool) -> u32 {
    most(config, huge_pages) / 4 * 3
}

/// Long buffers beside so many usual ones: what the workers can use, of a quarter of the memory that is left. There may be none: super-frames
/// then lie in as many usual ones as they need.
pub fn long(config: &Config, mbufs: u32, huge_pages: bool) -> u32 {
    let taken = u64::from(mbufs) * cost(room(config), huge_pages) + REST;
    let left = config.eal.memory.bytes().saturating_sub(taken);
    let wanted = LONG * config.workers.workers().max(1) as u64;
    wanted.min(left / 4 / cost(LONG_DATA_ROOM.into(), huge_pages)) as u32
}

/// MiB of `[eal] memory` in which so many buffers are [`fitting`].
pub fn memory_for(config: &Config, buffers: u64, huge_pages: bool) -> u64 {
    let most = buffers.div_ceil(3) * 4;
    (most * cost(room(config), huge_pages) + REST).div_ceil(1 << 20)
}

/// What is wrong with `[eal] mbufs` beside `[eal] memory`, if anything.
pub fn problem(config: &Config, huge_pages: bool) -> Option<String> {
    let (mbufs, most) = (config.eal.mbufs?, most(config, huge_pages));
    if mbufs <= most {
        return None;
    }
    let each = cost(room(config), huge_pages);
    let needed = (u64::from(mbufs) * each + REST).div_ceil(1 << 20);
    let pages = if huge_pages { "" } else { " without huge pages" };
    Some(format!(
        "[eal] mbufs {mbufs} of {each} bytes{pages} need memory = \"{needed}MiB\"; memory is {}: raise it, lower mbufs to {most}, \
         or leave mbufs out for as many as fit",
        config.eal.memory
    ))
}

/// True unless a config rules huge pages out: `check` does not look at the machine.
pub fn may_have_huge_pages(config: &Config) -> bool {
    config.eal.huge_pages != HugePages::Never
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(eal: &str) -> Config {
        Config::parse(&format!("[eal]\n{eal}\n"), "test").unwrap()
    }

    #[test]
    fn repair_small_pages_hold_fewer_buffers() {
        // One of 2,304 bytes of room in each page; two pages for one of 4,352.
        assert_eq!((cost(2304, true), cost(2304, false)), (2560, 4096));
        assert_eq!(cost(4352, false), 8192);
        assert_eq!(cost(1000, false), 4096 / 3);
        let small = config("memory = \"64MiB\"\nhuge-pages = \"never\"");
        assert_eq!((most(&small, false), most(&small, true)), (15_360, 24_576));
        assert_eq!(problem(&small, false), None, "as many as fit are made");
    }

    #[test]
    fn long_buffers_take_a_quarter_of_what_is_left_at_most() {
        let usual = config("");
        assert_eq!((long(&usual, 32_767, true), long(&usual, 32_767, false)), (128, 128));
        let small = config("memory = \"64MiB\"");
        // (64 - 4 MiB - 18,432 * 2,560 bytes) / 4 / 65,791 bytes.
        assert_eq!(long(&small, 18_432, true), 59);
        assert_eq!(
            long(&small, most(&small, true), true),
            0,
            "what the config says of usual ones comes first"
        );
        let workers = Config::parse("[workers]\ncores = [0, 1, 2, 3]\n", "test").unwrap();
        assert_eq!(long(&workers, 32_767, true), 512);
    }

    #[test]
    fn repair_check_refuses_more_buffers_than_memory() {
        let refused = |eal: &str| Config::parse(&format!("[eal]\n{eal}\n"), "test").unwrap_err().to_string();
        let error = refused("memory = \"64MiB\"\nhuge-pages = \"never\"\nmbufs = 15361");
        for word in ["mbufs 15361", "4096 bytes without huge pages", "65MiB", "64MiB", "lower mbufs to 15360"]
        {
            assert!(error.contains(word), "{word}: {error}");
        }
        config("memory = \"64MiB\"\nhuge-pages = \"never\"\nmbufs = 15360");
        // Where there may be huge pages, the machine decides at start.
        let auto = config("memory = \"64MiB\"\nmbufs = 20000");
        assert!(problem(&auto, false).is_some() && problem(&auto, true).is_none());
        assert!(refused("memory = \"64MiB\"\nmbufs = 25000").contains("lower mbufs to 24576"));
    }
}
