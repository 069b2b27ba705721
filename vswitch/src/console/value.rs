//! Typed arguments: what a word of a line may have to be, and what it is then.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use wire::{MacAddr, Vni};

use crate::config::error::quote;
use crate::config::fields::FromText;
use crate::config::units::parse_duration;
use crate::config::{BitRate, ByteSize, Name};

/// A type of argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgKind {
    /// Any word.
    Word,
    /// A name of a configured thing.
    Name,
    Uint,
    Vni,
    /// An address of either family.
    Ip,
    Prefix,
    /// A MAC address.
    Mac,
    /// A port, by number or name.
    Port,
    /// A size with its unit.
    Size,
    /// A rate with its unit.
    Rate,
    /// A time with its unit.
    Duration,
    Path,
    /// The rest of the line.
    Text,
}

impl ArgKind {
    /// All types with their names in a syntax.
    pub const ALL: [(&'static str, Self); 13] = [
        ("word", Self::Word),
        ("name", Self::Name),
        ("uint", Self::Uint),
        ("vni", Self::Vni),
        ("ip", Self::Ip),
        ("prefix", Self::Prefix),
        ("mac", Self::Mac),
        ("port", Self::Port),
        ("size", Self::Size),
        ("rate", Self::Rate),
        ("duration", Self::Duration),
        ("path", Self::Path),
        ("text", Self::Text),
    ];

    /// The type of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// The value of this type in `text`.
    ///
    /// # Errors
    /// A sentence that names the text and shows a good one.
    pub fn read(self, text: &str) -> Result<Value, String> {
        let wrong = |what| format!("{} is not {what}", quote(text));
        match self {
            Self::Word => Ok(Value::Word(text.to_owned())),
            Self::Text => Ok(Value::Text(text.to_owned())),
            Self::Name => Name::new(text).map(Value::Name).map_err(|e| e.to_string()),
            Self::Uint => text.parse().map(Value::Uint).map_err(|_| wrong("a number such as 42")),
            Self::Vni => {
                let raw: u64 = text.parse().map_err(|_| wrong("a VNI, a number from 0 to 16777215"))?;
                let vni = u32::try_from(raw).ok().and_then(|raw| Vni::new(raw).ok());
                vni.map(Value::Vni).ok_or_else(|| format!("VNI {raw} is too large; the largest is 16777215"))
            }
            Self::Ip => IpAddr::from_text(text).map(Value::Ip),
            Self::Prefix => IpNet::from_text(text).map(Value::Prefix),
            Self::Mac => MacAddr::from_text(text).map(Value::Mac),
            Self::Port => match text.parse() {
                Ok(id) => Ok(Value::Port(PortRef::Id(id))),
                Err(_) => {
                    // An uplink's punt port is called by the uplink's name and this.
                    let name = text.strip_suffix(":punt").unwrap_or(text);
                    Name::new(name)
                        .map(|_| Value::Port(PortRef::Name(text.into())))
                        .map_err(|e| e.to_string())
                }
            },
            Self::Size => {
                text.parse().map(Value::Size).map_err(|e: crate::config::units::UnitSyntax| e.to_string())
            }
            Self::Rate => {
                text.parse().map(Value::Rate).map_err(|e: crate::config::units::UnitSyntax| e.to_string())
            }
            Self::Duration => parse_duration(text).map(Value::Duration).map_err(|e| e.to_string()),
            Self::Path if text.is_empty() || text.contains('\0') => Err(wrong("a file's path")),
            Self::Path => Ok(Value::Path(text.into())),
        }
    }
}

/// A port as it is named on the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortRef {
    /// By its number.
    Id(u16),
    /// By its name.
    Name(String),
}

impl std::fmt::Display for PortRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Name(name) => write!(f, "{name}"),
        }
    }
}

/// An argument's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A word, also one out of a choice.
    Word(String),
    Name(Name),
    Uint(u64),
    Vni(Vni),
    Ip(IpAddr),
    Prefix(IpNet),
    /// A MAC address.
    Mac(MacAddr),
    Port(PortRef),
    Size(ByteSize),
    Rate(BitRate),
    Duration(Duration),
    Path(PathBuf),
    /// The rest of the line.
    Text(String),
}

/// A Rust type that a [`Value`] can be.
pub trait FromValue: Sized {
    /// The value, if it is one of these.
    fn from_value(value: &Value) -> Option<Self>;
}

macro_rules! from_value {
    ($($rust:ty: $($variant:ident)|+;)*) => {
        $(impl FromValue for $rust {
            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    $(Value::$variant(inner) => Some(inner.clone()),)+
                    _ => None,
                }
            }
        })*
    };
}

from_value! {
    String: Word | Text;
    Name: Name;
    u64: Uint;
    Vni: Vni;
    IpAddr: Ip;
    IpNet: Prefix;
    MacAddr: Mac;
    PortRef: Port;
    ByteSize: Size;
    BitRate: Rate;
    Duration: Duration;
    PathBuf: Path;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_reads_its_own_and_refuses_others() {
        for (name, good, bad) in [
            ("name", "vm1", "a/b"),
            ("uint", "42", "-1"),
            ("vni", "16777215", "16777216"),
            ("ip", "fd00::1", "10.0.0"),
            ("prefix", "10.0.0.0/8", "10.0.0.1"),
            ("mac", "52:54:00:00:00:01", "52:54"),
            ("port", "0", "a b"),
            ("size", "64KiB", "64"),
            ("rate", "25Gbit", "25"),
            ("duration", "10ms", "10"),
            ("path", "/a b", ""),
        ] {
            let kind = ArgKind::named(name).unwrap();
            assert_eq!(kind.name(), name);
            assert!(kind.read(good).is_ok(), "{name} {good}");
            let error = kind.read(bad).unwrap_err();
            assert!(
                !error.is_empty()
                    && kind.read(&"z\u{1}".repeat(5000)).map_or_else(|e| e.len() < 300, |_| true)
            );
        }
        assert_eq!(ArgKind::Port.read("up0"), Ok(Value::Port(PortRef::Name("up0".into()))));
        assert_eq!(ArgKind::Port.read("up0:punt"), Ok(Value::Port(PortRef::Name("up0:punt".into()))));
        assert!(ArgKind::Port.read("up0:other").is_err());
        assert_eq!(ArgKind::Port.read("7"), Ok(Value::Port(PortRef::Id(7))));
        assert_eq!(u64::from_value(&Value::Uint(3)), Some(3));
        assert_eq!(u64::from_value(&Value::Word("3".into())), None);
    }
}
