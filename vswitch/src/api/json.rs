//! Messages as JSON, as protobuf has it (the names are those of the proto files), with numbers of 64 bits as numbers and with fields
//! that have their defaults, so that programs find what they look for. Numbers without a fraction have no point, as in protobuf's own
//! printers.

use prost::{Message, Name};
use prost_reflect::{DynamicMessage, SerializeOptions};
use serde_json::Value;

use super::bridge;

/// A message of the API as JSON; null where it is none.
pub fn json<M: Message + Name>(message: &M) -> Value {
    let dynamic = bridge::descriptor(M::NAME)
        .and_then(|descriptor| DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice()).ok());
    let options = SerializeOptions::new().stringify_64_bit_integers(false).skip_default_fields(false);
    let json = dynamic
        .and_then(|dynamic| dynamic.serialize_with_options(serde_json::value::Serializer, &options).ok());
    whole(json.unwrap_or_default())
}

/// Whole numbers up to here are exact in a `double`.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The same with numbers that have no fraction as such.
fn whole(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(exact) if exact.fract() == 0.0 && exact.abs() <= EXACT => Value::from(exact as i64),
            _ => Value::Number(number),
        },
        Value::Array(values) => values.into_iter().map(whole).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, whole(value))).collect(),
        other => other,
    }
}
