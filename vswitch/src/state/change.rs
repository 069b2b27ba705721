//! A change of the config as data: what is set and what goes. One line of the journal.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::owners::Owner;
use crate::config::merge::{LISTS, id};
use crate::config::{Config, LocationConfig};

/// What changed in a config.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Sections that are as given now, and objects of lists that came or changed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    set: BTreeMap<String, Value>,
    /// Objects of lists that went, by what tells them from others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    gone: BTreeMap<String, Vec<String>>,
    /// Objects that are somebody else's than before, by section and by what tells them from others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    owners: BTreeMap<String, BTreeMap<String, Owner>>,
}

impl Change {
    /// Objects that came or changed, and sections that did: the name of the section, what tells the object from others of it, and what it
    /// is now. A section of which there is one has nothing that tells it from others.
    pub fn set(&self) -> impl Iterator<Item = (&str, Option<String>, &Table)> {
        self.set.iter().flat_map(|(section, value)| {
            let objects = value.as_array().into_iter().flatten();
            let all = objects.chain(value.as_table().map(|_| value));
            all.filter_map(Value::as_table)
                .map(move |object| (section.as_str(), keys(section).map(|keys| id(object, keys)), object))
        })
    }

    /// Objects that went: the section of each, and what told it from others.
    pub fn gone(&self) -> impl Iterator<Item = (&str, &str)> {
        self.gone.iter().flat_map(|(section, gone)| gone.iter().map(|id| (section.as_str(), id.as_str())))
    }

    /// Objects that are somebody else's than before: the section of each, what tells it from others, and whose it is.
    pub fn owners(&self) -> impl Iterator<Item = (&str, &str, Owner)> {
        let sections = self.owners.iter();
        sections
            .flat_map(|(section, ids)| ids.iter().map(|(id, owner)| (section.as_str(), id.as_str(), *owner)))
    }

    /// Objects are somebody else's besides.
    #[must_use]
    pub fn and_owners(mut self, owners: BTreeMap<String, BTreeMap<String, Owner>>) -> Self {
        self.owners = owners;
        self
    }

    /// What objects are now, by section and by what tells them from others, and nothing of those that went; and whose they are.
    pub(super) fn of_objects(
        objects: &BTreeMap<(String, String), Option<Value>>,
        owners: BTreeMap<String, BTreeMap<String, Owner>>,
    ) -> Self {
        let mut change = Self { owners, ..Self::default() };
        for ((section, id), object) in objects {
            match (object, keys(section)) {
                (None, _) => change.gone.entry(section.clone()).or_default().push(id.clone()),
                (Some(object), None) => drop(change.set.insert(section.clone(), object.clone())),
                (Some(object), Some(_)) => {
                    let list = change.set.entry(section.clone()).or_insert_with(|| Value::Array(Vec::new()));
                    list.as_array_mut().into_iter().for_each(|list| list.push(object.clone()));
                }
            }
        }
        change
    }

    /// What changed from one config to another.
    ///
    /// # Errors
    /// When a value cannot be written as TOML.
    pub fn between(old: &Config, new: &Config) -> Result<Self, toml::ser::Error> {
        // A long list that is the same needs no second look.
        let (mut old, mut new) = (Cow::Borrowed(old), Cow::Borrowed(new));
        if old.vnics == new.vnics && !old.vnics.is_empty() {
            old.to_mut().vnics.clear();
            new.to_mut().vnics.clear();
        }
        let (old, new) = (Table::try_from(&*old)?, Table::try_from(&*new)?);
        let mut change = Self::default();
        for (section, value) in &new {
            match keys(section) {
                None if old.get(section) != Some(value) => {
                    change.set.insert(section.clone(), value.clone());
                }
                None => {}
                Some(keys) => {
                    let before = objects(old.get(section), keys);
                    let after = objects(Some(value), keys);
                    // In the order of the config.
                    let list = value.as_array().into_iter().flatten().filter_map(Value::as_table);
                    let set: Vec<Value> = list
                        .filter(|object| before.get(&id(object, keys)) != Some(object))
                        .map(|object| Value::Table(object.clone()))
                        .collect();
                    if !set.is_empty() {
                        change.set.insert(section.clone(), Value::Array(set));
                    }
                    let mut gone: Vec<String> =
                        before.keys().filter(|id| !after.contains_key(*id)).cloned().collect();
                    gone.sort_unstable();
                    if !gone.is_empty() {
                        change.gone.insert(section.clone(), gone);
                    }
                }
            }
        }
        Ok(change)
    }

    /// Locations came or moved besides.
    ///
    /// # Errors
    /// When one cannot be written as TOML.
    pub fn and_with(mut self, locations: &[LocationConfig]) -> Result<Self, toml::ser::Error> {
        if !locations.is_empty() {
            let locations = locations.iter().map(Value::try_from).collect::<Result<Vec<_>, _>>()?;
            self.set.insert("location".to_owned(), Value::Array(locations));
        }
        Ok(self)
    }

    /// Locations went besides.
    #[must_use]
    pub fn and_without(mut self, locations: impl IntoIterator<Item = LocationConfig>) -> Self {
        let ids: Vec<String> =
            locations.into_iter().map(|location| format!("{} {}", location.vni, location.vip)).collect();
        if !ids.is_empty() {
            self.gone.entry("location".to_owned()).or_default().extend(ids);
        }
        self
    }

    /// As a line.
    pub fn line(&self) -> String {
        // Tables of strings, numbers and lists: there is nothing that JSON could not say.
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }

    /// From a line.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(line: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(line)
    }
}

