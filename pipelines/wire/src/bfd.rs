//! Bidirectional forwarding detection: the control packet (RFC 5880 section 4.1) and what every receiver checks of it
//! before it looks for a session (section 6.8.6).
//!
//! The state machine is above. Authentication (section 4.2 and on) is not used: packets with it are told apart only.

use crate::view::View;
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a control packet without an authentication section.
pub const LEN: usize = 24;
/// Bytes of the shortest one with such a section.
const LEN_WITH_AUTHENTICATION: usize = 26;
/// The protocol's version.
pub const VERSION: u8 = 1;
/// UDP destination port of control packets over a single hop (RFC 5881 section 4).
pub const PORT: u16 = 3784;
/// UDP destination port of control packets over several hops (RFC 5883 section 5).
pub const MULTIHOP_PORT: u16 = 4784;
/// The lowest UDP source port of a session (RFC 5881 section 4); they go up to 65535.
pub const FIRST_SOURCE_PORT: u16 = 49152;
/// TTL or hop limit of what is sent, and over a single hop of what is received: proof that no router passed it on
/// (RFC 5881 section 5).
pub const TTL: u8 = 255;

/// State of a session, as its sender sees it (RFC 5880 section 4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Held down by an administrator.
    AdminDown = 0,
    /// Not there, or not yet.
    #[default]
    Down = 1,
    /// The other end is heard, and may not hear this one.
    Init = 2,
    /// Both ends hear each other.
    Up = 3,
}

impl State {
    const ALL: [Self; 4] = [Self::AdminDown, Self::Down, Self::Init, Self::Up];

    /// The name shown to users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AdminDown => "admin-down",
            Self::Down => "down",
            Self::Init => "init",
            Self::Up => "up",
        }
    }
}

/// Diagnostic code: why the sender's session was last taken down (RFC 5880 section 4.1). Others than these are reserved, and
/// received ones are only shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Diagnostic(pub u8);

impl Diagnostic {
    /// Nothing happened.
    pub const NONE: Self = Self(0);
    /// The other end was not heard for the detection time.
    pub const DETECTION_TIME_EXPIRED: Self = Self(1);
    /// The other end said that its session is down.
    pub const NEIGHBOUR_SIGNALED_DOWN: Self = Self(3);
    /// An administrator took it down.
    pub const ADMINISTRATIVELY_DOWN: Self = Self(7);

    /// The name shown to users.
    pub const fn name(self) -> &'static str {
        match self.0 {
            0 => "none",
            1 => "detection-time-expired",
            2 => "echo-failed",
            3 => "neighbour-signaled-down",
            4 => "forwarding-plane-reset",
            5 => "path-down",
            6 => "concatenated-path-down",
            7 => "administratively-down",
            8 => "reverse-concatenated-path-down",
            _ => "reserved",
        }
    }
}

/// The mandatory section of a control packet (RFC 5880 section 4.1), 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Control {
    /// Version (high three bits) and [`Diagnostic`].
    pub version_diagnostic: u8,
    /// [`State`] (high two bits), and the flags [`POLL`](Self::POLL) and so on.
    pub state_flags: u8,
    /// So many packets must be missing for the receiver to take its session down; not 0.
    pub detect_multiplier: u8,
    /// Bytes of the packet.
    pub length: u8,
    /// The sender's number for the session; not 0.
    pub my_discriminator: U32,
    /// The receiver's number, as the sender learned it; 0 before that.
    pub your_discriminator: U32,
    /// The least interval between packets that the sender would use, microseconds.
    pub desired_min_tx: U32,
    /// The least interval between packets that the sender supports, microseconds; 0: send none.
    pub required_min_rx: U32,
    /// The same for echo packets; 0: send none.
    pub required_min_echo_rx: U32,
}

