//! Where a config has the objects of a kind, and how they become tables and come from them.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};
use vswitch_api::v1::Kind;

use super::bridge;
use super::refusal::Problem;
use crate::config::error::tidy;
use crate::config::{
    Config, PortConfig, SecurityGroupConfig, SecurityRule, SubnetConfig, TrunkConfig, UplinkConfig,
    VnicConfig, VpcConfig, VpcRoute,
};

/// Where a config has the objects of a kind. Locations, which the topology has, are in none.
pub(super) trait Place: Sync {
    /// The same with all defaults, and its id.
    fn complete(&self, table: Table) -> Result<(String, Table), Problem>;
    fn ids(&self, config: &Config) -> Vec<String>;
    /// Those with these ids, in the order of the config.
    fn some(&self, config: &Config, wanted: &HashSet<&str>) -> Result<Vec<(String, Table)>, Problem>;
    /// The kind of the objects whose lists these are, where there is not one list alone. An id begins with that of the outer one then.
    fn outer(&self) -> Option<Kind> {
        None
    }
    /// What tells the objects of a list apart, in its order.
    fn keys<'c>(&self, config: &'c Config, list: usize) -> Box<dyn Iterator<Item = Cow<'c, str>> + 'c>;
    /// An object of a list.
    fn read(&self, config: &Config, list: usize, at: usize) -> Result<Table, Problem>;
    /// Puts an object in place of another, or behind all others of a list.
    fn put(&self, config: &mut Config, list: usize, at: Option<usize>, table: Table) -> Result<(), Problem>;
    /// Takes an object out of a list.
    fn take(&self, config: &mut Config, list: usize, at: usize) -> Result<(), Problem>;
}

/// A part of a config.
struct Part<T: 'static> {
    get: fn(&Config) -> &T,
    get_mut: fn(&mut Config) -> &mut T,
}

/// The part of a config that a field is.
macro_rules! part {
    ($field:ident) => {
        Part { get: |config| &config.$field, get_mut: |config| &mut config.$field }
    };
}

/// A list of the config.
struct List<T: 'static> {
    list: Part<Vec<T>>,
    id: fn(&T) -> Cow<'_, str>,
}

/// The vNICs, which configs share.
struct Vnics;

/// A section of which there is one.
struct Section<T: 'static>(Part<T>);

/// Lists within objects of a kind: the field `of` names the object, and another one is the element.
struct Inner<T: 'static, U: 'static> {
    field: &'static str,
    kind: Kind,
    outer: Part<Vec<T>>,
    name: fn(&T) -> &str,
    list: fn(&T) -> &Vec<U>,
    list_mut: fn(&mut T) -> &mut Vec<U>,
    id: fn(&U) -> String,
}

/// Where the objects of a kind are; `None` for locations and for what is no kind.
pub(super) fn place(kind: Kind) -> Option<&'static dyn Place> {
    Some(match kind {
        Kind::Uplink => {
            &List::<UplinkConfig> { list: part!(uplinks), id: |uplink| uplink.name.as_str().into() }
        }
        Kind::Vpc => &List::<VpcConfig> { list: part!(vpcs), id: |vpc| vpc.name.as_str().into() },
        Kind::Subnet => &List::<SubnetConfig> {
            list: part!(subnets),
            id: |subnet| format!("{} {}", subnet.vpc, subnet.prefix).into(),
        },
        Kind::SecurityGroup => &List::<SecurityGroupConfig> {
            list: part!(security_groups),
            id: |group| group.name.as_str().into(),
        },
        Kind::Trunk => &List::<TrunkConfig> { list: part!(trunks), id: |trunk| trunk.name.as_str().into() },
        Kind::Port => &List::<PortConfig> { list: part!(ports), id: |port| port.name.as_str().into() },
        Kind::Vnic => &Vnics,
        Kind::Route => &Inner::<VpcConfig, VpcRoute> {
            field: "route",
            kind: Kind::Vpc,
            outer: part!(vpcs),
            name: |vpc| vpc.name.as_str(),
            list: |vpc| &vpc.routes,
            list_mut: |vpc| &mut vpc.routes,
            id: |route| route.to.to_string(),
        },
        Kind::Rule => &Inner::<SecurityGroupConfig, SecurityRule> {
            field: "rule",
            kind: Kind::SecurityGroup,
            outer: part!(security_groups),
            name: |group| group.name.as_str(),
            list: |group| &group.rules,
            list_mut: |group| &mut group.rules,
            id: |rule| rule.to_string(),
        },
        Kind::Qos => &Section(part!(qos)),
        Kind::Rcft => &Section(part!(rcft)),
        Kind::Offload => &Section(part!(offload)),
        Kind::Vxlan => &Section(part!(vxlan)),
        Kind::Nft => &Section(part!(nft)),
        Kind::Security => &Section(part!(security)),
        Kind::Location | Kind::Unspecified => return None,
    })
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

