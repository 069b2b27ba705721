//! The simulated e-switch as the manager and the console hold it, and what the config says of it.

use std::sync::Arc;

use pipelines::offload::manager::Policy;
use pipelines::offload::sim::{self, UdpPorts};
use pipelines::offload::translate::{self, TranslateOptions};
use pmd::{FlowEngine, FlowQueues};
use rules::{ArrivalCount, BackEnd, FlowError, FlowRule, Guard, InnerTuple, Meter, RuleId, Usage};
use wire::Dscp;
use worker::eswitch::SimulatedDevice;

use crate::config::{Config, Engine, Entropy, OffloadConfig};

/// No count that an e-switch reaches: the gate of a flow whose packets may be overtaken opens whatever came to software.
pub const ANY: ArrivalCount = ArrivalCount(u64::MAX);

/// The device, taken for each single step: workers never wait for more than one rule.
#[derive(Clone, Debug)]
pub struct Simulated(pub Arc<SimulatedDevice>);

impl BackEnd for Simulated {
    fn validate(&mut self, rule: &FlowRule) -> Result<(), FlowError> {
        self.0.lock().eswitch.validate(rule)
    }

    fn create(&mut self, rule: &FlowRule) -> Result<RuleId, FlowError> {
        self.0.lock().eswitch.create(rule)
    }

    fn create_gate(&mut self, rule: &FlowRule, guard: &Guard) -> Result<RuleId, FlowError> {
        let mut state = self.0.lock();
        if guard.arrivals == ANY {
            return state.eswitch.create(rule);
        }
        state.eswitch.create_gate(rule, guard)
    }

    fn completed(&mut self, results: &mut Vec<(RuleId, Result<(), FlowError>)>) {
        self.0.lock().eswitch.completed(results);
    }

    fn destroy(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        self.0.lock().eswitch.destroy(rule)
    }

    fn query(&mut self, rule: RuleId) -> Result<Usage, FlowError> {
        self.0.lock().eswitch.query(rule)
    }

    fn aged(&mut self, rules: &mut Vec<RuleId>) {
        self.0.lock().eswitch.aged(rules);
    }

    fn flush(&mut self) -> Result<(), FlowError> {
        self.0.lock().eswitch.flush()
    }

    fn set_meter(&mut self, mtr_id: u32, meter: Option<Meter>) -> Result<(), FlowError> {
        self.0.lock().eswitch.set_meter(mtr_id, meter)
    }

    fn encap_source_port(&mut self, inner: &InnerTuple) -> Result<u16, FlowError> {
        self.0.lock().eswitch.encap_source_port(inner)
    }
}

/// A device as the config wants it.
pub(super) fn device(config: &Config) -> SimulatedDevice {
    let simulated = &config.offload.simulated;
    let like = sim::EswitchConfig {
        capacity: simulated.capacity,
        insertion_rate: simulated.insertion_rate,
        latency_ns: nanos(simulated.latency),
        refresh_ns: nanos(simulated.refresh),
        udp: UdpPorts { vxlan: config.vxlan.udp_port, rdma: config.rdma.udp_port },
        nic: simulated.nic.refuses(),
        steering: simulated.steering.engine(),
        ib_bth: simulated.ib_bth,
        meter_mark: simulated.meter_mark,
        modify_ecn: simulated.modify_ecn,
        encap_hash: simulated.encap_hash.kind(),
        refuse_all: simulated.refuse_all,
        fail_one_in: simulated.fail_one_in,
        ..sim::EswitchConfig::default()
    };
    SimulatedDevice::new(like, simulated.ring as usize, nanos(simulated.delay))
}

/// Which API of rte_flow the port of a NIC is started for, and for how many rules.
pub fn flow_engine(config: &OffloadConfig) -> FlowEngine {
    let queues = FlowQueues::for_rules(u32::try_from(config.rules).unwrap_or(u32::MAX));
    match config.engine {
        Engine::Auto => FlowEngine::Auto(queues),
        Engine::Sync => FlowEngine::Sync,
        Engine::Async => FlowEngine::Async(queues),
    }
}

pub(super) fn policy(config: &OffloadConfig) -> Policy {
    Policy {
        packets: config.hot_packets,
        bytes: config.hot_rate.bits_per_second() / 8,
        cool_ns: nanos(config.cool_after),
        install_wait_ns: nanos(config.install_wait),
        retry_ns: nanos(config.retry_after),
        rules_per_second: config.rules_per_second,
        rules: usize::try_from(config.rules).unwrap_or(usize::MAX),
        // The counters of a device stand still for so long at most.
        refresh_ns: 2 * nanos(config.simulated.refresh) + nanos(config.sync_every),
        ..Policy::default()
    }
}

pub(super) fn options(config: &OffloadConfig) -> TranslateOptions {
    TranslateOptions {
        entropy: match config.entropy {
            Entropy::Exact => translate::EntropySource::Exact,
            Entropy::Hardware => translate::EntropySource::Hardware,
        },
        dscps: config.dscps.iter().filter_map(|dscp| Dscp::new(*dscp).ok()).collect(),
        age: u32::try_from(config.idle_timeout.as_secs()).unwrap_or(u32::MAX),
    }
}

pub(super) fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Room for a match is asked for by hardware steering alone.
    #[test]
    fn the_device_refuses_what_its_nic_refuses_with_its_steering() {
        let large = "flow create 0 group 1 priority 0 transfer pattern eth / ipv6 src is fd00::1 dst is fd00::2 / tcp src is 1 / end \
                     actions drop / end";
        let rule = rules::testpmd::commands(large).unwrap().remove(0);
        for (keys, taken) in [
            ("", true),
            ("nic = \"connectx-6-dx\"\n", false),
            ("nic = \"connectx-6-dx\"\nsteering = \"hardware\"\n", false),
            ("nic = \"connectx-6-dx\"\nsteering = \"software\"\n", true),
        ] {
            let config = Config::parse(&format!("[offload.simulated]\n{keys}"), "f").unwrap();
            let mut device = Simulated(Arc::new(device(&config)));
            assert_eq!(device.validate(&rule).is_ok(), taken, "{keys}");
        }
    }
}
