//! Changes that are saved later: what other hosts say of themselves, which comes often, goes again, and is said again after a start.
//!
//! Of each object the last change is kept, and all of them are one line of the journal, at most every few seconds. So a peer that comes and
//! goes a thousand times costs a few lines, whatever it says, and no change of anybody waits for the disk on its account.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use toml::Value;

use super::change::Change;
use super::owners::Owner;

/// Between the first of some changes and when they are written.
pub const LATER: Duration = Duration::from_secs(5);

/// The changes that are not written yet.
#[derive(Debug, Default)]
pub struct Later {
    /// What objects are now, by section and by what tells them from others; nothing of those that went.
    objects: BTreeMap<(String, String), Option<Value>>,
    owners: BTreeMap<String, BTreeMap<String, Owner>>,
    since: Option<Instant>,
}

impl Later {
    /// Takes a change in.
    pub fn add(&mut self, change: &Change, now: Instant) {
        self.since.get_or_insert(now);
        for (section, id) in change.gone() {
            self.objects.insert((section.to_owned(), id.to_owned()), None);
        }
        for (section, id, object) in change.set() {
            let object = Some(Value::Table(object.clone()));
            self.objects.insert((section.to_owned(), id.unwrap_or_default()), object);
        }
        for (section, id, owner) in change.owners() {
            self.owners.entry(section.to_owned()).or_default().insert(id.to_owned(), owner);
        }
    }

    /// True when it is time to write them.
    pub fn is_due(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) >= LATER)
    }

    /// All of them as one; nothing when there are none.
    pub fn change(&self) -> Option<Change> {
        self.since.map(|_| Change::of_objects(&self.objects, self.owners.clone()))
    }

    /// They are written.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, LocationConfig};
    use crate::state::change::apply;

    const NETWORK: &str = "[[uplink]]\nname = \"up\"\nport = { kind = \"null\" }\naddresses = [\"172.16.0.1/24\"]\n\
        [[vpc]]\nname = \"red\"\nvni = 1\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n";

    fn location(number: u8, vtep: u8) -> LocationConfig {
        let text = format!(
            "{NETWORK}[[location]]\nvni = 1\nvip = \"10.0.0.{number}\"\nmac = \"02:00:00:00:00:09\"\nvtep = \"172.16.0.{vtep}\"\n"
        );
        let config = Config::parse(&text, "f").unwrap_or_else(|errors| panic!("{errors}"));
        config.locations[0].clone()
    }

    #[test]
    fn evpn_a_thousand_flaps_are_a_line_in_five_seconds() {
        let mut later = Later::default();
        let start = Instant::now();
        let mut lines = Vec::new();
        // One in 20 ms, for 20 s.
        for flap in 0..1000_u32 {
            let now = start + Duration::from_millis(20) * flap;
            let change = match flap % 2 {
                0 => Change::default().and_with(&[location(9, 2)]).unwrap(),
                _ => Change::default().and_without([location(9, 2)]),
            };
            later.add(&change, now);
            if later.is_due(now) {
                lines.extend(later.change().map(|change| change.line()));
                later.clear();
            }
        }
        assert!(later.change().is_some(), "what came last waits for its time, or the end");
        let bytes: usize = lines.iter().map(String::len).sum();
        assert!(lines.len() <= 4 && bytes < 1000, "{} lines, {bytes} bytes", lines.len());
    }

    #[test]
    fn changes_together_are_as_one_after_another() {
        let owner = |owner| {
            BTreeMap::from([("location".to_owned(), BTreeMap::from([("1 10.0.0.9".to_owned(), owner)]))])
        };
        let steps = [
            Change::default()
                .and_with(&[location(9, 2), location(8, 2)])
                .unwrap()
                .and_owners(owner(Owner::Evpn)),
            Change::default().and_without([location(9, 2)]).and_owners(owner(Owner::Api)),
            Change::default().and_with(&[location(9, 3)]).unwrap().and_owners(owner(Owner::Etcd)),
            Change::default().and_without([location(8, 2)]).and_with(&[location(7, 2)]).unwrap(),
        ];
        let mut later = Later::default();
        assert!(later.change().is_none() && !later.is_due(Instant::now()));
        for (at, step) in steps.iter().enumerate() {
            later.add(step, Instant::now());
            let together = later.change().unwrap();
            let read = |changes: &[Change]| Config::parse(&apply(NETWORK, changes).unwrap(), "f").unwrap();
            let sorted = |mut config: Config| {
                config.locations.sort_by_key(|location| location.vip);
                config
            };
            assert_eq!(
                sorted(read(std::slice::from_ref(&together))),
                sorted(read(&steps[..=at])),
                "after step {at}"
            );
        }
        let owners: Vec<_> = later.change().unwrap().owners().map(|(_, _, owner)| owner).collect();
        assert_eq!(owners, [Owner::Etcd]);
        later.clear();
        assert!(later.change().is_none());
    }
}
