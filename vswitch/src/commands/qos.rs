//! Commands about rates: what each node of the tree may do and does, and changes of it.

use vswitch_api::v1;
use vswitch_api::v1::object::Spec;
use vswitch_api::v1::shaping_client::ShapingClient;

use super::objects::update;
use super::{Entry, Session, ask, optional, told};
use crate::config::{BitRate, ByteSize, Name};
use crate::console::{Args, CommandError, Output, Table};

/// Rows that people are shown.
const LISTED: usize = 1000;

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "show qos",
            help: "Rates, limits, tokens and queues of the link, VPCs, vNICs and their classes; marks and drops",
            rpc: "Shaping.GetShaping",
            run: show,
        },
        Entry {
            syntax: "show qos vpc <vpc:name>",
            help: "The same of the link, a VPC and its vNICs",
            rpc: "Shaping.GetShaping",
            run: show,
        },
        Entry {
            syntax: "show qos vnic <vnic:name>",
            help: "The same of a vNIC and what is above it",
            rpc: "Shaping.GetShaping",
            run: show,
        },
        Entry {
            syntax: "qos set link <direction:out|in> ceil <value:word>",
            help: "What the uplinks carry together: a rate such as 25Gbit, or none for no limit",
            rpc: "Objects.Update",
            run: set_link,
        },
        Entry {
            syntax: "qos set vpc <vpc:name> <direction:out|in> <limit:assured|ceil|weight|burst> <value:word>",
            help: "A limit of a VPC: rates such as 5Gbit, a weight such as 3, a burst such as 128KiB; or none",
            rpc: "Objects.Update",
            run: set_vpc,
        },
        Entry {
            syntax: "qos set vnic <vnic:name> <direction:out|in> <limit:assured|ceil|weight|burst> <value:word>",
            help: "A limit of a vNIC, as of a VPC",
            rpc: "Objects.Update",
            run: set_vnic,
        },
        Entry {
            syntax: "qos set class <vnic:name> <class:rdma|tcp> <direction:out|in> <limit:assured|ceil|weight|burst> <value:word>",
            help: "A limit of a vNIC's RDMA or of its other traffic, as of a VPC",
            rpc: "Objects.Update",
            run: set_class,
        },
    ]
}

/// A rate for people: three digits and a unit.
fn rate_text(bits: f64) -> String {
    let (value, unit) = match bits {
        bits if bits >= 1e9 => (bits / 1e9, "Gbit"),
        bits if bits >= 1e6 => (bits / 1e6, "Mbit"),
        bits if bits >= 1e3 => (bits / 1e3, "kbit"),
        bits => (bits, "bit"),
    };
    match value {
        0.0 => "0".into(),
        value if value >= 100.0 => format!("{value:.0}{unit}"),
        value if value >= 10.0 => format!("{value:.1}{unit}"),
        value => format!("{value:.2}{unit}"),
    }
}

fn node_text(node: &v1::ShapingNode) -> String {
    match node.level.as_str() {
        "vpc" => format!("vpc {}", node.name()),
        "vnic" => format!("  vnic {}", node.name()),
        "class" => format!("    {}", node.class()),
        level => level.to_owned(),
    }
}

fn row(node: &v1::ShapingNode) -> [String; 15] {
    let is_class = node.class.is_some();
    let dash = || "-".to_owned();
    let limit = |bits: Option<u64>| bits.map_or_else(dash, |bits| BitRate(bits).to_string());
    let of_class = |count: u64| if is_class { count.to_string() } else { dash() };
    [
        node_text(node),
        node.direction.clone(),
        node.rate.map_or_else(dash, rate_text),
        limit(node.assured),
        limit(node.ceil),
        node.share.map_or_else(dash, |share| rate_text(share as f64)),
        node.weight.to_string(),
        node.burst.map_or_else(dash, |burst| burst.to_string()),
        node.tokens.map_or_else(dash, |tokens| tokens.to_string()),
        of_class(node.debt),
        node.waiting_packets.to_string(),
        node.waiting_bytes.to_string(),
        node.marked.to_string(),
        node.dropped.to_string(),
        of_class(node.held_back),
    ]
}

