//! Messages as JSON, as protobuf has it (the names are those of the proto files), with numbers of 64 bits as numbers and with fields
//! that have their defaults, so that programs find what they look for. Numbers without a fraction have no point, as in protobuf's own
//! printers.

use prost::{Message, Name};
use prost_reflect::{DynamicMessage, ReflectMessage, SerializeOptions};
use serde_json::Value;

use super::bridge;

/// A message of the API by its descriptor; nothing where it is none.
fn dynamic<M: Message + Name>(message: &M) -> Option<DynamicMessage> {
    let descriptor = bridge::descriptor(M::NAME)?;
    DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice()).ok()
}

/// The counts of a message, its fields of type `uint64`, by their names in JSON and in the order of their numbers.
pub fn counts<M: Message + Name>(message: &M) -> Vec<(String, u64)> {
    let dynamic = dynamic(message);
    let fields = dynamic.iter().flat_map(|dynamic| {
        let fields = dynamic.descriptor().fields().collect::<Vec<_>>();
        fields
            .into_iter()
            .map(move |field| (field.json_name().to_owned(), dynamic.get_field(&field).as_u64()))
    });
    fields.filter_map(|(name, value)| Some((name, value?))).collect()
}

/// A message of the API as JSON; null where it is none.
pub fn json<M: Message + Name>(message: &M) -> Value {
    let dynamic = dynamic(message);
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

#[cfg(test)]
mod tests {
    use vswitch_api::v1;

    use super::*;

    #[test]
    fn counts_are_those_of_the_data_path_in_their_order() {
        let stats = v1::GetForwardingStatsResponse {
            sent: 3,
            dropped: 2,
            ..v1::GetForwardingStatsResponse::default()
        };
        let counts = counts(&stats);
        let totals = pipelines::counters::PipelineTotals { sent: 3, ..Default::default() };
        let mut all: Vec<(String, u64)> =
            totals.iter().map(|(name, count)| (name.to_owned(), count)).collect();
        // Counters that came later have later numbers than the sum of all drops.
        let later = all.iter().position(|(name, _)| name == "probe-answers").unwrap();
        all.insert(later, ("dropped".to_owned(), 2));
        assert_eq!(counts, all);
    }

    #[test]
    fn numbers_are_numbers_and_whole_ones_have_no_point() {
        let row = v1::FlowState { packets: u64::MAX, idle_seconds: 3.0, ..v1::FlowState::default() };
        let json = json(&row);
        assert_eq!((json["packets"].as_u64(), json["idle-seconds"].as_i64()), (Some(u64::MAX), Some(3)));
    }
}
