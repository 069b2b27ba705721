//! A config file that was read again, and what was changed at run time: one config of both.
//!
//! What the file names, the file decides; what it does not name is left as it is. Which objects are the file's is told by
//! the file as it was last applied ([`Source`]): an object that was in it and is no more goes, and a key that it named and
//! names no more has its default again. An object that was never in it was made at run time, and stays. Routes of a VPC and rules of
//! a security group are objects of their own in this.
//!
//! At a restart the file is not applied anew but compared with itself: where it says what it said, what was changed at run
//! time holds, for that was acknowledged.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::OnceLock;

use toml::{Table, Value};

use super::document::Document;
use super::error::{ConfigError, ConfigErrors};
use super::objects::in_file;
use super::others::{Overlap, Whose};
use super::{Config, path, validate};

/// Sections that are lists of objects, with the keys that tell one from another.
pub(crate) const LISTS: &[(&str, &[&str])] = &[
    ("uplink", &["name"]),
    ("vpc", &["name"]),
    ("subnet", &["vpc", "prefix"]),
    ("security-group", &["name"]),
    ("trunk", &["name"]),
    ("vnic", &["name"]),
    ("location", &["vni", "vip"]),
    ("port", &["name"]),
];
/// Objects within objects of a list, with the key that tells one from another there; without one, all of it does.
const INNER: &[(&str, &str, Option<&str>)] =
    &[("vpc", "routes", Some("to")), ("security-group", "rules", None)];
/// Sections of the process: at a restart they come from the file alone.
const PROCESS: &[&str] = &["eal", "workers", "forward", "api", "control", "vlt", "rdma"];
/// Keys that nothing changes while the switch runs: at a restart they come from the file alone, too.
const FIXED: &[(&str, &[&str])] =
    &[("nft", &["entries", "idle-timeout"]), ("rcft", &["entries"]), ("security", &["connections"])];
/// In front of each line of a file that is kept in the saved state.
const KEPT: &str = "#| ";

/// A config file: its text, and what it comes to.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its config.
    pub config: Config,
    pub(super) text: String,
    pub(super) origin: String,
    /// The ids of its objects, by section.
    pub(super) names: OnceLock<HashMap<String, HashSet<String>>>,
}

/// When a file is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// The switch runs, and somebody wants what the file says.
    Reload,
    /// The switch starts with what it saved.
    Restart,
}

impl Source {
    /// Reads and checks a text; `origin` is the name its errors give it.
    ///
    /// # Errors
    /// Everything wrong with it.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigErrors> {
        let config = Config::parse(text, origin)?;
        Ok(Self { config, text: text.to_owned(), origin: origin.to_owned(), names: OnceLock::new() })
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// When it cannot be read, and everything wrong with it.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        let origin = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            fault(&origin, format!("cannot read the config: {error}; give its path with --config"))
        })?;
        Self::parse(&text, &origin)
    }

    /// The text as comments of a saved state, which [`kept_in`](Self::kept_in) finds there.
    pub fn keep(&self) -> String {
        let mut kept = String::from(
            "\n# The config file as it was last applied: what is not in it was made at run time.\n",
        );
        for line in self.text.lines() {
            kept.push_str(KEPT);
            kept.push_str(line);
            kept.push('\n');
        }
        kept
    }

    /// The file that a saved state was made with, if it says so and the file was good.
    pub fn kept_in(state: &str) -> Option<Self> {
        let lines: Vec<&str> = state
            .lines()
            .filter_map(|line| line.strip_prefix(KEPT).or_else(|| (line == KEPT.trim_end()).then_some("")))
            .collect();
        if lines.is_empty() && !state.contains("# The config file as it was last applied") {
            return None;
        }
        Self::parse(&lines.join("\n"), "the config file as last applied").ok()
    }

    pub(super) fn named(&self) -> Table {
        self.text.parse().unwrap_or_default()
    }
}