/// What people are shown of an answer. Of many vNICs most are idle: only whoever asks for one (`of_one`) sees those, too.
fn text(answer: &v1::GetShapingResponse, of_one: bool) -> String {
    let mut table = Table::new([
        "node",
        "direction",
        "rate",
        "assured",
        "ceil",
        "share",
        "weight",
        "burst",
        "tokens",
        "debt",
        "waiting",
        "bytes",
        "marked",
        "dropped",
        "held back",
    ]);
    let worth = |node: &&v1::ShapingNode| of_one || !node.idle || node.level == "link";
    let worthy = answer.nodes.iter().filter(worth).count();
    for node in answer.nodes.iter().filter(worth).take(LISTED) {
        table.row(row(node));
    }
    let mut text = table.to_string();
    if worthy > LISTED {
        text += &format!(
            "the first {LISTED} of {worthy}; `show qos vpc ...` and `show qos vnic ...` for others\n"
        );
    }
    if answer.unlimited {
        text += "no node has a limit: nothing is counted here, and nothing is held back\n";
    }
    let v1::ShapingCounters { rdma_marked, waited, waiting } = answer.counters.unwrap_or_default();
    let v1::ShapingDrops { rdma_overrun, tcp_shaped, shaper_full } = answer.drops.unwrap_or_default();
    text += &format!(
        "rdma-marked {rdma_marked}, waited {waited}, waiting {waiting}; dropped: rdma-overrun {rdma_overrun}, \
         tcp-shaped {tcp_shaped}, shaper-full {shaper_full}\n"
    );
    text
}

fn show(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let request = v1::GetShapingRequest { vpc: optional(args, "vpc"), vnic: optional(args, "vnic") };
    let of_one = request != v1::GetShapingRequest::default();
    let answer = ask!(session, ShapingClient.get_shaping(request))?;
    told(text(&answer, of_one), answer)
}

/// One limit, as it is written; what is not there is taken away.
#[derive(Clone, Debug, Default, PartialEq)]
struct Change {
    limits: v1::Limits,
    /// The field of `limits` that changes.
    field: String,
    /// Which of two fields has them: `outbound` or `inbound`.
    way: &'static str,
}

impl Change {
    fn read(limit: &str, args: &Args) -> Result<Self, CommandError> {
        let (direction, text): (String, String) = (args.get("direction")?, args.get("value")?);
        let wrong = |error: String| args.error("value", format!("{error}; or say none"));
        let limits = limits(limit, &text).map_err(wrong)?;
        let way = if direction == "in" { "inbound" } else { "outbound" };
        Ok(Self { limits, field: limit.to_owned(), way })
    }

    fn both_ways(&self) -> v1::BothWays {
        let limits = Some(self.limits.clone());
        match self.way {
            "inbound" => v1::BothWays { inbound: limits, outbound: None },
            _ => v1::BothWays { outbound: limits, inbound: None },
        }
    }

    /// The path of the field within an object that has both ways at `of`.
    fn path(&self, of: &str) -> String {
        format!("{of}.{}.{}", self.way, self.field)
    }
}

/// Limits of which one is there, unless its text is `none`.
fn limits(limit: &str, text: &str) -> Result<v1::Limits, String> {
    let mut limits = v1::Limits::default();
    if text == "none" {
        return Ok(limits);
    }
    let rate = || match text.parse::<BitRate>() {
        Ok(_) => Ok(Some(text.to_owned())),
        Err(error) => Err(error.to_string()),
    };
    match limit {
        "assured" => limits.assured = rate()?,
        "ceil" => limits.ceil = rate()?,
        "weight" => {
            let wrong = |_| {
                let shown = crate::config::error::quote(text);
                format!("{shown} is not a weight; give a number such as 3")
            };
            limits.weight = Some(text.parse().map_err(wrong)?);
        }
        _ => {
            text.parse::<ByteSize>().map_err(|error| error.to_string())?;
            limits.burst = Some(text.to_owned());
        }
    }
    Ok(limits)
}

fn set_link(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let direction: String = args.get("direction")?;
    let Change { limits, way, .. } = Change::read("ceil", args)?;
    let rate = limits.ceil;
    // As the config writes it.
    let shown = rate.as_ref().and_then(|rate| rate.parse::<BitRate>().ok());
    let shown = shown.map_or("no limit".into(), |rate| rate.to_string());
    let link = match way {
        "inbound" => v1::LinkRates { inbound: rate, outbound: None },
        _ => v1::LinkRates { outbound: rate, inbound: None },
    };
    let qos = v1::Qos { link: Some(link), ..v1::Qos::default() };
    let entry = update(session, Spec::Qos(qos), &[&format!("link.{way}")])?;
    told(format!("link: {direction} {shown}"), entry)
}

