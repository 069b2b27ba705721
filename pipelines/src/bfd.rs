//! Bidirectional forwarding detection as workers see it: which sessions there are, and what is handed to control of each.
//!
//! A worker tells packets of sessions from those of strangers, checks them and hands them on, a few of each session at a
//! time. Control alone has the state machine (RFC 5880 section 6.8) and says what is sent.

use std::net::IpAddr;

use wire::bfd::Control;

/// Most sessions of a host.
pub const MAX_SESSIONS: usize = 128;
/// Packets of one session that may wait for control. Peers send one in 60 ms at most, a turn of control takes 20 ms, and after
/// a longer one it is enough to know that something came.
pub const MOST_WAITING: u8 = 4;
/// How many may wait already when one comes that names no discriminator: who knows but the addresses does not crowd out the peer.
pub const MOST_BEFORE_UNKNOWING: u8 = MOST_WAITING / 2;

/// A session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdSession {
    /// Which of the [`MAX_SESSIONS`] places it has.
    pub slot: u16,
    /// The number that the other end knows it by (RFC 5880 section 6.3); not 0.
    pub discriminator: u32,
    /// Index of the uplink that it goes by.
    pub uplink: u16,
    /// The address of the other end.
    pub peer: IpAddr,
    /// The own address, which the other end sends to.
    pub local: IpAddr,
    /// There may be routers between (RFC 5883).
    pub multihop: bool,
}

/// All sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BfdSessions {
    by_discriminator: Vec<BfdSession>,
    /// Uplinks that have any.
    uplinks: Vec<u16>,
}

/// What a packet says of which session it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdArrival {
    /// Index of the uplink that it came by.
    pub uplink: u16,
    /// Its source address.
    pub source: IpAddr,
    /// Its destination address.
    pub destination: IpAddr,
    /// It came to the port of sessions over several hops.
    pub multihop: bool,
}

impl BfdSessions {
    /// The sessions, in any order; no two with one discriminator.
    pub fn new(mut sessions: Vec<BfdSession>) -> Self {
        sessions.sort_unstable_by_key(|session| session.discriminator);
        let mut uplinks: Vec<u16> = sessions.iter().map(|session| session.uplink).collect();
        uplinks.sort_unstable();
        uplinks.dedup();
        Self { by_discriminator: sessions, uplinks }
    }

    /// True when an uplink has any: then the switch takes what comes to BFD's ports there.
    #[inline]
    pub fn has(&self, uplink: u16) -> bool {
        self.uplinks.binary_search(&uplink).is_ok()
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &BfdSession> {
        self.by_discriminator.iter()
    }

    /// The session that a packet belongs to: by the discriminator that it names, else by where it comes from (RFC 5880
    /// section 6.8.6, RFC 5881 section 3). It must come from the session's peer to the session's own address, and by its
    /// uplink, in either case: who has seen a discriminator cannot use it from elsewhere.
    pub fn find(&self, your_discriminator: u32, arrival: &BfdArrival) -> Option<&BfdSession> {
        let is_of = |session: &&BfdSession| {
            let &&BfdSession { uplink, peer, local, multihop, .. } = session;
            BfdArrival { uplink, source: peer, destination: local, multihop } == *arrival
        };
        if your_discriminator == 0 {
            return self.by_discriminator.iter().find(is_of);
        }
        let of =
            self.by_discriminator.binary_search_by_key(&your_discriminator, |session| session.discriminator);
        of.ok().and_then(|at| self.by_discriminator.get(at)).filter(is_of)
    }
}

/// A packet of a session, for control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdHeard {
    /// The session's place in the snapshot of that time.
    pub slot: u16,
    /// The session's own discriminator: another one may have the place by now.
    pub discriminator: u32,
    /// The packet, which [`Control::parse`] lets pass.
    pub control: Control,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(slot: u16, discriminator: u32, uplink: u16, peer: u8, multihop: bool) -> BfdSession {
        let address = |host| IpAddr::from([192, 168, uplink as u8, host]);
        BfdSession { slot, discriminator, uplink, peer: address(peer), local: address(1), multihop }
    }

    fn arrival(session: &BfdSession) -> BfdArrival {
        let &BfdSession { uplink, peer, local, multihop, .. } = session;
        BfdArrival { uplink, source: peer, destination: local, multihop }
    }

    #[test]
    fn bfd_packets_find_their_session_and_no_other() {
        let all: Vec<_> = (0..40u16)
            .map(|n| {
                session(n, 0x9e37_79b9u32.wrapping_mul(u32::from(n) + 1), n % 4, 2 + n as u8 / 4, n % 3 == 0)
            })
            .collect();
        let sessions = BfdSessions::new(all.clone());
        assert!(sessions.has(3) && !sessions.has(4) && sessions.iter().len() == 40);
        for own in &all {
            let right = arrival(own);
            assert_eq!(sessions.find(own.discriminator, &right), Some(own));
            assert_eq!(sessions.find(0, &right), Some(own), "by where it comes from");
            assert_eq!(sessions.find(own.discriminator ^ 1, &right), None);
            let elsewhere = IpAddr::from([10, 0, 0, 1]);
            for wrong in [
                BfdArrival { uplink: right.uplink ^ 1, ..right },
                BfdArrival { source: elsewhere, ..right },
                BfdArrival { destination: elsewhere, ..right },
                BfdArrival { multihop: !right.multihop, ..right },
            ] {
                assert_eq!(sessions.find(own.discriminator, &wrong), None, "{wrong:?}");
                assert_eq!(sessions.find(0, &wrong), None, "{wrong:?}");
            }
            // The discriminator of another session is no key to this one.
            let other = &all[usize::from(own.slot + 1) % 40];
            assert_eq!(sessions.find(other.discriminator, &right), None);
        }
        assert_eq!(BfdSessions::default().find(0, &arrival(&all[0])), None);
    }
}
