//! Outer source ports with `[offload] entropy = "hardware"`: the device chooses, and software follows where it can, so that
//! a flow keeps its path through the underlay when it moves between the two.

use std::sync::Arc;

use pipelines::encap_hash::{EncapHash, EncapHashError};
use pipelines::offload::translate::EntropySource;
use pmd::flow::BUILD;
use rules::BackEnd;

use super::OffloadControl;
use crate::config::{Config, Engine, Entropy, OffloadDevice, SimulatedHash};

/// What software makes of the outer source ports that a device chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourcePorts {
    /// It computes the same ones.
    Followed,
    /// It keeps its own: why.
    Unfollowed(EncapHashError),
}

impl SourcePorts {
    /// In a sentence.
    pub fn words(&self) -> String {
        match self {
            Self::Followed => {
                "software chooses the outer source ports that the device would choose: flows keep their path"
                    .into()
            }
            Self::Unfollowed(why) => {
                let rdma = match why {
                    EncapHashError::NotAffine { .. } => {
                        "; RoCEv2 flows keep software's port, by a rule for each"
                    }
                    EncapHashError::Untold(_) => "",
                };
                format!("{UNFOLLOWED}: {why}{rdma}")
            }
        }
    }
}

const UNFOLLOWED: &str = "software does not follow the device's outer source ports, and flows change their path when they \
                          move between software and hardware";

impl OffloadControl {
    /// Asks a device that is new for the source ports that it chooses, where the config leaves them to it; `seed` makes
    /// other questions each time. `None` when there is nothing to ask, or nothing new.
    pub fn learn_source_ports(&mut self, seed: u64) -> Option<Result<Arc<EncapHash>, EncapHashError>> {
        if self.config.entropy == Entropy::Exact || self.source_ports.is_some() {
            return None;
        }
        let device = self.holder.as_mut()?;
        let learned = EncapHash::learn(self.rdma_port, seed, |inner| device.encap_source_port(inner));
        self.options.entropy = match learned {
            Err(EncapHashError::NotAffine { .. }) => EntropySource::HardwareButRoce,
            _ => EntropySource::Hardware,
        };
        self.source_ports = Some(match &learned {
            Ok(_) => SourcePorts::Followed,
            Err(why) => SourcePorts::Unfollowed(why.clone()),
        });
        Some(learned.map(Arc::new))
    }

    /// Who chooses outer source ports, in the word of `[offload] entropy`.
    pub fn entropy(&self) -> &'static str {
        match self.config.entropy {
            Entropy::Exact => "exact",
            Entropy::Hardware => "hardware",
        }
    }

    /// What software makes of the device's choice; `None` where the device has none, or is not there.
    pub fn source_ports(&self) -> Option<&SourcePorts> {
        self.source_ports.as_ref()
    }
}

/// What a config with `entropy = "hardware"` comes to, as far as that is known before the device is there: for `check`.
pub fn note(config: &Config) -> Option<String> {
    let offload = &config.offload;
    let uplinks = config.uplinks.iter().map(|uplink| uplink.offload);
    // A switch has one device.
    let device = uplinks.chain(config.vnics.iter().map(|vnic| vnic.offload)).flatten().next()?;
    let why = match (offload.entropy, device) {
        (Entropy::Exact, _) => return None,
        (_, OffloadDevice::RteFlow) if !BUILD.encap_hash => {
            format!("this DPDK, {}, cannot ask for them; 24.03 and later can", BUILD.version)
        }
        (_, OffloadDevice::RteFlow) if offload.engine == Engine::Sync => {
            "drivers tell them with templates and queues only, which engine = \"sync\" leaves out".into()
        }
        (_, OffloadDevice::RteFlow) => {
            let text = "whether software follows the device's outer source ports, the device says when the switch runs";
            return Some(format!("[offload] entropy = \"hardware\": {text} (`show offload`)"));
        }
        (_, OffloadDevice::Simulated) => match offload.simulated.encap_hash {
            SimulatedHash::Crc => return None,
            SimulatedHash::None => "the simulated e-switch chooses none without encap-hash = \"crc\"".into(),
            SimulatedHash::Product => "encap-hash = \"product\" is a hash that cannot be followed".into(),
        },
    };
    Some(format!("[offload] entropy = \"hardware\": {UNFOLLOWED}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(offload: &str, device: &str) -> Option<String> {
        let uplink =
            "[[uplink]]\nname = \"up\"\nport = { kind = \"null\" }\naddresses = [\"172.16.0.1/24\"]\n";
        let text = format!("[offload]\n{offload}\n{uplink}{device}\n");
        note(&Config::parse(&text, "test").unwrap())
    }

    #[test]
    fn what_the_config_leaves_to_hardware_is_noted_where_software_cannot_follow() {
        const HARDWARE: &str = "entropy = \"hardware\"";
        let (nic, lab) = ("offload = \"rte-flow\"", "offload = \"simulated\"");
        assert_eq!(noted("", nic), None);
        assert_eq!(noted(HARDWARE, ""), None, "no port is on a device");
        let of_nic = noted(HARDWARE, nic).unwrap();
        let expected = if BUILD.encap_hash { "when the switch runs" } else { BUILD.version };
        assert!(of_nic.contains(expected), "{of_nic}");
        let sync = noted(&format!("{HARDWARE}\nengine = \"sync\""), nic).unwrap();
        assert!(sync.contains(if BUILD.encap_hash { "queues" } else { BUILD.version }), "{sync}");
        let none = noted(HARDWARE, lab).unwrap();
        assert!(none.contains("change their path") && none.contains("encap-hash = \"crc\""), "{none}");
        let hash =
            |kind: &str| noted(&format!("{HARDWARE}\n[offload.simulated]\nencap-hash = \"{kind}\""), lab);
        assert_eq!(hash("crc"), None);
        assert!(hash("product").unwrap().contains("cannot be followed"));
    }
}
