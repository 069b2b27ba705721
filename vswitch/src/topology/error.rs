//! Why a change of the topology is refused, in words for whoever asked for it; and the value of the config that it is about, its `path`,
//! which is empty for what no config has, such as a station that another host told of.

use std::net::IpAddr;

use wire::Vni;
use worker::MAX_VNICS;

use crate::config::ConfigErrors;

/// Why a topology cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// The VLT has no free slot.
    #[error(
        "the VLT is full ({entries} entries); raise `[vlt] entries` and restart, or remove what nobody needs"
    )]
    VltFull { entries: usize, path: String },
    /// More vNICs than a host may have.
    #[error(
        "a switch has at most {MAX_VNICS} vNICs; if some were removed just now, try again in a second; else remove some"
    )]
    TooManyVnics { path: String },
    /// A location for a network that is not there.
    #[error("location {vip}: no VPC has VNI {vni}; add it with `vpc add` or choose another VNI")]
    UnknownVni { vip: IpAddr, vni: Vni },
    /// A route to a vNIC that is not there.
    #[error(
        "a route leads to vNIC {vnic}, which is not on this host; say the MAC address of a station on another one"
    )]
    UnknownVnic { vnic: String, path: String },
    /// What no config may have: it could not be read back from the saved state.
    #[error(transparent)]
    Location(#[from] ConfigErrors),
    /// The address belongs to a vNIC of this host.
    #[error("{vip} in VNI {vni} is an address of vNIC {vnic} on this host; remove the vNIC first")]
    LocalVip { vip: IpAddr, vni: Vni, vnic: String },
    /// The VTEP is this host.
    #[error(
        "VTEP {vtep} is an address of this host's uplink; a location is on another host: give the VTEP of that"
    )]
    OwnVtep { vtep: IpAddr, path: String },
    /// The VTEP is no host address.
    #[error("VTEP {vtep} is not a unicast address; give the address of one host")]
    NotUnicast { vtep: IpAddr, path: String },
    /// No uplink reaches the VTEP.
    #[error("no uplink has a route to VTEP {vtep}; add a gateway or a route to an `[[uplink]]`")]
    NoRoute { vtep: IpAddr, path: String },
}
