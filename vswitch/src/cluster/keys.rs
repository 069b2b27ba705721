//! The keys of a cluster in etcd, and the values behind them (`vswitch/ETCD.md`).
//!
//! What anybody may have written there is read here: a key or value that is none is an error in words, never more.

use std::net::IpAddr;
use std::sync::Arc;

use prost::Message;
use vswitch_api::v1;
use wire::{MacAddr, Vni};

use crate::config::Name;
use crate::config::validate::is_unicast;

/// The layout under the prefix; another one would live beside it.
const LAYOUT: &str = "v1/";

/// The keys under a prefix.
#[derive(Clone, Debug)]
pub struct Keys {
    root: String,
}

/// What a key is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A host.
    Host(Name),
    /// A host takes part in a network.
    Member { vni: Vni, host: Name },
    /// A vNIC of a host in a network.
    Vnic { vni: Vni, host: Name, vnic: Name },
    /// An object of the config; what follows `objects/`.
    Object(String),
}

/// A vNIC as its host publishes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub mac: MacAddr,
    pub vips: Vec<IpAddr>,
    pub groups: Vec<Name>,
    /// 0: that of the value's own revision.
    pub generation: u64,
}

/// The generation of a claim that is older than all others.
pub const FIRST: u64 = 1;

impl Keys {
    /// The keys under `prefix`, which ends with a slash.
    pub fn new(prefix: &str) -> Self {
        Self { root: format!("{prefix}{LAYOUT}") }
    }

    /// In front of the keys of all hosts.
    pub fn hosts(&self) -> String {
        format!("{}hosts/", self.root)
    }

    /// In front of the keys of all objects of the config.
    pub fn objects(&self) -> String {
        format!("{}objects/", self.root)
    }

    /// In front of the keys of a network.
    pub fn network(&self, vni: Vni) -> String {
        format!("{}vni/{vni}/", self.root)
    }

    /// The key of a host.
    pub fn host(&self, host: &str) -> String {
        format!("{}{host}", self.hosts())
    }

    /// The key that says that a host takes part in a network.
    pub fn member(&self, vni: Vni, host: &str) -> String {
        format!("{}{host}", self.network(vni))
    }

    /// The key of a vNIC.
    pub fn vnic(&self, vni: Vni, host: &str, vnic: &str) -> String {
        format!("{}/{vnic}", self.member(vni, host))
    }

    /// What a key is about.
    ///
    /// # Errors
    /// A key under this prefix that is none of the layout's, in words.
    pub fn subject(&self, key: &[u8]) -> Result<Subject, String> {
        let text = std::str::from_utf8(key).map_err(|_| "it is no text".to_owned())?;
        let rest = text.strip_prefix(&self.root).ok_or_else(|| format!("it is not under {}", self.root))?;
        let name = |text: &str| Name::new(text).map_err(|error| error.to_string());
        if let Some(object) = rest.strip_prefix("objects/").filter(|object| !object.is_empty()) {
            return Ok(Subject::Object(object.to_owned()));
        }
        let mut words = rest.split('/');
        let (first, second, third, fourth) = (words.next(), words.next(), words.next(), words.next());
        let end = words.next().is_none();
        match (first, second, third, fourth) {
            (Some("hosts"), Some(host), None, None) => Ok(Subject::Host(name(host)?)),
            (Some("vni"), Some(vni), Some(host), vnic) if end => {
                // One way to write a number, so that a network has one prefix.
                let number = vni.parse::<u32>().ok().filter(|number| number.to_string() == vni);
                let vni = number.and_then(|number| Vni::new(number).ok());
                let vni = vni.ok_or_else(|| "its VNI is no number of 24 bits".to_owned())?;
                match vnic {
                    None => Ok(Subject::Member { vni, host: name(host)? }),
                    Some(vnic) => Ok(Subject::Vnic { vni, host: name(host)?, vnic: name(vnic)? }),
                }
            }
            _ => {
                Err("it is none of hosts/<host>, vni/<vni>/<host>, vni/<vni>/<host>/<vnic> and objects/<any>"
                    .into())
            }
        }
    }
}

/// A key as it is told, on one line: whoever wrote it may have made it as long as he liked, and of whatever he liked.
pub fn shown(key: &[u8]) -> String {
    let start = &key[..key.len().min(LONGEST_SHOWN)];
    let mut shown: String = String::from_utf8_lossy(start).chars().flat_map(told).collect();
    if key.len() > LONGEST_SHOWN {
        shown.push_str("...");
    }
    shown
}

/// A character as it is, or escaped where it would do something else than be read.
fn told(c: char) -> impl Iterator<Item = char> {
    let (plain, escaped) = if c.is_control() { (None, Some(c.escape_debug())) } else { (Some(c), None) };
    plain.into_iter().chain(escaped.into_iter().flatten())
}

/// A value that is no longer than any honest one: a longer one is not even looked at.
fn no_longer_than(longest: usize, value: &[u8]) -> Result<&[u8], String> {
    match value.len() <= longest {
        true => Ok(value),
        false => Err(format!("its value has {} bytes, and none has more than {longest}", value.len())),
    }
}

