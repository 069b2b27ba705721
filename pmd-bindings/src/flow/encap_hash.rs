//! The outer UDP source port that a NIC writes by itself, as its driver computes it (`rte_flow_calc_encap_hash`).

use dpdk_sys as sys;
use rules::{Attr, Cause, FlowError, FlowRule, InnerTuple, Where};

use super::error;
use super::lower::Lowered;
use crate::port::PortId;

/// The outer source port of a packet with these inner headers, of a started port whose flow queues are configured: the driver
/// of mlx5 reads capabilities that it has no sooner.
///
/// # Errors
/// [`Cause::Unsupported`] where this DPDK or the driver cannot tell.
pub(super) fn source_port(port: PortId, inner: &InnerTuple) -> Result<u16, FlowError> {
    if !sys::HAS_FLOW_ENCAP_HASH {
        let message = format!(
            "this DPDK, {}, cannot ask which outer source port a NIC writes (23.11 and before have no \
             rte_flow_calc_encap_hash)",
            sys::DPDK_VERSION
        );
        return Err(FlowError::new(Cause::Unsupported, Where::Unspecified, message));
    }
    let rule = FlowRule { attr: Attr::transfer(1, 0), pattern: inner.pattern(), actions: Vec::new() };
    let lowered = Lowered::new(&rule, u64::MAX, &[])?;
    let mut bytes = [0; 2];
    error::check(Some(&lowered), |error| {
        // SAFETY: a list of items with an end and room for the two bytes of a port, alive during the call; any port id
        // may be asked.
        unsafe {
            sys::dpdk_sys_flow_encap_source_port(
                port.get(),
                lowered.items().as_ptr(),
                bytes.as_mut_ptr(),
                error,
            )
        }
    })?;
    Ok(u16::from_be_bytes(bytes))
}
