//! Starting a port: configuration checked against what the port reports, queues made.

use std::sync::Arc;

use dpdk_sys as sys;
use wire::TunnelTso;

use super::attach::Kind;
use super::{Port, PortInfo, RssConfig, RssReport, Running, RxOffloads, StartedPort, TxOffloads, offload};
use crate::error::{Errno, PortError};
use crate::flags::ANY_NODE;
use crate::flow::{self, FlowEngine, FlowQueues};
use crate::log;
use crate::mbuf::HEAD_BYTES;
use crate::mempool::Mempool;
use crate::queue::ethdev::BLOCKING;
use crate::queue::{RxQueue, TxQueue};

/// How a port is started.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Receive queues. With none the port receives nothing, as one that only takes rules; not every driver starts so.
    pub rx_queues: u16,
    /// Transmit queues.
    pub tx_queues: u16,
    /// Descriptors of a receive queue; rounded to what the port takes.
    pub rx_desc: u16,
    /// Descriptors of a transmit queue; rounded to what the port takes.
    pub tx_desc: u16,
    /// The MTU; as it is when not given.
    pub mtu: Option<u16>,
    /// Receive frames for any address.
    pub promiscuous: bool,
    /// How packets spread over the receive queues.
    pub rss: Option<RssConfig>,
    /// Receive offloads that must be there. Chains of buffers for long frames are switched on by themselves
    /// where they are needed.
    pub rx_offloads: RxOffloads,
    /// Transmit offloads that must be there. Packets of several segments are switched on by themselves.
    pub tx_offloads: TxOffloads,
    /// Have the device cut TCP super-frames inside VxLAN, where it can; [`StartedPort::tunnel_tso`] says whether it does. A port of the
    /// kernel's gives such frames on whole, then: else it cuts what is in tunnels of a container's own.
    pub tunnel_tso: bool,
    /// Which API of rte_flow its rules go through.
    pub flow_engine: FlowEngine,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            rx_queues: 1,
            tx_queues: 1,
            rx_desc: 1024,
            tx_desc: 1024,
            mtu: None,
            promiscuous: true,
            rss: None,
            rx_offloads: RxOffloads::NONE,
            tx_offloads: TxOffloads::NONE,
            tunnel_tso: false,
            flow_engine: FlowEngine::Sync,
        }
    }
}

impl PortConfig {
    /// For a port that has so many pairs of queues, no more and no fewer.
    pub(super) fn exactly(&self, port: &str, queues: u16) -> Result<(), PortError> {
        let numbers =
            [("number of receive queues", self.rx_queues), ("number of transmit queues", self.tx_queues)];
        match numbers.into_iter().find(|(_, value)| *value != queues) {
            None => Ok(()),
            Some((what, value)) => {
                let (value, min, max) = (value.into(), queues.into(), queues.into());
                Err(PortError::Range { name: port.into(), what, value, min, max })
            }
        }
    }
}

/// Drivers that fill fresh buffers of their pool, each to its end before they chain the next: a look at every
/// packet, about ten cycles, is saved there. Others are looked at, for they may pass on what they were given.
const FILLS_SEGMENTS: &[&str] = &["net_null", "net_pcap", "net_af_packet"];

/// A started port with its queues, all of them, in order.
pub(super) type Started = (StartedPort, Vec<RxQueue>, Vec<TxQueue>);

impl Port {
    /// Starts the port; packets it receives come from `pool`.
    ///
    /// # Errors
    /// The port, unchanged but perhaps configured, and why it did not start.
    #[allow(clippy::result_large_err, reason = "once per port, and the port must come back")]
    pub fn start(mut self, config: &PortConfig, pool: &Mempool) -> Result<Started, (Self, PortError)> {
        match self.claim.kind.clone() {
            Kind::Interface(interface) => return self.start_sockets(interface, config, pool),
            Kind::Tap(tap) => return self.start_tap(tap, config, pool),
            Kind::Vhost(socket) => return self.start_vhost(socket, config, pool),
            Kind::Ethdev => {}
        }
        match self.bring_up(config, pool) {
            Ok((plan, flow_queues)) => {
                let running = Running::new(self.claim, pool.clone(), &plan, config.rx_queues, flow_queues);
                let running = Arc::new(running);
                let rx = (0..config.rx_queues).map(|queue| RxQueue::new(&running, queue)).collect();
                let tx = (0..config.tx_queues).map(|queue| TxQueue::new(&running, queue)).collect();
                Ok((StartedPort::new(running, config.rx_queues, config.tx_queues), rx, tx))
            }
            Err(error) => Err((self, error)),
        }
    }

