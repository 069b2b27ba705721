//! Reads a [`PortSpec`] by its `kind`, and the rest of the keys as that kind has them.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{Error as _, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::PortSpec;
use crate::config::error::quote;

pub(super) fn unknown_kind(kind: &str) -> String {
    format!("unknown port kind {}; the kinds are {}", quote(kind), PortSpec::KINDS.join(", "))
}

/// The value of `kind`, checked while its own place in the text is at hand.
struct KindName(String);

impl<'de> Deserialize<'de> for KindName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let kind = String::deserialize(deserializer)?;
        match PortSpec::KINDS.contains(&kind.as_str()) {
            true => Ok(Self(kind)),
            false => Err(D::Error::custom(unknown_kind(&kind))),
        }
    }
}

impl<'de> Deserialize<'de> for PortSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(SpecReader)
    }
}

/// Reads `kind` and then lets the kind's struct read the rest.
struct SpecReader;

impl<'de> Visitor<'de> for SpecReader {
    type Value = PortSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a port such as { kind = \"tap\", iface = \"tap0\" }")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PortSpec, A::Error> {
        // The config reader puts `kind` first, and then the kind's struct reads straight from the text, with
        // places; from any other source, what came before `kind` is kept and read afterwards.
        let mut before: Vec<(String, toml::Value)> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == "kind" {
                let KindName(kind) = map.next_value()?;
                if before.is_empty() {
                    return PortSpec::read(&kind, MapAccessDeserializer::new(map));
                }
                while let Some(entry) = map.next_entry()? {
                    before.push(entry);
                }
                let entries = before.into_iter().map(|(key, value)| (key, Buffered(value)));
                return PortSpec::read(&kind, MapDeserializer::new(entries));
            }
            before.push((key, map.next_value()?));
        }
        Err(A::Error::custom(format_args!(
            "a port needs a kind; the kinds are {}",
            PortSpec::KINDS.join(", ")
        )))
    }
}

/// A value read ahead of its `kind`.
struct Buffered(toml::Value);

impl<'de, E: serde::de::Error> IntoDeserializer<'de, E> for Buffered {
    type Deserializer = BufferedDeserializer<E>;

    fn into_deserializer(self) -> Self::Deserializer {
        BufferedDeserializer(self.0, std::marker::PhantomData)
    }
}

/// Deserializes a buffered value with the error type of the source it came from.
struct BufferedDeserializer<E>(toml::Value, std::marker::PhantomData<E>);

impl<'de, E: serde::de::Error> Deserializer<'de> for BufferedDeserializer<E> {
    type Error = E;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        match self.0 {
            toml::Value::String(text) => visitor.visit_string(text),
            toml::Value::Integer(number) => visitor.visit_i64(number),
            toml::Value::Float(number) => visitor.visit_f64(number),
            toml::Value::Boolean(truth) => visitor.visit_bool(truth),
            toml::Value::Datetime(time) => visitor.visit_string(time.to_string()),
            toml::Value::Array(items) => {
                visitor.visit_seq(SeqDeserializer::new(items.into_iter().map(Buffered)))
            }
            toml::Value::Table(table) => visitor.visit_map(MapDeserializer::new(
                table.into_iter().map(|(key, value)| (key, Buffered(value))),
            )),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, E> {
        match self.0 {
            toml::Value::String(text) => visitor.visit_enum(text.into_deserializer()),
            other => Err(E::invalid_type(serde::de::Unexpected::Other(other.type_str()), &"a word")),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;
    use crate::config::port_spec::*;

    #[derive(Debug, Deserialize, Serialize, PartialEq)]
    struct Holder {
        port: PortSpec,
    }

    fn read(text: &str) -> Result<PortSpec, String> {
        toml::from_str::<Holder>(&format!("port = {text}"))
            .map(|h| h.port)
            .map_err(|e| e.message().to_owned())
    }

    #[test]
    fn kinds_read_with_defaults_in_any_order() {
        let (iface, netns) = ("t0".into(), None);
        let tap = PortSpec::Tap(TapPort { iface, netns, queues: 1, mac: None, persist: false });
        assert_eq!(read(r#"{ kind = "tap", iface = "t0" }"#), Ok(tap.clone()));
        assert_eq!(read(r#"{ iface = "t0", kind = "tap", queues = 1 }"#), Ok(tap));
        let memif = read(r#"{ role = "client", kind = "memif", socket = "/run/m", secret = "s" }"#).unwrap();
        assert!(matches!(memif, PortSpec::Memif(MemifPort { role: MemifRole::Client, .. })), "{memif:?}");
    }

    #[test]
    fn errors_name_the_key_and_the_known_ones() {
        let error = read(r#"{ kind = "tun", iface = "t0" }"#).unwrap_err();
        assert!(error.contains("\"tun\"") && error.contains("vhost-user, virtio-user, tap"), "{error}");
        for text in [r#"{ kind = "tap", iface = "t0", path = "x" }"#, r#"{ path = "x", kind = "tap" }"#] {
            let error = read(text).unwrap_err();
            assert!(error.contains("`path`") && error.contains("`iface`"), "{error}");
        }
        assert!(read(r#"{ iface = "t0" }"#).unwrap_err().contains("needs a kind"));
        assert!(read(r#""tap""#).unwrap_err().contains("a port such as"));
        assert!(read(r#"{ kind = "tap", iface = "t0", queues = -1 }"#).is_err());
    }

    #[test]
    fn specs_round_trip_through_toml_and_json() {
        for text in [
            r#"{ kind = "pci", address = "0000:01:00.0", devargs = "dv_flow_en=2" }"#,
            r#"{ kind = "representor", pf = "0000:01:00.0", vf = 3 }"#,
            r#"{ kind = "vhost-user", path = "/run/v.sock", server = false, queues = 2 }"#,
            r#"{ kind = "tap", iface = "t0", mac = "52:54:00:00:00:01", persist = true }"#,
            r#"{ kind = "tap", iface = "eth0", netns = "pod" }"#,
            r#"{ kind = "pcap", rx-pcap = "in.pcap", infinite-rx = true }"#,
            r#"{ kind = "ring", name = "a", peer = "b" }"#,
            r#"{ kind = "null" }"#,
            r#"{ kind = "raw", vdev = "net_ring7,x=1" }"#,
        ] {
            let holder = Holder { port: read(text).unwrap() };
            assert_eq!(toml::from_str::<Holder>(&toml::to_string(&holder).unwrap()).unwrap(), holder);
            let json = serde_json::to_string(&holder).unwrap();
            assert_eq!(serde_json::from_str::<Holder>(&json).unwrap(), holder);
        }
    }
}
