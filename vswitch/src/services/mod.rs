//! What the virtual router answers vNICs that ask it for an address: DHCP. From a question and the config to a frame; knows
//! neither workers nor time, and keeps nothing: what a vNIC is told is in the config, so it is the same after any restart.

pub mod dhcp4;

use std::net::Ipv4Addr;

/// What came of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A frame to the vNIC: an offer, or whatever else promises nothing.
    Told(Vec<u8>),
    /// A frame that gives the client its address, again or for the first time.
    Given(Vec<u8>),
    /// A frame that refuses it the address that it would have.
    Refused(Vec<u8>),
    /// The client gives its address back, which stays the vNIC's.
    Released,
    /// Somebody else has the address, says the client.
    Declined(Vec<std::net::IpAddr>),
    /// It is for another server, or nothing to answer.
    Silence,
}

impl Answer {
    fn declined(address: Ipv4Addr) -> Self {
        Self::Declined(vec![address.into()])
    }
}

#[cfg(test)]
mod tests;
