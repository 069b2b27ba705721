//! Where objects are in the lists of a config: what many steps of a change look up costs as much as the steps, however many objects there
//! are.

use std::collections::HashMap;

use toml::Table;
use vswitch_api::v1::Kind;

use super::kinds;
use super::places::{Place, place};
use super::refusal::Problem;
use crate::config::Config;

/// Looks for objects of one list that go through it, before the places of all of them are noted.
const LOOKS: u32 = 8;

/// Where objects of a config are. Whatever changes the config meanwhile does so by this.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// By kind, and for lists within objects by the id of the outer one.
    lists: HashMap<(Kind, String), Places>,
}

/// Where something is, or would be: which list of its kind, and where in it.
#[derive(Clone, Copy)]
struct Spot {
    list: usize,
    at: Option<usize>,
}

impl Index {
    /// An object that there is.
    pub fn get(&mut self, config: &Config, kind: Kind, id: &str) -> Result<Option<Table>, Problem> {
        let Some(place) = place(kind) else { return Ok(None) };
        match self.spot(config, kind, id) {
            Some(Spot { list, at: Some(at) }) => place.read(config, list, at).map(Some),
            _ => Ok(None),
        }
    }

    /// True when an object is there.
    pub fn has(&mut self, config: &Config, kind: Kind, id: &str) -> bool {
        self.spot(config, kind, id).is_some_and(|spot| spot.at.is_some())
    }

    /// Puts an object in place of that of its id, or behind the others.
    pub fn set(&mut self, config: &mut Config, kind: Kind, id: &str, table: Table) -> Result<(), Problem> {
        let Some(place) = place(kind) else { return Ok(()) };
        let Some(Spot { list, at }) = self.spot(config, kind, id) else {
            let (of, _) = split(place, id);
            let missing = kinds::unknown(place.outer().unwrap_or(kind), of);
            return Err(Problem { field: "of".into(), ..missing });
        };
        place.put(config, list, at, table)?;
        if at.is_none() {
            let (of, key) = split(place, id);
            self.list(kind, of).came(key);
        }
        self.forget_inside(kind, id);
        Ok(())
    }

    /// Takes an object out, wherever it is.
    pub fn remove(&mut self, config: &mut Config, kind: Kind, id: &str) -> Result<(), Problem> {
        let Some(place) = place(kind) else { return Ok(()) };
        while let Some(Spot { list, at: Some(at) }) = self.spot(config, kind, id) {
            place.take(config, list, at)?;
            let (of, key) = split(place, id);
            self.list(kind, of).went(key);
        }
        self.forget_inside(kind, id);
        Ok(())
    }

    /// Where an object is; `None` where there is not even a list for it.
    fn spot(&mut self, config: &Config, kind: Kind, id: &str) -> Option<Spot> {
        let place = place(kind)?;
        let (of, key) = split(place, id);
        let list = match place.outer() {
            Some(outer) => self.spot(config, outer, of)?.at?,
            None => 0,
        };
        Some(Spot { list, at: self.list(kind, of).find(place, config, list, key) })
    }

    fn list(&mut self, kind: Kind, of: &str) -> &mut Places {
        self.lists.entry((kind, of.to_owned())).or_default()
    }

    /// The lists within an object are others than they were.
    fn forget_inside(&mut self, kind: Kind, id: &str) {
        let inner = kinds::KINDS.into_iter().filter(|inner| kinds::is_inner(*inner));
        for inner in inner.filter(|inner| place(*inner).and_then(Place::outer) == Some(kind)) {
            self.lists.remove(&(inner, id.to_owned()));
        }
    }
}

/// The id of the outer object, empty where there is none, and what tells an object from others of its list.
fn split<'i>(place: &dyn Place, id: &'i str) -> (&'i str, &'i str) {
    match place.outer() {
        Some(_) => id.split_once(' ').unwrap_or((id, "")),
        None => ("", id),
    }
}

/// Where the objects of one list are.
#[derive(Debug, Default)]
struct Places {
    looks: u32,
    noted: Option<Noted>,
}

/// Places by key, as they would be if nothing had gone.
#[derive(Debug, Default)]
struct Noted {
    by_key: HashMap<String, Vec<usize>>,
    /// All that ever were.
    count: usize,
    /// Those that went, in order.
    gone: Vec<usize>,
}

impl Places {
    fn find(&mut self, place: &dyn Place, config: &Config, list: usize, key: &str) -> Option<usize> {
        self.looks = self.looks.saturating_add(1);
        if self.noted.is_none() && self.looks <= LOOKS {
            return place.keys(config, list).position(|known| known == key);
        }
        let noted = self.noted.get_or_insert_with(|| Noted::of(place, config, list));
        let at = *noted.by_key.get(key)?.first()?;
        Some(at - noted.gone.partition_point(|gone| *gone < at))
    }

    /// An object is there now, behind the others.
    fn came(&mut self, key: &str) {
        if let Some(noted) = &mut self.noted {
            noted.add(key.to_owned());
        }
    }

    /// The first object of a key is there no more.
    fn went(&mut self, key: &str) {
        let Some(noted) = &mut self.noted else { return };
        if let Some(places) = noted.by_key.get_mut(key)
            && !places.is_empty()
        {
            let at = places.remove(0);
            noted.gone.insert(noted.gone.partition_point(|gone| *gone < at), at);
        }
    }
}

impl Noted {
    fn of(place: &dyn Place, config: &Config, list: usize) -> Self {
        let mut noted = Self::default();
        place.keys(config, list).for_each(|key| noted.add(key.into_owned()));
        noted
    }

    fn add(&mut self, key: String) {
        self.by_key.entry(key).or_default().push(self.count);
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An object of a few that there may be, as somebody puts it: what it says else differs each time.
    fn object(kind: Kind, number: u8, said: u8) -> (String, Table) {
        let (of, net) = (format!("vpc{}", number % 3), number / 3);
        let text = match kind {
            Kind::Vpc => format!("name = \"{of}\"\nvni = {}", u32::from(said) + 1),
            Kind::Subnet => {
                format!("vpc = \"{of}\"\nprefix = \"10.0.{net}.0/24\"\ngateway = \"10.0.{net}.{said}\"")
            }
            _ => format!(
                "of = \"{of}\"\nroute = {{ to = \"10.1.{net}.0/24\", mac = \"02:00:00:00:00:{said:02x}\" }}"
            ),
        };
        place(kind).unwrap().complete(text.parse().unwrap()).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Against one that goes through the lists each time.
        #[test]
        fn whatever_comes_and_goes_is_found_where_it_is(
            steps in prop::collection::vec((0usize..3, 0u8..60, 1u8..200, prop::bool::weighted(0.7)), 1..300),
        ) {
            let (mut config, mut linear, mut index) = (Config::default(), Config::default(), Index::default());
            for (kind, number, said, comes) in steps {
                let kind = [Kind::Vpc, Kind::Subnet, Kind::Route][kind];
                let (id, table) = object(kind, number, said);
                let there = Index::default().get(&linear, kind, &id).unwrap();
                prop_assert_eq!(index.get(&config, kind, &id).unwrap(), there.clone());
                prop_assert_eq!(index.has(&config, kind, &id), there.is_some());
                let (one, other) = match comes {
                    true => (
                        index.set(&mut config, kind, &id, table.clone()),
                        Index::default().set(&mut linear, kind, &id, table),
                    ),
                    false => (
                        index.remove(&mut config, kind, &id),
                        Index::default().remove(&mut linear, kind, &id),
                    ),
                };
                prop_assert_eq!(one, other);
                prop_assert_eq!(&config, &linear);
            }
        }
    }
}
