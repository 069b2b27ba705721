//! The kinds of objects, and where a config has them.

use std::net::IpAddr;
use std::sync::Arc;

use imbl::Vector;
use prost_reflect::{DynamicMessage, FieldDescriptor, ReflectMessage, Value as Field};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};
use tonic::Code;
use vswitch_api::v1::{self, Kind};
use wire::Vni;

use super::bridge;
use super::refusal::Problem;
use crate::config::error::tidy;
use crate::config::{
    Config, LocationConfig, PortConfig, SecurityGroupConfig, SecurityRule, SubnetConfig, TrunkConfig,
    UplinkConfig, VnicConfig, VpcConfig, VpcRoute,
};

/// An object as the config has it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Item {
    pub kind: Kind,
    pub id: String,
    /// With all defaults.
    pub table: Table,
}

/// Where a config has the objects of a kind. Locations, which the topology has, are in none.
pub(super) trait Place: Sync {
    /// The same with all defaults, and its id.
    fn complete(&self, table: Table) -> Result<(String, Table), Problem>;
    fn ids(&self, config: &Config) -> Vec<String>;
    fn get(&self, config: &Config, id: &str) -> Result<Option<Table>, Problem>;
    /// Puts an object in place of that of its id, or behind the others.
    fn set(&self, config: &mut Config, table: Table) -> Result<(), Problem>;
    /// Takes an object that there is out.
    fn remove(&self, config: &mut Config, id: &str) -> Result<(), Problem>;
}

/// A list of the config.
struct List<T: 'static> {
    id: fn(&T) -> String,
    list: fn(&Config) -> &Vec<T>,
    list_mut: fn(&mut Config) -> &mut Vec<T>,
}

/// The vNICs, which configs share.
struct Vnics;

/// A section of which there is one.
struct Section<T: 'static> {
    get: fn(&Config) -> &T,
    get_mut: fn(&mut Config) -> &mut T,
}

/// Lists within objects of a list: the field `of` names the object, and another one is the element.
struct Inner<T: 'static, U: 'static> {
    field: &'static str,
    name: fn(&T) -> &str,
    id: fn(&U) -> String,
    outer: fn(&Config) -> &Vec<T>,
    outer_mut: fn(&mut Config) -> &mut Vec<T>,
    list: fn(&T) -> &Vec<U>,
    list_mut: fn(&mut T) -> &mut Vec<U>,
}

/// Where the objects of a kind are; `None` for locations and for what is no kind.
pub(super) fn place(kind: Kind) -> Option<&'static dyn Place> {
    Some(match kind {
        Kind::Uplink => &List::<UplinkConfig> {
            id: |uplink| uplink.name.to_string(),
            list: |config| &config.uplinks,
            list_mut: |config| &mut config.uplinks,
        },
        Kind::Vpc => &List::<VpcConfig> {
            id: |vpc| vpc.name.to_string(),
            list: |config| &config.vpcs,
            list_mut: |config| &mut config.vpcs,
        },
        Kind::Subnet => &List::<SubnetConfig> {
            id: |subnet| format!("{} {}", subnet.vpc, subnet.prefix),
            list: |config| &config.subnets,
            list_mut: |config| &mut config.subnets,
        },
        Kind::SecurityGroup => &List::<SecurityGroupConfig> {
            id: |group| group.name.to_string(),
            list: |config| &config.security_groups,
            list_mut: |config| &mut config.security_groups,
        },
        Kind::Trunk => &List::<TrunkConfig> {
            id: |trunk| trunk.name.to_string(),
            list: |config| &config.trunks,
            list_mut: |config| &mut config.trunks,
        },
        Kind::Port => &List::<PortConfig> {
            id: |port| port.name.to_string(),
            list: |config| &config.ports,
            list_mut: |config| &mut config.ports,
        },
        Kind::Vnic => &Vnics,
        Kind::Route => &Inner::<VpcConfig, VpcRoute> {
            field: "route",
            name: |vpc| vpc.name.as_str(),
            id: |route| route.to.to_string(),
            outer: |config| &config.vpcs,
            outer_mut: |config| &mut config.vpcs,
            list: |vpc| &vpc.routes,
            list_mut: |vpc| &mut vpc.routes,
        },
        Kind::Rule => &Inner::<SecurityGroupConfig, SecurityRule> {
            field: "rule",
            name: |group| group.name.as_str(),
            id: |rule| rule.to_string(),
            outer: |config| &config.security_groups,
            outer_mut: |config| &mut config.security_groups,
            list: |group| &group.rules,
            list_mut: |group| &mut group.rules,
        },
        Kind::Qos => &Section { get: |config| &config.qos, get_mut: |config| &mut config.qos },
        Kind::Rcft => &Section { get: |config| &config.rcft, get_mut: |config| &mut config.rcft },
        Kind::Offload => &Section { get: |config| &config.offload, get_mut: |config| &mut config.offload },
        Kind::Vxlan => &Section { get: |config| &config.vxlan, get_mut: |config| &mut config.vxlan },
        Kind::Nft => &Section { get: |config| &config.nft, get_mut: |config| &mut config.nft },
        Kind::Security => &Section { get: |config| &config.security, get_mut: |config| &mut config.security },
        Kind::Location | Kind::Unspecified => return None,
    })
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

