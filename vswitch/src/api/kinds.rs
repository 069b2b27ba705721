//! The kinds of objects, and one of them between its message and its table.

use std::net::IpAddr;

use prost_reflect::{DynamicMessage, FieldDescriptor, ReflectMessage, Value as Field};
use serde::Serialize;
use toml::{Table, Value};
use tonic::Code;
use vswitch_api::v1::{self, Kind};
use wire::Vni;

use super::bridge::{self, Told};
use super::places::{place, read, write};
use super::refusal::Problem;
use crate::config::LocationConfig;
use crate::config::objects;
pub(super) use crate::config::objects::location_id;

/// An object as the config has it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Item {
    pub kind: Kind,
    pub id: String,
    /// With all defaults.
    pub table: Table,
}

/// All kinds.
pub(super) const KINDS: [Kind; 16] = [
    Kind::Uplink,
    Kind::Vpc,
    Kind::Subnet,
    Kind::SecurityGroup,
    Kind::Trunk,
    Kind::Vnic,
    Kind::Location,
    Kind::Port,
    Kind::Route,
    Kind::Rule,
    Kind::Qos,
    Kind::Rcft,
    Kind::Offload,
    Kind::Vxlan,
    Kind::Nft,
    Kind::Security,
];

/// True for a section of which there is one.
pub(super) fn is_section(kind: Kind) -> bool {
    matches!(kind, Kind::Qos | Kind::Rcft | Kind::Offload | Kind::Vxlan | Kind::Nft | Kind::Security)
}

/// True for what has a port.
pub(super) fn has_port(kind: Kind) -> bool {
    matches!(kind, Kind::Uplink | Kind::Trunk | Kind::Vnic | Kind::Port)
}

/// True for what the message of another object has, too.
pub(super) fn is_inner(kind: Kind) -> bool {
    matches!(kind, Kind::Route | Kind::Rule)
}

/// The word of a kind, which is the name of its field in an `Object`: `security_group`.
pub(super) fn word(kind: Kind) -> String {
    kind.as_str_name().trim_start_matches("KIND_").to_ascii_lowercase()
}

/// The section of the config that a kind is; `route` and `rule` for those inside of others.
pub(super) fn section(kind: Kind) -> String {
    word(kind).replace('_', "-")
}

/// The kind whose objects are in a section of the config.
pub(super) fn of_section(section: &str) -> Option<Kind> {
    KINDS.into_iter().filter(|kind| !is_inner(*kind)).find(|kind| word(*kind) == section.replace('-', "_"))
}

/// The kind of a key.
pub(super) fn kind_of(key: &v1::Key) -> Result<Kind, Problem> {
    match Kind::try_from(key.kind) {
        Ok(Kind::Unspecified) | Err(_) => Err(Problem::invalid(
            "key.kind",
            format!("{} is no kind; say which kind of object it is", key.kind),
        )),
        Ok(kind) => Ok(kind),
    }
}

/// The kind of an object, and the message that it has.
pub(super) fn parts(object: &v1::Object) -> Result<(Kind, DynamicMessage), Problem> {
    let object = bridge::reflect("Object", object)?;
    let spec = object.fields().find_map(|(field, value)| match value {
        Field::Message(message) => Some((field.name().to_owned(), message.clone())),
        _ => None,
    });
    let (name, message) =
        spec.ok_or_else(|| Problem::invalid("object", "there is no object; set one of its messages".into()))?;
    let kind = KINDS.into_iter().find(|kind| word(*kind) == name);
    Ok((kind.ok_or_else(|| Problem::internal(format!("{name} is no kind")))?, message))
}

/// The object that a client says, complete.
pub(super) fn item(kind: Kind, message: &DynamicMessage) -> Result<Item, Problem> {
    let path = word(kind);
    let table = bridge::table(message, &path)?;
    let (id, table) = match place(kind) {
        Some(place) => place.complete(table).map_err(|problem| problem.within(&path))?,
        None => {
            let location: LocationConfig = read(table).map_err(|problem| problem.within(&path))?;
            (location_id(&location), write(&location)?)
        }
    };
    Ok(Item { kind, id, table })
}

impl Item {
    /// The message of the object; secrets are not in it.
    pub fn message(&self) -> Result<DynamicMessage, Problem> {
        message(self.kind, &self.table, Told::NoSecrets)
    }

    /// The object as clients get it.
    pub fn object(&self) -> Result<v1::Object, Problem> {
        wrapped(self.kind, self.message()?)
    }

    /// True when another one is what this says. Routes and rules are objects of their own, too: where this names none, the other
    /// may have any.
    pub fn is_said_by(&self, other: &Self) -> bool {
        let mut said = self.table.clone();
        for inner in ["routes", "rules"] {
            if said.get(inner).and_then(Value::as_array).is_some_and(Vec::is_empty)
                && let Some(others) = other.table.get(inner)
            {
                said.insert(inner.to_owned(), others.clone());
            }
        }
        said == other.table
    }

