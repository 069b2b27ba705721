//! The objects of a config, by what tells each from all others, and which of them a config file names.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use serde::Serialize;
use toml::{Table, Value};
use wire::Vni;

use super::document::Document;
use super::merge::{self, LISTS, Source};
use super::places::Lists;
use super::{Config, LocationConfig, SecurityGroupConfig, SecurityRule, SubnetConfig, VpcConfig, VpcRoute};

/// An object: its section of the config, or `route` or `rule` for one inside of another, and what tells it from others there.
pub type ObjectId = (String, String);

/// The id of a location.
pub fn location_id(location: &LocationConfig) -> String {
    format!("{} {}", location.vni, location.vip)
}

/// The network and address of a location by its id.
pub fn location_of(id: &str) -> Option<(Vni, IpAddr)> {
    let (vni, vip) = id.split_once(' ')?;
    Some((Vni::new(vni.parse().ok()?).ok()?, vip.parse().ok()?))
}

/// The id of a subnet.
pub fn subnet_id(subnet: &SubnetConfig) -> String {
    format!("{} {}", subnet.vpc, subnet.prefix)
}

/// The id of a route of a VPC.
pub fn route_id(vpc: &VpcConfig, route: &VpcRoute) -> String {
    format!("{} {}", vpc.name, route.to)
}

/// The id of a rule of a security group.
pub fn rule_id(group: &SecurityGroupConfig, rule: &SecurityRule) -> String {
    format!("{} {rule}", group.name)
}

/// The objects of all lists, and those inside of them.
pub fn ids(config: &Config) -> impl Iterator<Item = ObjectId> {
    fn all<'c, T>(
        section: &'static str,
        list: impl IntoIterator<Item = &'c T>,
        id: fn(&T) -> String,
    ) -> impl Iterator<Item = ObjectId>
    where
        T: 'c,
    {
        list.into_iter().map(move |object| (section.to_owned(), id(object)))
    }
    let routes = config
        .vpcs
        .iter()
        .flat_map(|vpc| vpc.routes.iter().map(|route| ("route".to_owned(), route_id(vpc, route))));
    let rules = config
        .security_groups
        .iter()
        .flat_map(|group| group.rules.iter().map(|rule| ("rule".to_owned(), rule_id(group, rule))));
    all("uplink", &config.uplinks, |uplink| uplink.name.to_string())
        .chain(all("vpc", &config.vpcs, |vpc| vpc.name.to_string()))
        .chain(all("subnet", &config.subnets, subnet_id))
        .chain(all("security-group", &config.security_groups, |group| group.name.to_string()))
        .chain(all("trunk", &config.trunks, |trunk| trunk.name.to_string()))
        .chain(all("vnic", &config.vnics, |vnic| vnic.name.to_string()))
        .chain(all("location", &config.locations, location_id))
        .chain(all("port", &config.ports, |port| port.name.to_string()))
        .chain(routes)
        .chain(rules)
}

/// The objects of each list by the path of the list.
fn lists(config: &Config) -> HashMap<String, Vec<ObjectId>> {
    let mut lists: HashMap<String, Vec<ObjectId>> = HashMap::new();
    let is_outer = |object: &ObjectId| !matches!(object.0.as_str(), "route" | "rule");
    for object in ids(config).filter(is_outer) {
        lists.entry(object.0.clone()).or_default().push(object);
    }
    for (at, vpc) in config.vpcs.iter().enumerate() {
        let routes = vpc.routes.iter().map(|route| ("route".to_owned(), route_id(vpc, route)));
        lists.insert(format!("vpc[{at}].routes"), routes.collect());
    }
    for (at, group) in config.security_groups.iter().enumerate() {
        let rules = group.rules.iter().map(|rule| ("rule".to_owned(), rule_id(group, rule)));
        lists.insert(format!("security-group[{at}].rules"), rules.collect());
    }
    lists
}

/// Which object of a file each object of a config is, in each of its lists.
pub fn in_file(config: &Config, file: &Config) -> Lists {
    let of_file: HashMap<ObjectId, usize> =
        lists(file).into_values().flat_map(|list| list.into_iter().zip(0..)).collect();
    let known = |list: Vec<ObjectId>| list.iter().map(|object| of_file.get(object).copied()).collect();
    lists(config).into_iter().map(|(path, list)| (path, known(list))).collect()
}

/// Sections of which there is one and whose keys change at run time.
pub const SECTIONS: [&str; 6] = ["qos", "rcft", "offload", "vxlan", "nft", "security"];

