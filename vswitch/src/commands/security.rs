//! Commands about security groups and the connections that they admitted.

use serde::Serialize;
use vswitch_api::v1::firewall_client::FirewallClient;
use vswitch_api::v1::object::Spec;
use vswitch_api::v1::{self, Kind};

use super::objects::{create, delete, update};
use super::{Entry, Session, View, ask, optional, shown, told};
use crate::config::{Access, Name, SecurityGroupConfig, SecurityRule};
use crate::console::{Args, CommandError, Output, Table};

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "security-group add <group:name> vpc <vpc:name> [deny-out]",
            help: "Add a security group; deny-out: members send what rules allow, and nothing else",
            rpc: "Objects.Create",
            run: add,
        },
        Entry {
            syntax: "security-group del <group:name>",
            help: "Remove a security group",
            rpc: "Objects.Delete",
            run: |session, args| {
                let name: Name = args.get("group")?;
                let answer = delete(session, Kind::SecurityGroup, &name)?;
                told(format!("security group {name} removed"), answer)
            },
        },
        Entry {
            syntax: "security-group allow <group:name> <rule:text>",
            help: "Add a rule: in|out PROTOCOL [PORTS] [from|to PREFIX | from|to group NAME]",
            rpc: "Objects.Create",
            run: allow,
        },
        Entry {
            syntax: "security-group revoke <group:name> <rule:text>",
            help: "Remove a rule, said as `show security-group` shows it or by its number; what it admitted ends at once",
            rpc: "Objects.Delete",
            run: revoke,
        },
        Entry {
            syntax: "security-group set <vnic:name> <groups:text>",
            help: "Put a vNIC into these groups and no others; none: into no group",
            rpc: "Objects.Update",
            run: set,
        },
        Entry {
            syntax: "show security-group [<group:name>]",
            help: "Security groups with members and rules",
            rpc: "Firewall.ListSecurityGroups",
            run: |session, args| shown(groups(session, optional(args, "group"))?),
        },
        Entry {
            syntax: "show connections [<vnic:name>] [limit <limit:uint>]",
            help: "Connections of vNICs in security groups",
            rpc: "Firewall.ListConnections",
            run: |session, args| {
                let (vnic, limit) = (optional(args, "vnic"), args.maybe("limit"));
                let request = v1::ListConnectionsRequest { vnic, limit };
                shown(ask!(session, FirewallClient.list_connections(request))?)
            },
        },
    ]
}

/// A rule of a group, as an object.
#[derive(Serialize)]
struct RuleOf<'r> {
    of: &'r str,
    rule: &'r SecurityRule,
}

/// A security group, or all of them for no name.
fn groups(session: &Session, group: String) -> Result<v1::ListSecurityGroupsResponse, CommandError> {
    let request = v1::ListSecurityGroupsRequest { group };
    ask!(session, FirewallClient.list_security_groups(request))
}

fn add(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let name: Name = args.get("group")?;
    let group = SecurityGroupConfig {
        name: name.clone(),
        vpc: args.get("vpc")?,
        default_in: Access::Deny,
        default_out: if args.has("deny-out") { Access::Deny } else { Access::Allow },
        rules: Vec::new(),
    };
    let entry = create(session, Kind::SecurityGroup, &group)?;
    told(format!("security group {name} added"), entry)
}

fn allow(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let (name, text): (Name, String) = (args.get("group")?, args.get("rule")?);
    let rule = SecurityRule::from_words(&text).map_err(|error| args.error("rule", error))?;
    let entry = create(session, Kind::Rule, &RuleOf { of: &name, rule: &rule })?;
    told(format!("security group {name} allows {rule}"), entry)
}

fn revoke(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let (name, text): (Name, String) = (args.get("group")?, args.get("rule")?);
    let known = groups(session, name.to_string())?;
    let known = known.groups.first().map(|group| group.rules.as_slice()).unwrap_or_default();
    let rule = named(known, text.trim()).map_err(|error| args.error("rule", error))?;
    let answer = delete(session, Kind::Rule, &format!("{name} {rule}"))?;
    told(format!("security group {name} no longer allows {rule}"), answer)
}