    /// How it was started, and the flow queues that its driver has now.
    fn bring_up(
        &mut self,
        config: &PortConfig,
        pool: &Mempool,
    ) -> Result<(Plan, Option<FlowQueues>), PortError> {
        let info = self.info()?;
        let plan = Plan::new(config, &info, pool)?;
        let id = self.claim.id.get();

        let mut conf = plan.conf();
        // The key, if any, outlives the call; DPDK copies it and writes nothing.
        if let Some(key) = config.rss.as_ref().and_then(|rss| rss.key.as_ref()).filter(|_| plan.spreads()) {
            conf.rx_adv_conf.rss_conf.rss_key = key.as_ptr().cast_mut();
            conf.rx_adv_conf.rss_conf.rss_key_len = key.len() as u8;
        }
        conf.rxmode.mtu = config.mtu.or_else(|| current_mtu(id)).unwrap_or(0).into();
        self.step("configure", || {
            // SAFETY: a stopped port that we hold, and a whole configuration.
            unsafe { sys::rte_eth_dev_configure(id, config.rx_queues, config.tx_queues, &raw const conf) }
        })?;
        let (mut rx_desc, mut tx_desc) = (config.rx_desc, config.tx_desc);
        self.step("adjust descriptors", || {
            // SAFETY: two valid places.
            unsafe { sys::rte_eth_dev_adjust_nb_rx_tx_desc(id, &raw mut rx_desc, &raw mut tx_desc) }
        })?;

        // From here on the driver may hold buffers of the pool.
        self.claim.pool = Some(pool.clone());
        let node = info.numa.unwrap_or(ANY_NODE.cast_unsigned());
        for queue in 0..config.rx_queues {
            self.step("set up a receive queue", || {
                // SAFETY: a stopped, configured port; the default queue settings; a pool that `claim` keeps.
                unsafe { sys::rte_eth_rx_queue_setup(id, queue, rx_desc, node, std::ptr::null(), pool.raw()) }
            })?;
        }
        for queue in 0..config.tx_queues {
            self.step("set up a transmit queue", || {
                // SAFETY: a stopped, configured port; the default queue settings.
                unsafe { sys::rte_eth_tx_queue_setup(id, queue, tx_desc, node, std::ptr::null()) }
            })?;
        }
        if let Some(mtu) = config.mtu {
            // Drivers differ in whether configuring set it. Those without an MTU carry any frame.
            match self.step("set the MTU", || {
                // SAFETY: a port that we hold.
                unsafe { sys::rte_eth_dev_set_mtu(id, mtu) }
            }) {
                Err(PortError::Unsupported { .. }) | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
        let flow_queues = flow::configure(id, &config.flow_engine, self.claim.flow_queues)
            .map_err(|error| PortError::FlowQueues { name: self.claim.name.clone(), error })?;
        self.claim.flow_queues = self.claim.flow_queues.or(flow_queues);
        // SAFETY: a configured, stopped port.
        self.step("start", || unsafe { sys::rte_eth_dev_start(id) })?;
        if let Err(error) = self.set_promiscuous(config.promiscuous) {
            // SAFETY: just started, and no queue is out.
            unsafe { sys::rte_eth_dev_stop(id) };
            return Err(error);
        }
        Ok((plan, flow_queues))
    }

    fn set_promiscuous(&self, on: bool) -> Result<(), PortError> {
        let id = self.claim.id.get();
        let set = self.step("set promiscuous mode", || {
            if on {
                // SAFETY: a port that we hold.
                unsafe { sys::rte_eth_promiscuous_enable(id) }
            } else {
                // SAFETY: a port that we hold.
                unsafe { sys::rte_eth_promiscuous_disable(id) }
            }
        });
        // A driver without the notion (ring, null) delivers everything anyway.
        if let Err(PortError::Unsupported { .. }) = set { Ok(()) } else { set }
    }

    fn step(&self, operation: &'static str, call: impl FnOnce() -> i32) -> Result<(), PortError> {
        let name = || self.claim.name.clone();
        let (ret, words) = log::captured(call);
        match Errno::check(ret) {
            Ok(_) => Ok(()),
            Err(errno) if errno.is_unsupported() => Err(PortError::Unsupported { name: name(), operation }),
            Err(errno) => Err(PortError::Operation { name: name(), operation, errno, words }),
        }
    }
}

fn current_mtu(id: u16) -> Option<u16> {
    let mut mtu = 0;
    // SAFETY: a valid place; the function checks the id.
    let ret = unsafe { sys::rte_eth_dev_get_mtu(id, &raw mut mtu) };
    (ret == 0 && mtu > 0).then_some(mtu)
}

/// A configuration that the port can take.
pub(super) struct Plan {
    pub(super) rss: RssReport,
    rx_offloads: RxOffloads,
    tx_offloads: TxOffloads,
    /// What its device does with super-frames inside VxLAN.
    pub(super) tunnel_tso: Option<TunnelTso>,
    /// The driver frees its queues without the packets in them, or keeps those for the next start.
    pub(super) forgets_packets: bool,
    /// The driver may deliver packets with a short first segment, or with a header that others use too.
    pub(super) looks_at_packets: bool,
    /// The driver blocks while it sends, unless it must not.
    pub(super) is_blocking: bool,
}

impl Plan {
    fn new(config: &PortConfig, info: &PortInfo, pool: &Mempool) -> Result<Self, PortError> {
        let range = |what, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(PortError::Range { name: info.name.clone(), what, value, min, max })
        };
        range("number of receive queues", config.rx_queues.into(), 0, info.max_rx_queues.into())?;
        range("number of transmit queues", config.tx_queues.into(), 1, info.max_tx_queues.into())?;
        if let Some(mtu) = config.mtu {
            let (min, max) = (*info.mtu_range.start(), *info.mtu_range.end());
            range("MTU", mtu.into(), min.into(), max.into())?;
        }
        let missing = |direction, missing: Vec<String>, available| {
            if missing.is_empty() {
                return Ok(());
            }
            Err(PortError::Offloads { name: info.name.clone(), direction, missing, available })
        };
        let lacks = config.rx_offloads.without(info.rx_offloads);
        missing("rx", lacks.names(), info.rx_offloads.names())?;
        let lacks = config.tx_offloads.without(info.tx_offloads);
        missing("tx", lacks.names(), info.tx_offloads.names())?;

        let rss = config.rss.as_ref().map(|rss| rss.check(info)).transpose()?.unwrap_or_default();
        let mut automatic = RxOffloads::NONE;
        // Ethernet header and two VLAN tags.
        let frame = usize::from(config.mtu.unwrap_or(1500)) + 22;
        if frame > pool.segment_room() {
            automatic = automatic | RxOffloads::SCATTER;
        }
        if !rss.applied.is_empty() {
            automatic = automatic | RxOffloads::RSS_HASH;
        }
        let rx_offloads = config.rx_offloads | automatic.and(info.rx_offloads);
        let cuts = Some(info.tx_offloads).filter(|_| config.tunnel_tso).and_then(offload::tunnel_tso);
        let tunnel_tso = cuts.map(|cuts| TunnelTso {
            outer_udp_checksum: cuts.contains(TxOffloads::OUTER_UDP_CHECKSUM),
            max_segments: info.max_tx_segments,
        });
        let tx_offloads = config.tx_offloads
            | TxOffloads::MULTI_SEGMENT.and(info.tx_offloads)
            | cuts.unwrap_or(TxOffloads::NONE);
        let forgets_packets = info.driver == "net_ring";
        let fills = FILLS_SEGMENTS.contains(&info.driver.as_str()) && pool.segment_room() >= HEAD_BYTES;
        let looks_at_packets = !fills;
        let is_blocking = BLOCKING.contains(&info.driver.as_str());
        Ok(Self { rss, rx_offloads, tx_offloads, tunnel_tso, forgets_packets, looks_at_packets, is_blocking })
    }

    fn spreads(&self) -> bool {
        !self.rss.applied.is_empty()
    }

    fn conf(&self) -> sys::rte_eth_conf {
        // SAFETY: integers, enums and pointers, for all of which zero is a value: DPDK's defaults.
        let mut conf: sys::rte_eth_conf = unsafe { std::mem::zeroed() };
        conf.rxmode.offloads = self.rx_offloads.bits();
        conf.txmode.offloads = self.tx_offloads.bits();
        if self.spreads() {
            conf.rxmode.mq_mode = sys::RTE_ETH_MQ_RX_RSS;
            conf.rx_adv_conf.rss_conf.rss_hf = self.rss.bits();
        }
        conf
    }
}