impl<T: Serialize + DeserializeOwned> Place for List<T> {
    fn complete(&self, table: Table) -> Result<(String, Table), Problem> {
        let object: T = read(table)?;
        Ok(((self.id)(&object).into_owned(), write(&object)?))
    }

    fn ids(&self, config: &Config) -> Vec<String> {
        (self.list.get)(config).iter().map(|object| (self.id)(object).into_owned()).collect()
    }

    fn some(&self, config: &Config, wanted: &HashSet<&str>) -> Result<Vec<(String, Table)>, Problem> {
        let objects = (self.list.get)(config).iter().map(|object| ((self.id)(object), object));
        let found = objects.filter(|(id, _)| wanted.contains(id.as_ref()));
        found.map(|(id, object)| Ok((id.into_owned(), write(object)?))).collect()
    }

    fn keys<'c>(&self, config: &'c Config, _: usize) -> Box<dyn Iterator<Item = Cow<'c, str>> + 'c> {
        Box::new((self.list.get)(config).iter().map(self.id))
    }

    fn read(&self, config: &Config, _: usize, at: usize) -> Result<Table, Problem> {
        write((self.list.get)(config).get(at).ok_or_else(moved)?)
    }

    fn put(&self, config: &mut Config, _: usize, at: Option<usize>, table: Table) -> Result<(), Problem> {
        put_into((self.list.get_mut)(config), at, read(table)?)
    }

    fn take(&self, config: &mut Config, _: usize, at: usize) -> Result<(), Problem> {
        take_from((self.list.get_mut)(config), at)
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

    fn some(&self, config: &Config, wanted: &HashSet<&str>) -> Result<Vec<(String, Table)>, Problem> {
        let found = config.vnics.iter().filter(|vnic| wanted.contains(vnic.name.as_str()));
        found.map(|vnic| Ok((vnic.name.to_string(), write(vnic.as_ref())?))).collect()
    }

    fn keys<'c>(&self, config: &'c Config, _: usize) -> Box<dyn Iterator<Item = Cow<'c, str>> + 'c> {
        Box::new(config.vnics.iter().map(|vnic| vnic.name.as_str().into()))
    }

    fn read(&self, config: &Config, _: usize, at: usize) -> Result<Table, Problem> {
        write(config.vnics.get(at).ok_or_else(moved)?.as_ref())
    }

    fn put(&self, config: &mut Config, _: usize, at: Option<usize>, table: Table) -> Result<(), Problem> {
        let vnic: Arc<VnicConfig> = Arc::new(read(table)?);
        match at {
            Some(at) => *config.vnics.get_mut(at).ok_or_else(moved)? = vnic,
            None => config.vnics.push_back(vnic),
        }
        Ok(())
    }

    fn take(&self, config: &mut Config, _: usize, at: usize) -> Result<(), Problem> {
        if at >= config.vnics.len() {
            return Err(moved());
        }
        let gone = config.vnics.remove(at);
        // Routes that lead to it lead to its MAC address from then on.
        config.lead_to_station(&gone);
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

    fn some(&self, config: &Config, wanted: &HashSet<&str>) -> Result<Vec<(String, Table)>, Problem> {
        let wanted = wanted.iter().filter(|id| id.is_empty());
        wanted.map(|_| Ok((String::new(), write((self.0.get)(config))?))).collect()
    }

    fn keys<'c>(&self, _: &'c Config, _: usize) -> Box<dyn Iterator<Item = Cow<'c, str>> + 'c> {
        Box::new(std::iter::once("".into()))
    }

    fn read(&self, config: &Config, _: usize, _: usize) -> Result<Table, Problem> {
        write((self.0.get)(config))
    }

    fn put(&self, config: &mut Config, _: usize, _: Option<usize>, table: Table) -> Result<(), Problem> {
        *(self.0.get_mut)(config) = read(table)?;
        Ok(())
    }

    fn take(&self, _: &mut Config, _: usize, _: usize) -> Result<(), Problem> {
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

    fn list<'c>(&self, config: &'c mut Config, list: usize) -> Result<&'c mut Vec<U>, Problem> {
        (self.outer.get_mut)(config).get_mut(list).map(self.list_mut).ok_or_else(moved)
    }

    fn id_of(&self, of: &str, element: &U) -> String {
        format!("{of} {}", (self.id)(element))
    }

    /// All elements: the name of the object that has it, its id, itself.
    fn all<'c>(&self, config: &'c Config) -> impl Iterator<Item = (&'c str, String, &'c U)> {
        (self.outer.get)(config).iter().flat_map(move |outer| {
            let of = (self.name)(outer);
            (self.list)(outer).iter().map(move |element| (of, self.id_of(of, element), element))
        })
    }
}

