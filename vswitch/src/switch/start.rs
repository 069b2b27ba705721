//! What the switch is started with, from its config: cores, memory, buffers, tables. Starts nothing itself.

use pipelines::nft::NftParams;
use pmd::MempoolConfig;

use super::pool_size::{BufferNeed, Shortage};
use super::{SwitchError, pool_size, ports};
use crate::config::{Config, ForwardMode, HugePages, buffers};
use crate::worker::Mode;

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

/// The same for a process beside one that has the prefix: of two names, so that what a killed one leaves is found by the next.
pub(super) fn beside(params: pmd::EalConfig) -> pmd::EalConfig {
    let stem: String = params.file_prefix.chars().take(48).collect();
    pmd::EalConfig { file_prefix: format!("{stem}-upgrade"), ..params }
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

/// The pool of packet buffers, in memory on huge pages or not.
///
/// # Errors
/// [`SwitchError::Memory`] where ports would not start with it.
pub(super) fn mempool(
    config: &Config,
    workers: usize,
    huge_pages: bool,
) -> Result<MempoolConfig, SwitchError> {
    let need = BufferNeed::of_config(config);
    let mbufs = need.pool(config, huge_pages);
    match need.shortage(mbufs.into(), config, huge_pages) {
        Some(Shortage { is_fatal: true, text }) => return Err(SwitchError::Memory(text)),
        Some(Shortage { text, .. }) => tracing::warn!("{text}"),
        None => {}
    }
    let (cache, data_room) = (pool_size::cache(workers, mbufs), buffers::room(config) as u16);
    Ok(MempoolConfig { name: "packets".into(), mbufs, cache, data_room, numa: None })
}

/// The flow tables.
pub(super) fn nft(config: &Config) -> NftParams {
    let idle_ms = config.nft.idle_timeout.as_millis() as u64;
    let ticks = idle_ms.div_ceil(u64::from(pipelines::TICK_MS)).clamp(1, u64::from(u32::MAX / 4));
    NftParams { entries: config.nft.entries, idle_ticks: ticks as u32, seed: seed() }
}

/// A seed that tenants cannot know: the standard library's randomly keyed hasher.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
