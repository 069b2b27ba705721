//! [`PortInfo`]: what a port is and can do, in our words.

use std::ffi::CStr;
use std::ops::RangeInclusive;

use dpdk_sys as sys;
use wire::MacAddr;

use super::{PortId, RssCapabilities, RxOffloads, TxOffloads};
use crate::error::{Errno, PortError, Words};

/// How many descriptors a queue takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimits {
    /// At least.
    pub min: u16,
    /// At most.
    pub max: u16,
    /// In multiples of.
    pub align: u16,
}

/// What a port is and can do.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// Its name.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// Its number.
    pub id: PortId,
    /// Its MAC address.
    pub mac: MacAddr,
    /// MTUs it takes.
    pub mtu_range: RangeInclusive<u16>,
    /// Most receive queues.
    pub max_rx_queues: u16,
    /// Most transmit queues.
    pub max_tx_queues: u16,
    /// Its NUMA node, where it has one.
    pub numa: Option<u32>,
    /// What its RSS can.
    pub rss: RssCapabilities,
    /// Entries of its RSS redirection table, 0 without one.
    pub reta_size: u16,
    /// Bytes of its RSS key, 0 when it does not say.
    pub hash_key_size: u8,
    /// Receive offloads.
    pub rx_offloads: RxOffloads,
    /// Transmit offloads.
    pub tx_offloads: TxOffloads,
    /// Longest frame it can receive.
    pub max_rx_frame: u32,
    /// Smallest receive buffer it takes.
    pub min_rx_buffer: u32,
    /// Receive descriptors.
    pub rx_descriptors: DescriptorLimits,
    /// Transmit descriptors.
    pub tx_descriptors: DescriptorLimits,
    /// Most segments of a packet that is sent; of any packet, super-frames included.
    pub max_tx_segments: u16,
    /// Index of the kernel interface it is bound to.
    pub if_index: Option<u32>,
    /// The e-switch that it is a port of, as the driver numbers them; drivers without one give none.
    pub switch_domain: Option<u16>,
}

impl PortInfo {
    pub(super) fn raw(id: PortId) -> Result<sys::rte_eth_dev_info, Errno> {
        // SAFETY: a structure of integers and pointers, for which zero is a value.
        let mut info: sys::rte_eth_dev_info = unsafe { std::mem::zeroed() };
        // SAFETY: a valid place; the function checks the id.
        let ret = unsafe { sys::rte_eth_dev_info_get(id.get(), &raw mut info) };
        Errno::check(ret).map(|_| info)
    }

    /// Of a port without an ethdev, which copies packets and has checksums and TCP super-frames both ways: what those have in common.
    pub(super) fn without_ethdev(id: PortId, name: &str, driver: &str, queues: u16) -> Self {
        const ANY: DescriptorLimits = DescriptorLimits { min: 1, max: u16::MAX, align: 1 };
        /// Ethernet header and two VLAN tags.
        const LINK: u32 = 22;
        Self {
            name: name.into(),
            driver: driver.into(),
            id,
            mac: MacAddr::default(),
            mtu_range: 68..=u16::MAX,
            max_rx_queues: queues,
            max_tx_queues: queues,
            numa: None,
            rss: RssCapabilities::default(),
            reta_size: 0,
            hash_key_size: 0,
            rx_offloads: RxOffloads::TCP_CHECKSUM | RxOffloads::UDP_CHECKSUM | RxOffloads::TCP_LRO,
            tx_offloads: TxOffloads::TCP_CHECKSUM
                | TxOffloads::UDP_CHECKSUM
                | TxOffloads::TCP_TSO
                | TxOffloads::MULTI_SEGMENT,
            max_rx_frame: u32::from(u16::MAX) + LINK,
            min_rx_buffer: 64,
            rx_descriptors: ANY,
            tx_descriptors: ANY,
            max_tx_segments: u16::MAX,
            if_index: None,
            switch_domain: None,
        }
    }

    pub(super) fn of(id: PortId, name: &str) -> Result<Self, PortError> {
        let raw = Self::raw(id).map_err(|errno| PortError::Operation {
            name: name.into(),
            operation: "read the device's information",
            errno,
            words: Words::default(),
        })?;
        let driver = if raw.driver_name.is_null() {
            String::new()
        } else {
            // SAFETY: a static string of the driver.
            unsafe { CStr::from_ptr(raw.driver_name) }.to_string_lossy().into_owned()
        };
        // SAFETY: reads the port's entry; the function checks the id.
        let node = unsafe { sys::rte_eth_dev_socket_id(id.get()) };
        let limits = |raw: sys::rte_eth_desc_lim| DescriptorLimits {
            min: raw.nb_min,
            max: raw.nb_max,
            align: raw.nb_align.max(1),
        };
        Ok(Self {
            name: name.into(),
            driver,
            id,
            mac: mac_of(id),
            mtu_range: raw.min_mtu..=max_mtu(&raw),
            max_rx_queues: raw.max_rx_queues,
            max_tx_queues: raw.max_tx_queues,
            numa: u32::try_from(node).ok(),
            rss: RssCapabilities::from_bits(raw.flow_type_rss_offloads),
            reta_size: raw.reta_size,
            hash_key_size: raw.hash_key_size,
            rx_offloads: RxOffloads::from_bits(raw.rx_offload_capa),
            tx_offloads: TxOffloads::from_bits(raw.tx_offload_capa),
            max_rx_frame: raw.max_rx_pktlen,
            min_rx_buffer: raw.min_rx_bufsize,
            rx_descriptors: limits(raw.rx_desc_lim),
            tx_descriptors: limits(raw.tx_desc_lim),
            // 0: the driver does not say.
            max_tx_segments: match raw.tx_desc_lim.nb_seg_max {
                0 => u16::MAX,
                most => most,
            },
            if_index: (raw.if_index != 0).then_some(raw.if_index),
            // RTE_ETH_DEV_SWITCH_DOMAIN_ID_INVALID
            switch_domain: Some(raw.switch_info.domain_id).filter(|domain| *domain != u16::MAX),
        })
    }
}

/// The largest MTU that ethdev lets through. Many virtual drivers give no limit of the MTU, but one of the frame.
fn max_mtu(raw: &sys::rte_eth_dev_info) -> u16 {
    const ETHERNET_OVERHEAD: u32 = 18;
    let largest = u32::from(raw.max_mtu);
    let overhead = match raw.max_rx_pktlen.checked_sub(largest) {
        Some(overhead) if raw.max_mtu != u16::MAX && overhead > 0 => overhead,
        _ => ETHERNET_OVERHEAD,
    };
    u16::try_from(raw.max_rx_pktlen.saturating_sub(overhead).min(largest)).unwrap_or(raw.max_mtu)
}

pub(super) fn mac_of(id: PortId) -> MacAddr {
    let mut mac = sys::rte_ether_addr { addr_bytes: [0; 6] };
    // SAFETY: a valid place; the function checks the id and leaves zero on an error.
    unsafe { sys::rte_eth_macaddr_get(id.get(), &raw mut mac) };
    MacAddr(mac.addr_bytes)
}
