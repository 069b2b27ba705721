//! STATUS: whether an ADD would find what it needs.

use super::Call;
use super::addresses::Subnets;
use crate::environment::Command;
use crate::error::{Error, NOT_AVAILABLE, Result};
use crate::switch::Switch;

pub fn run(call: &Call) -> Result<()> {
    let unavailable = |error: Error| Error { code: NOT_AVAILABLE, ..error };
    let delegate = call.delegate().map_err(unavailable)?;
    let vpc = &call.config.vpc;
    let mut switch = Switch::connect(&call.config.socket).map_err(unavailable)?;
    if switch.vpc(vpc).map_err(unavailable)?.is_none() {
        let msg = format!("vpc: the switch has no VPC {vpc:?}");
        return Err(Error::new(NOT_AVAILABLE, msg, "make it there, or correct the network config"));
    }
    Subnets::of(&call.config, vpc, &mut switch).map_err(unavailable)?;
    delegate.map_or(Ok(()), |delegate| delegate.ask(Command::Status))
}
