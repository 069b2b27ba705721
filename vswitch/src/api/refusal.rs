//! Refusals: what a client is told, as a status with a [`Refusal`](v1::Refusal) among its details.

mod causes;

use pmd::PortError;
use prost::Message;
use tonic::{Code, Status};
use vswitch_api::v1;
use worker::mailbox::WorkerError;

use self::causes::{of_device, place};
use super::bridge;
use crate::config::{ConfigError, ConfigErrors, path};
use crate::control::asking::Unanswered;
use crate::control::guard::Fault;
use crate::rdma;
use crate::switch::{PortsError, SwitchError};
use crate::topology::TopologyError;

/// The longest message of a status, and of a problem. Both go over the wire as headers, of which clients take 8 KiB in all without having
/// asked for more: a byte of the status's message may become three there, three bytes of the details four.
const LONGEST: usize = 1024;
/// The most that the details take.
const DETAILS: usize = 3 * 1024;

/// What a refusal is among details of any kind.
const REFUSAL: &str = "type.googleapis.com/vswitch.v1.Refusal";

/// Something wrong with a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Problem {
    pub code: Code,
    /// The field, empty when it is none.
    pub field: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl Problem {
    pub fn new(code: Code, field: &str, message: String) -> Self {
        Self { code, field: field.to_owned(), message }
    }

    /// A value that cannot be.
    pub fn invalid(field: &str, message: String) -> Self {
        Self::new(Code::InvalidArgument, field, message)
    }

    /// A fault of ours.
    pub fn internal(message: String) -> Self {
        Self::new(Code::Internal, "", format!("a fault of the switch itself: {message}"))
    }

    /// What the driver of a port refused, which the field names.
    pub fn of_device(error: &PortError, field: &str) -> Self {
        Self::new(of_device(error), field, error.to_string())
    }

    /// The same within an object that is found there.
    #[must_use]
    pub fn within(mut self, path: &str) -> Self {
        let separator = if self.field.is_empty() || path.is_empty() { "" } else { "." };
        self.field = format!("{path}{separator}{}", self.field);
        self
    }
}

/// A word that does not change with versions.
fn word(code: Code) -> &'static str {
    match code {
        Code::InvalidArgument => "INVALID",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::Cancelled => "CANCELLED",
        _ => "INTERNAL",
    }
}

/// The status of some problems, of which there is at least one.
pub(super) fn status(problems: &[Problem]) -> Status {
    let code = problems.first().map_or(Code::Internal, |problem| problem.code);
    let told = |problem: &Problem| match problem.field.as_str() {
        "" => problem.message.clone(),
        field => format!("{field}: {}", problem.message),
    };
    let mut text = problems.iter().map(told).collect::<Vec<_>>().join("\n");
    shorten(&mut text);
    let mut refusal = v1::Refusal::default();
    for problem in problems {
        let Problem { code, field, mut message } = problem.clone();
        shorten(&mut message);
        refusal.problems.push(v1::Problem { code: word(code).into(), field, message });
        if refusal.encoded_len() > DETAILS {
            refusal.problems.pop();
            break;
        }
    }
    let detail = prost_types::Any { type_url: REFUSAL.into(), value: refusal.encode_to_vec() };
    // The text is in the status itself.
    let details = v1::RpcStatus { code: code.into(), message: String::new(), details: vec![detail] };
    Status::with_details(code, text, details.encode_to_vec().into())
}

/// Cuts what is too long for a header.
fn shorten(text: &mut String) {
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push_str(" ...");
    }
}

impl From<Problem> for Status {
    fn from(problem: Problem) -> Self {
        status(&[problem])
    }
}

/// All that is wrong with a request: one problem at least.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Problems(pub Vec<Problem>);

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl From<Problems> for Status {
    fn from(Problems(problems): Problems) -> Self {
        status(&problems)
    }
}

impl Problems {
    /// What is wrong with a config.
    pub fn of_config(code: Code, ConfigErrors(errors): &ConfigErrors) -> Self {
        let told = |error: &ConfigError| {
            Problem::new(code, &path::map_keys(&error.path, bridge::field), error.to_string())
        };
        Self(errors.iter().map(told).collect())
    }
}

impl From<ConfigErrors> for Problems {
    fn from(errors: ConfigErrors) -> Self {
        Self::of_config(Code::InvalidArgument, &errors)
    }
}

/// What the switch refused.
impl From<SwitchError> for Problems {
    fn from(error: SwitchError) -> Self {
        match error {
            SwitchError::Config(errors) | SwitchError::Topology(TopologyError::Location(errors)) => {
                errors.into()
            }
            error => Problem::from(&error).into(),
        }
    }
}

impl From<&SwitchError> for Problem {
    fn from(error: &SwitchError) -> Self {
        let (code, path) = place(error);
        Self::new(code, &path::map_keys(&path, bridge::field), error.to_string())
    }
}

impl From<PortsError> for Problem {
    fn from(error: PortsError) -> Self {
        Self::from(&SwitchError::from(error))
    }
}

impl From<rdma::Error> for Problems {
    fn from(error: rdma::Error) -> Self {
        SwitchError::from(error).into()
    }
}

impl From<WorkerError> for Problems {
    fn from(error: WorkerError) -> Self {
        SwitchError::from(error).into()
    }
}

impl From<Unanswered> for Problem {
    fn from(error: Unanswered) -> Self {
        match error {
            Unanswered::Ending => Self::new(Code::Unavailable, "", error.to_string()),
            Unanswered::Fault(fault) => fault.into(),
        }
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        Self::new(Code::Internal, "", fault.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_its_problems_in_its_details() {
        let problems = [
            Problem::invalid("mac", "no".into()).within("vnic"),
            Problem::new(Code::NotFound, "", "\u{e4}".repeat(5000)),
        ];
        let status = status(&problems);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with("vnic.mac: no\n\u{e4}") && status.message().len() < 4200);
        let details = v1::RpcStatus::decode(status.details()).unwrap();
        assert_eq!((details.code, details.details[0].type_url.as_str()), (3, REFUSAL));
        let refusal = vswitch_api::refusal(status.details()).unwrap();
        let told: Vec<_> = refusal.problems.iter().map(|p| (p.code.as_str(), p.field.as_str())).collect();
        assert_eq!(told, [("INVALID", "vnic.mac"), ("NOT_FOUND", "")]);
    }

    #[test]
    fn whatever_is_wrong_fits_the_headers_that_clients_take() {
        for (count, length) in [(1, 100_000), (4, 4_000), (500, 100), (10_000, 5)] {
            let problem = Problem::invalid("vnic.port.members[3].mac", "\u{e4}".repeat(length));
            let status = status(&vec![problem; count]);
            let told = vswitch_api::refusal(status.details()).unwrap().problems.len();
            assert!(told >= 1 && told <= count, "{told} of {count}");
            let headers = status.message().len() * 3 + status.details().len().div_ceil(3) * 4;
            assert!(headers < 8_000, "{headers} bytes for {count} problems of {length} letters");
        }
    }
}