/// True for what the message of another object has, too.
pub(super) fn is_inner(kind: Kind) -> bool {
    matches!(kind, Kind::Route | Kind::Rule)
}

/// The word of a kind, which is the name of its field in an `Object`: `security_group`.
pub(super) fn word(kind: Kind) -> String {
    kind.as_str_name().trim_start_matches("KIND_").to_ascii_lowercase()
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
        message(self.kind, &self.table)
    }

    /// The object as clients get it.
    pub fn object(&self) -> Result<v1::Object, Problem> {
        let descriptor = bridge::descriptor("Object").ok_or_else(|| Problem::internal("no Object".into()))?;
        let mut object = DynamicMessage::new(descriptor);
        object.set_field_by_name(&word(self.kind), Field::Message(self.message()?));
        bridge::typed(&object)
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

    pub fn key(&self) -> v1::Key {
        v1::Key { kind: self.kind.into(), id: self.id.clone() }
    }
}

/// The message of a table of this kind.
fn message(kind: Kind, table: &Table) -> Result<DynamicMessage, Problem> {
    let descriptor = bridge::descriptor("Object").and_then(|object| {
        let field = object.get_field_by_name(&word(kind))?;
        field.kind().as_message().cloned()
    });
    bridge::message(descriptor.ok_or_else(|| Problem::internal("no such message".into()))?, table)
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

/// A value of a config from a table. The path in a problem is one of fields.
pub(super) fn read<T: DeserializeOwned>(table: Table) -> Result<T, Problem> {
    serde_path_to_error::deserialize(Value::Table(table)).map_err(|error| {
        let path = bridge::field_path(&error.path().to_string());
        let path = if path == "." { String::new() } else { path };
        Problem::invalid(&path, tidy(error.inner().message()))
    })
}

/// The table of a value of a config.
pub(super) fn write<T: Serialize>(value: &T) -> Result<Table, Problem> {
    Table::try_from(value).map_err(|error| Problem::internal(error.to_string()))
}

/// The id of a location.
pub(super) fn location_id(location: &LocationConfig) -> String {
    format!("{} {}", location.vni, location.vip)
}

/// The VNI and address of a location's id.
pub(super) fn location_of(id: &str) -> Result<(Vni, IpAddr), Problem> {
    let parts = id.split_once(' ').and_then(|(vni, vip)| {
        let vni = Vni::new(vni.parse().ok()?).ok()?;
        Some((vni, vip.parse().ok()?))
    });
    parts.ok_or_else(|| {
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
    let message = format!("there is no {} {id:?}; List shows those there are", word(kind));
    Problem::new(Code::NotFound, "key.id", message)
}

impl<T: Serialize + DeserializeOwned> Place for List<T> {
    fn complete(&self, table: Table) -> Result<(String, Table), Problem> {
        let object: T = read(table)?;
        Ok(((self.id)(&object), write(&object)?))
    }

    fn ids(&self, config: &Config) -> Vec<String> {
        (self.list)(config).iter().map(self.id).collect()
    }

    fn get(&self, config: &Config, id: &str) -> Result<Option<Table>, Problem> {
        (self.list)(config).iter().find(|object| (self.id)(object) == id).map(write).transpose()
    }

    fn set(&self, config: &mut Config, table: Table) -> Result<(), Problem> {
        let object: T = read(table)?;
        let id = (self.id)(&object);
        let list = (self.list_mut)(config);
        match list.iter_mut().find(|known| (self.id)(known) == id) {
            Some(known) => *known = object,
            None => list.push(object),
        }
        Ok(())
    }

    fn remove(&self, config: &mut Config, id: &str) -> Result<(), Problem> {
        (self.list_mut)(config).retain(|object| (self.id)(object) != id);
        Ok(())
    }
}

impl Vnics {
    fn at(vnics: &Vector<Arc<VnicConfig>>, id: &str) -> Option<usize> {
        vnics.iter().position(|vnic| vnic.name.as_str() == id)
    }
}

impl Place for Vnics {
    fn complete(&self, table: Table) -> Result<(String, Table), Problem> {
        let vnic: VnicConfig = read(table)?;
        Ok((vnic.name.to_string(), write(&vnic)?))
    }

    fn ids(&self, config: &Config) -> Vec<String> {
        config.vnics.iter().map(|vnic| vnic.name.to_string()).collect()
    }

    fn get(&self, config: &Config, id: &str) -> Result<Option<Table>, Problem> {
        Self::at(&config.vnics, id)
            .and_then(|at| config.vnics.get(at))
            .map(|vnic| write(vnic.as_ref()))
            .transpose()
    }

    fn set(&self, config: &mut Config, table: Table) -> Result<(), Problem> {
        let vnic: VnicConfig = read(table)?;
        match Self::at(&config.vnics, &vnic.name) {
            Some(at) => drop(config.vnics.set(at, Arc::new(vnic))),
            None => config.vnics.push_back(Arc::new(vnic)),
        }
        Ok(())
    }

    fn remove(&self, config: &mut Config, id: &str) -> Result<(), Problem> {
        if let Some(at) = Self::at(&config.vnics, id) {
            let gone = config.vnics.remove(at);
            // Routes that lead to it lead to its MAC address from then on.
            config.lead_to_station(&gone);
        }
        Ok(())
    }
}

impl<T: Serialize + DeserializeOwned> Place for Section<T> {
    fn complete(&self, table: Table) -> Result<(String, Table), Problem> {
        Ok((String::new(), write(&read::<T>(table)?)?))
    }

    fn ids(&self, _: &Config) -> Vec<String> {
        vec![String::new()]
    }

    fn get(&self, config: &Config, id: &str) -> Result<Option<Table>, Problem> {
        if id.is_empty() { write((self.get)(config)).map(Some) } else { Ok(None) }
    }

    fn set(&self, config: &mut Config, table: Table) -> Result<(), Problem> {
        *(self.get_mut)(config) = read(table)?;
        Ok(())
    }

    fn remove(&self, _: &mut Config, _: &str) -> Result<(), Problem> {
        Err(Problem::internal("a section cannot go".into()))
    }
}

impl<T, U: Serialize + DeserializeOwned> Inner<T, U> {
    /// Which object has it, and the element.
    fn split(&self, mut table: Table) -> Result<(String, U), Problem> {
        let of = match table.remove("of") {
            Some(Value::String(of)) => of,
            _ => String::new(),
        };
        let element = match table.remove(self.field) {
            Some(Value::Table(element)) => element,
            _ => Table::new(),
        };
        Ok((of, read(element).map_err(|problem| problem.within(self.field))?))
    }

    fn join(&self, of: &str, element: &U) -> Result<Table, Problem> {
        let mut table = Table::new();
        table.insert("of".into(), Value::String(of.to_owned()));
        table.insert(self.field.into(), Value::Table(write(element)?));
        Ok(table)
    }

    fn find<'c>(&self, config: &'c mut Config, of: &str) -> Result<&'c mut Vec<U>, Problem> {
        let outer = (self.outer_mut)(config).iter_mut().find(|outer| (self.name)(outer) == of);
        let outer = outer.ok_or_else(|| Problem::new(Code::NotFound, "of", format!("there is no {of:?}")))?;
        Ok((self.list_mut)(outer))
    }

    fn id_of(&self, of: &str, element: &U) -> String {
        format!("{of} {}", (self.id)(element))
    }
}

impl<T, U: Serialize + DeserializeOwned> Place for Inner<T, U> {
    fn complete(&self, table: Table) -> Result<(String, Table), Problem> {
        let (of, element) = self.split(table)?;
        Ok((self.id_of(&of, &element), self.join(&of, &element)?))
    }

    fn ids(&self, config: &Config) -> Vec<String> {
        let of = |outer| (self.list)(outer).iter().map(|element| self.id_of((self.name)(outer), element));
        (self.outer)(config).iter().flat_map(of).collect()
    }

    fn get(&self, config: &Config, id: &str) -> Result<Option<Table>, Problem> {
        for outer in (self.outer)(config) {
            let of = (self.name)(outer);
            if let Some(element) = (self.list)(outer).iter().find(|element| self.id_of(of, element) == id) {
                return self.join(of, element).map(Some);
            }
        }
        Ok(None)
    }

    fn set(&self, config: &mut Config, table: Table) -> Result<(), Problem> {
        let (of, element) = self.split(table)?;
        let list = self.find(config, &of)?;
        match list.iter_mut().find(|known| (self.id)(known) == (self.id)(&element)) {
            Some(known) => *known = element,
            None => list.push(element),
        }
        Ok(())
    }

    fn remove(&self, config: &mut Config, id: &str) -> Result<(), Problem> {
        let (of, _) = id.split_once(' ').unwrap_or((id, ""));
        let prefix = of.to_owned();
        self.find(config, of)?.retain(|element| self.id_of(&prefix, element) != id);
        Ok(())
    }
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
