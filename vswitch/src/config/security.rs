//! `[security]` and `[[security-group]]`: which traffic a vNIC in groups may have, and how its connections are followed.

use std::fmt;
use std::time::Duration;

use ipnet::IpNet;
use pipelines::Direction;
use pipelines::security::Traffic;
use serde::{Deserialize, Serialize};

use super::error::quote;
use super::fields;
use super::name::Name;
use super::units;

/// `[security]`: the connection table of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SecurityConfig {
    /// Connections of the whole host.
    pub connections: u32,
    /// Connections that one vNIC may have.
    pub connections_per_vnic: u32,
    /// New connections a second and vNIC; 0 is no limit.
    pub new_rate: u32,
    /// A TCP connection whose handshake is not complete ends after so long without a packet.
    #[serde(with = "units::duration")]
    pub tcp_opening: Duration,
    /// A TCP connection ends after so long without a packet.
    #[serde(with = "units::duration")]
    pub tcp_established: Duration,
    /// A TCP connection is forgotten so long after the last packet that followed a FIN or RST.
    #[serde(with = "units::duration")]
    pub tcp_closing: Duration,
    /// UDP and the like without an answer.
    #[serde(with = "units::duration")]
    pub one_way: Duration,
    /// UDP and the like with an answer.
    #[serde(with = "units::duration")]
    pub both_ways: Duration,
    /// Requests of ICMP.
    #[serde(with = "units::duration")]
    pub icmp: Duration,
    /// After a start, and when a vNIC comes into groups, TCP connections are taken up in the middle for so long.
    #[serde(with = "units::duration")]
    pub restart_grace: Duration,
}

impl Default for SecurityConfig {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            connections: 262_144,
            connections_per_vnic: 32_768,
            new_rate: 0,
            tcp_opening: seconds(60),
            tcp_established: seconds(86_400),
            tcp_closing: seconds(120),
            one_way: seconds(30),
            both_ways: seconds(180),
            icmp: seconds(30),
            restart_grace: seconds(60),
        }
    }
}

/// What becomes of traffic that no rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// It may pass, where all groups of a vNIC say so.
    Allow,
    /// It is dropped.
    Deny,
}

/// `[[security-group]]`: rules for its members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SecurityGroupConfig {
    /// Its name; that of no other group of the host.
    pub name: Name,
    /// The VPC of its members.
    pub vpc: Name,
    /// What comes to members and no rule names.
    #[serde(default = "deny")]
    pub default_in: Access,
    /// What members send and no rule names.
    #[serde(default = "allow")]
    pub default_out: Access,
    /// What is allowed.
    #[serde(default)]
    pub rules: Vec<SecurityRule>,
}

const fn deny() -> Access {
    Access::Deny
}

const fn allow() -> Access {
    Access::Allow
}

/// Where the other end of a rule is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulePeer {
    /// Anywhere.
    Any,
    /// In a prefix.
    Prefix(IpNet),
    /// A member of a group.
    Group(Name),
}

/// A rule of a group: it allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenRule", into = "WrittenRule")]
pub struct SecurityRule {
    /// What comes to members, or what they send.
    pub direction: Direction,
    /// Protocol and ports.
    pub traffic: Traffic,
    /// The other end.
    pub peer: RulePeer,
}

/// In or out, as it is written.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WrittenDirection {
    In,
    Out,
}

/// A [`SecurityRule`] as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenRule {
    direction: WrittenDirection,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ports: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "type")]
    kind: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<u8>,
    #[serde(default, deserialize_with = "fields::maybe", skip_serializing_if = "Option::is_none")]
    prefix: Option<IpNet>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<Name>,
}

/// Every port, or every type and code.
const ALL: (u16, u16) = (0, u16::MAX);

/// Ports as they are written: "80" or "8000-8080".
fn read_ports(text: &str) -> Result<(u16, u16), String> {
    let wrong = || {
        format!("{} are not ports; write one such as \"80\", or a range such as \"8000-8080\"", quote(text))
    };
    let number = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
    let (from, to) = match text.split_once('-') {
        Some((from, to)) => (number(from)?, number(to)?),
        None => (number(text)?, number(text)?),
    };
    if from <= to { Ok((from, to)) } else { Err(wrong()) }
}