/// The VTEPs of a host or member.
///
/// # Errors
/// What is wrong with them.
pub fn vteps(texts: &[String]) -> Result<Arc<[IpAddr]>, String> {
    if texts.is_empty() || texts.len() > MOST_VTEPS {
        return Err(format!("it has {} VTEPs, not 1 to {MOST_VTEPS}", texts.len()));
    }
    let read = |text: &String| {
        let address = text.parse::<IpAddr>().ok().filter(|address| is_unicast(*address));
        address.ok_or_else(|| format!("VTEP {text:?} is not the address of one host"))
    };
    texts.iter().map(read).collect()
}

/// A member of a network.
///
/// # Errors
/// A value that is none, in words.
pub fn member(value: &[u8]) -> Result<Arc<[IpAddr]>, String> {
    let value = no_longer_than(LONGEST_OF_HOST, value)?;
    vteps(&v1::MemberRecord::decode(value).map_err(|error| error.to_string())?.vteps)
}

/// A host.
///
/// # Errors
/// A value that is none, in words.
pub fn host(value: &[u8]) -> Result<v1::HostRecord, String> {
    let value = no_longer_than(LONGEST_OF_HOST, value)?;
    let record = v1::HostRecord::decode(value).map_err(|error| error.to_string())?;
    vteps(&record.vteps)?;
    if record.version.len() > 64 {
        return Err("its version has more than 64 characters".into());
    }
    Ok(record)
}

/// A vNIC.
///
/// # Errors
/// A value that is none, in words.
pub fn vnic(value: &[u8]) -> Result<Published, String> {
    let value = no_longer_than(LONGEST_OF_VNIC, value)?;
    let record = v1::VnicRecord::decode(value).map_err(|error| error.to_string())?;
    let mac = record.mac.parse::<MacAddr>().ok().filter(|mac| mac.is_station());
    let mac = mac.ok_or_else(|| format!("{:?} is not the MAC address of one station", record.mac))?;
    if record.vips.len() > MOST_VIPS || record.security_groups.len() > MOST_GROUPS {
        return Err(format!("it has more than {MOST_VIPS} addresses or {MOST_GROUPS} groups"));
    }
    let vip = |text: &String| {
        text.parse::<IpAddr>()
            .ok()
            .filter(|address| is_unicast(*address))
            .ok_or_else(|| format!("{text:?} is not the address of one station"))
    };
    let mut vips: Vec<IpAddr> = record.vips.iter().map(vip).collect::<Result<_, _>>()?;
    vips.sort_unstable();
    vips.dedup();
    let groups =
        record.security_groups.iter().map(|group| Name::new(group).map_err(|error| error.to_string()));
    Ok(Published { mac, vips, groups: groups.collect::<Result<_, _>>()?, generation: record.generation })
}

impl Published {
    /// As all hosts take a value that was put at a revision: one without a generation, or with one that etcd had not come to then, is of that
    /// revision. That depends on nothing but the key as it is in etcd, so that whoever reads it, whenever that is, takes it alike.
    pub fn put_at(self, revision: i64) -> Self {
        let revision = revision.unsigned_abs();
        let generation = match self.generation {
            0 => revision,
            generation => generation.min(revision),
        };
        Self { generation, ..self }
    }

    /// As a value.
    pub fn value(&self) -> Vec<u8> {
        let record = v1::VnicRecord {
            mac: self.mac.to_string(),
            vips: self.vips.iter().map(ToString::to_string).collect(),
            security_groups: self.groups.iter().map(ToString::to_string).collect(),
            generation: self.generation,
        };
        record.encode_to_vec()
    }
}

