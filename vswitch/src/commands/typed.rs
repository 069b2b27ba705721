//! Values as they are typed, `key=value`: each is read as the type of the field it is for, whatever it looks like. An owner `1000` is a
//! text like `qemu`, and `queues=2` a number.
//!
//! What has parts is typed as TOML has it: `[...]` for a list, `{...}` for a table. In those, texts are in quotes.

use std::str::FromStr;

use serde::de::value::{MapDeserializer, StrDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use toml::de::Error;
use toml::{Table, Value};

use crate::config::error::{quote, tidy};

/// A value of which these are the fields.
///
/// # Errors
/// The field, and what it should be; secrets that were typed are not repeated.
pub(super) fn read<T: DeserializeOwned>(fields: &[(&str, &str)]) -> Result<T, String> {
    let fields = fields.iter().map(|&(key, text)| (key, Typed { key, text }));
    T::deserialize(MapDeserializer::new(fields)).map_err(|error| tidy(error.message()))
}

/// The text of one field.
#[derive(Clone, Copy)]
struct Typed<'t> {
    key: &'t str,
    text: &'t str,
}

impl Typed<'_> {
    fn wrong(self, what: &str) -> Error {
        Error::custom(format_args!("{} {} is not {what}", self.key, quote(self.text)))
    }

    fn parse<N: FromStr>(self, what: &str) -> Result<N, Error> {
        self.text.parse().map_err(|_| self.wrong(what))
    }

    /// With the field, which serde's own words do not have.
    fn named<T>(self, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|error| Error::custom(format_args!("{}: {}", self.key, error.message())))
    }

    /// A value that has parts.
    fn parts(self, what: &str) -> Result<Value, Error> {
        let read = format!("parts = {}", self.text).parse::<Table>();
        let read = self.named(read)?.remove("parts").filter(|value| value.is_array() || value.is_table());
        read.ok_or_else(|| self.wrong(what))
    }
}

impl<'de> IntoDeserializer<'de, Error> for Typed<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Numbers of one sign; the visitor says which of them the field can be.
macro_rules! numbers {
    ($($deserialize:ident as $number:ident: $visit:ident, $what:literal;)*) => {$(
        fn $deserialize<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            let number = self.parse::<$number>($what)?;
            self.named(visitor.$visit(number))
        }
    )*};
}

impl<'de> Deserializer<'de> for Typed<'_> {
    type Error = Error;

    numbers! {
        deserialize_u8 as u64: visit_u64, "a number such as 2";
        deserialize_u16 as u64: visit_u64, "a number such as 2";
        deserialize_u32 as u64: visit_u64, "a number such as 2";
        deserialize_u64 as u64: visit_u64, "a number such as 2";
        deserialize_i8 as i64: visit_i64, "a number such as 2";
        deserialize_i16 as i64: visit_i64, "a number such as 2";
        deserialize_i32 as i64: visit_i64, "a number such as 2";
        deserialize_i64 as i64: visit_i64, "a number such as 2";
        deserialize_f32 as f64: visit_f64, "a number such as 2.5";
        deserialize_f64 as f64: visit_f64, "a number such as 2.5";
        deserialize_bool as bool: visit_bool, "true or false";
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.named(visitor.visit_str(self.text))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let word: StrDeserializer<'_, Error> = self.text.into_deserializer();
        self.named(visitor.visit_enum(word))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let list = self.parts("a list such as [\"a\",\"b\"]")?;
        self.named(list.deserialize_seq(visitor))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let table = self.parts("a table such as {kind=\"null\"}")?;
        self.named(table.deserialize_map(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_map(visitor)
    }

    serde::forward_to_deserialize_any! {
        i128 u128 char str string bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::commands::ports::spec_of;
    use crate::config::PortSpec;
    use crate::config::tests::round_trip::port;

    /// Each kind of port, with its optional keys and without them.
    fn ports() -> impl Iterator<Item = PortSpec> {
        let all = (0..PortSpec::KINDS.len()).flat_map(|kind| [false, true].map(|flag| port(kind, 5, flag)));
        all.inspect(|spec| assert!(PortSpec::KINDS.contains(&spec.kind())))
    }

    fn table(spec: &PortSpec) -> Table {
        Table::try_from(spec).unwrap()
    }

    /// What a person types for a port.
    fn line(table: &Table) -> String {
        let mut line = table["kind"].as_str().unwrap().to_owned();
        for (key, value) in table.iter().filter(|(key, _)| *key != "kind") {
            let text = match value {
                Value::String(text) => text.clone(),
                other => other.to_string().replace(' ', ""),
            };
            line.push_str(&format!(" {key}={text}"));
        }
        line
    }

    #[test]
    fn console_any_port_can_be_typed() {
        let mut kinds = 0;
        for spec in ports() {
            let line = line(&table(&spec));
            assert_eq!(spec_of(&line).unwrap_or_else(|error| panic!("{line}: {error}")), spec, "{line}");
            kinds += 1;
        }
        assert_eq!(kinds, 2 * PortSpec::KINDS.len());
    }

    #[test]
    fn console_texts_are_texts_whatever_they_look_like() {
        let mut texts = 0;
        for spec in ports() {
            for key in table(&spec)
                .iter()
                .filter(|(key, value)| value.is_str() && *key != "kind")
                .map(|(key, _)| key)
            {
                for text in
                    ["1000", "0", "-1", "0660", "0x10", "1e3", "1.5", "nan", "true", "2026-11-25", "a=b"]
                {
                    let mut table = table(&spec);
                    table.insert(key.clone(), Value::String(text.into()));
                    // As the config file has it, in quotes: good for most keys, and for a MAC address or a role a fault.
                    let written = PortSpec::deserialize(Value::Table(table.clone())).map_err(|_| ());
                    let typed = spec_of(&line(&table)).map_err(|_| ());
                    assert_eq!(typed, written, "{}", line(&table));
                    texts += usize::from(typed.is_ok());
                }
            }
        }
        assert!(texts > 200, "{texts}");
    }

    #[test]
    fn console_values_of_another_type_are_told_with_their_key() {
        for (line, words) in [
            ("vhost-user path=/v queues=two", ["queues \"two\"", "a number such as 2"]),
            ("vhost-user path=/v queues=-1", ["queues \"-1\"", "a number such as 2"]),
            ("vhost-user path=/v queues=70000", ["queues: ", "u16"]),
            ("vhost-user path=/v server=yes", ["server \"yes\"", "true or false"]),
            ("vhost-user path=/v server=1", ["server \"1\"", "true or false"]),
            ("tap iface=t0 mac=7", ["mac: \"7\"", "six hex bytes"]),
            ("memif socket=/m role=boss", ["role: ", "`boss`"]),
            ("bond members=eth0", ["members: ", ""]),
            ("bond members=7", ["members \"7\"", "a list such as"]),
            ("bond members=[{kind=\"tun\"}]", ["members: ", "\"tun\""]),
            ("tap iface=t0 iface=t1", ["duplicate field", "`iface`"]),
            ("tap iface=t0 kind=null", ["unknown field", "`kind`"]),
            ("tap", ["missing field", "`iface`"]),
            ("tun iface=t0", ["unknown port kind", "vhost-user"]),
            ("", ["unknown port kind", "vhost-user"]),
            ("tap iface", ["\"iface\"", "key=value"]),
        ] {
            let error = spec_of(line).unwrap_err().message;
            for word in words {
                assert!(error.contains(word), "{line}: {word:?} is not in: {error}");
            }
        }
    }
}