/// Changes one limit of an object. `object` makes it of the change, with the path to the field.
fn change(
    session: &Session,
    args: &Args,
    who: &str,
    object: impl FnOnce(&Change) -> (Spec, String),
) -> Result<Output, CommandError> {
    let limit: String = args.get("limit")?;
    let change = Change::read(&limit, args)?;
    let (object, path) = object(&change);
    let entry = update(session, object, &[&path])?;
    let (direction, value): (String, String) = (args.get("direction")?, args.get("value")?);
    told(format!("{who}: {limit} {value} ({direction})"), entry)
}

fn set_vpc(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let name: Name = args.get("vpc")?;
    change(session, args, &format!("vpc {name}"), |change| {
        let qos = Some(change.both_ways());
        let vpc = v1::Vpc { name: name.to_string(), qos, ..v1::Vpc::default() };
        (Spec::Vpc(vpc), change.path("qos"))
    })
}

fn vnic(name: &Name, qos: v1::VnicQos) -> Spec {
    Spec::Vnic(v1::Vnic { name: name.to_string(), qos: Some(qos), ..v1::Vnic::default() })
}

fn set_vnic(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let name: Name = args.get("vnic")?;
    change(session, args, &format!("vnic {name}"), |change| {
        let v1::BothWays { outbound, inbound } = change.both_ways();
        let qos = v1::VnicQos { outbound, inbound, ..v1::VnicQos::default() };
        (vnic(&name, qos), change.path("qos"))
    })
}

fn set_class(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let (name, class): (Name, String) = (args.get("vnic")?, args.get("class")?);
    change(session, args, &format!("vnic {name}: {class}"), |change| {
        let both = Some(change.both_ways());
        let qos = match class.as_str() {
            "rdma" => v1::VnicQos { rdma: both, ..v1::VnicQos::default() },
            _ => v1::VnicQos { tcp: both, ..v1::VnicQos::default() },
        };
        (vnic(&name, qos), change.path(&format!("qos.{class}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_as_written_or_gone() {
        assert_eq!(limits("ceil", "5Gbit").unwrap().ceil.as_deref(), Some("5Gbit"));
        assert_eq!(limits("weight", "3").unwrap().weight, Some(3));
        assert_eq!(limits("burst", "128KiB").unwrap().burst.as_deref(), Some("128KiB"));
        for limit in ["assured", "ceil", "weight", "burst"] {
            assert_eq!(limits(limit, "none").unwrap(), v1::Limits::default(), "{limit}");
            for wrong in ["", "-1", "10Mbits", "default"] {
                assert!(limits(limit, wrong).is_err(), "{limit} {wrong}");
            }
        }
        assert!(limits("ceil", "10MB").is_err() && limits("burst", "10Mbit").is_err());
    }

    #[test]
    fn idle_nodes_are_shown_to_those_who_ask_for_them() {
        let idle = |level: &str, name: Option<&str>| v1::ShapingNode {
            level: level.into(),
            name: name.map(str::to_owned),
            direction: "out".into(),
            weight: 1,
            idle: true,
            ..v1::ShapingNode::default()
        };
        let answer = v1::GetShapingResponse {
            nodes: vec![idle("link", None), idle("vpc", Some("red"))],
            unlimited: true,
            ..v1::GetShapingResponse::default()
        };
        let all = text(&answer, false);
        assert!(
            all.contains("link") && !all.contains("vpc red") && all.contains("no node has a limit"),
            "{all}"
        );
        assert!(text(&answer, true).contains("vpc red"));
        let json = crate::api::json(&answer);
        assert!(json["nodes"][0].get("name").is_none() && json["nodes"][1]["debt"] == 0, "{json}");
    }

    #[test]
    fn rates_have_three_digits() {
        let rates = [0.0, 12.0, 1500.0, 25e9, 123_456_789.0].map(rate_text);
        assert_eq!(rates, ["0", "12.0bit", "1.50kbit", "25.0Gbit", "123Mbit"]);
    }
}
