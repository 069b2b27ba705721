//! What the switch is started with, from its config: cores, memory, buffers, tables. Starts nothing itself.

use pipelines::nft::NftParams;
use pmd::MempoolConfig;

use super::{SwitchError, ports};
use crate::config::{Config, ForwardMode, HugePages, buffers};
use crate::worker::Mode;
use crate::worker::tx::MAX_WAITING;

/// Packet buffers when the config does not say, and its ports need no more.
const DEFAULT_MBUFS: u32 = 32_767;
/// Buffers that the driver of any kind of port may hold for each queue: descriptors of a NIC, one way.
const QUEUE_BUFFERS: u32 = 1024;

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

/// The pool of packet buffers, in memory on huge pages or not.
pub(super) fn mempool(config: &Config, workers: usize, huge_pages: bool) -> MempoolConfig {
    let room = buffers::room(config);
    // Three quarters of what fits: ports have rings and tables in the same memory.
    let fitting = buffers::most(config, huge_pages) / 4 * 3;
    let cache = if workers > 4 { 256 } else { 512 };
    let needed = needed_buffers(config, workers as u32, cache);
    let mbufs = config.eal.mbufs.unwrap_or(DEFAULT_MBUFS.max(needed).min(fitting));
    if mbufs < needed {
        let remedy = if config.eal.mbufs.is_some() { "raise [eal] mbufs" } else { "raise [eal] memory" };
        tracing::warn!(
            mbufs,
            needed,
            "ports at their busiest may need more packet buffers than there are: {remedy}"
        );
    }
    MempoolConfig { name: "packets".into(), mbufs, cache, data_room: room as u16, numa: None }
}

/// The packet buffers that the ports of a config and its workers hold at their busiest.
fn needed_buffers(config: &Config, workers: u32, cache: u32) -> u32 {
    let of_port = |port: &ports::WantedPort| {
        let queues = |given: Option<u16>| given.map_or(workers, u32::from).max(1);
        // Only devices with rings of their own keep buffers in them; other kinds copy.
        let has_rings = matches!(port.spec.kind(), "pci" | "representor" | "af-xdp" | "virtio-user" | "raw");
        let rings = match has_rings {
            true => QUEUE_BUFFERS,
            // The kernel copies at once.
            false if !port.spec.is_ethdev() => 0,
            false => 64,
        };
        let rings = (queues(port.rx_queues) + queues(port.tx_queues)).saturating_mul(rings);
        rings.saturating_add(MAX_WAITING as u32)
    };
    let ports = ports::wanted(config).values().map(of_port).fold(0, u32::saturating_add);
    // Caches overflow at one and a half times their size; two bursts are in a worker's hands.
    let in_hand = (workers + 1).saturating_mul(cache / 2 * 3 + 2 * 64);
    // And a tenth of all may wait for tokens.
    ports.saturating_add(in_hand).saturating_mul(10) / 9
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

#[cfg(test)]
mod tests {
    use super::*;

    fn with_vnics(vnics: usize, eal: &str) -> Config {
        use std::fmt::Write;
        let mut text = format!("{eal}\n[[vpc]]\nname = \"red\"\nvni = 7\n");
        text += "[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/16\"\n";
        for n in 1..=vnics {
            let port = format!("{{ kind = \"vhost-user\", path = \"/run/v{n}.sock\" }}");
            let _ = writeln!(
                text,
                "[[vnic]]\nname = \"v{n}\"\nvpc = \"red\"\nmac = \"52:54:00:00:00:{n:02x}\"\nvips = [\"10.0.0.{n}\"]\n\
                 port = {port}\n"
            );
        }
        Config::parse(&text, "test.toml").unwrap()
    }

    #[test]
    fn repair_the_pool_grows_with_what_may_wait() {
        let few = with_vnics(1, "");
        assert_eq!(mempool(&few, 2, true).mbufs, DEFAULT_MBUFS);
        for workers in [1, 2, 16] {
            let many = with_vnics(31, "[eal]\nmemory = \"4GiB\"");
            let waiting = 31 * MAX_WAITING as u32;
            assert!(mempool(&many, workers, true).mbufs > waiting, "{workers} workers");
        }
        let needed = |workers| needed_buffers(&with_vnics(31, ""), workers, 512);
        assert!(needed(16) > needed(2), "workers hold some, too");
        let given = with_vnics(31, "[eal]\nmbufs = 4096");
        assert_eq!(mempool(&given, 2, true).mbufs, 4096, "what is said is done");
    }
}