/// The rule that a text names, of those of a group: by its number, or in words.
fn named(known: &[String], text: &str) -> Result<String, String> {
    let numbered = text.parse::<usize>().ok().and_then(|number| known.get(number.checked_sub(1)?));
    match numbered.or_else(|| known.iter().find(|rule| *rule == text)) {
        Some(rule) => Ok(rule.clone()),
        None => SecurityRule::from_words(text).map(|rule| rule.to_string()),
    }
}

fn set(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let (vnic, text): (Name, String) = (args.get("vnic")?, args.get("groups")?);
    let words: Vec<&str> = text.split([',', ' ']).filter(|word| !word.is_empty()).collect();
    let security_groups = match words[..] {
        ["none"] => Vec::new(),
        _ => {
            let name = |word: &&str| Name::new(word).map(|name| name.to_string());
            let names = words.iter().map(name).collect::<Result<_, _>>();
            names.map_err(|error| args.error("groups", error.to_string()))?
        }
    };
    let changed = v1::Vnic { name: vnic.to_string(), security_groups, ..v1::Vnic::default() };
    let entry = update(session, Spec::Vnic(changed), &["security_groups"])?;
    told(format!("vNIC {vnic} is in: {}", words.join(", ")), entry)
}

impl View for v1::ListSecurityGroupsResponse {
    fn text(&self) -> String {
        let mut table = Table::new(["group", "vpc", "vnics", "locations", "in", "out", "no", "rule"]);
        for group in &self.groups {
            let first = group.rules.first().cloned().unwrap_or_default();
            table.row([
                group.name.clone(),
                group.vpc.clone(),
                group.vnics.len().to_string(),
                group.locations.to_string(),
                group.default_in.clone(),
                group.default_out.clone(),
                if first.is_empty() { String::new() } else { "1".into() },
                first,
            ]);
            for (number, rule) in group.rules.iter().enumerate().skip(1) {
                let nothing = [const { String::new() }; 6];
                table.row(nothing.into_iter().chain([(number + 1).to_string(), rule.clone()]));
            }
        }
        table.to_string()
    }
}

impl View for v1::ListConnectionsResponse {
    fn text(&self) -> String {
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
        for one in &self.connections {
            table.row([
                one.vnic.clone(),
                one.protocol.clone(),
                one.own.clone(),
                one.own_port.to_string(),
                one.peer.clone(),
                one.peer_port.to_string(),
                if one.opened_here { "here" } else { "by the peer" }.into(),
                one.state.clone(),
                format!("{:.0} s", one.idle),
            ]);
        }
        let Self { connections, in_use, refused } = self;
        let count = connections.len();
        format!("{table}{count} of {in_use} connections shown; {refused} refused for want of a place\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_named_by_number_or_in_words() {
        let known = ["in tcp 80", "in icmp type 8", "out any"].map(str::to_owned);
        let named = |text: &str| named(&known, text);
        assert_eq!(named("2").unwrap(), "in icmp type 8");
        assert_eq!(named("in icmp type 8").unwrap(), "in icmp type 8", "as it is shown");
        assert_eq!(named("in icmp 8").unwrap(), "in icmp type 8", "as it was said");
        assert_eq!(named("in  udp   9").unwrap(), "in udp 9", "the switch says that there is none");
        for wrong in ["0", "4", "", "sideways tcp"] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_rule_is_an_object() {
        let rule = SecurityRule::from_words("in icmp 8/0 from group web").unwrap();
        let object = crate::api::object(Kind::Rule, &RuleOf { of: "gpu", rule: &rule }).unwrap();
        let Some(Spec::Rule(v1::Rule { of, rule: Some(rule) })) = object.spec else {
            panic!("no rule: {object:?}")
        };
        assert_eq!((of.as_str(), rule.direction(), rule.protocol()), ("gpu", v1::RuleDirection::In, "icmp"));
        assert_eq!((rule.r#type, rule.code, rule.group.as_deref()), (Some(8), Some(0), Some("web")));
    }
}
