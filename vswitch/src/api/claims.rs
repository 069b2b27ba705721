//! Who may change what: each object belongs to whoever made it.

use toml::{Table, Value};
use tonic::Code;
use vswitch_api::v1::{self, Kind};

use super::current::owner;
use super::kinds::{self, Item};
use super::places::place;
use super::refusal::Problem;
use crate::config::Source;
use crate::state::owners::Owner;
use crate::switch::Switch;

/// Who asks for a change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub owner: Owner,
    /// An operator repairs what others made.
    pub force: bool,
}

impl Claim {
    /// As a request says it.
    pub fn of(owner: i32, force: bool) -> Result<Self, Problem> {
        let owner = match v1::Owner::try_from(owner) {
            Ok(v1::Owner::Unspecified | v1::Owner::Api) => Owner::Api,
            Ok(v1::Owner::Cni) => Owner::Cni,
            Ok(v1::Owner::File | v1::Owner::Etcd | v1::Owner::Evpn) | Err(_) => {
                let message = "clients ask as OWNER_API, which is the default, or as OWNER_CNI; leave it out, or set one of them";
                return Err(Problem::invalid("owner", message.into()));
            }
        };
        Ok(Self { owner, force })
    }

    /// Refuses a change of an object that somebody else made, as it is at this moment.
    pub fn check_now(self, switch: &Switch, kind: Kind, id: &str) -> Result<(), Problem> {
        let ownership = switch.ownership();
        self.check(owner(&ownership, kind, id), kind, id, ownership.file.as_deref())
    }

    /// Refuses a change of an object that somebody else made.
    pub fn check(self, owner: Owner, kind: Kind, id: &str, file: Option<&Source>) -> Result<(), Problem> {
        if self.force || self.owner == owner {
            return Ok(());
        }
        let word = kinds::word(kind);
        if owner == Owner::File {
            let place = file.map(|file| file.place_of(&kinds::section(kind), id)).unwrap_or_default();
            return Err(of_file(&word, &format!("{word} {id:?}"), &place));
        }
        let remedy = match owner {
            Owner::File | Owner::Api => "change it as OWNER_API, without `owner`",
            Owner::Etcd => "change it on the host that says so",
            Owner::Evpn => "change it where it is announced",
            Owner::Cni => "the plugin changes it with its pod",
        };
        let message = format!(
            "{word} {id:?} was made by {} (owner {owner}), and owner {} does not change it: {remedy}, or set `force` to \
             repair it all the same",
            owner.who(),
            self.owner
        );
        Err(Problem::new(Code::FailedPrecondition, &word, message))
    }
}

/// A change of what the config file says, and where it says it.
pub(super) fn of_file(word: &str, what: &str, place: &str) -> Problem {
    let message = format!(
        "{what} is in the config file, at {place} (owner file): change it there and reload, or set `force` for a change \
         that holds until the file is read again"
    );
    Problem::new(Code::FailedPrecondition, word, message)
}

/// Who made an object, and where, in a sentence.
pub(super) fn whose(owner: Owner, kind: Kind, id: &str, file: Option<&Source>) -> String {
    match (owner, file) {
        (Owner::File, Some(file)) => {
            format!("it is in the config file, at {} (owner file)", file.place_of(&kinds::section(kind), id))
        }
        _ => format!("it was made at run time by {} (owner {owner})", owner.who()),
    }
}

/// The objects inside of another one: routes of a VPC, rules of a group.
pub(super) fn inside(item: &Item) -> impl Iterator<Item = (Kind, String)> {
    inside_with_tables(item).map(|(kind, id, _)| (kind, id))
}

/// The same, with what they are.
pub(super) fn inside_with_tables(item: &Item) -> impl Iterator<Item = (Kind, String, Value)> {
    let inner = match item.kind {
        Kind::Vpc => Some((Kind::Route, "routes", "route")),
        Kind::SecurityGroup => Some((Kind::Rule, "rules", "rule")),
        _ => None,
    };
    inner.into_iter().flat_map(move |(kind, list, field)| {
        let elements = item.table.get(list).and_then(Value::as_array).into_iter().flatten();
        elements.filter_map(move |element| {
            let mut table = Table::new();
            table.insert("of".into(), Value::String(item.id.clone()));
            table.insert(field.into(), element.clone());
            let (id, _) = place(kind)?.complete(table).ok()?;
            Some((kind, id, element.clone()))
        })
    })
}
