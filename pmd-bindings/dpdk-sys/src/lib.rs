//! Raw FFI to the installed DPDK: what bindgen makes of its public headers, and a C shim for the rest.
//!
//! Sits under `pmd`, which is its only user. No logic here: no function of this crate decides anything. The
//! `HAS_*` constants say what the headers of this DPDK contain; a dependant's build script sees the same as
//! `DEP_DPDK_HAS_*`.

#![warn(missing_docs)]
#![allow(unsafe_code)]

include!(concat!(env!("OUT_DIR"), "/features.rs"));

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unnecessary_transmutes,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_and_rust_agree_on_sizes() {
        // SAFETY: these functions take nothing and return a compile-time constant of the C side.
        let mbuf = unsafe { dpdk_sys_sizeof_mbuf() };
        assert_eq!((mbuf, mbuf), (size_of::<rte_mbuf>() as u64, DPDK_SYS_MBUF_SIZE.into()));
        // SAFETY: as above.
        assert_eq!(unsafe { dpdk_sys_sizeof_dev_info() }, size_of::<rte_eth_dev_info>() as u64);
        // SAFETY: as above.
        assert_eq!(unsafe { dpdk_sys_sizeof_eth_conf() }, size_of::<rte_eth_conf>() as u64);
        // SAFETY: as above.
        assert_eq!(unsafe { dpdk_sys_sizeof_fp_ops() }, size_of::<rte_eth_fp_ops>() as u64);
    }

    #[test]
    fn features_follow_the_version() {
        assert!(DPDK_VERSION.split('.').next().is_some_and(|year| year.parse::<u32>().is_ok()));
        let mut parts = DPDK_VERSION.split('.').map(|part| part.parse::<u32>().unwrap());
        let version = (parts.next().unwrap(), parts.next().unwrap());
        assert_eq!(HAS_ITEM_IB_BTH, version >= (23, 7));
        assert_eq!(HAS_FLOW_ENCAP_HASH, version >= (24, 3));
        let present = [HAS_ACTION_METER_MARK, HAS_ITEM_METER_COLOR, HAS_FLOW_TEMPLATES];
        assert_eq!(present, [true; 3]);
    }
}
