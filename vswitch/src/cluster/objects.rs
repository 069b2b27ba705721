//! Objects of the config that live in etcd, so that one `put` reaches every host: which there are, and what of a change the switch is to
//! do.

use std::collections::{BTreeMap, BTreeSet};

use vswitch_api::v1::{self, Kind};

use super::keys::shown;
use super::past::Losses;
use crate::api::{Followed, read_object, shared_object};

/// Bytes of a value.
const LONGEST: usize = 256 << 10;
/// Objects that a fault of several names.
const NAMED: usize = 8;

/// An object as a key says it.
#[derive(Clone, Debug, PartialEq)]
struct Said {
    kind: Kind,
    id: String,
    object: v1::Object,
}

/// What keys say, and what was not taken in of it.
#[derive(Debug, Default)]
pub struct Objects {
    said: BTreeMap<String, Said>,
    /// Objects that the switch does not have as they are said, or has and nobody says any more.
    due: BTreeSet<(i32, String)>,
    /// Those that the switch refused.
    refused: BTreeSet<(i32, String)>,
    /// Objects that no key says since etcd went back, and that the switch keeps.
    kept: BTreeSet<(i32, String)>,
    /// Where etcd was when it went back, and where it had been before.
    went_back: Option<(i64, i64)>,
    /// What the switch had from etcd before this process is known.
    adopted: bool,
    /// It is not yet, and etcd has gone back: all of it that no key says is lost.
    at_start: bool,
    /// What is wrong with keys.
    faults: BTreeMap<String, String>,
    /// Something was said, refused or done since it was last asked.
    news: bool,
}

impl Objects {
    /// Those of a process that begins, with what etcd had lost before.
    pub fn after(losses: Option<Losses>) -> Self {
        let (went_back, kept) = losses.map(|Losses { at, was, kept }| ((at, was), kept)).unzip();
        Self { kept: kept.unwrap_or_default(), went_back, news: true, ..Self::default() }
    }

    /// What etcd has lost, and the switch keeps.
    pub fn losses(&self) -> Option<Losses> {
        let (at, was) = self.went_back.filter(|_| !self.kept.is_empty())?;
        Some(Losses { at, was, kept: self.kept.clone() })
    }

    /// A key has a value, or none any more.
    pub fn hear(&mut self, key: &str, value: Option<&[u8]>) {
        self.take(key, value.map(read));
    }

    /// A key has a value that was not read.
    pub fn unreadable(&mut self, key: &str, why: &str) {
        self.take(key, Some(Err(why.to_owned())));
    }

    fn take(&mut self, key: &str, value: Option<Result<Said, String>>) {
        self.news = true;
        self.faults.remove(key);
        let said = value.and_then(|said| {
            let told = |error| format!("{error}; it is as if the key were not there");
            said.map_err(|error| self.faults.insert(key.to_owned(), told(error))).ok()
        });
        let before = match said.clone() {
            Some(said) => self.said.insert(key.to_owned(), said),
            None => self.said.remove(key),
        };
        if before != said {
            for said in before.into_iter().chain(said) {
                let object = (said.kind.into(), said.id);
                self.kept.remove(&object);
                self.due.insert(object);
            }
        }
    }

    /// There are no other keys than these.
    pub fn keep_only(&mut self, there: &BTreeSet<String>) {
        for key in self.others(there) {
            self.hear(&key, None);
        }
    }

    /// There are no other keys than these, for etcd went back from one revision to another: what only others said is kept.
    pub fn keep_missing(&mut self, there: &BTreeSet<String>, at: i64, was: i64) {
        (self.went_back, self.at_start) = (Some((at, was)), !self.adopted);
        self.news = true;
        for key in self.others(there) {
            self.faults.remove(&key);
            if let Some(said) = self.said.remove(&key) {
                self.keep((said.kind.into(), said.id));
            }
        }
    }

    /// What is known of keys that are not among these.
    fn others(&self, there: &BTreeSet<String>) -> BTreeSet<String> {
        let known = self.said.keys().chain(self.faults.keys());
        known.filter(|key| !there.contains(*key)).cloned().collect()
    }

    /// Keeps an object, where no key says it.
    fn keep(&mut self, object: (i32, String)) {
        self.kept.insert(object.clone());
        self.due.insert(object);
    }

