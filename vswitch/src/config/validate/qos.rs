//! Checks of rates: every promise can be kept at once, and no limit is out of reach.

use std::collections::HashMap;

use pipelines::Direction;

use super::super::qos::{BothWays, LimitsConfig, QosConfig};
use super::super::units::{BitRate, ByteSize};
use super::Checker;

pub(super) fn check(checker: &mut Checker<'_>) {
    red_profile(checker);
    for direction in Direction::ALL {
        tree(checker, direction);
    }
}

/// What is written for a direction.
fn of(direction: Direction, both: &BothWays) -> LimitsConfig {
    match direction {
        Direction::Out => both.out,
        Direction::In => both.into,
    }
}

fn red_profile(checker: &mut Checker<'_>) {
    let qos = &checker.config.qos;
    let mut faults: Vec<(&str, String)> = Vec::new();
    if qos.overhead > QosConfig::MAX_OVERHEAD {
        let message = format!(
            "[qos] overhead {} is too much; give the bytes of a packet that no counter sees, 24 on Ethernet, at most {}",
            qos.overhead,
            QosConfig::MAX_OVERHEAD
        );
        faults.push(("overhead", message));
    }
    if qos.kmin > qos.kmax {
        let message = format!(
            "[qos] kmin {} is over kmax {}{}; marking begins at kmin and is complete at kmax: lower it",
            qos.kmin,
            qos.kmax,
            checker.line("qos.kmax")
        );
        faults.push(("kmin", message));
    }
    if qos.hard_limit <= qos.kmax {
        let message = format!(
            "[qos] hard-limit {} is not over kmax {}{}: senders would be stopped before all their packets are marked; \
             raise it",
            qos.hard_limit,
            qos.kmax,
            checker.line("qos.kmax")
        );
        faults.push(("hard-limit", message));
    } else if qos.hard_limit > QosConfig::MAX_DEBT {
        let message =
            format!("[qos] hard-limit {} is too much; give at most {}", qos.hard_limit, QosConfig::MAX_DEBT);
        faults.push(("hard-limit", message));
    }
    if !(1..=QosConfig::MAX_PACKETS).contains(&qos.queue_packets) {
        let message = format!(
            "[qos] queue-packets {} is not in 1..={}; choose a number that is",
            qos.queue_packets,
            QosConfig::MAX_PACKETS
        );
        faults.push(("queue-packets", message));
    }
    let (least, most) = QosConfig::QUEUE_BYTES;
    if !(least..=most).contains(&qos.queue_bytes) {
        let message = format!(
            "[qos] queue-bytes {} is not in {least}..={most}, so that the largest packet finds room; choose a size that is",
            qos.queue_bytes
        );
        faults.push(("queue-bytes", message));
    }
    let (least, most) = QosConfig::QUEUE_TIME;
    if !(least..=most).contains(&qos.queue_time) {
        let message = format!(
            "[qos] queue-time {:?} is not in {least:?}..={most:?}; choose a time that is",
            qos.queue_time
        );
        faults.push(("queue-time", message));
    }
    for (key, message) in faults {
        checker.fail(format!("qos.{key}"), message);
    }
}

/// What children of a node are assured in all.
#[derive(Default)]
struct AssuredTotal<'c> {
    bits: u64,
    /// The first few of them, for the message.
    names: Vec<(&'c str, u64)>,
    more: usize,
}

impl<'c> AssuredTotal<'c> {
    const SHOWN: usize = 4;

    fn add(&mut self, name: &'c str, bits: u64) {
        if bits == 0 {
            return;
        }
        self.bits = self.bits.saturating_add(bits);
        if self.names.len() < Self::SHOWN {
            self.names.push((name, bits));
        } else {
            self.more += 1;
        }
    }

    fn parts(&self) -> String {
        let parts = self.names.iter().map(|(name, bits)| format!("{name} {}", BitRate(*bits)));
        let rest = (self.more > 0).then(|| format!("and {} more", self.more));
        parts.chain(rest).collect::<Vec<_>>().join(", ")
    }
}

