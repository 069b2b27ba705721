//! A panic in control is a fault of the switch, and never the end of forwarding: it is caught at the edge of the command,
//! or of the turn, in which it happened, and told.
//!
//! What was being changed may be half changed then. Nobody can tell from outside; so whoever asks is told that the state
//! is suspect, reading and forwarding go on, and the operator chooses when to restart.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Something of control panicked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a fault of the switch itself in {what} ({message}); packets are forwarded as before, but what it was changing may be \
     half changed: look at `show events`, save what you need, and restart the switch when it suits"
)]
pub struct Fault {
    /// In what.
    pub what: String,
    /// What the panic said.
    pub message: String,
}

/// Does `work`, whatever becomes of it.
///
/// # Errors
/// [`Fault`] when it panicked; where, the log has already.
pub fn caught<T>(what: &str, work: impl FnOnce() -> T) -> Result<T, Fault> {
    // What it may have left half done is said to be suspect by the caller, which is all that unwind safety could ask.
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let message = said(payload.as_ref());
        // A payload that panics again when it is dropped must not get through.
        std::mem::forget(payload);
        Fault { what: what.to_owned(), message }
    })
}

/// What a panic said.
fn said(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repair_a_panic_is_a_fault_with_its_message() {
        assert_eq!(caught("show vnic", || 7), Ok(7));
        let fault = caught("show vnic", || -> u32 { panic!("index {} of 3", 5) }).unwrap_err();
        assert_eq!((fault.what.as_str(), fault.message.as_str()), ("show vnic", "index 5 of 3"));
        assert_eq!(caught("", || panic!("plain")).unwrap_err().message, "plain");
        assert_eq!(caught("", || std::panic::panic_any(5)).unwrap_err().message, "no message");
        assert!(
            fault.to_string().contains("fault of the switch itself in show vnic (index 5 of 3)"),
            "{fault}"
        );
    }
}