/// VTEPs of a host that others look at.
const MOST_VTEPS: usize = 16;
/// Addresses of a vNIC.
const MOST_VIPS: usize = 1024;
/// Groups of a vNIC.
const MOST_GROUPS: usize = 256;
/// Bytes of the values of a host and of a member, which all their VTEPs fit into, with room for fields to come.
const LONGEST_OF_HOST: usize = 4 << 10;
/// Bytes of the value of a vNIC, which all its addresses and groups fit into.
const LONGEST_OF_VNIC: usize = 64 << 10;
/// Bytes of a key that are told.
const LONGEST_SHOWN: usize = 256;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn published() -> Published {
        Published {
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            vips: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            groups: vec![Name::new("web").unwrap()],
            generation: 7,
        }
    }

    #[test]
    fn etcd_keys_are_about_what_they_were_made_for() {
        let keys = Keys::new("/x/");
        let (vni, host, vnic) =
            (Vni::new(100).unwrap(), Name::new("h-1").unwrap(), Name::new("vm.1").unwrap());
        let subject = |key: String| keys.subject(key.as_bytes());
        assert_eq!(subject(keys.host("h-1")), Ok(Subject::Host(host.clone())));
        assert_eq!(subject(keys.member(vni, "h-1")), Ok(Subject::Member { vni, host: host.clone() }));
        assert_eq!(subject(keys.vnic(vni, "h-1", "vm.1")), Ok(Subject::Vnic { vni, host, vnic }));
        let object = format!("{}subnet/red/10.0.0.0/24", keys.objects());
        assert_eq!(subject(object), Ok(Subject::Object("subnet/red/10.0.0.0/24".into())));
        for bad in [
            "",
            "/x/",
            "/x/v1/",
            "/y/v1/hosts/a",
            "/x/v1/hosts/",
            "/x/v1/hosts/a/b",
            "/x/v1/vni/0100/a",
            "/x/v1/vni/+1/a",
            "/x/v1/vni/16777216/a",
            "/x/v1/vni/1/a/b/c",
            "/x/v1/vni/1",
            "/x/v1/objects/",
            "/x/v1/hosts/a b",
        ] {
            assert!(keys.subject(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(keys.subject(&[0xff, 0xfe]).is_err());
    }

    #[test]
    fn etcd_values_come_back_and_bad_ones_are_told() {
        assert_eq!(vnic(&published().value()), Ok(published()));
        let record = |mac: &str, vips: &[&str]| v1::VnicRecord {
            mac: mac.into(),
            vips: vips.iter().map(|&vip| vip.into()).collect(),
            ..Default::default()
        };
        for bad in [
            record("", &[]),
            record("01:00:5e:00:00:01", &[]),
            record("02:00:00:00:00:01", &["10.0.0.0.1"]),
            record("02:00:00:00:00:01", &["255.255.255.255"]),
            v1::VnicRecord { security_groups: vec!["no name".into()], ..record("02:00:00:00:00:01", &[]) },
            record("02:00:00:00:00:01", &["10.0.0.1"; 2000]),
        ] {
            assert!(vnic(&bad.encode_to_vec()).is_err(), "{bad:?}");
        }
        let longest = Published {
            vips: (0..MOST_VIPS as u128)
                .map(|n| std::net::Ipv6Addr::from((0xfdff_u128 << 112) + (u128::MAX >> 16) - n).into())
                .collect(),
            groups: (0..MOST_GROUPS).map(|n| Name::new(&format!("{n:063}")).unwrap()).collect(),
            generation: u64::MAX,
            ..published()
        };
        assert_eq!(vnic(&longest.value()).map(|said| said.vips.len()), Ok(MOST_VIPS));
        let room = |value: Vec<u8>, longest: usize| [value, vec![0xfa; longest]].concat();
        assert!(
            vnic(&room(published().value(), LONGEST_OF_VNIC))
                .unwrap_err()
                .contains("none has more than 65536")
        );
        let vteps = vec!["fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".to_owned(); MOST_VTEPS];
        let of_host =
            v1::HostRecord { vteps: vteps.clone(), instance: u64::MAX, version: "9".repeat(64), mtu: 9000 };
        assert!(host(&of_host.encode_to_vec()).is_ok());
        assert!(host(&room(of_host.encode_to_vec(), LONGEST_OF_HOST)).unwrap_err().contains("4096"));
        let of_member = v1::MemberRecord { vteps }.encode_to_vec();
        assert!(member(&of_member).is_ok() && member(&room(of_member, LONGEST_OF_HOST)).is_err());
        assert_eq!((shown(b"/a").as_str(), shown(&[b'a'; 1 << 20]).len()), ("/a", LONGEST_SHOWN + 3));
        assert_eq!(shown("a\x1b[2J\nb\u{9b}\u{e4}".as_bytes()), "a\\u{1b}[2J\\nb\\u{9b}\u{e4}");
        assert!(member(&v1::MemberRecord { vteps: vec![] }.encode_to_vec()).is_err());
        assert!(member(&v1::MemberRecord { vteps: vec!["224.0.0.1".into()] }.encode_to_vec()).is_err());
    }

    #[test]
    fn etcd_no_generation_is_later_than_the_revision_that_it_was_put_at() {
        let of = |generation, revision| Published { generation, ..published() }.put_at(revision).generation;
        assert_eq!((of(0, 90), of(7, 90), of(90, 90), of(FIRST, 90)), (90, 7, 90, FIRST));
        assert_eq!((of(5_000_000, 90), of(u64::MAX, 90)), (90, 90), "of what etcd has lost, or made up");
        // It is as late as its last put and no later.
        assert!(of(u64::MAX, 90) < of(0, 91));
    }

    proptest! {
        /// Whatever somebody wrote there: every byte changed, every length cut.
        #[test]
        fn etcd_values_survive_any_change(at in 0usize..64, byte: u8, cut in 0usize..64, noise: Vec<u8>) {
            let mut value = published().value();
            let (at, cut) = (at % value.len(), cut % value.len());
            let _ = vnic(&value[..cut]);
            value[at] = byte;
            let _ = vnic(&value);
            let _ = (vnic(&noise), member(&noise), host(&noise), Keys::new("/x/").subject(&noise));
        }
    }
}