impl Control {
    /// Flag: the receiver is to answer with [`FINAL`](Self::FINAL), so that new intervals hold.
    pub const POLL: u8 = 0x20;
    /// Flag: answers [`POLL`](Self::POLL).
    pub const FINAL: u8 = 0x10;
    /// Flag: the sender's BFD shares fate with its control plane, if clear.
    pub const CONTROL_PLANE_INDEPENDENT: u8 = 0x08;
    /// Flag: an authentication section follows.
    pub const AUTHENTICATION: u8 = 0x04;
    /// Flag: once up, the sender would have the receiver send nothing periodically.
    pub const DEMAND: u8 = 0x02;
    /// Flag: point to multipoint; reserved, always clear.
    pub const MULTIPOINT: u8 = 0x01;

    /// A packet of this version with all other fields zero.
    pub const fn new(state: State, diagnostic: Diagnostic) -> Self {
        Self {
            version_diagnostic: VERSION << 5 | diagnostic.0 & 0x1f,
            state_flags: (state as u8) << 6,
            detect_multiplier: 0,
            length: LEN as u8,
            my_discriminator: U32::ZERO,
            your_discriminator: U32::ZERO,
            desired_min_tx: U32::ZERO,
            required_min_rx: U32::ZERO,
            required_min_echo_rx: U32::ZERO,
        }
    }

    /// The protocol's version.
    #[inline]
    pub const fn version(&self) -> u8 {
        self.version_diagnostic >> 5
    }

    /// Why the sender's session was last taken down.
    #[inline]
    pub const fn diagnostic(&self) -> Diagnostic {
        Diagnostic(self.version_diagnostic & 0x1f)
    }

    /// The sender's state.
    #[inline]
    pub fn state(&self) -> State {
        State::ALL[usize::from(self.state_flags >> 6)]
    }

    /// True when all of `flags` are set.
    #[inline]
    pub const fn has(&self, flags: u8) -> bool {
        self.state_flags & flags == flags
    }

    /// The control packet in a UDP payload, judged by all that can be judged without a session (RFC 5880 section 6.8.6).
    ///
    /// # Errors
    /// The first thing that has it discarded, in the order of that section.
    pub fn parse(payload: &[u8]) -> Result<&Self, Unsound> {
        let (control, _) = Self::view(payload).ok_or(Unsound::Length)?;
        let length = usize::from(control.length);
        let least = if control.has(Self::AUTHENTICATION) { LEN_WITH_AUTHENTICATION } else { LEN };
        if control.version() != VERSION {
            return Err(Unsound::Version);
        }
        if length < least || length > payload.len() {
            return Err(Unsound::Length);
        }
        if control.detect_multiplier == 0 {
            return Err(Unsound::DetectMultiplier);
        }
        if control.has(Self::MULTIPOINT) {
            return Err(Unsound::Multipoint);
        }
        if control.my_discriminator.get() == 0 {
            return Err(Unsound::MyDiscriminator);
        }
        if control.your_discriminator.get() == 0 && !matches!(control.state(), State::Down | State::AdminDown)
        {
            return Err(Unsound::YourDiscriminator);
        }
        if control.has(Self::AUTHENTICATION) {
            return Err(Unsound::Authentication);
        }
        // No packet may answer a poll and be one (section 6.5).
        if control.has(Self::POLL | Self::FINAL) {
            return Err(Unsound::PollAndFinal);
        }
        Ok(control)
    }
}

