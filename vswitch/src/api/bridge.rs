//! Between messages and the tables of a config, by the descriptors of the messages: a field is a key, with `_` for `-`.
//!
//! What is not the same in both is here and nowhere else: a port says its kind by which message it has, and in a config by `kind`;
//! a vNIC's port is one of its own or a trunk's name; `in` and `out` are `inbound` and `outbound`; a word of an enum has no
//! prefix in a config; and secrets are taken but never told.

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor,
    ReflectMessage, Value as Field,
};
use toml::{Table, Value};

use super::refusal::Problem;

/// Keys that fields have other names for.
const RENAMED: &[(&str, &str)] = &[("inbound", "in"), ("outbound", "out")];
/// Fields of text that a config writes as a number where it is one.
const NUMBER_OR_WORD: &[&str] = &["dscp"];
/// Never told by a switch.
const SECRET: &str = "secret";
const PORT_SPEC: &str = "vswitch.v1.PortSpec";
const VNIC: &str = "vswitch.v1.Vnic";

#[allow(clippy::expect_used, reason = "the descriptors are part of the program, and a test reads them")]
static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(vswitch_api::DESCRIPTORS).expect("descriptors of our own"));

/// The descriptor of a message of the API, by its name without the package.
pub(super) fn descriptor(name: &str) -> Option<MessageDescriptor> {
    POOL.get_message_by_name(&format!("vswitch.v1.{name}"))
}

/// A message with its descriptor.
pub(super) fn reflect(name: &str, message: &impl Message) -> Result<DynamicMessage, Problem> {
    let descriptor =
        descriptor(name).ok_or_else(|| Problem::internal(format!("there is no message {name}")))?;
    DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice())
        .map_err(|error| Problem::internal(format!("{name}: {error}")))
}

/// The message of a dynamic one.
pub(super) fn typed<M: Message + Default>(message: &DynamicMessage) -> Result<M, Problem> {
    M::decode(message.encode_to_vec().as_slice()).map_err(|error| Problem::internal(error.to_string()))
}

/// The table that a message says. `path` is where it is, for problems.
pub(super) fn table(message: &DynamicMessage, path: &str) -> Result<Table, Problem> {
    let mut table = Table::new();
    let is_port = message.descriptor().full_name() == PORT_SPEC;
    for (field, value) in message.fields() {
        let name = field.name();
        let inside = join(path, name);
        if is_port {
            // The kind first: what else there may be depends on it.
            table.insert("kind".into(), Value::String(kebab(name)));
            if let Field::Message(port) = value {
                table.extend(self::table(port, &inside)?);
            }
            continue;
        }
        let key = match (message.descriptor().full_name(), name) {
            (VNIC, "trunk") => "port".into(),
            _ => key(name),
        };
        table.insert(key, to_value(&field, value, &inside)?);
    }
    if is_port && table.is_empty() {
        return Err(Problem::invalid(
            path,
            "the port has no kind; set one of its messages, such as `tap`".into(),
        ));
    }
    Ok(table)
}

fn to_value(field: &FieldDescriptor, value: &Field, path: &str) -> Result<Value, Problem> {
    Ok(match value {
        Field::Bool(flag) => Value::Boolean(*flag),
        Field::U32(number) => Value::Integer(i64::from(*number)),
        Field::U64(number) => {
            let most = || Problem::invalid(path, format!("{number} is too large; give at most {}", i64::MAX));
            Value::Integer(i64::try_from(*number).map_err(|_| most())?)
        }
        Field::String(text) => match text.parse() {
            Ok(number) if NUMBER_OR_WORD.contains(&field.name()) => Value::Integer(number),
            _ => Value::String(text.clone()),
        },
        Field::EnumNumber(number) => {
            let Kind::Enum(words) = field.kind() else { return Err(Problem::internal(path.into())) };
            let word = words.get_value(*number).filter(|_| *number != 0);
            let word = word.ok_or_else(|| {
                let known = words.values().skip(1).map(|value| value.name().to_owned()).collect::<Vec<_>>();
                Problem::invalid(
                    path,
                    format!("{number} is not one of {}; leave it out for the default", known.join(", ")),
                )
            })?;
            Value::String(word_of(&words, word.name()))
        }
        Field::Message(message) => Value::Table(table(message, path)?),
        Field::List(list) => {
            let one = |(at, value)| to_value(field, value, &format!("{path}[{at}]"));
            Value::Array(list.iter().enumerate().map(one).collect::<Result<_, _>>()?)
        }
        Field::Map(_) | Field::I32(_) | Field::I64(_) | Field::F32(_) | Field::F64(_) | Field::Bytes(_) => {
            return Err(Problem::internal(format!("{path} is of a type that no config has")));
        }
    })
}

/// What is told of a table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// All but its secrets: a switch tells its clients so.
    NoSecrets,
    /// Everything: clients tell a switch so.
    All,
}

