//! What the virtual router answers vNICs that ask it for an address or for a router: DHCP and router advertisements. From a
//! question and the config to a frame; knows neither workers nor time. What a vNIC is told is in the config, so it is the same after any
//! restart; what advertisements said that holds no longer, [`advertise::Told`] knows.

pub mod advertise;
pub mod dhcp4;
pub mod dhcp6;

use std::net::IpAddr;

/// What came of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A frame to the vNIC: an offer, or whatever else promises nothing.
    Told(Vec<u8>),
    /// A frame that gives the client its address, again or for the first time.
    Given(Vec<u8>),
    /// A frame that refuses it the address that it would have.
    Refused(Vec<u8>),
    /// The client gives its address back, which stays the vNIC's; with what confirms that.
    Released(Option<Vec<u8>>),
    /// Somebody else has these addresses, says the client; with what confirms that it said so.
    Declined(Vec<IpAddr>, Option<Vec<u8>>),
    /// It is for another server, or nothing to answer.
    Silence,
}

#[cfg(test)]
mod tests;
