//! Services of a VPC: what vNICs ask its virtual router by DHCP, told from everything else, and handed to control.
//!
//! A worker decides and checks; control answers. Where a subnet offers nothing, nothing here has any effect.

use std::net::{IpAddr, Ipv4Addr};

use wire::udp::port::{DHCP_CLIENT, DHCP_SERVER, DHCPV6_CLIENT, DHCPV6_SERVER};
use wire::{MacAddr, dhcp, dhcpv6, protocol};

use crate::drops::DropReason;
use crate::flow_key::{FlowAddresses, FlowKey, Scope};
use crate::nft::{FlowAction, FlowVerdict};
use crate::snapshot::{Services, Snapshot, Vpc};

/// Requests that may wait for control.
pub const MOST_WAITING: usize = 256;
/// Those of one vNIC among them: control takes in more than that in a turn of 20 ms.
pub const MOST_OF_ONE: u8 = 8;
/// Longest request, bytes of UDP payload: what an Ethernet frame holds.
pub const MAX_REQUEST: usize = 1472;

/// A DHCP message of a vNIC, for control.
#[derive(Clone, Copy, Debug)]
pub struct ServiceRequest {
    /// Index of the vNIC in the snapshot of that time.
    pub vnic: u32,
    /// The MAC that it had then.
    pub mac: MacAddr,
    /// Where it came from; unspecified while the client has no address. Of IPv4 it may be anybody's.
    pub source: IpAddr,
    /// Where it went to.
    pub destination: IpAddr,
    len: u16,
    bytes: [u8; MAX_REQUEST],
}

impl ServiceRequest {
    /// A request without content.
    pub const fn new(vnic: u32, mac: MacAddr, addresses: FlowAddresses) -> Self {
        let FlowAddresses { source, destination } = addresses;
        Self { vnic, mac, source, destination, len: 0, bytes: [0; MAX_REQUEST] }
    }

    /// Puts more UDP payload at the end. `false` (and no change) when that is too much.
    pub fn extend(&mut self, bytes: &[u8]) -> bool {
        let len = usize::from(self.len);
        let Some(room) = self.bytes.get_mut(len..len + bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        self.len += bytes.len() as u16;
        true
    }

    /// The UDP payload.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Whether the vNIC may have sent it, and control can read it.
    ///
    /// # Errors
    /// Why it is dropped.
    pub fn check(&self) -> Result<(), DropReason> {
        match self.source {
            IpAddr::V4(_) => {
                let request = dhcp::Request::parse(self.payload()).ok_or(DropReason::DHCP_MALFORMED)?;
                if request.header.mac() == self.mac { Ok(()) } else { Err(DropReason::GUARD_DHCP) }
            }
            IpAddr::V6(_) => {
                dhcpv6::Request::parse(self.payload()).map(|_| ()).ok_or(DropReason::DHCP_MALFORMED)
            }
        }
    }
}

/// What DHCP decides of a vNIC's flow in a VPC that has services: a question to the virtual router is answered where there is
/// an address to be told of, and a reply is nobody else's to give (clients read what comes to their port, whatever port it
/// comes from). `None` for everything else.
pub fn decide(snapshot: &Snapshot, vpc: &Vpc, key: &FlowKey) -> Option<FlowAction> {
    let Scope::Vnic(vnic) = key.scope() else { return None };
    if key.proto() != protocol::UDP || !vpc.has_services() {
        return None;
    }
    let FlowAddresses { destination, .. } = key.addresses()?;
    match (destination, key.ports().destination) {
        (IpAddr::V4(_), DHCP_CLIENT) | (IpAddr::V6(_), DHCPV6_CLIENT) => {
            Some(FlowAction::drop(DropReason::GUARD_DHCP))
        }
        (_, port) => asks(snapshot, vpc, vnic, destination, port)
            .then(|| FlowAction { verdict: FlowVerdict::Service, ..FlowAction::default() })
            .filter(|_| key.vlan().is_none()),
    }
}

/// True for a packet to a port of UDP by which a vNIC asks a service.
pub fn asks(snapshot: &Snapshot, vpc: &Vpc, vnic: u32, destination: IpAddr, port: u16) -> bool {
    // DHCPv6 has no unicast: nobody is told that there may be (RFC 8415 section 21.12).
    let server = port == DHCP_SERVER && destination.is_ipv4() && vpc.is_gateway(destination);
    let all = match destination {
        IpAddr::V4(address) => port == DHCP_SERVER && address == Ipv4Addr::BROADCAST,
        IpAddr::V6(address) => port == DHCPV6_SERVER && address == dhcpv6::ALL_SERVERS,
    };
    (server || all) && snapshot.serves(vnic, Services::DHCP, destination)
}
