//! The other end of `aside.rs`: brings up DPDK with this one device, asks it, and takes all of it down again.
//!
//! Nothing of the device's traffic is touched as far as that can be told to a driver: no other device is allowed, the port is
//! isolated, has no receive queue, is not promiscuous, keeps its MTU, and what rules it took for the answer it gives back. The
//! config says the rest as for a switch: memory, plugins, the driver's arguments, the engine that rules go through. In
//! switchdev mode mlx5 makes default rules of its own at a start (unconfirmed on hardware).

use std::io::Write;

use pmd::{Eal, EalConfig, FlowDevice, Hugepages, Mempool, MempoolConfig, PciAccess, Port, PortConfig};
use rules::{BackEnd, Cause};

use super::aside::Said;
use super::{ProbeAnswer, Probed};
use crate::capabilities::{self, CapabilityAnswer};
use crate::config::port_spec::{PciPort, RawPort};
use crate::config::{Config, HugePages, PortSpec};
use crate::nic_check::{Device, WantedDevice};
use crate::port::{self, OpenRequest, Traits, full_address};
use crate::switch::offload::flow_engine;

/// Asks the device, and says so line by line on `out`.
///
/// # Errors
/// When nobody listens to what is said.
pub fn run(device: &Device, config: Option<&Config>, out: &mut dyn Write) -> std::io::Result<()> {
    let given = config.cloned().unwrap_or_default();
    let mut talk = Talk { out, lost: None };
    if let Err(words) = ask(device, &given, &mut talk) {
        talk.say(&Said::Refused(words));
    }
    talk.lost.map_or(Ok(()), Err)
}

struct Talk<'a> {
    out: &'a mut dyn Write,
    lost: Option<std::io::Error>,
}

impl Talk<'_> {
    fn say(&mut self, said: &Said) {
        let written = serde_json::to_string(said)
            .map_err(std::io::Error::other)
            .and_then(|line| writeln!(self.out, "{line}"))
            .and_then(|()| self.out.flush());
        if let Err(error) = written {
            self.lost.get_or_insert(error);
        }
    }

    fn stage(&mut self, now: &str) {
        self.say(&Said::Stage(now.into()));
    }
}

fn ask(device: &Device, config: &Config, talk: &mut Talk<'_>) -> Result<(), String> {
    talk.stage("DPDK was started");
    let eal = Eal::init(&eal(device, config)).map_err(|error| error.to_string())?;
    let pool = MempoolConfig { name: "probe".into(), mbufs: 127, cache: 0, ..MempoolConfig::default() };
    let pool = Mempool::new(&eal, &pool).map_err(|error| error.to_string())?;
    talk.stage("the device was opened");
    let wanted = WantedDevice::of(Some(config), device.name());
    let request = OpenRequest { name: device.name(), unique: 0, queues: 1, mtu: None, before_device: false };
    let spec = wanted.spec.unwrap_or_else(|| spec(device));
    let opened = port::open(&eal, &spec, &request).map_err(|error| error.to_string())?;
    talk.stage("the device was started for rules");
    let (port, tx, rss) = match start(opened.port, &opened.traits, config, &pool) {
        Ok(started) => started,
        Err((port, words)) => {
            return Err(match port::close(port, opened.cleanup) {
                Ok(()) => words,
                Err(error) => format!("{words}; then {error}"),
            });
        }
    };
    talk.stage("it was asked about rules");
    let asked = FlowDevice::new(&port).map_err(|error| error.to_string()).and_then(|mut rules| {
        let report = capabilities::probe(&mut rules, port.id().get(), port.id().get())?;
        // What a queue still has of what it was told.
        let drained = rules.drain().map_err(|error| error.to_string());
        let left = match (rules.len(), drained) {
            (0, Ok(())) => String::new(),
            (left, Ok(())) => format!("; {left} rules stayed until the port stopped"),
            (left, Err(words)) => format!("; {left} rules stayed until the port stopped: {words}"),
        };
        let engine = if rules.is_queued() { "async" } else { "sync" };
        let by = format!("DPDK {} of its own, engine {engine}{left}", Eal::dpdk_version());
        Ok(Probed { by, chains: answers(&report.chains), features: answers(&report.features), rss })
    });
    talk.say(&asked.map_or_else(Said::Refused, Said::Answer));
    talk.stage("the device was closed");
    let stopped = port.stop(Vec::new(), tx).map_err(|(.., error)| error.to_string())?;
    port::close(stopped, opened.cleanup).map_err(|error| error.to_string())
}

fn eal(device: &Device, config: &Config) -> EalConfig {
    let given = &config.eal;
    let here = |allowed: &&String| {
        let address = allowed.split(',').next().unwrap_or_default();
        full_address(address).is_ok_and(|address| address == device.name())
    };
    EalConfig {
        // Beside a switch of the same config; two checks at once are refused by DPDK's run folder.
        file_prefix: format!("{}-probe", given.file_prefix),
        memory_mb: (given.memory.bytes() >> 20).clamp(64, u64::from(u32::MAX)) as u32,
        hugepages: match given.huge_pages {
            HugePages::Auto => Hugepages::Auto,
            HugePages::Never => Hugepages::Never,
            HugePages::Require => Hugepages::Require,
        },
        pci: match device {
            // With an empty list none is taken at start; this one is when it is opened.
            Device::Pci(_) => PciAccess::Allow(given.pci.iter().filter(here).cloned().collect()),
            Device::Virtual(_) => PciAccess::None,
        },
        plugins: given.plugins.clone(),
        ..EalConfig::default()
    }
}

/// The port of a device that the config has none on.
fn spec(device: &Device) -> PortSpec {
    match device {
        Device::Pci(address) => PortSpec::Pci(PciPort { address: address.clone(), devargs: None }),
        Device::Virtual(name) => PortSpec::Raw(RawPort { vdev: name.clone(), trusted_peer: false }),
    }
}

type Started = (pmd::StartedPort, Vec<pmd::TxQueue>, Option<String>);

/// Starts a port that takes rules and no packets.
#[allow(clippy::result_large_err, reason = "once per process, and the port must come back")]
fn start(port: Port, traits: &Traits, config: &Config, pool: &Mempool) -> Result<Started, (Port, String)> {
    // Without it a port is left alone by having no receive queue: a driver that knows neither is not started.
    match port.isolate() {
        Err(error) if error.cause != Cause::Unsupported => {
            return Err((port, format!("it cannot be isolated: {error}")));
        }
        _ => {}
    }
    let rss = port.info().ok().map(|info| info.rss.to_string());
    let wanted = PortConfig {
        rx_queues: 0,
        tx_queues: 1,
        tx_desc: traits.tx_desc,
        promiscuous: false,
        flow_engine: flow_engine(&config.offload),
        ..PortConfig::default()
    };
    match port.start(&wanted, pool) {
        Ok((port, _, tx)) => Ok((port, tx, rss)),
        Err((port, error)) => Err((port, format!("it does not start without a receive queue: {error}"))),
    }
}

fn answers(all: &[CapabilityAnswer]) -> Vec<ProbeAnswer> {
    let one = |answer: &CapabilityAnswer| {
        (answer.name.to_owned(), answer.taken.as_ref().copied().map_err(|(_, error)| error.to_string()))
    };
    all.iter().map(one).collect()
}
