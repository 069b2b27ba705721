//! Commands about security groups and the connections that they admitted.

use pipelines::connections::{ConnectionKey, Phase};
use serde_json::json;
use wire::protocol;

use super::{Entry, Shell};
use crate::config::{Access, Name, SecurityGroupConfig, SecurityRule};
use crate::console::{Args, CommandError, Output, Table};
use crate::switch::Switch;

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "security-group add <group:name> vpc <vpc:name> [deny-out]",
            help: "Add a security group; deny-out: members send what rules allow, and nothing else",
            run: add,
        },
        Entry { syntax: "security-group del <group:name>", help: "Remove a security group", run: del },
        Entry {
            syntax: "security-group allow <group:name> <rule:text>",
            help: "Add a rule: in|out PROTOCOL [PORTS] [from|to PREFIX | from|to group NAME]",
            run: allow,
        },
        Entry {
            syntax: "security-group revoke <group:name> <rule:text>",
            help: "Remove a rule, said as `show security-group` shows it or by its number; what it admitted ends at once",
            run: revoke,
        },
        Entry {
            syntax: "security-group set <vnic:name> <groups:text>",
            help: "Put a vNIC into these groups and no others; none: into no group",
            run: set,
        },
        Entry {
            syntax: "show security-group [<group:name>]",
            help: "Security groups with members and rules",
            run: show_groups,
        },
        Entry {
            syntax: "show connections [<vnic:name>] [limit <limit:uint>]",
            help: "Connections of vNICs in security groups",
            run: show_connections,
        },
    ]
}

fn add(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let name: Name = args.get("group")?;
    let group = SecurityGroupConfig {
        name: name.clone(),
        vpc: args.get("vpc")?,
        default_in: Access::Deny,
        default_out: if args.has("deny-out") { Access::Deny } else { Access::Allow },
        rules: Vec::new(),
    };
    shell.switch.add_security_group(group)?;
    Ok(Output::message(format!("security group {name} added")))
}

fn del(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let name: Name = args.get("group")?;
    shell.switch.remove_security_group(&name)?;
    Ok(Output::message(format!("security group {name} removed")))
}

fn allow(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let (name, text): (Name, String) = (args.get("group")?, args.get("rule")?);
    let rule = SecurityRule::from_words(&text).map_err(|error| args.error("rule", error))?;
    let shown = rule.to_string();
    shell.switch.allow(&name, rule)?;
    Ok(Output::message(format!("security group {name} allows {shown}")))
}

fn revoke(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let (name, text): (Name, String) = (args.get("group")?, args.get("rule")?);
    let config = shell.switch.bare_config();
    let rules = config.security_groups.iter().find(|group| group.name == name).map(|group| &group.rules);
    let text = text.trim();
    let numbered = text.parse::<usize>().ok().and_then(|number| rules?.get(number.checked_sub(1)?));
    let rule = match numbered {
        Some(rule) => rule.clone(),
        None => match rules.and_then(|rules| rules.iter().find(|rule| rule.to_string() == text)) {
            Some(rule) => rule.clone(),
            None => SecurityRule::from_words(text).map_err(|error| args.error("rule", error))?,
        },
    };
    shell.switch.revoke(&name, &rule)?;
    Ok(Output::message(format!("security group {name} no longer allows {rule}")))
}

fn set(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let (vnic, text): (Name, String) = (args.get("vnic")?, args.get("groups")?);
    let words: Vec<&str> = text.split([',', ' ']).filter(|word| !word.is_empty()).collect();
    let groups = match words[..] {
        ["none"] => Vec::new(),
        _ => words
            .iter()
            .map(|word| Name::new(word))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| args.error("groups", error.to_string()))?,
    };
    shell.switch.set_security_groups(&vnic, groups)?;
    Ok(Output::message(format!("vNIC {vnic} is in: {}", words.join(", "))))
}

