//! What libibverbs says of RDMA devices: limits and MTUs.
//!
//! The list of devices and an open device are owned here, and freed and closed when dropped. `rdma-sys` has no calls for
//! the GID table (its bindgen leaves out `_ibv_query_gid_ex`, and the rest are inline functions), so GIDs come from
//! sysfs. Its `___ibv_query_port` takes the compatible call, which fills the fields of the first ABI; those used here are
//! among them.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::ptr::NonNull;

use rdma_sys::{
    ___ibv_query_port, ibv_close_device, ibv_context, ibv_device, ibv_device_attr, ibv_free_device_list,
    ibv_get_device_list, ibv_get_device_name, ibv_open_device, ibv_port_attr, ibv_query_device,
};

use super::{Limits, Opened, Unopened, Verbs};
use crate::error::Errno;

/// Opens every device in turn and asks it.
pub(super) fn read() -> Verbs {
    let Some(list) = List::get()? else { return Ok(BTreeMap::new()) };
    let devices = list.devices().iter().filter_map(|&device| {
        let device = NonNull::new(device)?;
        Some((name(&list, device)?, ask(&list, device)))
    });
    Ok(devices.collect())
}

/// libibverbs' list of devices.
struct List {
    first: NonNull<*mut ibv_device>,
    len: usize,
}

impl List {
    /// The list; nothing where the kernel has no RDMA at all.
    fn get() -> Result<Option<Self>, Unopened> {
        let mut len: c_int = 0;
        // SAFETY: `len` is ours and lives through the call; the list it returns is owned by the value made below.
        let first = unsafe { ibv_get_device_list(&raw mut len) };
        match (NonNull::new(first), os_errno()) {
            (Some(first), _) => Ok(Some(Self { first, len: usize::try_from(len).unwrap_or(0) })),
            (None, Errno::ENOSYS) => Ok(None),
            (None, errno) => Err(Unopened::NoList(errno)),
        }
    }

    fn devices(&self) -> &[*mut ibv_device] {
        // SAFETY: libibverbs returned an array of `len` pointers, which lives until `Drop` frees it.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from `ibv_get_device_list` and is freed once; an open device keeps itself.
        unsafe { ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// The name of a device of the list.
fn name(_list: &List, device: NonNull<ibv_device>) -> Option<String> {
    // SAFETY: the device is of the list, which the caller holds.
    let name: *const c_char = unsafe { ibv_get_device_name(device.as_ptr()) };
    if name.is_null() {
        return None;
    }
    // SAFETY: not null, and libibverbs keeps device names terminated for as long as the device.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().ok().map(str::to_owned)
}

/// An open device.
struct Context(NonNull<ibv_context>);

impl Context {
    fn open(_list: &List, device: NonNull<ibv_device>) -> Result<Self, Unopened> {
        // SAFETY: the device is of the list, which the caller holds.
        let context = unsafe { ibv_open_device(device.as_ptr()) };
        let errno = os_errno();
        NonNull::new(context).map(Self).ok_or(Unopened::Failed { what: "open it", errno })
    }

    fn attributes(&self) -> Result<ibv_device_attr, Unopened> {
        // SAFETY: a C struct of integers and arrays of them, for which zeros are valid.
        let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open, and the struct is ours.
        let errno = unsafe { ibv_query_device(self.0.as_ptr(), &raw mut attributes) };
        match errno {
            0 => Ok(attributes),
            errno => Err(Unopened::Failed { what: "ask for its limits", errno: Errno::new(errno) }),
        }
    }

    /// Largest MTU and that in force of port `number`; nothing where the device does not answer.
    fn mtus(&self, number: u8) -> (Option<u16>, Option<u16>) {
        // SAFETY: a C struct of integers, for which zeros are valid.
        let mut port: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open, and the struct is ours and at least as large as what the call fills.
        let errno = unsafe { ___ibv_query_port(self.0.as_ptr(), number, &raw mut port) };
        match errno {
            0 => (mtu(port.max_mtu), mtu(port.active_mtu)),
            _ => (None, None),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: open since `Context::open`, closed once, and nothing was made on it.
        let ret = unsafe { ibv_close_device(self.0.as_ptr()) };
        if ret != 0 {
            tracing::warn!(error = %os_errno(), "an RDMA device could not be closed");
        }
    }
}

fn ask(list: &List, device: NonNull<ibv_device>) -> Result<Opened, Unopened> {
    let context = Context::open(list, device)?;
    let attributes = context.attributes()?;
    let count = |value: c_int| u32::try_from(value).unwrap_or(0);
    let firmware: Vec<u8> = attributes.fw_ver.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    Ok(Opened {
        limits: Limits {
            vendor_id: attributes.vendor_id,
            vendor_part_id: attributes.vendor_part_id,
            hardware_version: attributes.hw_ver,
            max_qp: count(attributes.max_qp),
            max_qp_wr: count(attributes.max_qp_wr),
            max_cq: count(attributes.max_cq),
            max_cqe: count(attributes.max_cqe),
            max_mr: count(attributes.max_mr),
            max_mr_size: attributes.max_mr_size,
            max_pd: count(attributes.max_pd),
            max_srq: count(attributes.max_srq),
        },
        firmware: String::from_utf8_lossy(&firmware).trim().to_owned(),
        guid: u64::from_be(attributes.node_guid),
        mtus: (1..=attributes.phys_port_cnt).map(|number| context.mtus(number)).collect(),
    })
}

/// The bytes behind verbs' code of an MTU: 1 is 256, 5 is 4096.
fn mtu(code: u32) -> Option<u16> {
    (1..=5).contains(&code).then(|| 128 << code)
}

/// The calling thread's `errno`, which libibverbs sets.
fn os_errno() -> Errno {
    Errno::new(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes_are_powers_of_two() {
        let all: Vec<_> = (0..=6).map(mtu).collect();
        assert_eq!(all, [None, Some(256), Some(512), Some(1024), Some(2048), Some(4096), None]);
    }

    #[test]
    fn lists_and_contexts_leave_no_files_open() {
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let first = read().map(|devices| devices.len());
        let before = open();
        for _ in 0..100 {
            assert_eq!(read().map(|devices| devices.len()), first);
        }
        assert_eq!(open(), before);
    }
}
