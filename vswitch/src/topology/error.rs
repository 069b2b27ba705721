//! Why a change of the topology is refused, in words for whoever asked for it.

use std::net::IpAddr;

use wire::Vni;
use worker::MAX_VNICS;

use crate::config::ConfigErrors;

/// Why a topology cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// The VLT has no free slot.
    #[error("the VLT is full ({0} entries); raise `[vlt] entries` and restart, or remove what nobody needs")]
    VltFull(usize),
    /// More vNICs than a host may have.
    #[error("a switch has at most {MAX_VNICS} vNICs; if some were removed just now, try again in a second")]
    TooManyVnics,
    /// A location for a network that is not there.
    #[error("location {vip}: no VPC has VNI {vni}; add it with `vpc add` or choose another VNI")]
    UnknownVni { vip: IpAddr, vni: Vni },
    /// A route to a vNIC that is not there.
    #[error(
        "a route leads to vNIC {0}, which is not on this host; say the MAC address of a station on another one"
    )]
    UnknownVnic(String),
    /// What no config may have: it could not be read back from the saved state.
    #[error(transparent)]
    Location(#[from] ConfigErrors),
    /// The address belongs to a vNIC of this host.
    #[error("{vip} in VNI {vni} is an address of vNIC {vnic} on this host; remove the vNIC first")]
    LocalVip { vip: IpAddr, vni: Vni, vnic: String },
    /// The VTEP is this host.
    #[error(
        "VTEP {0} is an address of this host's uplink; a location is on another host: give the VTEP of that"
    )]
    OwnVtep(IpAddr),
    /// The VTEP is no host address.
    #[error("VTEP {0} is not a unicast address; give the address of one host")]
    NotUnicast(IpAddr),
    /// No uplink reaches the VTEP.
    #[error("no uplink has a route to VTEP {0}; add a gateway or a route to an `[[uplink]]`")]
    NoRoute(IpAddr),
}
