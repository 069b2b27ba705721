//! Isolated mode: a port that receives only what rules of its own lead to it.

use dpdk_sys as sys;
use rules::FlowError;

use super::error;
use crate::port::Port;

impl Port {
    /// Has the driver receive nothing but what rules lead to the port's queues, from its next start on: where a kernel
    /// has the device, too, the kernel's traffic stays the kernel's. Drivers want this before the port is configured.
    /// That traffic of a NIC is left alone is unconfirmed on hardware.
    ///
    /// # Errors
    /// [`rules::Cause::Unsupported`] for a driver that cannot, or the driver's words.
    pub fn isolate(&self) -> Result<(), FlowError> {
        let port = self.id().get();
        // SAFETY: a stopped port that `self` holds.
        error::check(None, |error| unsafe { sys::rte_flow_isolate(port, 1, error) }).map(|_| ())
    }
}
