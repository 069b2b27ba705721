//! [`Traits`]: what the switch must know of a port's kind, beyond what DPDK reports.

use pmd::{PortInfo, StartedPort};

use super::error::QueueError;
use super::interface::Interface;
use super::preflight;

/// What a device has around a packet of its MTU: Ethernet header and two VLAN tags.
const DEVICE: u32 = 22;

/// Who keeps a port's MTU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MtuControl {
    /// The device: `PortConfig::mtu` at start, `StartedPort::set_mtu` later.
    Device,
    /// These kernel interfaces, several for a bond; the driver would refuse more than 1500.
    Interfaces(Vec<Interface>),
    /// Nobody: any frame that fits the port's buffers passes.
    Nobody,
}

/// What the switch must know of a port's kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Received TCP and UDP packets may have unfinished checksums without saying so: the switch completes
    /// them before they leave on another port.
    pub partial_checksums: bool,
    /// The device takes TCP super-frames by `wire::TxRequest`: what is for it is not cut in software. It may deliver them, too;
    /// that any port may.
    pub super_frames: bool,
    /// Fewest receive queues: all that the peer or the kernel spreads packets over.
    pub min_rx_queues: u16,
    /// Most receive queues.
    pub max_rx_queues: u16,
    /// Fewest transmit queues.
    pub min_tx_queues: u16,
    /// Most transmit queues.
    pub max_tx_queues: u16,
    /// As many transmit as receive queues.
    pub equal_queues: bool,
    /// Receive descriptors to start with. A port holds up to this many buffers of its pool a queue.
    pub rx_desc: u16,
    /// Transmit descriptors to start with.
    pub tx_desc: u16,
    /// Who keeps the MTU.
    pub mtu: MtuControl,
    /// The largest MTU that it can get while it runs: a larger one takes other rings or buffers, and so a port made anew.
    pub max_running_mtu: u16,
    /// Its link is that of its peer, and cheap to ask for.
    pub tells_link: bool,
    /// A device of its own on some bus, which is expected to spread packets over its queues.
    pub is_nic: bool,
    /// Bytes that a segment of the port's pool must have room for (`Mempool::segment_room`).
    pub min_segment: u16,
    /// Buffers of the pool that the driver may keep for good when the port is closed.
    pub kept_buffers: u16,
}

impl Default for Traits {
    fn default() -> Self {
        Self {
            partial_checksums: false,
            super_frames: false,
            min_rx_queues: 1,
            max_rx_queues: 1,
            min_tx_queues: 1,
            max_tx_queues: 1,
            equal_queues: false,
            rx_desc: 512,
            tx_desc: 512,
            mtu: MtuControl::Nobody,
            max_running_mtu: u16::MAX,
            tells_link: false,
            is_nic: false,
            min_segment: 64,
            kept_buffers: 0,
        }
    }
}

impl Traits {
    /// A kind whose devices have exactly `queues` pairs, all of them polled.
    pub(super) fn exactly(queues: u16) -> Self {
        Self { min_rx_queues: queues, max_rx_queues: queues, max_tx_queues: queues, ..Self::default() }
    }

    /// A kind without an ethdev, of exactly `queues` pairs: it tells its link, and takes super-frames.
    pub(super) fn without_ethdev(queues: u16) -> Self {
        Self {
            equal_queues: true,
            min_tx_queues: queues,
            tells_link: true,
            super_frames: true,
            ..Self::exactly(queues)
        }
    }

    /// A kind whose devices have up to `queues` pairs.
    pub(super) fn up_to(queues: u16) -> Self {
        Self { max_rx_queues: queues, max_tx_queues: queues, ..Self::default() }
    }

    /// Never more than the device reports.
    pub(super) fn bounded(mut self, info: &PortInfo) -> Self {
        self.max_rx_queues = self.max_rx_queues.min(info.max_rx_queues);
        self.max_tx_queues = self.max_tx_queues.min(info.max_tx_queues);
        self.min_rx_queues = self.min_rx_queues.min(self.max_rx_queues);
        self.min_tx_queues = self.min_tx_queues.min(self.max_tx_queues);
        self
    }

    /// What holds for a bond of two: as many queues as both have, and what either needs.
    pub(super) fn bonded_with(self, other: Self) -> Self {
        let mtu = match (self.mtu, other.mtu) {
            (MtuControl::Interfaces(some), MtuControl::Interfaces(more)) => {
                MtuControl::Interfaces([some, more].concat())
            }
            (mtu, _) => mtu,
        };
        Self {
            partial_checksums: self.partial_checksums || other.partial_checksums,
            super_frames: self.super_frames && other.super_frames,
            min_rx_queues: self.min_rx_queues.max(other.min_rx_queues),
            max_rx_queues: self.max_rx_queues.min(other.max_rx_queues),
            min_tx_queues: self.min_tx_queues.max(other.min_tx_queues),
            max_tx_queues: self.max_tx_queues.min(other.max_tx_queues),
            equal_queues: self.equal_queues || other.equal_queues,
            rx_desc: self.rx_desc.max(other.rx_desc),
            tx_desc: self.tx_desc.max(other.tx_desc),
            mtu,
            max_running_mtu: self.max_running_mtu.min(other.max_running_mtu),
            tells_link: self.tells_link && other.tells_link,
            is_nic: self.is_nic && other.is_nic,
            min_segment: self.min_segment.max(other.min_segment),
            kept_buffers: self.kept_buffers + other.kept_buffers,
        }
    }

