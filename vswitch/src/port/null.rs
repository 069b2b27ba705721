//! `null`: receives empty frames without end, throws away what it is sent. For measuring.

use super::devargs::Devargs;
use super::{DevicePlan, OpenError, Opening, Traits};
use crate::config::port_spec::NullPort;

pub(super) fn plan(spec: &NullPort, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    Ok(DevicePlan::virtual_device("null", args(spec), Traits::up_to(opening.request.queues)))
}

fn args(spec: &NullPort) -> Devargs {
    Devargs::default().number("size", spec.size).number("copy", u8::from(spec.copy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        assert_eq!(args(&NullPort { size: 64, copy: true }).finish(), "size=64,copy=1");
    }
}
