//! Changes of objects, for the commands that make some.

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

pub(super) fn key(kind: Kind, id: impl Into<String>) -> Option<v1::Key> {
    Some(v1::Key { kind: kind.into(), id: id.into() })
}

/// Makes an object, and waits for its port where it has one.
pub(super) fn create(
    session: &Session,
    kind: Kind,
    value: &impl Serialize,
) -> Result<v1::Entry, CommandError> {
    let request =
        v1::CreateRequest { object: object(kind, value)?, wait: true, ..v1::CreateRequest::default() };
    ask!(session, ObjectsClient.create(request))
}

/// Sets the fields at these paths as they are in `object`.
pub(super) fn update(
    session: &Session,
    object: v1::object::Spec,
    paths: &[&str],
) -> Result<v1::Entry, CommandError> {
    let paths = paths.iter().map(|path| (*path).to_owned()).collect();
    let request = v1::UpdateRequest {
        object: Some(v1::Object { spec: Some(object) }),
        update_mask: Some(FieldMask { paths }),
        wait: true,
        ..v1::UpdateRequest::default()
    };
    ask!(session, ObjectsClient.update(request))
}

/// Takes an object away.
pub(super) fn delete(session: &Session, kind: Kind, id: &str) -> Result<v1::DeleteResponse, CommandError> {
    let request = v1::DeleteRequest { key: key(kind, id), ..v1::DeleteRequest::default() };
    ask!(session, ObjectsClient.delete(request))
}

/// An object.
pub(super) fn get(session: &Session, kind: Kind, id: &str) -> Result<v1::Entry, CommandError> {
    let request = v1::GetRequest { key: key(kind, id), ..v1::GetRequest::default() };
    ask!(session, ObjectsClient.get(request))
}

/// All objects of a kind, and the revision in which they are all so.
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

pub(super) fn to_create(kind: Kind, value: &impl Serialize) -> Result<Operation, CommandError> {
    Ok(Operation::Create(v1::CreateRequest { object: object(kind, value)?, ..v1::CreateRequest::default() }))
}

pub(super) fn to_delete(kind: Kind, id: impl Into<String>) -> Operation {
    Operation::Delete(v1::DeleteRequest { key: key(kind, id), ..v1::DeleteRequest::default() })
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