fn tree(checker: &mut Checker<'_>, direction: Direction) {
    let config = checker.config;
    let key = direction.name();
    let link = match direction {
        Direction::Out => config.qos.link.out,
        Direction::In => config.qos.link.into,
    };
    let link_path = format!("qos.link.{key}");
    if let Some(rate) = link
        && !(1..=QosConfig::MAX_RATE.0).contains(&rate.0)
    {
        let message = format!(
            "[qos] link: {key} {rate} is not in 1bit..={}; give the rate of the uplinks, or leave it out for no limit",
            QosConfig::MAX_RATE
        );
        checker.fail(&link_path, message);
        return;
    }
    let mut of_vpcs: HashMap<&str, AssuredTotal<'_>> = HashMap::new();
    for (index, vnic) in config.vnics.iter().enumerate() {
        let mut classes = AssuredTotal::default();
        for (class, both) in [("rdma", &vnic.qos.rdma), ("tcp", &vnic.qos.tcp)] {
            let limits = of(direction, both);
            let path = format!("vnic[{index}].qos.{class}.{key}");
            let who = format!("vnic {}: {class}", vnic.name);
            classes.add(class, node(checker, &path, &who, key, &limits, link, &AssuredTotal::default()));
        }
        let limits = of(direction, &BothWays { out: vnic.qos.out, into: vnic.qos.into });
        let path = format!("vnic[{index}].qos.{key}");
        let claim = node(checker, &path, &format!("vnic {}", vnic.name), key, &limits, link, &classes);
        of_vpcs.entry(vnic.vpc.as_str()).or_default().add(&vnic.name, claim);
    }
    let mut of_link = AssuredTotal::default();
    for (index, vpc) in config.vpcs.iter().enumerate() {
        let limits = of(direction, &vpc.qos);
        let path = format!("vpc[{index}].qos.{key}");
        let vnics = of_vpcs.remove(vpc.name.as_str()).unwrap_or_default();
        of_link
            .add(&vpc.name, node(checker, &path, &format!("vpc {}", vpc.name), key, &limits, link, &vnics));
    }
    if let Some(rate) = link
        && of_link.bits > rate.0
    {
        let message = format!(
            "[qos] link: the VPCs are assured {} in all ({}) {key}, over the link's {rate}; lower what is assured",
            BitRate(of_link.bits),
            of_link.parts()
        );
        checker.fail(&link_path, message);
    }
}

/// Checks a node and what its children are assured; what it claims of its parent.
fn node(
    checker: &mut Checker<'_>,
    path: &str,
    who: &str,
    way: &str,
    limits: &LimitsConfig,
    link: Option<BitRate>,
    children: &AssuredTotal<'_>,
) -> u64 {
    let place = checker.line(if link.is_some() { "qos.link" } else { "" });
    let most = link.unwrap_or(QosConfig::MAX_RATE);
    for (key, rate) in [("assured", limits.assured), ("ceil", limits.ceil)] {
        let Some(rate) = rate else { continue };
        let at = format!("{path}.{key}");
        if rate.0 == 0 {
            let message =
                format!("{who}: {key} ({way}) is 0; give a rate such as \"1Gbit\", or leave it out for none");
            checker.fail(at, message);
        } else if rate > most {
            let what = if link.is_some() { "the link's" } else { "the largest rate," };
            checker.fail(at, format!("{who}: {key} {rate} ({way}) is above {what} {most}{place}; lower it"));
        }
    }
    if limits.weight.is_some_and(|weight| weight == 0 || weight > MAX_WEIGHT) {
        let weight = limits.weight.unwrap_or_default();
        let message =
            format!("{who}: weight {weight} ({way}) is not in 1..={MAX_WEIGHT}; choose a number that is");
        checker.fail(format!("{path}.weight"), message);
    }
    if let Some(burst) = limits.burst
        && !(ByteSize(1)..=QosConfig::MAX_BURST).contains(&burst)
    {
        let most = QosConfig::MAX_BURST;
        let message = format!(
            "{who}: burst {burst} ({way}) is not in 1B..={most}; leave it out for a millisecond of the rate"
        );
        checker.fail(format!("{path}.burst"), message);
    }
    let own = limits.assured.map_or(0, |rate| rate.0);
    let Some(ceil) = limits.ceil.filter(|ceil| ceil.0 > 0) else { return own.max(children.bits).min(most.0) };
    if own > ceil.0 && ceil <= most {
        let message = format!(
            "{who}: assured {} ({way}) is over its ceil {ceil}{}; lower it or raise the ceil",
            BitRate(own),
            checker.line(&format!("{path}.ceil"))
        );
        checker.fail(format!("{path}.assured"), message);
    }
    if children.bits > ceil.0 {
        let message = format!(
            "{who}: {} in all are assured under it ({}) {way}, over its ceil {ceil}; lower what is assured or raise the ceil",
            BitRate(children.bits),
            children.parts()
        );
        checker.fail(format!("{path}.ceil"), message);
    }
    own.max(children.bits).min(ceil.0).min(most.0)
}

/// The largest weight: sums over all siblings stay exact.
const MAX_WEIGHT: u32 = 1_000_000;