    /// The switch has these objects, which came from here before this process, and no others. What no key says of them goes; it is kept where
    /// etcd had lost it before, or was found to have gone back by the first reading.
    pub fn adopt(&mut self, objects: Vec<(Kind, String)>) {
        let objects: BTreeSet<_> = objects.into_iter().map(|(kind, id)| (i32::from(kind), id)).collect();
        self.kept.retain(|object| objects.contains(object));
        if self.at_start {
            self.kept.extend(objects.iter().cloned());
        }
        self.due.extend(objects);
        (self.at_start, self.adopted, self.news) = (false, true, true);
    }

    /// What is told of objects that are kept although no key says them.
    pub fn kept(&self) -> Option<String> {
        let (at, was) = self.went_back?;
        let name =
            |(kind, id): &(i32, String)| Some(format!("{} {id}", Kind::try_from(*kind).ok()?.as_str_name()));
        let names: Vec<String> = self.kept.iter().take(NAMED).filter_map(name).collect();
        if names.is_empty() {
            return None;
        }
        let (count, names) = (self.kept.len(), names.join(", "));
        Some(format!(
            "etcd is at revision {at} and was at {was}: objects that it no longer has are kept, {count} in all ({names}{}); put \
             them again, or put and delete the key of what is to go",
            if count > NAMED { ", ..." } else { "" }
        ))
    }

    /// What the switch has to do, each with the key it is about; what it refused only after [`try_again`](Self::try_again).
    pub fn due(&mut self) -> Vec<(String, Followed)> {
        let due = std::mem::take(&mut self.due);
        if due.is_empty() {
            return Vec::new();
        }
        self.refused.retain(|object| !due.contains(object));
        // The first key that says an object is the one that counts.
        let mut first: BTreeMap<(i32, &str), (&String, &Said)> = BTreeMap::new();
        for (key, said) in &self.said {
            let id = (said.kind.into(), said.id.as_str());
            match first.get(&id) {
                None => drop(first.insert(id, (key, said))),
                Some((other, _)) => {
                    let text = format!(
                        "it says the object that {} says already; remove one of the two keys",
                        shown(other.as_bytes())
                    );
                    self.faults.insert(key.clone(), text);
                }
            }
        }
        self.kept.retain(|(kind, id)| !first.contains_key(&(*kind, id.as_str())));
        let step = |(kind, id): &(i32, String)| match first.get(&(*kind, id.as_str())) {
            Some((key, said)) => Some(((*key).clone(), Followed::Is(Box::new(said.object.clone())))),
            None if self.kept.contains(&(*kind, id.clone())) => None,
            None => {
                let kind = Kind::try_from(*kind).ok()?;
                Some((format!("{} {id}", kind.as_str_name()), Followed::Gone(kind, id.clone())))
            }
        };
        due.iter().filter_map(step).collect()
    }

    /// The switch did not do what was due, and the fault is told. It is due when it is [tried again](Self::try_again).
    pub fn refused(&mut self, key: &str, change: &Followed, why: String) {
        match change {
            Followed::Is(_) => {
                if let Some(said) = self.said.get(key) {
                    self.refused.insert((said.kind.into(), said.id.clone()));
                }
            }
            Followed::Gone(kind, id) => drop(self.refused.insert(((*kind).into(), id.clone()))),
        }
        self.news |= self.faults.insert(key.to_owned(), why.clone()).is_none_or(|before| before != why);
    }

    /// What was refused is due: something has changed.
    pub fn try_again(&mut self) {
        self.due.append(&mut self.refused);
    }

    /// True when there is something else to tell than the last time this was asked.
    pub fn is_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// The switch did what was due.
    pub fn done(&mut self, key: &str) {
        self.news |= self.faults.remove(key).is_some();
    }

    /// What is wrong, by key.
    pub fn faults(&self) -> &BTreeMap<String, String> {
        &self.faults
    }

    /// How many objects there are.
    pub fn count(&self) -> usize {
        self.said.len()
    }
}