/// True when two configs have one of [`SECTIONS`] alike.
pub fn is_same_section(section: &str, one: &Config, other: &Config) -> bool {
    match section {
        "qos" => one.qos == other.qos,
        "rcft" => one.rcft == other.rcft,
        "offload" => one.offload == other.offload,
        "vxlan" => one.vxlan == other.vxlan,
        "nft" => one.nft == other.nft,
        "security" => one.security == other.security,
        _ => false,
    }
}

/// The object that has another one inside: the VPC of a route, the security group of a rule. All others are by themselves.
pub fn outer((section, id): ObjectId) -> ObjectId {
    let name = |id: &str| id.split(' ').next().unwrap_or_default().to_owned();
    match section.as_str() {
        "route" => ("vpc".to_owned(), name(&id)),
        "rule" => ("security-group".to_owned(), name(&id)),
        _ => (section, id),
    }
}

/// What some objects of lists and [`SECTIONS`], which have no id, are: the section of each, and its table.
///
/// # Errors
/// When one cannot be written as TOML.
pub fn tables(
    config: &Config,
    wanted: &HashSet<ObjectId>,
) -> Result<Vec<(&'static str, Table)>, toml::ser::Error> {
    struct Finder<'w> {
        wanted: &'w HashSet<ObjectId>,
        found: Vec<(&'static str, Table)>,
    }

    impl Finder<'_> {
        fn look<'c, T: Serialize + 'c>(
            &mut self,
            section: &'static str,
            list: impl IntoIterator<Item = &'c T>,
            id: fn(&T) -> String,
        ) -> Result<(), toml::ser::Error> {
            if !self.wanted.iter().any(|(wanted, _)| wanted == section) {
                return Ok(());
            }
            for object in list {
                if self.wanted.contains(&(section.to_owned(), id(object))) {
                    self.found.push((section, Table::try_from(object)?));
                }
            }
            Ok(())
        }
    }

    let mut finder = Finder { wanted, found: Vec::new() };
    finder.look("qos", [&config.qos], |_| String::new())?;
    finder.look("rcft", [&config.rcft], |_| String::new())?;
    finder.look("offload", [&config.offload], |_| String::new())?;
    finder.look("vxlan", [&config.vxlan], |_| String::new())?;
    finder.look("nft", [&config.nft], |_| String::new())?;
    finder.look("security", [&config.security], |_| String::new())?;
    finder.look("uplink", &config.uplinks, |uplink| uplink.name.to_string())?;
    finder.look("vpc", &config.vpcs, |vpc| vpc.name.to_string())?;
    finder.look("subnet", &config.subnets, subnet_id)?;
    finder.look("security-group", &config.security_groups, |group| group.name.to_string())?;
    finder.look("trunk", &config.trunks, |trunk| trunk.name.to_string())?;
    finder.look("vnic", config.vnics.iter().map(AsRef::as_ref), |vnic: &super::VnicConfig| {
        vnic.name.to_string()
    })?;
    finder.look("location", &config.locations, location_id)?;
    finder.look("port", &config.ports, |port| port.name.to_string())?;
    Ok(finder.found)
}

/// What some objects are, without the objects inside of them, which are told by themselves.
///
/// # Errors
/// When one cannot be written as TOML.
pub fn told(
    config: &Config,
    wanted: &HashSet<ObjectId>,
) -> Result<HashMap<ObjectId, Table>, toml::ser::Error> {
    let mut told = HashMap::new();
    for (section, mut table) in tables(config, wanted)? {
        let keys = LISTS.iter().find(|(list, _)| *list == section).map_or(&[][..], |(_, keys)| *keys);
        let id = merge::id(&table, keys);
        ["routes", "rules"].into_iter().for_each(|inside| drop(table.remove(inside)));
        told.insert((section.to_owned(), id), table);
    }
    for vpc in &config.vpcs {
        for route in &vpc.routes {
            let object = ("route".to_owned(), route_id(vpc, route));
            if wanted.contains(&object) {
                told.insert(object, Table::try_from(route)?);
            }
        }
    }
    for group in &config.security_groups {
        for rule in &group.rules {
            let object = ("rule".to_owned(), rule_id(group, rule));
            if wanted.contains(&object) {
                told.insert(object, Table::try_from(rule)?);
            }
        }
    }
    Ok(told)
}

