//! Commands about rates: what each node of the tree may do and does, and changes of it.

use std::sync::Arc;

use pipelines::Direction;
use pipelines::qos::{Class, NodeLimits, Tree};
use serde_json::{Value, json};

use super::{Entry, Shell};
use crate::config::{BitRate, ByteSize, Config, LimitsConfig, Name};
use crate::console::{Args, CommandError, Output, Table};
use crate::switch::SwitchError;
use crate::view;
use crate::view::qos::{QosNode, QosOwner};

/// Rows that people are shown.
const LISTED: usize = 1000;
/// Drops and other counters of the whole that have to do with rates.
const SCALARS: [&str; 3] = ["rdma-marked", "waited", "waiting"];
const DROPS: [&str; 3] = ["rdma-overrun", "tcp-shaped", "shaper-full"];

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "show qos",
            help: "Rates, limits, tokens and queues of the link, VPCs, vNICs and their classes; marks and drops",
            run: show,
        },
        Entry {
            syntax: "show qos vpc <vpc:name>",
            help: "The same of the link, a VPC and its vNICs",
            run: show,
        },
        Entry {
            syntax: "show qos vnic <vnic:name>",
            help: "The same of a vNIC and what is above it",
            run: show,
        },
        Entry {
            syntax: "qos set link <direction:out|in> ceil <value:word>",
            help: "What the uplinks carry together: a rate such as 25Gbit, or none for no limit",
            run: set_link,
        },
        Entry {
            syntax: "qos set vpc <vpc:name> <direction:out|in> <limit:assured|ceil|weight|burst> <value:word>",
            help: "A limit of a VPC: rates such as 5Gbit, a weight such as 3, a burst such as 128KiB; or none",
            run: set_vpc,
        },
        Entry {
            syntax: "qos set vnic <vnic:name> <direction:out|in> <limit:assured|ceil|weight|burst> <value:word>",
            help: "A limit of a vNIC, as of a VPC",
            run: set_vnic,
        },
        Entry {
            syntax: "qos set class <vnic:name> <class:rdma|tcp> <direction:out|in> <limit:assured|ceil|weight|burst> <value:word>",
            help: "A limit of a vNIC's RDMA or of its other traffic, as of a VPC",
            run: set_class,
        },
    ]
}

