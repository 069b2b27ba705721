//! Changes of objects, for the commands that make some. Whoever is at a console is an operator: what others made is changed, too.

use prost_types::FieldMask;
use serde::Serialize;
use vswitch_api::v1::objects_client::ObjectsClient;
use vswitch_api::v1::operation::Operation;
use vswitch_api::v1::{self, Kind};

use super::{Session, ask};
use crate::api;
use crate::console::CommandError;

/// Something that a config has, as an object.
fn object(kind: Kind, value: &impl Serialize) -> Result<Option<v1::Object>, CommandError> {
    api::object(kind, value).map(Some).map_err(CommandError::new)
}

fn key(kind: Kind, id: impl Into<String>) -> Option<v1::Key> {
    Some(v1::Key { kind: kind.into(), id: id.into() })
}

/// Makes an object, and waits for its port where it has one.
pub(super) fn create(
    session: &Session,
    kind: Kind,
    value: &impl Serialize,
) -> Result<v1::Entry, CommandError> {
    create_object(session, object(kind, value)?.unwrap_or_default())
}

/// The same, of an object as the API has it.
pub(super) fn create_object(session: &Session, object: v1::Object) -> Result<v1::Entry, CommandError> {
    let request = v1::CreateRequest { object: Some(object), wait: true, ..v1::CreateRequest::default() };
    ask!(session, ObjectsClient.create(request))
}

/// Has an object that there is be as this says, whole.
pub(super) fn set(session: &Session, kind: Kind, value: &impl Serialize) -> Result<v1::Entry, CommandError> {
    change(session, object(kind, value)?.unwrap_or_default(), &[])
}

/// Sets the fields at these paths as they are in `spec`.
pub(super) fn update(
    session: &Session,
    spec: v1::object::Spec,
    paths: &[&str],
) -> Result<v1::Entry, CommandError> {
    change(session, v1::Object { spec: Some(spec) }, paths)
}

/// Without paths all of it.
fn change(session: &Session, object: v1::Object, paths: &[&str]) -> Result<v1::Entry, CommandError> {
    let paths = paths.iter().map(|path| (*path).to_owned()).collect();
    let request = v1::UpdateRequest {
        object: Some(object),
        update_mask: Some(FieldMask { paths }),
        wait: true,
        force: true,
        ..v1::UpdateRequest::default()
    };
    ask!(session, ObjectsClient.update(request))
}

fn deletion(kind: Kind, id: impl Into<String>) -> v1::DeleteRequest {
    v1::DeleteRequest { key: key(kind, id), wait: true, force: true, ..v1::DeleteRequest::default() }
}

/// Takes an object away.
pub(super) fn delete(session: &Session, kind: Kind, id: &str) -> Result<v1::DeleteResponse, CommandError> {
    ask!(session, ObjectsClient.delete(deletion(kind, id)))
}

/// An object, if there is one of this id.
pub(super) fn find(session: &Session, kind: Kind, id: &str) -> Result<Option<v1::Entry>, CommandError> {
    let request = v1::GetRequest { key: key(kind, id) };
    match ask!(session, ObjectsClient.get(request)) {
        Ok(entry) => Ok(Some(entry)),
        Err(error) if error.is_not_found => Ok(None),
        Err(error) => Err(error),
    }
}

/// All objects of a kind, page by page.
pub(super) fn list(session: &Session, kind: Kind) -> Result<Vec<v1::Entry>, CommandError> {
    let (mut entries, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = v1::ListRequest { kind: kind.into(), page_token, ..v1::ListRequest::default() };
        let page = ask!(session, ObjectsClient.list(request))?;
        entries.extend(page.entries);
        if page.next_page_token.is_empty() {
            return Ok(entries);
        }
        page_token = page.next_page_token;
    }
}

pub(super) fn to_delete(kind: Kind, id: impl Into<String>) -> Operation {
    Operation::Delete(deletion(kind, id))
}

/// Carries operations out as one.
pub(super) fn apply(
    session: &Session,
    operations: impl IntoIterator<Item = Operation>,
) -> Result<v1::ApplyResponse, CommandError> {
    let operations = operations.into_iter().map(|operation| v1::Operation { operation: Some(operation) });
    let request =
        v1::ApplyRequest { operations: operations.collect(), wait: true, ..v1::ApplyRequest::default() };
    ask!(session, ObjectsClient.apply(request))
}