/// Why a control packet is discarded whatever session it may be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsound {
    /// Another version of the protocol.
    Version,
    /// Shorter than the mandatory section, or longer than what carried it.
    Length,
    /// A detect multiplier of 0.
    DetectMultiplier,
    /// The multipoint bit is set.
    Multipoint,
    /// The sender has no discriminator.
    MyDiscriminator,
    /// The sender claims to hear the receiver and does not know its discriminator.
    YourDiscriminator,
    /// It is authenticated, and no authentication is in use (section 6.8.6).
    Authentication,
    /// It is a poll and answers one.
    PollAndFinal,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::check;
    use proptest::prelude::*;

    /// As bfdd of FRR 8.4.4 sends it.
    const SAMPLE: [u8; LEN] = [
        0x20, 0xc0, 3, 24, 0x50, 0x3a, 0x92, 0x18, 0x11, 0x22, 0x33, 0x44, 0, 1, 0x86, 0xa0, 0, 1, 0x86,
        0xa0, 0, 0, 0xc3, 0x50,
    ];

    fn good() -> Control {
        *Control::parse(&SAMPLE).unwrap()
    }

    #[test]
    fn layout() {
        let control: Control = check::layout(&SAMPLE);
        let mut made = Control::new(State::Up, Diagnostic::NONE);
        made.detect_multiplier = 3;
        (made.my_discriminator, made.your_discriminator) = (U32::new(0x503a_9218), U32::new(0x1122_3344));
        (made.desired_min_tx, made.required_min_rx) = (U32::new(100_000), U32::new(100_000));
        made.required_min_echo_rx = U32::new(50_000);
        assert_eq!(control, made);
        assert_eq!((control.version(), control.state()), (VERSION, State::Up));
        for state in State::ALL {
            for diagnostic in 0..32 {
                let control = Control::new(state, Diagnostic(diagnostic));
                assert_eq!((control.state(), control.diagnostic().0), (state, diagnostic));
                assert_eq!((control.version(), control.has(Control::POLL)), (VERSION, false));
            }
        }
    }

    #[test]
    fn a_packet_cut_anywhere_is_none() {
        for cut in 0..LEN {
            assert_eq!(Control::parse(&SAMPLE[..cut]), Err(Unsound::Length), "cut at {cut}");
        }
        // What carries it may be longer; what it claims may not.
        assert!(Control::parse(&[&SAMPLE[..], &[0; 9]].concat()).is_ok());
    }

    /// What RFC 5880 section 6.8.6 says, read anew: the oracle for every byte with every value.
    fn verdict(bytes: &[u8; LEN]) -> Result<(), Unsound> {
        let authenticated = bytes[1] & 4 != 0;
        let (mine, yours) = (&bytes[4..8], &bytes[8..12]);
        match () {
            () if bytes[0] >> 5 != 1 => Err(Unsound::Version),
            () if bytes[3] != 24 || authenticated => Err(Unsound::Length),
            () if bytes[2] == 0 => Err(Unsound::DetectMultiplier),
            () if bytes[1] & 1 != 0 => Err(Unsound::Multipoint),
            () if mine == [0; 4] => Err(Unsound::MyDiscriminator),
            () if yours == [0; 4] && bytes[1] >> 6 > 1 => Err(Unsound::YourDiscriminator),
            () if bytes[1] & 0x30 == 0x30 => Err(Unsound::PollAndFinal),
            () => Ok(()),
        }
    }

    #[test]
    fn every_byte_with_every_value_is_judged_as_the_rfc_says() {
        for at in 0..LEN {
            for value in 0..=255 {
                for unheard in [false, true] {
                    let mut bytes = SAMPLE;
                    if unheard {
                        bytes[8..12].fill(0);
                    }
                    bytes[at] = value;
                    let judged = Control::parse(&bytes).map(|control| assert_eq!(control.bytes(), bytes));
                    assert_eq!(judged, verdict(&bytes), "byte {at} is {value:#x}");
                }
            }
        }
    }

    #[test]
    fn a_packet_with_authentication_is_told_apart_from_one_that_lies_about_its_length() {
        let mut long = [&SAMPLE[..], &[1, 5, 1, b'x', b'y']].concat();
        long[1] |= Control::AUTHENTICATION;
        assert_eq!(Control::parse(&long), Err(Unsound::Length));
        long[3] = 29;
        assert_eq!(Control::parse(&long), Err(Unsound::Authentication));
        long[3] = 30;
        assert_eq!(Control::parse(&long), Err(Unsound::Length));
        let mut both = good();
        both.state_flags |= Control::POLL | Control::FINAL;
        assert_eq!(Control::parse(both.bytes()), Err(Unsound::PollAndFinal));
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_what_is_read_is_what_was_there(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(control) = Control::parse(&bytes) {
                prop_assert_eq!(control.bytes(), &bytes[..LEN]);
                prop_assert!(control.version() == VERSION && control.detect_multiplier != 0);
            }
        }
    }
}
