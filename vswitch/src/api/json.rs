//! Messages as JSON, as protobuf has it (the names are those of the proto files), with numbers of 64 bits as numbers and with fields
//! that have their defaults, so that programs find what they look for.

use prost::{Message, Name};
use prost_reflect::{DynamicMessage, SerializeOptions};
use serde_json::Value;

use super::bridge;

/// A message of the API as JSON; null where it is none.
pub fn json<M: Message + Name>(message: &M) -> Value {
    let dynamic = bridge::descriptor(M::NAME)
        .and_then(|descriptor| DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice()).ok());
    let options = SerializeOptions::new().stringify_64_bit_integers(false).skip_default_fields(false);
    dynamic
        .and_then(|dynamic| dynamic.serialize_with_options(serde_json::value::Serializer, &options).ok())
        .unwrap_or_default()
}