    /// True when the MTU can be set at all.
    pub fn mtu_settable(&self) -> bool {
        self.mtu != MtuControl::Nobody
    }

    /// The MTU to start the device with, out of the one that is wanted: none where the device does not keep it.
    pub fn start_mtu(&self, wanted: Option<u16>) -> Option<u16> {
        wanted.filter(|_| self.mtu == MtuControl::Device)
    }

    /// As started, with an MTU if one was given, on buffers of so much room. Whether a device may fill several with one frame is
    /// settled then.
    pub(crate) fn started(mut self, mtu: Option<u16>, room: usize) -> Self {
        let fits = u16::try_from(room.saturating_sub(DEVICE as usize)).unwrap_or(u16::MAX);
        let chains = self.super_frames || mtu.unwrap_or(1500) > fits;
        if self.mtu == MtuControl::Device && !chains {
            self.max_running_mtu = self.max_running_mtu.min(fits);
        }
        self
    }

    /// The longest frame that the driver of a started port takes, as far as it has such a limit.
    pub fn max_frame(&self, port: &StartedPort) -> Option<u32> {
        /// Ethernet header and the one VLAN tag that the kernel lets through beyond the MTU.
        const KERNEL: u32 = 18;
        /// The longest IP packet. What a super-frame is cut into, the pipeline has compared with the MTU.
        const SUPER_FRAME: u32 = 65_535 + KERNEL;
        match &self.mtu {
            MtuControl::Nobody => None,
            _ if self.super_frames => Some(SUPER_FRAME),
            MtuControl::Device => port.mtu().ok().map(|mtu| u32::from(mtu) + DEVICE),
            MtuControl::Interfaces(ifaces) => {
                let names = ifaces.iter().filter_map(|iface| iface.name_now().ok());
                let mtus = names.filter_map(|iface| preflight::interface_mtu(&iface).ok());
                mtus.min().map(|mtu| mtu + KERNEL)
            }
        }
    }

    /// The numbers of receive and transmit queues to start with: those asked for, else one for each of so many
    /// workers as far as the port has them.
    ///
    /// # Errors
    /// [`QueueError`] for a number that was asked for and that the port cannot have.
    pub fn queues(&self, rx: Option<u16>, tx: Option<u16>, workers: u16) -> Result<(u16, u16), QueueError> {
        let pick = |key, wanted: Option<u16>, min: u16, max: u16| match wanted {
            Some(wanted) if (min..=max).contains(&wanted) => Ok(wanted),
            Some(wanted) => {
                let remedy = match min == max {
                    true => "leave it out, or set the port's own `queues`",
                    false => "give one of these",
                };
                Err(QueueError::Range { key, wanted, min, max, remedy })
            }
            None => Ok(workers.clamp(min, max)),
        };
        let (rx_or_tx, tx_or_rx) = if self.equal_queues { (rx.or(tx), tx.or(rx)) } else { (rx, tx) };
        let rx = pick("rx-queues", rx_or_tx, self.min_rx_queues, self.max_rx_queues)?;
        let tx = pick("tx-queues", tx_or_rx, self.min_tx_queues, self.max_tx_queues)?;
        if self.equal_queues && rx != tx {
            return Err(QueueError::Unequal { rx, tx });
        }
        Ok((rx, tx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_follow_wishes_workers_and_limits() {
        let traits = Traits::up_to(4);
        assert_eq!(traits.queues(None, None, 2), Ok((2, 2)));
        assert_eq!(traits.queues(None, None, 9), Ok((4, 4)));
        assert_eq!(traits.queues(Some(1), Some(3), 2), Ok((1, 3)));
        let error = traits.queues(Some(5), None, 2).unwrap_err();
        assert_eq!(error.to_string(), "rx-queues = 5: this port takes 1 to 4; give one of these");
        let fixed = Traits::exactly(2);
        assert_eq!(fixed.queues(None, None, 1), Ok((2, 1)));
        let error = fixed.queues(Some(1), None, 1).unwrap_err().to_string();
        assert!(error.contains("takes 2 to 2; leave it out"), "{error}");
        let equal = Traits { equal_queues: true, ..Traits::up_to(8) };
        assert_eq!(equal.queues(Some(3), None, 1), Ok((3, 3)));
        assert_eq!(equal.queues(Some(3), Some(2), 1), Err(QueueError::Unequal { rx: 3, tx: 2 }));
    }

    #[test]
    fn the_start_mtu_is_the_devices_only() {
        let device = Traits { mtu: MtuControl::Device, ..Traits::default() };
        assert_eq!(device.start_mtu(Some(1600)), Some(1600));
        assert_eq!(Traits::default().start_mtu(Some(1600)), None);
        assert!(device.mtu_settable() && !Traits::default().mtu_settable());
    }

    #[test]
    fn ports_mtu_grows_while_a_device_runs_as_far_as_its_buffers_go() {
        let most = |mtu: MtuControl, started: Option<u16>| {
            Traits { mtu, ..Traits::default() }.started(started, 2048).max_running_mtu
        };
        assert_eq!((most(MtuControl::Device, None), most(MtuControl::Device, Some(2026))), (2026, 2026));
        assert_eq!(most(MtuControl::Device, Some(2027)), u16::MAX, "it has chains of buffers already");
        assert_eq!(most(MtuControl::Nobody, None), u16::MAX);
        let sockets = Traits { mtu: MtuControl::Device, ..Traits::without_ethdev(1) };
        assert_eq!(
            sockets.started(Some(1500), 2048).max_running_mtu,
            u16::MAX,
            "super-frames come in chains"
        );
    }
}