/// What is allowed, from the words for it: protocol, ports, and type and code of ICMP.
fn read_traffic(
    protocol: Option<&str>,
    ports: Option<&str>,
    (kind, code): (Option<u8>, Option<u8>),
) -> Result<Traffic, String> {
    let range = || ports.map_or(Ok(ALL), read_ports);
    let messages = || match (kind, code) {
        (None, None) => Ok(ALL),
        (Some(kind), Some(code)) => Ok((u16::from_be_bytes([kind, code]), u16::from_be_bytes([kind, code]))),
        (Some(kind), None) => Ok((u16::from_be_bytes([kind, 0]), u16::from_be_bytes([kind, 255]))),
        (None, Some(_)) => Err("a code of ICMP needs its type".to_owned()),
    };
    let name = protocol.unwrap_or("any");
    let has_ports = matches!(name, "tcp" | "udp" | "sctp");
    if ports.is_some() && !has_ports {
        return Err(format!("{} has no ports here; ports are for tcp, udp and sctp", quote(name)));
    }
    if (kind.is_some() || code.is_some()) && !matches!(name, "icmp" | "icmpv6") {
        return Err(format!("{} has no type and code; those are for icmp and icmpv6", quote(name)));
    }
    Ok(match name {
        "any" => Traffic::Any,
        "rdma" => Traffic::Rdma,
        "tcp" => range().map(|(from, to)| Traffic::Tcp(from, to))?,
        "udp" => range().map(|(from, to)| Traffic::Udp(from, to))?,
        "sctp" => range().map(|(from, to)| Traffic::Sctp(from, to))?,
        "icmp" => messages().map(|(from, to)| Traffic::Icmp(from, to))?,
        "icmpv6" => messages().map(|(from, to)| Traffic::Icmpv6(from, to))?,
        number => number.parse().map(Traffic::Protocol).map_err(|_| {
            format!(
                "{} is not a protocol; write any, tcp, udp, sctp, icmp, icmpv6, rdma, or the number of one (0 to 255)",
                quote(number)
            )
        })?,
    })
}

impl TryFrom<WrittenRule> for SecurityRule {
    type Error = String;

    fn try_from(written: WrittenRule) -> Result<Self, String> {
        let WrittenRule { direction, protocol, ports, kind, code, prefix, group } = written;
        let traffic = read_traffic(protocol.as_deref(), ports.as_deref(), (kind, code))?;
        let peer = match (prefix, group) {
            (None, None) => RulePeer::Any,
            (Some(prefix), None) => RulePeer::Prefix(prefix),
            (None, Some(group)) => RulePeer::Group(group),
            (Some(_), Some(_)) => {
                return Err("a rule names a prefix or a group, not both; write two rules".to_owned());
            }
        };
        let direction = match direction {
            WrittenDirection::In => Direction::In,
            WrittenDirection::Out => Direction::Out,
        };
        Ok(Self { direction, traffic, peer })
    }
}

/// Protocol, and first and last port or message, of what is allowed.
fn parts(traffic: Traffic) -> (String, Option<(u16, u16)>) {
    let (name, range) = match traffic {
        Traffic::Any => ("any", None),
        Traffic::Rdma => ("rdma", None),
        Traffic::Protocol(number) => return (number.to_string(), None),
        Traffic::Tcp(from, to) => ("tcp", Some((from, to))),
        Traffic::Udp(from, to) => ("udp", Some((from, to))),
        Traffic::Sctp(from, to) => ("sctp", Some((from, to))),
        Traffic::Icmp(from, to) => ("icmp", Some((from, to))),
        Traffic::Icmpv6(from, to) => ("icmpv6", Some((from, to))),
    };
    (name.to_owned(), range.filter(|range| *range != ALL))
}

impl From<SecurityRule> for WrittenRule {
    fn from(rule: SecurityRule) -> Self {
        let direction = match rule.direction {
            Direction::In => WrittenDirection::In,
            Direction::Out => WrittenDirection::Out,
        };
        let (protocol, range) = parts(rule.traffic);
        let is_icmp = matches!(rule.traffic, Traffic::Icmp(..) | Traffic::Icmpv6(..));
        let ports = range.filter(|_| !is_icmp).map(|(from, to)| ports_text(from, to));
        let messages = range.filter(|_| is_icmp);
        let (prefix, group) = match rule.peer {
            RulePeer::Any => (None, None),
            RulePeer::Prefix(prefix) => (Some(prefix), None),
            RulePeer::Group(group) => (None, Some(group)),
        };
        Self {
            direction,
            protocol: Some(protocol),
            ports,
            kind: messages.map(|(from, _)| from.to_be_bytes()[0]),
            code: messages.filter(|(from, to)| from == to).map(|(from, _)| from.to_be_bytes()[1]),
            prefix,
            group,
        }
    }
}