/// The config of a file and of what was changed at run time. `before` is the file as it was last applied; without it,
/// nothing is known to have been in it. Of objects in the `overlap` of the file and of other hosts' it is known whose they are. What comes
/// of both goes through `yields` before it is checked.
///
/// # Errors
/// What the file and the run time say differently of one object, or do not allow of each other, each with its place.
pub fn merge(
    running: &Config,
    before: Option<&Source>,
    file: &Source,
    occasion: Occasion,
    overlap: &Overlap,
    yields: impl FnOnce(&mut Config),
) -> Result<Config, ConfigErrors> {
    let document = Document::parse(&file.text, &file.origin)?;
    let merger = Merger {
        running: table(running, &file.origin)?,
        file: table(&file.config, &file.origin)?,
        named: file.named(),
        before: match before {
            Some(before) => Some((table(&before.config, &before.origin)?, before.named())),
            None => None,
        },
        occasion,
        overlap,
    };
    let mut merged = Table::new();
    let mut errors = Vec::new();
    let sections = merger.running.keys().chain(merger.file.keys());
    for section in sections {
        if merged.contains_key(section) {
            continue;
        }
        let value = match LISTS.iter().find(|(list, _)| list == section) {
            Some((list, keys)) => Value::Array(merger.list(list, keys, &mut |at, id| {
                let message = format!(
                    "{list} {id} was added at run time, through the API or the console, and says something else there; \
                     remove it there, or take it out of the file"
                );
                let at = format!("{list}[{at}]");
                let error = document.places.error(&at, message);
                errors.push(ConfigError { path: path::named(&file.config, &at), ..error });
            })),
            None => match merger.section(section) {
                Some(value) => value,
                None => continue,
            },
        };
        merged.insert(section.clone(), value);
    }
    if !errors.is_empty() {
        return Err(ConfigErrors(errors));
    }
    let text = toml::to_string(&merged).map_err(|error| fault(&file.origin, error.to_string()))?;
    let mut config = Document::read(&text, &file.origin)?.config;
    yields(&mut config);
    if config.validate().is_err() {
        // Only now is it worth while to know which of its objects are the file's: there may be many.
        let places = document.places.of_config(in_file(&config, &file.config));
        validate::all(&config, &places).map_err(at_odds)?;
    }
    Ok(config)
}

/// What is wrong with a config of a file and of what was added at run time, with whose it is.
fn at_odds(ConfigErrors(errors): ConfigErrors) -> ConfigErrors {
    let told = errors.into_iter().map(|mut error| {
        let whose = if error.place.is_some() { "in the file" } else { "added at run time" };
        error.message = format!(
            "{} ({whose}; the file and what was added at run time do not go together)",
            error.message
        );
        error
    });
    ConfigErrors(told.collect())
}

fn fault(origin: &str, message: String) -> ConfigErrors {
    ConfigErrors(vec![ConfigError { origin: origin.to_owned(), place: None, path: String::new(), message }])
}

fn table(config: &Config, origin: &str) -> Result<Table, ConfigErrors> {
    Table::try_from(config).map_err(|error| fault(origin, format!("cannot be written as TOML: {error}")))
}

struct Merger<'o> {
    running: Table,
    /// What the file comes to, defaults included, and what it names.
    file: Table,
    named: Table,
    /// The same of the file as it was last applied.
    before: Option<(Table, Table)>,
    occasion: Occasion,
    overlap: &'o Overlap,
}