impl<T, U: Serialize + DeserializeOwned> Place for Inner<T, U> {
    fn complete(&self, table: Table) -> Result<(String, Table), Problem> {
        let (of, element) = self.split(table)?;
        Ok((self.id_of(&of, &element), self.join(&of, &element)?))
    }

    fn ids(&self, config: &Config) -> Vec<String> {
        self.all(config).map(|(_, id, _)| id).collect()
    }

    fn some(&self, config: &Config, wanted: &HashSet<&str>) -> Result<Vec<(String, Table)>, Problem> {
        let found = self.all(config).filter(|(_, id, _)| wanted.contains(id.as_str()));
        found.map(|(of, id, element)| Ok((id, self.join(of, element)?))).collect()
    }

    fn outer(&self) -> Option<Kind> {
        Some(self.kind)
    }

    fn keys<'c>(&self, config: &'c Config, list: usize) -> Box<dyn Iterator<Item = Cow<'c, str>> + 'c> {
        let elements = (self.outer.get)(config).get(list).into_iter().flat_map(self.list);
        let id = self.id;
        Box::new(elements.map(move |element| id(element).into()))
    }

    fn read(&self, config: &Config, list: usize, at: usize) -> Result<Table, Problem> {
        let outer = (self.outer.get)(config).get(list).ok_or_else(moved)?;
        self.join((self.name)(outer), (self.list)(outer).get(at).ok_or_else(moved)?)
    }

    fn put(&self, config: &mut Config, list: usize, at: Option<usize>, table: Table) -> Result<(), Problem> {
        let (_, element) = self.split(table)?;
        put_into(self.list(config, list)?, at, element)
    }

    fn take(&self, config: &mut Config, list: usize, at: usize) -> Result<(), Problem> {
        take_from(self.list(config, list)?, at)
    }
}

fn put_into<T>(list: &mut Vec<T>, at: Option<usize>, object: T) -> Result<(), Problem> {
    match at {
        Some(at) => *list.get_mut(at).ok_or_else(moved)? = object,
        None => list.push(object),
    }
    Ok(())
}

fn take_from<T>(list: &mut Vec<T>, at: usize) -> Result<(), Problem> {
    if at >= list.len() {
        return Err(moved());
    }
    list.remove(at);
    Ok(())
}

/// A list is not as it was when something in it was looked for.
fn moved() -> Problem {
    Problem::internal("an object is not where it was".into())
}
