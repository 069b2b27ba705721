//! What the manager knows of one flow.

use std::fmt;

use super::rate::{Rate, RateEstimator};
use crate::offload::InstalledChain;
use crate::offload::counter::DeviceCounter;
use crate::offload::translate::{FlowSelector, OffloadRefusal};

/// Where a flow is, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// In software, for this reason.
    Software(Why),
    /// Its rules are on their way.
    Installing,
    /// All of its packets meet its rules.
    Hardware,
    /// Some of its queue pairs are in hardware.
    Partial,
    /// In software: what hardware would do is not the same.
    Refused(OffloadRefusal),
    /// In software: the device's own words.
    RefusedByDevice(String),
}

/// Why a flow that could be offloaded is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// It carries less than [`super::Policy`] asks of a flow.
    Cold,
    /// There was no moment without packets of it on their way.
    NoGap,
    /// There is no room, and no offloaded flow is clearly colder.
    NoRoom,
    /// It waits for its turn: rules are made at a limited rate.
    Turn,
    /// An operator has pinned it to software.
    Pinned,
    /// Offload is off, or the device is gone.
    Off,
    /// Software does not forward either: the switch is stopped, or in a mode without tables.
    Stopped,
    /// Its queue pair is not admitted, or not any more.
    NotAdmitted,
    /// Its class is over its rate: what a meter turns away has to wait, and only software has queues.
    OverRate,
    /// No worker has it in its table any more: its next packet puts it there again, in software.
    Unknown,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self {
            Self::Installing => return write!(f, "installing"),
            Self::Hardware => return write!(f, "hardware"),
            Self::Partial => return write!(f, "partial: some of its queue pairs are in hardware"),
            Self::Refused(refusal) => return write!(f, "refused: {refusal}"),
            Self::RefusedByDevice(words) => return write!(f, "refused: {words}"),
            Self::Software(why) => why,
        };
        write!(f, "software: ")?;
        match why {
            Why::Cold => write!(f, "not hot"),
            Why::NoGap => write!(f, "no gap"),
            Why::NoRoom => write!(f, "no room for its rules"),
            Why::Turn => write!(f, "waits for its turn"),
            Why::Pinned => write!(f, "pinned"),
            Why::Off => write!(f, "offload is off"),
            Why::Stopped => write!(f, "the switch is stopped, or not in overlay mode"),
            Why::Unknown => write!(f, "no worker knows it any more"),
            Why::NotAdmitted => write!(f, "its queue pair is not admitted"),
            Why::OverRate => write!(f, "its class is over its rate"),
        }
    }
}

impl Status {
    /// What is to be said of an NFT flow two of whose queue pairs are here and there.
    pub(super) fn with(self, other: Self) -> Self {
        let weight = |status: &Self| match status {
            Self::Partial => 4,
            Self::Hardware => 3,
            Self::Installing => 2,
            Self::Software(_) => 1,
            Self::Refused(_) | Self::RefusedByDevice(_) => 0,
        };
        match (weight(&self), weight(&other)) {
            (3, 3) => Self::Hardware,
            (3 | 4, _) | (_, 3 | 4) => Self::Partial,
            (a, b) if a >= b => self,
            _ => other,
        }
    }
}

/// Where an operator wants a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pin {
    /// Its packets meet no rule of its own.
    Software,
    /// In hardware, hot or not.
    Hardware,
}

/// How far the rules of a flow are.
pub(super) enum InstallState {
    Software {
        status: Status,
        not_before_ns: u64,
    },
    /// Rules are made but for the gate, since then.
    Preparing(InstalledChain, u64),
    /// The gate is made; since when it should have been.
    Opening(InstalledChain, u64),
    Hardware(InstalledChain),
}

/// A flow as the manager knows it: where it is, where it has to be, and how fast it is.
pub(super) struct OffloadFlow {
    pub selector: FlowSelector,
    pub state: InstallState,
    pub pin: Option<Pin>,
    pub meter: RateEstimator,
    /// What its gate has counted since it was opened last.
    pub counter: DeviceCounter,
    /// When that was last believed, or the flow came into hardware; or when it began to tell nothing that is believed.
    pub counted_ns: u64,
    /// The last reading was not believed, or not to be had.
    pub is_silent: bool,
    /// The device has said that no packet came for long.
    pub is_aged: bool,
    /// Since when it has been too cold for hardware.
    pub cold_since_ns: Option<u64>,
    /// When software told of it last.
    pub told_ns: u64,
}

impl OffloadFlow {
    pub fn new(selector: FlowSelector, meter: RateEstimator, now_ns: u64) -> Self {
        Self {
            selector,
            state: InstallState::software(Status::Software(Why::Cold)),
            pin: None,
            meter,
            counter: DeviceCounter::default(),
            counted_ns: 0,
            is_silent: false,
            is_aged: false,
            cold_since_ns: None,
            told_ns: now_ns,
        }
    }

    pub fn rate(&self) -> Rate {
        self.meter.rate()
    }

    pub fn status(&self) -> Status {
        match &self.state {
            InstallState::Software { status, .. } => status.clone(),
            InstallState::Preparing(..) | InstallState::Opening(..) => Status::Installing,
            InstallState::Hardware(_) => Status::Hardware,
        }
    }
}

impl InstallState {
    pub const fn software(status: Status) -> Self {
        Self::Software { status, not_before_ns: 0 }
    }

    /// The chain, whatever there is of it.
    pub fn installed(&self) -> Option<&InstalledChain> {
        match self {
            Self::Software { .. } => None,
            Self::Preparing(installed, _) | Self::Opening(installed, _) | Self::Hardware(installed) => {
                Some(installed)
            }
        }
    }

    /// The same, to be changed.
    pub fn installed_mut(&mut self) -> Option<&mut InstalledChain> {
        match self {
            Self::Software { .. } => None,
            Self::Preparing(installed, _) | Self::Opening(installed, _) | Self::Hardware(installed) => {
                Some(installed)
            }
        }
    }

    pub fn into_installed(self) -> Option<InstalledChain> {
        match self {
            Self::Software { .. } => None,
            Self::Preparing(installed, _) | Self::Opening(installed, _) | Self::Hardware(installed) => {
                Some(installed)
            }
        }
    }
}