fn read(value: &[u8]) -> Result<Said, String> {
    if value.len() > LONGEST {
        return Err(format!("its value has {} bytes, and no object has more than {LONGEST}", value.len()));
    }
    let object = read_object(value)?;
    let (kind, id) = shared_object(&object)?;
    Ok(Said { kind, id, object })
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    const VPC: &[u8] = br#"{"vpc": {"name": "red", "vni": 100}}"#;

    #[test]
    fn etcd_objects_are_due_when_they_change_and_once() {
        let mut objects = Objects::default();
        objects.hear("k/1", Some(VPC));
        let due = objects.due();
        assert!(matches!(&due[..], [(key, Followed::Is(_))] if key == "k/1"), "{due:?}");
        assert!(objects.due().is_empty());
        // The same, as protobuf has it.
        let Followed::Is(object) = &due[0].1 else { panic!() };
        objects.hear("k/1", Some(&object.encode_to_vec()));
        assert!(objects.due().is_empty());
        // What was refused is tried again when something has changed, and not before.
        objects.refused("k/1", &due[0].1, "no".into());
        assert_eq!((objects.due().len(), objects.faults().len()), (0, 1));
        objects.try_again();
        assert_eq!((objects.due().len(), objects.faults().len()), (1, 1));
        objects.done("k/1");
        objects.keep_only(&BTreeSet::new());
        assert_eq!(objects.due(), [("KIND_VPC red".into(), Followed::Gone(Kind::Vpc, "red".into()))]);
        assert_eq!((objects.count(), objects.faults().len()), (0, 0));
    }

    #[test]
    fn etcd_objects_are_kept_where_etcd_went_back_until_they_are_said_or_taken_away() {
        let (mut objects, red) = (Objects::default(), (Kind::Vpc, "red".to_owned()));
        objects.hear("red", Some(VPC));
        objects.hear("bad", Some(b"{"));
        assert_eq!((objects.due().len(), objects.kept()), (1, None));
        objects.keep_missing(&BTreeSet::new(), 5, 90);
        assert!(objects.due().is_empty());
        let told = objects.kept().unwrap();
        assert!(told.contains("revision 5 and was at 90") && told.contains("KIND_VPC red"), "{told}");
        assert!(objects.is_news() && objects.faults().is_empty());
        // The same etcd is read again, and what this switch has had is looked at: both change nothing.
        objects.keep_only(&BTreeSet::new());
        objects.adopt(vec![red.clone()]);
        objects.try_again();
        assert!(objects.due().is_empty() && objects.kept().is_some());
        // By whatever key it is said, that one counts.
        objects.hear("other", Some(VPC));
        let due = objects.due();
        assert!(matches!(&due[..], [(key, Followed::Is(_))] if key == "other"), "{due:?}");
        assert_eq!(objects.kept(), None);
        objects.hear("other", None);
        assert!(matches!(&objects.due()[..], [(_, Followed::Gone(Kind::Vpc, _))]));
        // Put and deleted at once.
        objects.hear("red", Some(VPC));
        assert_eq!(objects.due().len(), 1);
        objects.keep_missing(&BTreeSet::new(), 5, 90);
        objects.hear("red", Some(VPC));
        objects.hear("red", None);
        assert!(matches!(&objects.due()[..], [(_, Followed::Gone(Kind::Vpc, _))]));
        assert_eq!(objects.kept(), None);
    }

    #[test]
    fn etcd_objects_that_two_keys_say_are_as_the_first_says() {
        let mut objects = Objects::default();
        objects.hear("b", Some(VPC));
        objects.hear("a", Some(br#"{"vpc": {"name": "red", "vni": 7}}"#));
        let due = objects.due();
        assert!(matches!(&due[..], [(key, _)] if key == "a"), "{due:?}");
        assert!(objects.faults()["b"].contains("that a says"), "{:?}", objects.faults());
        objects.hear("a", None);
        let due = objects.due();
        assert!(matches!(&due[..], [(key, Followed::Is(_))] if key == "b"), "{due:?}");
    }

    #[test]
    fn etcd_objects_of_one_host_and_garbage_are_told_and_nothing_else() {
        let mut objects = Objects::default();
        for (key, value) in [
            ("port", &br#"{"port": {"name": "p", "port": {"null": {}}}}"#[..]),
            ("json", br#"{"vpc": "#),
            ("field", br#"{"vpc": {"name": "red", "vny": 100}}"#),
            ("bytes", &[0xff, 0, 1, 2]),
            ("empty", b""),
            (
                "long",
                &[b"{\"vpc\": {\"name\": \"red\", \"vni\": 7}}", vec![b' '; LONGEST].as_slice()].concat(),
            ),
            ("value", br#"{"vpc": {"name": "red", "vni": 100000000}}"#),
        ] {
            objects.hear(key, Some(value));
            assert!(objects.faults().contains_key(key), "{key}");
        }
        assert!(objects.due().is_empty());
        assert!(objects.faults()["port"].contains("of one host"), "{:?}", objects.faults());
    }
}