fn ports_text(from: u16, to: u16) -> String {
    if from == to { from.to_string() } else { format!("{from}-{to}") }
}

impl fmt::Display for SecurityRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (protocol, range) = parts(self.traffic);
        let (way, other) = match self.direction {
            Direction::In => ("in", "from"),
            Direction::Out => ("out", "to"),
        };
        write!(f, "{way} {protocol}")?;
        match (self.traffic, range) {
            (_, None) => {}
            (Traffic::Icmp(..) | Traffic::Icmpv6(..), Some((from, to))) => {
                let [kind, code] = from.to_be_bytes();
                write!(f, " type {kind}")?;
                if from == to {
                    write!(f, " code {code}")?;
                }
            }
            (_, Some((from, to))) => write!(f, " {}", ports_text(from, to))?,
        }
        match &self.peer {
            RulePeer::Any => Ok(()),
            RulePeer::Prefix(prefix) => write!(f, " {other} {prefix}"),
            RulePeer::Group(group) => write!(f, " {other} group {group}"),
        }
    }
}

impl SecurityRule {
    /// A rule from the words of the console: `in|out PROTOCOL [PORTS] [from|to PREFIX | from|to group NAME]`; of ICMP the type,
    /// or type and code with a slash, stand where ports do.
    ///
    /// # Errors
    /// A sentence that says what is wrong and how it is right.
    pub fn from_words(text: &str) -> Result<Self, String> {
        let usage = || {
            "write a rule such as `in tcp 80-443 from 10.0.0.0/8`, `in rdma from group gpu`, `in icmp 8` or `out any`".to_owned()
        };
        let mut words = text.split_whitespace().peekable();
        let direction = match words.next() {
            Some("in") => WrittenDirection::In,
            Some("out") => WrittenDirection::Out,
            _ => return Err(usage()),
        };
        let protocol = words.next().map(str::to_owned);
        let is_icmp = matches!(protocol.as_deref(), Some("icmp" | "icmpv6"));
        let range = words.next_if(|word| !matches!(*word, "from" | "to"));
        let number = |text: &str| text.parse::<u8>().map_err(|_| usage());
        let (ports, kind, code) = match range {
            Some(text) if is_icmp => match text.split_once('/') {
                Some((kind, code)) => (None, Some(number(kind)?), Some(number(code)?)),
                None => (None, Some(number(text)?), None),
            },
            ports => (ports.map(str::to_owned), None, None),
        };
        let (prefix, group) = match (words.next(), words.next(), words.next()) {
            (None, None, None) => (None, None),
            (Some("from" | "to"), Some("group"), Some(name)) => {
                (None, Some(Name::new(name).map_err(|error| error.to_string())?))
            }
            (Some("from" | "to"), Some(prefix), None) => {
                (Some(<IpNet as fields::FromText>::from_text(prefix)?), None)
            }
            _ => return Err(usage()),
        };
        if words.next().is_some() {
            return Err(usage());
        }
        WrittenRule { direction, protocol, ports, kind, code, prefix, group }.try_into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_rules_are_written_as_they_are_read() {
        let texts = [
            "in any",
            "out rdma to group gpu",
            "in tcp 80",
            "in udp 8000-8080 from 10.0.0.0/8",
            "in icmp type 8",
            "in icmpv6 type 1 code 4 from fd00::/8",
            "out 47",
            "in sctp",
        ];
        for text in texts {
            let spoken = text.replace(" type ", " ").replace(" code ", "/");
            let rule = SecurityRule::from_words(&spoken).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(rule.to_string(), text);
            let again = SecurityRule::try_from(WrittenRule::from(rule.clone())).unwrap();
            assert_eq!(again, rule, "{text}");
        }
        for wrong in [
            "",
            "in",
            "up tcp",
            "in tcp 80 from",
            "in tcp x",
            "in tcp 9-8",
            "in icmp 300",
            "in rdma 5",
            "in any from group a b",
        ] {
            let refused = SecurityRule::from_words(wrong);
            assert!(refused.is_err() || wrong == "in", "{wrong}: {refused:?}");
        }
    }
}