impl Merger<'_> {
    fn section(&self, name: &str) -> Option<Value> {
        let empty = Table::new();
        let of = |table: &Table| table.get(name).and_then(Value::as_table).cloned().unwrap_or_default();
        let was = self.before.as_ref().map_or(&empty, |(_, named)| named);
        if self.occasion == Occasion::Restart && PROCESS.contains(&name) {
            return self.file.get(name).cloned();
        }
        let file = of(&self.file);
        let mut merged = self.keys(&of(&self.running), &file, &of(&self.named), &of(was));
        let fixed =
            FIXED.iter().filter(|(section, _)| self.occasion == Occasion::Restart && *section == name);
        for key in fixed.flat_map(|(_, keys)| *keys) {
            merged.extend(file.get(*key).map(|value| ((*key).to_owned(), value.clone())));
        }
        Some(Value::Table(merged))
    }

    /// The objects within an object of both, which is called `outer`, and the keys of those that both say differently.
    fn inner(
        &self,
        [running, file, named, before, was]: [&Table; 5],
        outer: &str,
        list: &str,
        key: Option<&str>,
    ) -> (Value, Vec<String>) {
        let id = |object: &Value| match key.and_then(|key| object.get(key)) {
            Some(told) => told.to_string(),
            None => object.to_string(),
        };
        // Rules are told by all that they say: those with one key say the same.
        let whose = |object: &Value| {
            let key = key.and_then(|key| object.get(key)).and_then(Value::as_str)?;
            self.overlap.whose("route", &format!("{outer} {key}"))
        };
        let all = |table: &Table| table.get(list).and_then(Value::as_array).cloned().unwrap_or_default();
        let ids = |objects: &[Value]| objects.iter().map(id).collect::<HashSet<String>>();
        let (running, file, before) = (all(running), all(file), all(before));
        // Where the file says what it said, what was changed at run time holds.
        if self.occasion == Occasion::Restart && named.get(list) == was.get(list) {
            return (Value::Array(running), Vec::new());
        }
        let (of_file, of_before) = (ids(&file), ids(&before));
        let added = running.iter().filter(|object| {
            let id = id(object);
            !of_file.contains(&id) && !of_before.contains(&id)
        });
        let at_odds = running.iter().filter(|object| {
            let id = id(object);
            self.before.is_some()
                && !of_before.contains(&id)
                && of_file.contains(&id)
                && !file.contains(object)
                && whose(object).is_none()
        });
        let at_odds = at_odds.map(id).collect();
        let of_both = file.iter().map(|object| {
            let stays = whose(object) == Some(Whose::Theirs);
            running.iter().find(|now| stays && id(now) == id(object)).unwrap_or(object)
        });
        (Value::Array(of_both.chain(added).cloned().collect()), at_odds)
    }

    /// One table of both.
    fn keys(&self, running: &Table, file: &Table, named: &Table, was: &Table) -> Table {
        let mut merged = Table::new();
        for key in running.keys().chain(file.keys()) {
            if merged.contains_key(key) {
                continue;
            }
            let unchanged = named.contains_key(key) && named.get(key) == was.get(key);
            let parts = [running.get(key), file.get(key), named.get(key), was.get(key)];
            let value = match parts {
                // What stands behind a port is one thing.
                [Some(Value::Table(running)), Some(Value::Table(file)), Some(Value::Table(named)), was]
                    if key != "port" =>
                {
                    let empty = Table::new();
                    let was = was.and_then(Value::as_table).unwrap_or(&empty);
                    Some(Value::Table(self.keys(running, file, named, was)))
                }
                [running, ..] if unchanged && self.occasion == Occasion::Restart => running.cloned(),
                [_, file, Some(_), _] => file.cloned(),
                [_, file, None, Some(_)] => file.cloned(),
                [running, ..] => running.cloned(),
            };
            if let Some(value) = value {
                merged.insert(key.clone(), value);
            }
        }
        merged
    }

    /// One list of both, the file's objects first and in its order.
    fn list(&self, name: &str, keys: &[&str], differs: &mut dyn FnMut(usize, &str)) -> Vec<Value> {
        let running = objects(&self.running, name, keys);
        let file = objects(&self.file, name, keys);
        let named = elements(&self.named, name);
        let (before, was) = match &self.before {
            Some((config, named)) => (objects(config, name, keys), elements(named, name)),
            None => (Vec::new(), Vec::new()),
        };
        let before_by_id: HashMap<&str, &Table> =
            before.iter().map(|(id, object)| (id.as_str(), *object)).collect();
        let before: HashMap<&str, Option<&Table>> =
            before.iter().enumerate().map(|(at, (id, _))| (id.as_str(), was.get(at).copied())).collect();
        let running_by_id: HashMap<&str, &Table> =
            running.iter().map(|(id, object)| (id.as_str(), *object)).collect();
        let in_file: HashSet<&str> = file.iter().map(|(id, _)| id.as_str()).collect();
        let empty = Table::new();
        let mut merged = Vec::new();
        for (at, (id, object)) in file.iter().enumerate() {
            let names = named.get(at).copied().unwrap_or(&empty);
            let was = before.get(id.as_str()).copied();
            let whose = self.overlap.whose(name, id);
            match running_by_id.get(id.as_str()) {
                Some(now) if whose.is_none() && self.before.is_some() && was.is_none() && now != object => {
                    differs(at, id);
                }
                Some(now) => {
                    let was = was.flatten().unwrap_or(&empty);
                    let mut both = match whose {
                        None => self.keys(now, object, names, was),
                        Some(Whose::Theirs) => (*now).clone(),
                        Some(Whose::Files) => (*object).clone(),
                    };
                    let before = before_by_id.get(id.as_str()).copied().unwrap_or(&empty);
                    for (_, inner, key) in INNER.iter().filter(|(list, ..)| *list == name) {
                        let (of_both, at_odds) =
                            self.inner([now, object, names, before, was], id, inner, *key);
                        at_odds.iter().for_each(|key| differs(at, &format!("{id} {inner} {key}")));
                        both.insert((*inner).to_owned(), of_both);
                    }
                    merged.push(Value::Table(both));
                }
                // Removed at run time, and the file says what it said.
                None if self.occasion == Occasion::Restart && was == Some(Some(names)) => {}
                None => merged.push(Value::Table((*object).clone())),
            }
        }
        let known = |id: &str| in_file.contains(id) || before.contains_key(id);
        let added = running.iter().filter(|(id, _)| !known(id));
        merged.extend(added.map(|(_, object)| Value::Table((*object).clone())));
        merged
    }
}

fn elements<'t>(table: &'t Table, list: &str) -> Vec<&'t Table> {
    let list = table.get(list).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_table).collect()
}

/// The objects of a list, each with what tells it from the others.
fn objects<'t>(table: &'t Table, list: &str, keys: &[&str]) -> Vec<(String, &'t Table)> {
    elements(table, list).into_iter().map(|object| (id(object, keys), object)).collect()
}

/// What tells an object from the others of its list.
pub(crate) fn id(object: &Table, keys: &[&str]) -> String {
    let words = keys.iter().map(|key| match object.get(*key) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
