//! The switch's settings as the snapshot has them, from the config's.

use pipelines::ecn::EcnEncap;
use pipelines::qos::{QueueLimits, RedProfile};
use pipelines::snapshot::{DscpPolicy, Settings};
use pipelines::stage::key::RoceClasses;

use crate::config::{self, Config};

pub(super) fn settings(config: &Config) -> Settings {
    let defaults = Settings::default();
    Settings {
        vxlan_port: config.vxlan.udp_port,
        rdma_port: config.rdma.udp_port,
        roce_classes: RoceClasses::counting(config.rcft.count_opcodes.iter()),
        vxlan_strict: config.vxlan.reserved == config::ReservedBits::Strict,
        ecn_encap: match config.vxlan.ecn_encap {
            config::EcnEncapConfig::Rfc6040 => EcnEncap::Rfc6040,
            config::EcnEncapConfig::Rfc3168 => EcnEncap::Rfc3168,
            config::EcnEncapConfig::Rfc6040Compat => EcnEncap::Rfc6040Compat,
        },
        dscp: match config.vxlan.dscp {
            config::DscpConfig::Copy => DscpPolicy::Copy,
            config::DscpConfig::Fixed(dscp) => DscpPolicy::Fixed(dscp.get()),
        },
        miss_budget: u32::from(config.nft.miss_budget),
        miss_rate: config.nft.miss_rate,
        error_rate: defaults.error_rate,
        flood_budget: u32::from(config.nft.flood_budget),
        flood_rate: config.nft.flood_rate,
        red: RedProfile {
            kmin: config.qos.kmin.bytes(),
            kmax: config.qos.kmax.bytes(),
            pmax_ppm: config.qos.pmax.ppm(),
            hard_limit: config.qos.hard_limit.bytes(),
            overhead: config.qos.overhead,
            // Nothing there means no marks at all.
            tcp_ecn_ns: match config.qos.tcp_ecn {
                true => u64::try_from(config.qos.tcp_ecn_target.as_nanos()).unwrap_or(u64::MAX).max(1),
                false => 0,
            },
        },
        queues: QueueLimits {
            packets: config.qos.queue_packets,
            bytes: u32::try_from(config.qos.queue_bytes.bytes()).unwrap_or(u32::MAX / 2),
            time_ns: u64::try_from(config.qos.queue_time.as_nanos()).unwrap_or(u64::MAX),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rcft_opcodes_that_are_configured_count() {
        let of = |text: &str| settings(&Config::parse(text, "test").unwrap()).roce_classes;
        assert_eq!(of(""), RoceClasses::STANDARD);
        assert_eq!(of("[rcft]\ncount-opcodes = \"0xc4,0xe0-0xff\""), {
            RoceClasses::counting([0xc4].into_iter().chain(0xe0..=0xff))
        });
    }

    #[test]
    fn repair_flood_limits_are_those_of_the_config() {
        let of = |text: &str| {
            let settings = settings(&Config::parse(text, "test").unwrap());
            (settings.flood_budget, settings.flood_rate)
        };
        assert_eq!(of("[nft]\nflood-budget = 2000\nflood-rate = 0\n"), (2000, 0));
        let defaults = Settings::default();
        assert_eq!(of(""), (defaults.flood_budget, defaults.flood_rate));
        let error = Config::parse("[nft]\nflood-budget = 0\n", "test").unwrap_err().to_string();
        assert!(error.contains("flood-budget") && error.contains("256"), "{error}");
    }
}