impl Source {
    /// True for an object that the file names.
    pub fn names(&self, section: &str, id: &str) -> bool {
        // Ids of several parts are long, and there may be many of them: one set, made once.
        let names = self.names.get_or_init(|| {
            let mut names: HashMap<String, HashSet<String>> = HashMap::new();
            for (section, id) in ids(&self.config) {
                names.entry(section).or_default().insert(id);
            }
            names
        });
        names.get(section).is_some_and(|ids| ids.contains(id))
    }

    /// What the file is called.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Where the file names an object: `vswitch.toml:7`; the file alone where the text does not tell.
    pub fn place_of(&self, section: &str, id: &str) -> String {
        let document = Document::read(&self.text, &self.origin).ok();
        let at = |list: &str, wanted: &str| {
            let mut of_list = ids(&self.config).filter(|(section, _)| section == list);
            of_list.position(|(_, id)| id == wanted).map(|at| format!("{list}[{at}]"))
        };
        let name = id.split(' ').next().unwrap_or_default();
        let path = match section {
            "route" => at("vpc", name).map(|vpc| format!("{vpc}.routes")),
            "rule" => at("security-group", name).map(|group| format!("{group}.rules")),
            _ => at(section, id),
        };
        let found = document.zip(path).and_then(|(document, path)| document.places.find(&path));
        match found {
            Some((line, _)) => format!("{}:{line}", self.origin),
            None => self.origin.clone(),
        }
    }

    /// The path of a key that the file names and that two tables of a section say differently, if there is one.
    pub fn first_named_difference(&self, section: &str, have: &Table, want: &Table) -> Option<String> {
        let named = self.named();
        differs(have, want, named.get(section)?.as_table()?)
    }
}

fn differs(have: &Table, want: &Table, named: &Table) -> Option<String> {
    let all = have.iter().chain(want.iter().filter(|(key, _)| !have.contains_key(*key)));
    let differing = all.map(|(key, _)| key).filter(|key| have.get(*key) != want.get(*key));
    differing.filter_map(|key| Some((key, named.get(key)?))).find_map(|(key, named)| {
        let empty = Table::new();
        let table = |of: &Table| of.get(key).map(|value| value.as_table().cloned());
        match (table(have).unwrap_or(Some(empty.clone())), table(want).unwrap_or(Some(empty)), named) {
            (Some(have), Some(want), Value::Table(named)) => {
                differs(&have, &want, named).map(|rest| format!("{key}.{rest}"))
            }
            _ => Some(key.clone()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[qos]\nlink = { out = \"10Gbit\" }\n\n[[vpc]]\nname = \"red\"\nvni = 1\n\
        routes = [{ to = \"10.9.0.0/16\", blackhole = true }]\n\n\
        [[security-group]]\nname = \"web\"\nvpc = \"red\"\nrules = [{ direction = \"in\", protocol = \"tcp\", ports = \"80\" }]\n\n\
        [[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n";

    #[test]
    fn ownership_of_the_file_is_told_with_the_place() {
        let file = Source::parse(FILE, "f.toml").unwrap_or_else(|errors| panic!("{errors}"));
        let rule = file.config.security_groups[0].rules[0].to_string();
        for (section, id, place) in [
            ("vpc", "red", "f.toml:4"),
            ("route", "red 10.9.0.0/16", "f.toml:7"),
            ("security-group", "web", "f.toml:9"),
            ("rule", &format!("web {rule}"), "f.toml:12"),
            ("subnet", "red 10.0.0.0/24", "f.toml:14"),
        ] {
            assert!(file.names(section, id), "{section} {id}");
            assert_eq!(file.place_of(section, id), place, "{section} {id}");
        }
        assert!(!file.names("vpc", "blue") && !file.names("vnic", "red"));
        assert_eq!(file.place_of("vpc", "blue"), "f.toml");
    }

    #[test]
    fn ownership_of_a_section_is_by_its_keys() {
        let file = Source::parse(FILE, "f.toml").unwrap_or_else(|errors| panic!("{errors}"));
        let table = |text: &str| text.parse::<Table>().unwrap();
        let have = table("link = { out = \"10Gbit\" }\nx = 1\n");
        for (want, named) in [
            ("link = { out = \"10Gbit\" }\nx = 2\n", None),
            ("link = { out = \"10Gbit\", in = \"1Gbit\" }\nx = 1\n", None),
            ("link = { out = \"9Gbit\" }\nx = 1\n", Some("link.out")),
            ("x = 1\n", Some("link.out")),
        ] {
            assert_eq!(file.first_named_difference("qos", &have, &table(want)).as_deref(), named, "{want}");
        }
        assert_eq!(file.first_named_difference("nft", &have, &Table::new()), None);
    }
}