fn keys(section: &str) -> Option<&'static [&'static str]> {
    LISTS.iter().find(|(list, _)| *list == section).map(|(_, keys)| *keys)
}

fn objects<'t>(list: Option<&'t Value>, keys: &[&str]) -> HashMap<String, &'t Table> {
    let list = list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_table);
    list.map(|object| (id(object, keys), object)).collect()
}

/// The text of a config after some changes.
///
/// # Errors
/// A text that is no TOML.
pub fn apply(text: &str, changes: &[Change]) -> Result<String, String> {
    if changes.is_empty() {
        return Ok(text.to_owned());
    }
    let mut table: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let mut lists: HashMap<&str, List> = HashMap::new();
    for &(name, keys) in LISTS {
        let objects = match table.remove(name) {
            Some(Value::Array(objects)) => objects,
            _ => Vec::new(),
        };
        let objects = objects.into_iter().map(Some).collect::<Vec<_>>();
        let mut list = List { keys, places: HashMap::new(), objects };
        for (at, object) in list.objects.iter().enumerate() {
            if let Some(object) = object.as_ref().and_then(Value::as_table) {
                list.places.insert(id(object, keys), at);
            }
        }
        lists.insert(name, list);
    }
    for change in changes {
        for (section, gone) in &change.gone {
            let Some(list) = lists.get_mut(section.as_str()) else { continue };
            gone.iter().for_each(|id| list.remove(id));
        }
        for (section, value) in &change.set {
            match (lists.get_mut(section.as_str()), value) {
                (Some(list), Value::Array(objects)) => objects.iter().for_each(|object| list.set(object)),
                (Some(_), _) => return Err(format!("{section} is a list")),
                (None, value) => drop(table.insert(section.clone(), value.clone())),
            }
        }
    }
    for &(name, _) in LISTS {
        let objects: Vec<Value> =
            lists.remove(name).map(|list| list.objects).into_iter().flatten().flatten().collect();
        if !objects.is_empty() {
            table.insert(name.to_owned(), Value::Array(objects));
        }
    }
    toml::to_string(&table).map_err(|error| error.to_string())
}

/// A list of objects, each found by what tells it from others.
struct List {
    keys: &'static [&'static str],
    places: HashMap<String, usize>,
    objects: Vec<Option<Value>>,
}

impl List {
    fn set(&mut self, object: &Value) {
        let Some(table) = object.as_table() else { return };
        let id = id(table, self.keys);
        match self.places.get(&id) {
            Some(&at) => self.objects[at] = Some(object.clone()),
            None => {
                self.places.insert(id, self.objects.len());
                self.objects.push(Some(object.clone()));
            }
        }
    }

    fn remove(&mut self, id: &str) {
        if let Some(at) = self.places.remove(id) {
            self.objects[at] = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORKS: &str = "[[uplink]]\nname = \"up\"\nport = { kind = \"null\" }\naddresses = [\"172.16.0.1/24\"]\n\
        [[vpc]]\nname = \"red\"\nvni = 1\n[[vpc]]\nname = \"blue\"\nvni = 2\n\
        [[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n[[trunk]]\nname = \"t\"\nport = { kind = \"null\" }\n";

    fn config(more: &str) -> Config {
        Config::parse(&format!("{NETWORKS}{more}"), "f").unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn vnic(n: u8, mtu: u16) -> String {
        format!(
            "[[vnic]]\nname = \"v{n}\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:{n:02x}\"\nvips = [\"10.0.0.{n}\"]\n\
             mtu = {mtu}\nport = \"t\"\nvlan = {n}\n"
        )
    }

    #[test]
    fn a_config_and_its_changes_are_the_config_after_them() {
        let location =
            "[[location]]\nvni = 1\nvip = \"10.0.0.9\"\nmac = \"02:00:00:00:00:09\"\nvtep = \"172.16.0.2\"\n";
        let configs = [
            config(""),
            config(&vnic(1, 1400)),
            config(&format!("{}{}", vnic(1, 1300), vnic(2, 1400))),
            config(&format!("[qos]\nlink = \"1Gbit\"\n{}{location}", vnic(2, 1400))),
            config(&format!("{}[[port]]\nname = \"p\"\nport = {{ kind = \"ring\" }}\n", vnic(2, 1400))),
            Config::parse("[[vpc]]\nname = \"red\"\nvni = 1\n", "f").unwrap(),
        ];
        let mut changes = Vec::new();
        for pair in configs.windows(2) {
            let change = Change::between(&pair[0], &pair[1]).unwrap();
            // As it comes back from a file.
            changes.push(Change::read(change.line().trim_end()).unwrap());
            let text = apply(&configs[0].to_toml().unwrap(), &changes).unwrap();
            assert_eq!(Config::parse(&text, "f").unwrap(), pair[1]);
        }
        assert_eq!(Change::between(&configs[2], &configs[2]).unwrap(), Change::default());
    }

    #[test]
    fn single_objects_are_told_as_the_whole_config_would() {
        let place =
            "[[location]]\nvni = 1\nvip = \"10.0.0.9\"\nmac = \"02:00:00:00:00:09\"\nvtep = \"172.16.0.2\"\n";
        let (bare, placed) = (config(""), config(place));
        assert_eq!(
            Change::between(&bare, &placed).unwrap(),
            Change::default().and_with(&placed.locations).unwrap()
        );
        let gone = Change::default().and_without(placed.locations.clone());
        assert_eq!(Change::between(&placed, &bare).unwrap(), gone);
    }
}