/// A rate for people: three digits and a unit.
fn shown(bits: f64) -> String {
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

fn limit(bits: u64) -> String {
    if bits == 0 { "-".into() } else { BitRate(bits).to_string() }
}

fn what(owner: &QosOwner) -> String {
    match owner {
        QosOwner::Link => "link".into(),
        QosOwner::Vpc(name) => format!("vpc {name}"),
        QosOwner::Vnic(name) => format!("  vnic {name}"),
        QosOwner::Class(_, class) => format!("    {}", class.name()),
    }
}

fn row(node: &QosNode) -> [String; 15] {
    let is_class = matches!(node.owner, QosOwner::Class(..));
    let has_ceil = node.limits.ceil > 0;
    let or_dash = |shown: bool, text: String| if shown { text } else { "-".into() };
    [
        what(&node.owner),
        node.direction.name().into(),
        node.rate.map_or("-".into(), shown),
        limit(node.limits.assured),
        limit(node.limits.ceil),
        or_dash(node.view.share > 0, shown(node.view.share as f64)),
        node.limits.weight.to_string(),
        or_dash(has_ceil, node.view.burst.to_string()),
        or_dash(has_ceil, node.view.tokens.to_string()),
        or_dash(is_class, node.view.debt.to_string()),
        node.held.packets.to_string(),
        node.held.bytes.to_string(),
        node.held.marked.to_string(),
        node.held.dropped.to_string(),
        or_dash(is_class, node.view.held_back.to_string()),
    ]
}

fn data(node: &QosNode) -> Value {
    let NodeLimits { assured, ceil, weight, .. } = node.limits;
    let some = |bits: u64| (bits > 0).then_some(bits);
    let class = match &node.owner {
        QosOwner::Class(_, class) => Some(class.name()),
        _ => None,
    };
    json!({
        "level": node.owner.level(), "name": node.owner.name(), "class": class, "direction": node.direction.name(),
        "rate": node.rate, "assured": some(assured), "ceil": some(ceil), "share": some(node.view.share),
        "weight": weight, "burst": some(ceil).map(|_| node.view.burst),
        "tokens": some(ceil).map(|_| node.view.tokens), "debt": node.view.debt, "drawn": node.view.drawn,
        "held-back": node.view.held_back, "waiting-packets": node.held.packets, "waiting-bytes": node.held.bytes,
        "marked": node.held.marked, "dropped": node.held.dropped,
    })
}

fn show(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let switch = &shell.switch;
    let snapshot = switch.snapshot();
    let (mut nodes, now_ns) = view::qos::nodes(switch)?;
    let vpc_of = |name: &str| {
        let vnic = snapshot.vnics.iter().flatten().find(|vnic| vnic.name == name)?;
        snapshot.vpc(vnic.vpc).map(|vpc| vpc.name.clone())
    };
    let all = match (args.maybe::<Name>("vpc"), args.maybe::<Name>("vnic")) {
        (Some(vpc), _) => {
            if !snapshot.vpcs.iter().flatten().any(|known| known.name == *vpc) {
                return Err(args.error("vpc", format!("no VPC {vpc}; `show vpc` lists them")));
            }
            let mut inside = false;
            nodes.retain(|node| match &node.owner {
                QosOwner::Link => true,
                QosOwner::Vpc(name) => {
                    inside = *name == *vpc;
                    inside
                }
                _ => inside,
            });
            false
        }
        (None, Some(vnic)) => {
            let Some(vpc) = vpc_of(&vnic) else {
                return Err(args.error("vnic", format!("no vNIC {vnic}; `show vnic` lists them")));
            };
            nodes.retain(|node| match &node.owner {
                QosOwner::Link => true,
                QosOwner::Vpc(name) => *name == vpc,
                QosOwner::Vnic(name) | QosOwner::Class(name, _) => *name == *vnic,
            });
            false
        }
        (None, None) => true,
    };
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
    // Of many vNICs most are idle; whoever asks for one sees all of it.
    let worth = |node: &&QosNode| !all || !node.is_idle() || matches!(node.owner, QosOwner::Link);
    let worthy = nodes.iter().filter(worth).count();
    for node in nodes.iter().filter(worth).take(LISTED) {
        table.row(row(node));
    }
    let totals = view::totals(switch);
    let drop = |name: &str| totals.drops.get(name).copied().unwrap_or(0);
    let mut text = table.to_string();
    if worthy > LISTED {
        text += &format!(
            "the first {LISTED} of {worthy}; `show qos vpc ...` and `show qos vnic ...` for others\n"
        );
    }
    if switch.qos().tree().is_free() {
        text += "no node has a limit: nothing is counted here, and nothing is held back\n";
    }
    let scalars = SCALARS.map(|name| format!("{name} {}", totals.get(name))).join(", ");
    let drops = DROPS.map(|name| format!("{name} {}", drop(name))).join(", ");
    text += &format!("{scalars}; dropped: {drops}\n");
    let counters: serde_json::Map<String, Value> =
        SCALARS.iter().map(|name| ((*name).into(), json!(totals.get(name)))).collect();
    let drops: serde_json::Map<String, Value> =
        DROPS.iter().map(|name| ((*name).into(), json!(drop(name)))).collect();
    let json = json!({
        "now-ns": now_ns, "nodes": nodes.iter().map(data).collect::<Vec<_>>(),
        "counters": counters, "drops": drops, "node-bytes": Tree::NODE_BYTES,
    });
    Ok(Output::new(text, json))
}

fn direction(args: &Args) -> Result<Direction, CommandError> {
    let word: String = args.get("direction")?;
    Ok(if word == Direction::In.name() { Direction::In } else { Direction::Out })
}

/// One limit, read.
#[derive(Clone, Copy)]
enum LimitChange {
    Assured(Option<BitRate>),
    Ceil(Option<BitRate>),
    Weight(Option<u32>),
    Burst(Option<ByteSize>),
}

impl LimitChange {
    fn read(limit: &str, args: &Args) -> Result<Self, CommandError> {
        let text: String = args.get("value")?;
        let none = text == "none";
        let wrong = |error: String| args.error("value", format!("{error}; or say none"));
        let rate = || -> Result<Option<BitRate>, CommandError> {
            if none { Ok(None) } else { text.parse().map(Some).map_err(|e| wrong(format!("{e}"))) }
        };
        Ok(match limit {
            "assured" => Self::Assured(rate()?),
            "ceil" => Self::Ceil(rate()?),
            "weight" if none => Self::Weight(None),
            "weight" => {
                let weight = text.parse().map_err(|_| {
                    wrong(format!(
                        "{} is not a weight; give a number such as 3",
                        crate::config::error::quote(&text)
                    ))
                })?;
                Self::Weight(Some(weight))
            }
            _ if none => Self::Burst(None),
            _ => Self::Burst(Some(text.parse().map_err(|e| wrong(format!("{e}")))?)),
        })
    }

    fn make(self, limits: &mut LimitsConfig) {
        match self {
            Self::Assured(rate) => limits.assured = rate,
            Self::Ceil(rate) => limits.ceil = rate,
            Self::Weight(weight) => limits.weight = weight,
            Self::Burst(burst) => limits.burst = burst,
        }
    }
}

fn set_link(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let direction = direction(args)?;
    let LimitChange::Ceil(rate) = LimitChange::read("ceil", args)? else {
        return Err(CommandError::new("the link has a ceil only"));
    };
    shell.switch.edit(|config| {
        match direction {
            Direction::Out => config.qos.link.out = rate,
            Direction::In => config.qos.link.into = rate,
        }
        Ok(())
    })?;
    let rate = rate.map_or("no limit".into(), |rate| rate.to_string());
    Ok(Output::message(format!("link: {} {rate}", direction.name())))
}

/// Changes one limit of whatever `find` finds.
fn change(
    shell: &mut Shell,
    args: &Args,
    who: &str,
    find: impl FnOnce(&mut Config, Direction) -> Result<&mut LimitsConfig, SwitchError>,
) -> Result<Output, CommandError> {
    let (direction, limit): (Direction, String) = (direction(args)?, args.get("limit")?);
    let change = LimitChange::read(&limit, args)?;
    shell.switch.edit(|config| {
        change.make(find(config, direction)?);
        Ok(())
    })?;
    let value: String = args.get("value")?;
    Ok(Output::message(format!("{who}: {limit} {value} ({})", direction.name())))
}

fn set_vpc(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let name: Name = args.get("vpc")?;
    change(shell, args, &format!("vpc {name}"), |config, direction| {
        let vpc = config.vpcs.iter_mut().find(|vpc| vpc.name == name);
        let vpc = vpc.ok_or_else(|| SwitchError::Unknown {
            what: "VPC",
            name: name.to_string(),
            list: "show vpc",
        })?;
        Ok(match direction {
            Direction::Out => &mut vpc.qos.out,
            Direction::In => &mut vpc.qos.into,
        })
    })
}

fn set_vnic(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let name: Name = args.get("vnic")?;
    change(shell, args, &format!("vnic {name}"), |config, direction| {
        let qos = &mut vnic(config, &name)?.qos;
        Ok(match direction {
            Direction::Out => &mut qos.out,
            Direction::In => &mut qos.into,
        })
    })
}

fn set_class(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let (name, word): (Name, String) = (args.get("vnic")?, args.get("class")?);
    change(shell, args, &format!("vnic {name}: {word}"), |config, direction| {
        let qos = &mut vnic(config, &name)?.qos;
        let both = if word == Class::Rdma.name() { &mut qos.rdma } else { &mut qos.tcp };
        Ok(match direction {
            Direction::Out => &mut both.out,
            Direction::In => &mut both.into,
        })
    })
}

fn vnic<'c>(config: &'c mut Config, name: &Name) -> Result<&'c mut crate::config::VnicConfig, SwitchError> {
    let found = config.vnics.iter_mut().find(|vnic| vnic.name == *name);
    found.map(Arc::make_mut).ok_or_else(|| SwitchError::Unknown {
        what: "vNIC",
        name: name.to_string(),
        list: "show vnic",
    })
}
