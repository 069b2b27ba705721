//! What is known of a connection: TCP by its handshake, FIN and RST (RFC 9293 section 3.3.2, as seen from the middle); all
//! else by whether both directions were seen.

use wire::tcp::flags;

use super::ConnectionTimes;
use super::key::Kind;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Opened by one side; TCP: the handshake is not complete.
    Opening,
    /// Both sides have spoken; TCP: the handshake is complete.
    Established,
    /// TCP: one side has sent its FIN.
    Closing,
    /// TCP: both sides have. What still comes is the last acknowledgements.
    TimeWait,
    /// TCP: a side has sent a RST, or rules have ended it.
    Reset,
}

/// The state of a connection in one word; all zero before it has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionState(pub(super) u32);

impl ConnectionState {
    /// None yet.
    pub const NONE: Self = Self(0);

    const PHASE: u32 = 7;
    /// The vNIC opened it, not its peer.
    const OUT: u32 = 1 << 3;
    /// TCP: the SYN was answered.
    const ANSWERED: u32 = 1 << 4;
    /// TCP: its beginning was not seen.
    const PICKED_UP: u32 = 1 << 5;
    const FIN_OF_OPENER: u32 = 1 << 6;
    const FIN_OF_OTHER: u32 = 1 << 7;

    /// Opened by a packet with these TCP flags (0 for other protocols); `out`: the vNIC sent it. `note` is what the rules
    /// need of the first packet beside the key: type and code of ICMP.
    pub const fn opened(out: bool, tcp_flags: u8, is_tcp: bool, note: u16) -> Self {
        let picked_up = is_tcp && tcp_flags & flags::SYN == 0;
        Self(
            Self::phase_bits(Phase::Opening)
                | if out { Self::OUT } else { 0 }
                | if picked_up { Self::PICKED_UP } else { 0 }
                | (note as u32) << 16,
        )
    }

    /// In one word, for another process.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// From the word of another process; bits that mean nothing are left out.
    pub const fn from_bits(bits: u32) -> Self {
        let known = Self::PHASE
            | Self::OUT
            | Self::ANSWERED
            | Self::PICKED_UP
            | Self::FIN_OF_OPENER
            | Self::FIN_OF_OTHER
            | 0xffff << 16;
        Self(bits & known)
    }

    const fn phase_bits(phase: Phase) -> u32 {
        phase as u32 + 1
    }

    /// How far it is; [`Phase::Reset`] where there is nothing.
    pub const fn phase(self) -> Phase {
        match self.0 & Self::PHASE {
            1 => Phase::Opening,
            2 => Phase::Established,
            3 => Phase::Closing,
            4 => Phase::TimeWait,
            _ => Phase::Reset,
        }
    }

    /// The same in another phase.
    #[must_use]
    pub const fn with_phase(self, phase: Phase) -> Self {
        Self(self.0 & !Self::PHASE | Self::phase_bits(phase))
    }

    /// True when the vNIC opened it.
    pub const fn is_out(self) -> bool {
        self.0 & Self::OUT != 0
    }

    /// Type and code of the first packet of ICMP.
    pub const fn note(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// True when its flows may stay in the NFT.
    pub const fn is_settled(self) -> bool {
        matches!(self.phase(), Phase::Established | Phase::Closing | Phase::TimeWait)
    }

    /// True when it has ended: packets do not keep it alive.
    pub const fn is_over(self) -> bool {
        matches!(self.phase(), Phase::TimeWait | Phase::Reset)
    }

    /// The state after a packet of TCP with these flags, of the side that opened it or of the other one. Sequence numbers
    /// are not followed: a RST that its receiver would not believe ends the connection here.
    #[must_use]
    pub const fn after_tcp(self, tcp_flags: u8, by_opener: bool) -> Self {
        if self.is_over() {
            return self;
        }
        if tcp_flags & flags::RST != 0 {
            return self.with_phase(Phase::Reset);
        }
        if matches!(self.phase(), Phase::Opening) {
            let synchronises = tcp_flags & flags::SYN != 0;
            let next = match (by_opener, synchronises) {
                (false, true) if tcp_flags & flags::ACK != 0 => Self(self.0 | Self::ANSWERED),
                (true, false) if self.0 & Self::ANSWERED != 0 => self.with_phase(Phase::Established),
                (false, false) if self.0 & Self::PICKED_UP != 0 => self.with_phase(Phase::Established),
                _ => self,
            };
            return next.after_fin(tcp_flags, by_opener);
        }
        self.after_fin(tcp_flags, by_opener)
    }

    const fn after_fin(self, tcp_flags: u8, by_opener: bool) -> Self {
        if tcp_flags & flags::FIN == 0 {
            return self;
        }
        let seen = Self(self.0 | if by_opener { Self::FIN_OF_OPENER } else { Self::FIN_OF_OTHER });
        let both = Self::FIN_OF_OPENER | Self::FIN_OF_OTHER;
        seen.with_phase(if seen.0 & both == both { Phase::TimeWait } else { Phase::Closing })
    }

    /// The state after a packet of another protocol.
    #[must_use]
    pub const fn after_other(self, by_opener: bool) -> Self {
        match (self.phase(), by_opener) {
            (Phase::Opening, false) => self.with_phase(Phase::Established),
            _ => self,
        }
    }

    /// How long it lives without a packet, in ticks.
    pub const fn lives(self, kind: Kind, times: &ConnectionTimes) -> u32 {
        match (kind, self.phase()) {
            (_, Phase::Reset | Phase::TimeWait | Phase::Closing) => times.tcp_closing,
            (Kind::Tcp, Phase::Opening) => times.tcp_opening,
            (Kind::Tcp, Phase::Established) => times.tcp_established,
            (Kind::Icmp, _) => times.icmp,
            (Kind::QueuePairs | Kind::UnreliableRdma, _) => times.rdma,
            (Kind::Other, Phase::Opening) => times.one_way,
            (Kind::Other, Phase::Established) => times.both_ways,
        }
    }
}
