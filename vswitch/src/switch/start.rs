//! What the switch is started with, from its config: cores, memory, buffers, tables. Starts nothing itself.

use pipelines::nft::NftConfig;
use pmd::MempoolConfig;

use super::{SwitchError, ports};
use crate::config::{Config, ForwardMode, HugePages};
use crate::worker::Mode;

/// Packet buffers when the config does not say.
const DEFAULT_MBUFS: u32 = 32_767;
/// Bytes in front of and behind a frame in a buffer: headroom, tunnel headers, tags.
const BUFFER_EXTRA: u32 = 128 + 128;
/// Largest frame that one buffer is made for; longer ones use several.
const LARGEST_BUFFER: u32 = 12_288;
/// Ethernet header with two tags, and what an af_packet ring keeps in front of a frame.
const LINK_AND_RING: u32 = 22 + 80;
/// The workers' mode of a forwarding mode.
pub(super) fn mode(mode: ForwardMode) -> Mode {
    match mode {
        ForwardMode::Overlay => Mode::Overlay,
        ForwardMode::Io => Mode::Io,
        ForwardMode::Mac => Mode::Mac,
    }
}

/// The cores of the workers: those of the config, else the last ones of the machine, so that the first stays with
/// control.
pub(super) fn cores(config: &Config, available: &[usize]) -> Result<Vec<usize>, SwitchError> {
    let count = config.workers.workers();
    match &config.workers.cores {
        Some(cores) => {
            let missing: Vec<usize> =
                cores.iter().copied().filter(|core| !available.contains(core)).collect();
            if missing.is_empty() {
                Ok(cores.clone())
            } else {
                Err(SwitchError::NoSuchCore { missing, available: available.to_vec() })
            }
        }
        None if count > available.len() => {
            Err(SwitchError::TooFewCores { wanted: count, available: available.to_vec() })
        }
        None => Ok(available[available.len() - count..].to_vec()),
    }
}

/// What DPDK is started with.
pub(super) fn eal(config: &Config, workers: &[usize]) -> pmd::EalConfig {
    let given = &config.eal;
    let main = pmd::lcore::available().into_iter().find(|core| !workers.contains(core));
    pmd::EalConfig {
        file_prefix: given.file_prefix.clone(),
        memory_mb: (given.memory.bytes() >> 20).clamp(64, u64::from(u32::MAX)) as u32,
        hugepages: match given.huge_pages {
            HugePages::Auto => pmd::Hugepages::Auto,
            HugePages::Never => pmd::Hugepages::Never,
            HugePages::Require => pmd::Hugepages::Require,
        },
        pci: pci_access(config),
        plugins: given.plugins.clone(),
        telemetry: true,
        main_core: main,
        ..pmd::EalConfig::default()
    }
}

/// The PCI bus is used only where the config names a device on it.
fn pci_access(config: &Config) -> pmd::PciAccess {
    let named = ports::wanted(config).values().any(|port| matches!(port.spec.kind(), "pci" | "representor"));
    if named || !config.eal.pci.is_empty() {
        pmd::PciAccess::Allow(config.eal.pci.clone())
    } else {
        pmd::PciAccess::None
    }
}

/// The pool of packet buffers.
pub(super) fn mempool(config: &Config, workers: usize) -> MempoolConfig {
    let uplinks = config.uplinks.iter().map(|uplink| uplink.mtu);
    let largest = uplinks.chain(config.vnics.iter().map(|vnic| vnic.mtu)).max().unwrap_or(1500);
    // Whole pages beyond the usual 2 KiB: af_packet rings have frames of that size.
    let room = match u32::from(largest) + LINK_AND_RING {
        small if small <= 2048 => 2048,
        large => large.next_multiple_of(4096).min(LARGEST_BUFFER),
    } + BUFFER_EXTRA;
    let memory = config.eal.memory.bytes();
    // Three quarters of the memory are for buffers; each has about 192 bytes of bookkeeping.
    let fitting = (memory / 4 * 3 / u64::from(room + 192)).min(u64::from(u32::MAX)) as u32;
    let cache = if workers > 4 { 256 } else { 512 };
    MempoolConfig {
        name: "packets".into(),
        mbufs: config.eal.mbufs.unwrap_or(DEFAULT_MBUFS.min(fitting)),
        cache,
        data_room: room as u16,
        numa: None,
    }
}

/// The flow tables.
pub(super) fn nft(config: &Config) -> NftConfig {
    let idle_ms = config.nft.idle_timeout.as_millis() as u64;
    let ticks = idle_ms.div_ceil(u64::from(pipelines::TICK_MS)).clamp(1, u64::from(u32::MAX / 4));
    NftConfig { entries: config.nft.entries, idle_ticks: ticks as u32, seed: seed() }
}

/// A seed that tenants cannot know: the standard library's randomly keyed hasher.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
