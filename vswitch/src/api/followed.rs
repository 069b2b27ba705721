//! Objects that somebody keeps elsewhere and the switch follows: each is made, changed and taken out as a client would do it, under its
//! keeper's name.

use prost::Message;
use prost_reflect::DynamicMessage;
use vswitch_api::v1::{self, Kind};

use super::bridge;
use super::current::{self, View};
use super::index::Index;
use super::kinds;
use super::plan::{Step, carry_out};
use super::refusal::{Problem, Problems};
use crate::state::owners::Owner;
use crate::switch::{Missing, Switch};

/// A change of an object that is kept elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub enum Followed {
    /// It is like this.
    Is(Box<v1::Object>),
    /// It is there no more.
    Gone(Kind, String),
}

/// The kinds that a network of many hosts may share, in the order in which they are made.
const SHARED: [Kind; 9] = [
    Kind::Vpc,
    Kind::Subnet,
    Kind::SecurityGroup,
    Kind::Rule,
    Kind::Route,
    Kind::Qos,
    Kind::Rcft,
    Kind::Nft,
    Kind::Security,
];

/// The kind and id of an object that hosts may share.
///
/// # Errors
/// What is wrong with it.
pub fn shared_object(object: &v1::Object) -> Result<(Kind, String), String> {
    let identified = kinds::parts(object).and_then(|(kind, message)| {
        let word = kinds::word(kind);
        if !SHARED.contains(&kind) {
            let message = format!("a {word} is of one host; keep it in that host's config");
            return Err(Problem::invalid(&word, message));
        }
        Ok((kind, kinds::item(kind, &message)?.id))
    });
    identified.map_err(|problem| told(&problem.into()))
}

/// An object from its bytes: protobuf, or JSON as protobuf has it.
///
/// # Errors
/// What is wrong with them.
pub fn read_object(value: &[u8]) -> Result<v1::Object, String> {
    if value.trim_ascii_start().first() != Some(&b'{') {
        return v1::Object::decode(value).map_err(|error| error.to_string());
    }
    let descriptor = bridge::descriptor("Object").ok_or("there is no Object")?;
    let mut json = serde_json::Deserializer::from_slice(value);
    let message = DynamicMessage::deserialize(descriptor, &mut json).map_err(|error| error.to_string())?;
    json.end().map_err(|error| error.to_string())?;
    bridge::typed(&message).map_err(|problem| problem.message)
}

/// Where a change is in the order in which one after the other is carried out: first what goes, the inner first; then what comes, the outer
/// first.
pub fn rank(change: &Followed) -> isize {
    match change {
        Followed::Gone(kind, _) => -(place(*kind) as isize) - 1,
        Followed::Is(object) => kinds::parts(object).map_or(0, |(kind, _)| place(kind)) as isize,
    }
}

/// Carries changes out as one, in their order.
///
/// # Errors
/// Why they cannot be; then none of them is done.
pub fn follow(switch: &mut Switch, owner: Owner, changes: &[Followed]) -> Result<(), String> {
    let (view, mut index) = (View::of(switch), Index::default());
    let step = |change| step(&view, &mut index, owner, change);
    let all = changes.iter().map(step).collect::<Result<Vec<_>, _>>();
    let done = all.map_err(Problems::from).and_then(|steps| {
        let steps: Vec<Step> = steps.into_iter().flatten().collect();
        carry_out(switch, steps, None, Missing::Awaited)
    });
    done.map(drop).map_err(|problems| told(&problems))
}

/// The ids of objects of an owner that hosts may share.
pub fn shared_by(switch: &Switch, owner: Owner) -> Vec<(Kind, String)> {
    let of_kind = |kind: &Kind| kinds::section(*kind);
    let sections: Vec<(Kind, String)> = SHARED.iter().map(|kind| (*kind, of_kind(kind))).collect();
    let noted = switch.owners().iter().filter(|(_, known)| *known == owner);
    let found = noted.filter_map(|((section, id), _)| {
        let (kind, _) = sections.iter().find(|(_, known)| known == section)?;
        Some((*kind, id.clone()))
    });
    found.collect()
}

/// What a change takes; nothing where what goes is not there.
fn step(view: &View, index: &mut Index, owner: Owner, change: &Followed) -> Result<Option<Step>, Problem> {
    match change {
        Followed::Is(object) => Step::put(object, owner, view, index).map(Some),
        // A section goes back to nothing but what its owner says next.
        Followed::Gone(kind, _) if kinds::is_section(*kind) => Ok(None),
        Followed::Gone(kind, id) => {
            let is_own = view.has(index, *kind, id)? && current::owner(&view.owners, *kind, id) == owner;
            Ok(is_own.then(|| Step::take_out(*kind, id, owner)))
        }
    }
}

fn place(kind: Kind) -> usize {
    SHARED.iter().position(|known| *known == kind).unwrap_or(SHARED.len())
}

fn told(Problems(problems): &Problems) -> String {
    let one = |problem: &Problem| match problem.field.as_str() {
        "" => problem.message.clone(),
        field => format!("{field}: {}", problem.message),
    };
    problems.iter().map(one).collect::<Vec<_>>().join("; ")
}