/// The message that says a table.
pub(super) fn message(
    descriptor: MessageDescriptor,
    table: &Table,
    told: Told,
) -> Result<DynamicMessage, Problem> {
    let mut message = DynamicMessage::new(descriptor.clone());
    let lacks =
        |what: &str| Problem::internal(format!("{} has no field for {what:?}", descriptor.full_name()));
    if descriptor.full_name() == PORT_SPEC {
        let kind = table.get("kind").and_then(Value::as_str).unwrap_or_default();
        let field = descriptor.get_field_by_name(&kind.replace('-', "_")).ok_or_else(|| lacks(kind))?;
        let Kind::Message(port) = field.kind() else { return Err(lacks(kind)) };
        let mut rest = table.clone();
        rest.remove("kind");
        message.set_field(&field, Field::Message(self::message(port, &rest, told)?));
        return Ok(message);
    }
    for (word, value) in table.iter().filter(|(word, _)| told == Told::All || *word != SECRET) {
        let field = match (descriptor.full_name(), word.as_str(), value) {
            (VNIC, "port", Value::String(_)) => descriptor.get_field_by_name("trunk"),
            _ => descriptor.fields().find(|field| key(field.name()) == *word),
        };
        let field = field.ok_or_else(|| lacks(word))?;
        let value = match (field.cardinality(), value) {
            (Cardinality::Repeated, Value::Array(values)) => Field::List(
                values.iter().map(|value| from_value(&field, value, told)).collect::<Result<_, _>>()?,
            ),
            (Cardinality::Repeated, _) => return Err(lacks(word)),
            (_, value) => from_value(&field, value, told)?,
        };
        message.set_field(&field, value);
    }
    Ok(message)
}

fn from_value(field: &FieldDescriptor, value: &Value, told: Told) -> Result<Field, Problem> {
    let wrong = || Problem::internal(format!("{} cannot be {value}", field.full_name()));
    Ok(match (field.kind(), value) {
        (Kind::Bool, Value::Boolean(flag)) => Field::Bool(*flag),
        (Kind::Uint32, Value::Integer(number)) => Field::U32(u32::try_from(*number).map_err(|_| wrong())?),
        (Kind::Uint64, Value::Integer(number)) => Field::U64(u64::try_from(*number).map_err(|_| wrong())?),
        (Kind::String, Value::String(text)) => Field::String(text.clone()),
        (Kind::String, Value::Integer(number)) => Field::String(number.to_string()),
        (Kind::Enum(words), Value::String(text)) => {
            let word = words.values().find(|value| word_of(&words, value.name()) == *text);
            Field::EnumNumber(word.ok_or_else(wrong)?.number())
        }
        (Kind::Message(descriptor), Value::Table(table)) => Field::Message(message(descriptor, table, told)?),
        _ => return Err(wrong()),
    })
}

/// Sets the fields at these paths as they are in another message of its type; without paths, all of them.
pub(super) fn set_fields(
    into: &mut DynamicMessage,
    from: &DynamicMessage,
    paths: &[String],
) -> Result<(), Problem> {
    if paths.is_empty() {
        *into = from.clone();
        return Ok(());
    }
    for path in paths {
        let (first, rest) =
            path.split_once('.').map_or((path.as_str(), None), |(first, rest)| (first, Some(rest)));
        let descriptor = into.descriptor();
        let field = descriptor.get_field_by_name(first).ok_or_else(|| {
            let known = descriptor.fields().map(|field| field.name().to_owned()).collect::<Vec<_>>();
            let name = descriptor.name();
            Problem::invalid(path, format!("{name} has no field {first:?}; name one of {}", known.join(", ")))
        })?;
        let Some(rest) = rest else {
            match from.has_field(&field) {
                true => into.set_field(&field, from.get_field(&field).into_owned()),
                false => into.clear_field(&field),
            }
            continue;
        };
        let Field::Message(from_inside) = from.get_field(&field).into_owned() else {
            let message = format!("{first:?} is no message with fields of its own; name it as a whole");
            return Err(Problem::invalid(path, message));
        };
        if let Field::Message(inside) = into.get_field_mut(&field) {
            set_fields(inside, &from_inside, &[rest.to_owned()])?;
        }
    }
    Ok(())
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn kebab(name: &str) -> String {
    name.replace('_', "-")
}

/// The key of a field.
fn key(field: &str) -> String {
    RENAMED.iter().find(|(name, _)| *name == field).map_or_else(|| kebab(field), |(_, key)| (*key).to_owned())
}

/// The field of a key.
pub(super) fn field(key: &str) -> String {
    let renamed = RENAMED.iter().find(|(_, renamed)| *renamed == key).map(|(name, _)| (*name).to_owned());
    renamed.unwrap_or_else(|| key.replace('-', "_"))
}

/// The path of fields of a path of keys.
pub(super) fn field_path(keys: &str) -> String {
    keys.split('.').map(field).collect::<Vec<_>>().join(".")
}

/// The word of a config for a value of an enum: `HOST_TRAFFIC_PUNT` of `HostTraffic` is `punt`.
fn word_of(words: &EnumDescriptor, name: &str) -> String {
    let mut prefix = String::new();
    for (at, c) in words.name().char_indices() {
        if at > 0 && c.is_ascii_uppercase() {
            prefix.push('_');
        }
        prefix.push(c.to_ascii_uppercase());
    }
    prefix.push('_');
    name.strip_prefix(&prefix).unwrap_or(name).to_ascii_lowercase().replace('_', "-")
}