fn show_groups(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let wanted: Option<Name> = args.maybe("group");
    let config = shell.switch.config();
    let mut table = Table::new(["group", "vpc", "vnics", "locations", "in", "out", "no", "rule"]);
    let mut rows = Vec::new();
    let access = |access: Access| if access == Access::Allow { "allow" } else { "deny" };
    for group in
        config.security_groups.iter().filter(|group| wanted.as_ref().is_none_or(|name| *name == group.name))
    {
        let vnics: Vec<&str> = config
            .vnics
            .iter()
            .filter(|vnic| vnic.security_groups.contains(&group.name))
            .map(|vnic| vnic.name.as_str())
            .collect();
        let locations =
            config.locations.iter().filter(|location| location.groups.contains(&group.name)).count();
        let first = group.rules.first().map(ToString::to_string).unwrap_or_default();
        table.row([
            group.name.to_string(),
            group.vpc.to_string(),
            vnics.len().to_string(),
            locations.to_string(),
            access(group.default_in).into(),
            access(group.default_out).into(),
            if first.is_empty() { String::new() } else { "1".into() },
            first,
        ]);
        for (number, rule) in group.rules.iter().enumerate().skip(1) {
            let nothing = || String::new();
            table.row([
                nothing(),
                nothing(),
                nothing(),
                nothing(),
                nothing(),
                nothing(),
                (number + 1).to_string(),
                rule.to_string(),
            ]);
        }
        rows.push(json!({
            "name": group.name.as_str(), "vpc": group.vpc.as_str(), "vnics": vnics, "locations": locations,
            "default-in": access(group.default_in), "default-out": access(group.default_out),
            "rules": group.rules.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }));
    }
    if let (Some(name), true) = (&wanted, rows.is_empty()) {
        return Err(
            args.error("group", format!("no security group {name}; `show security-group` lists them"))
        );
    }
    Ok(Output::table(&table, json!(rows)))
}

/// Connections that are shown where nobody says how many.
const SHOWN: u64 = 1000;

fn show_connections(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let wanted: Option<Name> = args.maybe("vnic");
    let limit = usize::try_from(args.maybe::<u64>("limit").unwrap_or(SHOWN)).unwrap_or(usize::MAX);
    let switch = &shell.switch;
    let snapshot = switch.snapshot();
    let mut table = Table::new([
        "vnic",
        "protocol",
        "own address",
        "own port",
        "peer",
        "peer port",
        "opened",
        "state",
        "idle",
    ]);
    let mut rows = Vec::new();
    let connections = switch.connections().keeper().connections();
    let now = switch.pool().now().tick;
    let mut from = Some(0);
    while let Some(start) = from.filter(|_| rows.len() < limit) {
        let (found, next) = switch.connections().keeper().scan(start, 1024);
        for seen in found {
            let key = ConnectionKey::from_words(seen.key);
            let Some(vnic) = snapshot.vnic(key.vnic()) else { continue };
            let state = connections.record(seen.slot).state;
            if wanted.as_ref().is_some_and(|wanted| wanted.as_str() != vnic.name) || rows.len() == limit {
                continue;
            }
            let ([own, peer], [own_port, peer_port]) = (key.addresses(), key.ports());
            let idle = f64::from(now.wrapping_sub(seen.seen).min(u32::MAX / 2))
                * f64::from(pipelines::TICK_MS)
                / 1000.0;
            let opened = if state.is_out() { "here" } else { "by the peer" };
            table.row([
                vnic.name.clone(),
                protocol_name(&key),
                own.to_string(),
                own_port.to_string(),
                peer.to_string(),
                peer_port.to_string(),
                opened.into(),
                phase_name(state.phase()).into(),
                format!("{idle:.0} s"),
            ]);
            rows.push(json!({
                "vnic": vnic.name, "protocol": protocol_name(&key), "own": own, "own-port": own_port, "peer": peer,
                "peer-port": peer_port, "opened-here": state.is_out(), "state": phase_name(state.phase()), "idle": idle,
            }));
        }
        from = next;
    }
    let all = in_all(switch);
    let text = format!(
        "{table}{} of {all} connections shown; {} refused for want of a place\n",
        rows.len(),
        connections.refused()
    );
    Ok(Output::new(text, json!({ "connections": rows, "in-use": all, "refused": connections.refused() })))
}

/// Connections of all vNICs.
fn in_all(switch: &Switch) -> u64 {
    let vnics = switch.snapshot().vnics.iter().flatten();
    vnics.map(|vnic| u64::from(switch.connections().in_use(vnic.index))).sum()
}

fn protocol_name(key: &ConnectionKey) -> String {
    match (key.kind(), key.proto()) {
        (pipelines::connections::Kind::Rdma, _) => "rdma".into(),
        (_, protocol::TCP) => "tcp".into(),
        (_, protocol::UDP) => "udp".into(),
        (_, protocol::SCTP) => "sctp".into(),
        (_, protocol::ICMP) => "icmp".into(),
        (_, protocol::ICMPV6) => "icmpv6".into(),
        (_, number) => number.to_string(),
    }
}

const fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Opening => "opening",
        Phase::Established => "established",
        Phase::Closing => "closing",
        Phase::TimeWait => "time-wait",
        Phase::Reset => "reset",
    }
}
