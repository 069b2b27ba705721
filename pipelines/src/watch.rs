//! Where a worker's cycles go: a lap at the end of each stage.
//!
//! [`crate::overlay::Overlay::run`] is generic over what watches it. `()` watches nothing and costs nothing; what a
//! worker uses while somebody asks reads the clock once a stage and burst.

/// The parts of a packet's way, in the order in which it meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Stage {
    /// Taking packets from the rx queue.
    Rx,
    /// Finding the vNIC of a tenant port.
    Bind,
    /// Taking the outer headers off.
    Outer,
    /// What arrives at an uplink and is not VxLAN.
    Underlay,
    /// The fast path: reading usual frames in one go, up to their keys.
    FastPath,
    /// Reading other frames: headers, addresses, tunnel ECN, neighbour protocols, keys.
    Parse,
    /// The flow table.
    Lookup,
    /// Decisions for flows that are not in the table.
    SlowPath,
    /// Admission and counting of queue pairs, and the connection manager's messages.
    Rcft,
    /// Tokens for packets across the tunnel; packets that waited and may go on.
    Dhtb,
    /// Rewriting, encapsulation, and handing over to the port's buffer.
    Forward,
    /// Giving packets to the tx queue.
    Tx,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Self; 12] = [
        Self::Rx,
        Self::Bind,
        Self::Outer,
        Self::Underlay,
        Self::FastPath,
        Self::Parse,
        Self::Lookup,
        Self::SlowPath,
        Self::Rcft,
        Self::Dhtb,
        Self::Forward,
        Self::Tx,
    ];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rx => "rx",
            Self::Bind => "bind",
            Self::Outer => "outer",
            Self::Underlay => "underlay",
            Self::FastPath => "fast-path",
            Self::Parse => "parse",
            Self::Lookup => "lookup",
            Self::SlowPath => "slow-path",
            Self::Rcft => "rcft",
            Self::Dhtb => "dhtb",
            Self::Forward => "forward",
            Self::Tx => "tx",
        }
    }
}

/// What is told of the stages.
pub trait StageWatch {
    /// A burst begins: the first lap is counted from here.
    fn start(&mut self);
    /// A stage has ended that began with so many packets; the next one begins.
    fn lap(&mut self, stage: Stage, packets: u32);
}

impl StageWatch for () {
    #[inline(always)]
    fn start(&mut self) {}

    #[inline(always)]
    fn lap(&mut self, _: Stage, _: u32) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_listed_in_their_order() {
        for (index, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, index, "{}", stage.name());
        }
    }
}
