//! How single fields are read and written: addresses, prefixes, VNIs, code points.
//!
//! Serde's own messages ("invalid IP address syntax") name neither the text nor the remedy; these do. Used
//! through `#[serde(deserialize_with = "fields::one", serialize_with = "fields::show")]` and the like.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;

use imbl::Vector;
use ipnet::IpNet;
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use wire::{Dscp, MacAddr, Vni};

use super::error::quote;

/// A value that is written as a text.
pub trait FromText: Sized {
    /// The value in `text`.
    ///
    /// # Errors
    /// A sentence that names the text and shows a good one.
    fn from_text(text: &str) -> Result<Self, String>;
}

impl FromText for IpAddr {
    fn from_text(text: &str) -> Result<Self, String> {
        let wrong =
            |_| format!("{} is not an IP address; write for example 10.0.0.1 or fd00::1", quote(text));
        text.parse().map_err(wrong)
    }
}

impl FromText for IpNet {
    fn from_text(text: &str) -> Result<Self, String> {
        let wrong = |_| {
            let what = quote(text);
            match text.parse::<IpAddr>() {
                Ok(ip) => format!(
                    "{what} has no prefix length; write for example {ip}/{}",
                    if ip.is_ipv4() { 24 } else { 64 }
                ),
                Err(_) => format!("{what} is not a prefix; write for example 10.0.0.0/24 or fd00::/64"),
            }
        };
        text.parse().map_err(wrong)
    }
}

impl FromText for MacAddr {
    fn from_text(text: &str) -> Result<Self, String> {
        let wrong =
            |_| format!("{} is not a MAC address; write six hex bytes like 52:54:00:00:00:01", quote(text));
        text.parse().map_err(wrong)
    }
}

/// A value read by a visitor, so that its error gets the place of the text itself also within a list.
struct Text<T>(T);

impl<'de, T: FromText> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);

        impl<T: FromText> Visitor<'_> for Reader<T> {
            type Value = Text<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Text<T>, E> {
                T::from_text(text).map(Text).map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Reader(PhantomData))
    }
}

/// Reads one value from its text.
///
/// # Errors
/// The text's own, at its place.
pub fn one<'de, T: FromText, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Text::deserialize(deserializer).map(|text| text.0)
}

/// Reads a value that may be absent.
///
/// # Errors
/// The text's own, at its place.
pub fn maybe<'de, T: FromText, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    one(deserializer).map(Some)
}

/// Reads a list of values.
///
/// # Errors
/// The first bad element's, at its place.
pub fn list<'de, T: FromText, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let texts = Vec::<Text<T>>::deserialize(deserializer)?;
    Ok(texts.into_iter().map(|text| text.0).collect())
}

/// Writes one value as text.
///
/// # Errors
/// The serializer's own.
pub fn show<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// A value that may be absent and is not written then: `#[serde(default, with = "fields::optional", skip_serializing_if =
/// "Option::is_none")]`.
pub mod optional {
    use super::{Display, Serializer};

    pub use super::maybe as deserialize;

    /// Writes a value that may be absent.
    ///
    /// # Errors
    /// The serializer's own.
    pub fn serialize<T: Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_none(),
        }
    }
}

/// Writes a list whose objects other configs have, too, as if they were its own.
///
/// # Errors
/// The serializer's own.
pub fn show_shared<T: Serialize, S: Serializer>(
    list: &Vector<Arc<T>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(list.iter().map(Arc::as_ref))
}

/// Reads a VNI, a number of 24 bits.
///
/// # Errors
/// When it is larger, or no number.
pub fn vni<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vni, D::Error> {
    let raw = i64::deserialize(deserializer)?;
    u32::try_from(raw).ok().and_then(|raw| Vni::new(raw).ok()).ok_or_else(|| {
        D::Error::custom(format_args!("VNI {raw} is not in 0..=16777215; a VNI has 24 bits (RFC 7348)"))
    })
}

/// Writes a VNI as a number.
///
/// # Errors
/// The serializer's own.
pub fn show_vni<S: Serializer>(vni: &Vni, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(vni.get())
}

/// Where the outer header's DSCP comes from: the inner one, or a fixed value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DscpConfig {
    /// The inner packet's DSCP is copied.
    #[default]
    Copy,
    /// Every outer header has this one.
    Fixed(Dscp),
}

impl Serialize for DscpConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Copy => serializer.serialize_str("copy"),
            Self::Fixed(dscp) => serializer.serialize_u8(dscp.get()),
        }
    }
}

impl<'de> Deserialize<'de> for DscpConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = DscpConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"copy\" or a DSCP from 0 to 63")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<DscpConfig, E> {
                match text {
                    "copy" => Ok(DscpConfig::Copy),
                    _ => {
                        Err(E::custom(format_args!("{} is not \"copy\" or a DSCP from 0 to 63", quote(text))))
                    }
                }
            }

            fn visit_i64<E: serde::de::Error>(self, raw: i64) -> Result<DscpConfig, E> {
                let dscp = u8::try_from(raw).ok().and_then(|raw| Dscp::new(raw).ok());
                dscp.map(DscpConfig::Fixed).ok_or_else(|| {
                    E::custom(format_args!("DSCP {raw} is not in 0..=63; a DSCP has 6 bits (RFC 2474)"))
                })
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_text_and_a_good_one() {
        let error = IpAddr::from_text("10.0.0.300").unwrap_err();
        assert_eq!(error, "\"10.0.0.300\" is not an IP address; write for example 10.0.0.1 or fd00::1");
        assert!(IpNet::from_text("10.0.0.1").unwrap_err().contains("write for example 10.0.0.1/24"));
        assert!(IpNet::from_text("10.0.0.0/33").unwrap_err().contains("is not a prefix"));
        assert!(MacAddr::from_text("zz").unwrap_err().contains("six hex bytes"));
    }
}
