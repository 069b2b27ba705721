//! Outer source ports with `[offload] entropy = "hardware"`: the device chooses, and software follows where it can, so that
//! a flow keeps its path through the underlay when it moves between the two.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pipelines::encap_hash::{EncapHash, EncapHashError};
use pipelines::offload::translate::EntropySource;
use pmd::flow::BUILD;
use rules::{BackEnd, Cause, FlowError, InnerTuple, Where};

use super::OffloadControl;
use crate::config::{Config, Engine, Entropy, OffloadDevice, SimulatedHash};

/// How long a device is asked. Drivers compute the answer, which takes microseconds; control has other work to do.
const PATIENCE: Duration = Duration::from_secs(1);

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
                let rdma = match entropy_source(Err(why)) {
                    EntropySource::HardwareButRoce => {
                        "; rules of RoCEv2 have software's own port in their header, for a device that sends that after all"
                    }
                    EntropySource::Exact | EntropySource::Hardware => "",
                };
                format!("{UNFOLLOWED}: {why}{rdma}")
            }
        }
    }
}

const UNFOLLOWED: &str = "software does not follow the device's outer source ports, and flows change their path when they \
                          move between software and hardware";

/// What rules say of source ports where a device chooses them, by what was learned of its choice.
fn entropy_source(learned: Result<(), &EncapHashError>) -> EntropySource {
    match learned {
        // Of a device that does not tell nothing is known: it is taken at its word that one rule is for all ports.
        Ok(()) | Err(EncapHashError::Untold(_)) => EntropySource::Hardware,
        Err(EncapHashError::NotAffine { .. } | EncapHashError::Narrow { .. }) => {
            EntropySource::HardwareButRoce
        }
    }
}

/// Asks until `patience` is over, and answers for the device from then on.
fn within<F>(patience: Duration, mut ask: F) -> impl FnMut(&InnerTuple) -> Result<u16, FlowError>
where
    F: FnMut(&InnerTuple) -> Result<u16, FlowError>,
{
    let began = Instant::now();
    move |inner| {
        if began.elapsed() >= patience {
            let message = format!("the device did not tell all of its source ports within {patience:?}");
            return Err(FlowError::new(Cause::Again, Where::Unspecified, message));
        }
        ask(inner)
    }
}

impl OffloadControl {
    /// Asks a device that is new for the source ports that it chooses, where the config leaves them to it; `seed` makes
    /// other questions each time. `None` when there is nothing to ask, or nothing new.
    pub fn learn_source_ports(&mut self, seed: u64) -> Option<Result<Arc<EncapHash>, EncapHashError>> {
        if self.config.entropy == Entropy::Exact || self.asked_source_ports {
            return None;
        }
        let device = self.holder.as_mut()?;
        let ask = within(PATIENCE, |inner| device.encap_source_port(inner));
        let learned = EncapHash::learn(self.rdma_port, seed, ask);
        self.asked_source_ports = true;
        self.options.entropy = entropy_source(learned.as_ref().map(|_| ()));
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

    /// What software makes of the choice of the device that was asked last, also when that is gone since: flows keep the path that
    /// they have until another is asked. `None` before the first.
    pub fn source_ports(&self) -> Option<&SourcePorts> {
        self.source_ports.as_ref()
    }

    /// Who chooses outer source ports, in a sentence.
    pub fn source_ports_in_words(&self) -> String {
        match (self.config.entropy, &self.source_ports) {
            (Entropy::Exact, _) => "exact: software's own, and a rule for each of them".into(),
            (Entropy::Hardware, None) => "hardware: no device was asked yet".into(),
            (Entropy::Hardware, Some(ports)) if self.asked_source_ports => {
                format!("hardware: {}", ports.words())
            }
            (Entropy::Hardware, Some(SourcePorts::Followed)) => {
                "hardware: the device is gone; software goes on choosing as it did, until another is asked"
                    .into()
            }
            (Entropy::Hardware, Some(SourcePorts::Unfollowed(_))) => {
                "hardware: the device is gone; software chooses its own ports".into()
            }
        }
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

    fn config(entropy: &str, hash: &str) -> Config {
        let text =
            format!("[offload]\nentropy = \"{entropy}\"\n[offload.simulated]\nencap-hash = \"{hash}\"\n");
        Config::parse(&text, "test").unwrap()
    }

    #[test]
    fn a_device_is_asked_once_and_another_in_its_place_anew() {
        let mut control = OffloadControl::new(&config("hardware", "none"));
        let come = |control: &mut OffloadControl, hash: &str| {
            control.forget_device();
            control.front(Some(OffloadDevice::Simulated), &config("hardware", hash));
            control.learn_source_ports(1).unwrap()
        };
        assert!(control.learn_source_ports(1).is_none() && control.source_ports().is_none(), "no device");
        let hash = come(&mut control, "crc").unwrap();
        assert!(control.source_ports_in_words().contains("flows keep their path"));
        assert!(control.learn_source_ports(2).is_none(), "it was asked");
        control.forget_device();
        assert!(control.learn_source_ports(3).is_none(), "nobody is there to ask");
        // Workers go on with the hash: no snapshot without it was made.
        assert_eq!(control.source_ports(), Some(&SourcePorts::Followed));
        assert!(control.source_ports_in_words().contains("the device is gone; software goes on"));
        assert_eq!(come(&mut control, "crc").unwrap(), hash, "the same device is back");

        let why = come(&mut control, "product").unwrap_err();
        assert!(matches!(why, EncapHashError::NotAffine { .. }), "{why}");
        assert_eq!(control.options.entropy, EntropySource::HardwareButRoce);
        assert!(control.source_ports_in_words().contains("rules of RoCEv2 have software's own port"));
        control.forget_device();
        assert!(control.source_ports_in_words().contains("the device is gone; software chooses its own"));

        let why = come(&mut control, "none").unwrap_err();
        assert!(matches!(why, EncapHashError::Untold(_)), "{why}");
        assert_eq!(control.options.entropy, EntropySource::Hardware);
        let words = control.source_ports_in_words();
        assert!(words.contains("flows change their path") && !words.contains("RoCEv2"), "{words}");
    }

    #[test]
    fn with_exact_entropy_nobody_is_asked() {
        let config = config("exact", "crc");
        let mut control = OffloadControl::new(&config);
        control.front(Some(OffloadDevice::Simulated), &config);
        assert!(control.learn_source_ports(1).is_none() && control.source_ports().is_none());
        assert_eq!(control.options.entropy, EntropySource::Exact);
        assert!(control.source_ports_in_words().starts_with("exact"));
    }

    #[test]
    fn a_device_that_takes_too_long_does_not_tell() {
        let mut asked = 0;
        let slow = within(Duration::from_millis(20), |inner| {
            asked += 1;
            std::thread::sleep(Duration::from_millis(1));
            Ok(inner.source_port)
        });
        let why = EncapHash::learn(4791, 1, slow).unwrap_err();
        assert!(
            matches!(&why, EncapHashError::Untold(_)) && why.to_string().contains("within 20ms"),
            "{why}"
        );
        assert!((1..=20).contains(&asked), "{asked} times");
    }

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