    /// The name of its port, where it has one: its own, or the trunk's whose VLAN it is.
    pub fn port(&self) -> Option<&str> {
        let trunk = self.table.get("port").and_then(Value::as_str);
        has_port(self.kind).then(|| trunk.unwrap_or(&self.id))
    }

    pub fn key(&self) -> v1::Key {
        v1::Key { kind: self.kind.into(), id: self.id.clone() }
    }
}

/// A message of this kind as an object.
fn wrapped(kind: Kind, message: DynamicMessage) -> Result<v1::Object, Problem> {
    let descriptor = bridge::descriptor("Object").ok_or_else(|| Problem::internal("no Object".into()))?;
    let mut object = DynamicMessage::new(descriptor);
    object.set_field_by_name(&word(kind), Field::Message(message));
    bridge::typed(&object)
}

/// Something that a config has as the object that a client asks for, secrets included.
///
/// # Errors
/// A fault of the program: there is no such object.
pub fn object(kind: Kind, value: &impl Serialize) -> Result<v1::Object, String> {
    let object = write(value).and_then(|table| wrapped(kind, message(kind, &table, Told::All)?));
    object.map_err(|problem| problem.message)
}

/// The message of a table of this kind.
fn message(kind: Kind, table: &Table, told: Told) -> Result<DynamicMessage, Problem> {
    let descriptor = bridge::descriptor("Object").and_then(|object| {
        let field = object.get_field_by_name(&word(kind))?;
        field.kind().as_message().cloned()
    });
    bridge::message(descriptor.ok_or_else(|| Problem::internal("no such message".into()))?, table, told)
}

/// What differs between two objects of one kind, by fields, in a sentence.
pub(super) fn difference(have: &Item, want: &Item) -> Result<String, Problem> {
    let (have, want) = (have.message()?, want.message()?);
    let told = |message: &DynamicMessage, field: &FieldDescriptor| {
        if message.has_field(field) { format!("{}", message.get_field(field)) } else { "nothing".into() }
    };
    let descriptor = want.descriptor();
    let differs = descriptor.fields().filter_map(|field| {
        let (have, want) = (told(&have, &field), told(&want, &field));
        (have != want).then(|| format!("{} is {have}, not {want}", field.name()))
    });
    let differs: Vec<_> = differs.collect();
    Ok(if differs.is_empty() { "a secret differs".into() } else { differs.join("; ") })
}

/// The VNI and address of a location's id.
pub(super) fn location_of(id: &str) -> Result<(Vni, IpAddr), Problem> {
    objects::location_of(id).ok_or_else(|| {
        let message = format!("{id:?} is no location; write its VNI and its address, as in \"100 10.0.0.2\"");
        Problem::invalid("key.id", message)
    })
}

/// A location as an object.
pub(super) fn location_item(location: &LocationConfig) -> Result<Item, Problem> {
    Ok(Item { kind: Kind::Location, id: location_id(location), table: write(location)? })
}

/// What is asked for is not there.
pub(super) fn unknown(kind: Kind, id: &str) -> Problem {
    let also = match kind {
        Kind::Vnic => ", as does `show vnic`",
        Kind::Vpc => ", as does `show vpc`",
        Kind::Subnet => ", as does `show subnet`",
        Kind::Route => ", as does `show route`",
        Kind::SecurityGroup | Kind::Rule => ", as does `show security-group`",
        Kind::Location => ", as does `show vlt`",
        Kind::Uplink | Kind::Trunk | Kind::Port => ", as does `port list`",
        _ => "",
    };
    let message = format!("there is no {} {id:?}; List shows those there are{also}", word(kind));
    Problem::new(Code::NotFound, "key.id", message)
}

/// The id of an object of which a message has the key, and maybe nothing else that makes it one.
pub(super) fn id_alone(kind: Kind, message: &DynamicMessage) -> Result<String, Problem> {
    let text = |name: &str| match message.get_field_by_name(name).as_deref() {
        Some(Field::String(text)) => text.clone(),
        Some(Field::U32(number)) => number.to_string(),
        _ => String::new(),
    };
    Ok(match kind {
        Kind::Subnet => format!("{} {}", text("vpc"), text("prefix")),
        Kind::Location => format!("{} {}", text("vni"), text("vip")),
        Kind::Route | Kind::Rule => return item(kind, message).map(|item| item.id),
        _ if is_section(kind) => String::new(),
        _ => text("name"),
    })
}

/// The object that these fields say, with the secrets of the one that is known, which clients are not told.
pub(super) fn item_with_secrets(kind: Kind, message: &DynamicMessage, known: &Item) -> Result<Item, Problem> {
    let mut item = item(kind, message)?;
    let secret = known.table.get("port").and_then(|port| port.get("secret"));
    if let (Some(secret), Some(Value::Table(port))) = (secret, item.table.get_mut("port"))
        && port.get("kind").and_then(Value::as_str) == Some("memif")
        && !port.contains_key("secret")
    {
        port.insert("secret".into(), secret.clone());
    }
    Ok(item)
}
