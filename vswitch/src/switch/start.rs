//! What the switch is started with, from its config: cores, memory, buffers, tables. Starts nothing itself.

use std::collections::BTreeMap;

use pipelines::nft::NftParams;
use pmd::MempoolConfig;
use worker::Mode;

use super::pool_size::{BufferNeed, Shortage};
use super::ports::WantedPort;
use super::{SwitchError, pool_size, ports};
use crate::config::{Config, ForwardMode, HugePages, buffers};

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

/// What is lost where a process that takes over got none of the huge pages that this machine has, `reserved` MiB of them: the old one holds
/// its own until it ends.
pub(super) fn lacks_huge_pages(config: &Config, uses_them: bool, reserved: u64) -> Option<String> {
    let wanted = config.eal.memory.bytes() >> 20;
    (config.eal.huge_pages == HugePages::Auto && !uses_them && reserved > 0).then(|| {
        format!(
            "this process runs without huge pages, and slower, until it is restarted: {wanted} MiB of the {reserved} MiB that are reserved were not \
             free beside the old switch; reserve those of two before an upgrade (`sysctl vm.nr_hugepages`), or write `[eal] huge-pages = \
             \"require\"` to have it refused instead"
        )
    })
}

/// The same for a process beside one that has the prefix: of two names, so that what a killed one leaves is found by the next.
pub(super) fn beside(params: pmd::EalConfig) -> pmd::EalConfig {
    let stem: String = params.file_prefix.chars().take(48).collect();
    pmd::EalConfig { file_prefix: format!("{stem}-upgrade"), ..params }
}

/// The PCI bus is used only where the config names a device on it.
fn pci_access(config: &Config) -> pmd::PciAccess {
    let named = ports::wanted(config).values().any(|port| port.spec.is_on_pci());
    if named || !config.eal.pci.is_empty() {
        pmd::PciAccess::Allow(config.eal.pci.clone())
    } else {
        pmd::PciAccess::None
    }
}

/// Refuses ports on the PCI bus where DPDK was started without it: it would never find them.
///
/// # Errors
/// [`SwitchError::NoPciBus`].
pub(super) fn refuse_pci(want: &BTreeMap<String, WantedPort>, uses_pci: bool) -> Result<(), SwitchError> {
    match want.iter().find(|(_, port)| !uses_pci && port.spec.is_on_pci()) {
        Some((name, port)) => Err(SwitchError::NoPciBus { name: name.clone(), path: port.of.port(name) }),
        None => Ok(()),
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
        Some(Shortage { is_fatal: true, text }) => {
            let path = if config.eal.mbufs.is_some() { "eal.mbufs" } else { "eal.memory" };
            return Err(SwitchError::Memory { path: path.into(), text });
        }
        Some(Shortage { text, .. }) => tracing::warn!("{text}"),
        None => {}
    }
    let (cache, data_room) = (pool_size::cache(workers, mbufs), buffers::room(config) as u16);
    let long = buffers::long(config, mbufs, huge_pages);
    Ok(MempoolConfig { name: "packets".into(), mbufs, cache, data_room, long, numa: None })
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

    const BOND: &str = "{ kind = \"bond\", members = [{ kind = \"pci\", address = \"0000:02:00.0\" }, { kind = \"pci\", address = \"0000:02:00.1\" }] }";
    const KERNEL_BOND: &str = "{ kind = \"bond\", members = [{ kind = \"af-packet\", iface = \"m0\" }, { kind = \"af-packet\", iface = \"m1\" }] }";
    const REPRESENTOR: &str = "{ kind = \"representor\", pf = \"0000:01:00.0\", vf = 3 }";

    fn config(port: &str, top: &str) -> Config {
        Config::parse(&format!("{top}\n[[port]]\nname = \"p\"\nport = {port}\n"), "test.toml").unwrap()
    }

    #[test]
    fn an_upgrade_that_loses_huge_pages_says_so() {
        let config =
            |pages: &str| Config::parse(&format!("[eal]\nhuge-pages = \"{pages}\"\n"), "test.toml").unwrap();
        let told = lacks_huge_pages(&config("auto"), false, 700).unwrap();
        assert!(told.contains("512 MiB of the 700 MiB") && told.contains("require"), "{told}");
        for (pages, uses_them, reserved) in [("auto", true, 700), ("auto", false, 0), ("never", false, 700)] {
            assert_eq!(lacks_huge_pages(&config(pages), uses_them, reserved), None);
        }
    }

    #[test]
    fn dpdk_uses_the_pci_bus_where_a_port_or_a_member_of_one_is_on_it() {
        let pci = |port, top| eal(&config(port, top), &[]).pci;
        let anything_later = pmd::PciAccess::Allow(Vec::new());
        for port in [BOND, REPRESENTOR, "{ kind = \"pci\", address = \"0000:01:00.0\" }"] {
            assert_eq!(pci(port, ""), anything_later, "{port}");
        }
        for port in [KERNEL_BOND, "{ kind = \"null\" }"] {
            assert_eq!(pci(port, ""), pmd::PciAccess::None, "{port}");
            let named = pmd::PciAccess::Allow(vec!["0000:01:00.0".into()]);
            assert_eq!(pci(port, "[eal]\npci = [\"0000:01:00.0\"]"), named, "{port}");
        }
    }

    #[test]
    fn a_port_on_the_pci_bus_is_refused_where_dpdk_was_started_without_it() {
        let refused = |port, uses_pci| refuse_pci(&ports::wanted(&config(port, "")), uses_pci);
        for port in [BOND, REPRESENTOR] {
            let told = refused(port, false).unwrap_err().to_string();
            assert!(told.starts_with("port p is on the PCI bus") && told.contains("restart"), "{told}");
            refused(port, true).unwrap();
        }
        refused(KERNEL_BOND, false).unwrap();
    }
}
