//! bfd: control packets of bidirectional forwarding detection that arrive at an uplink with sessions, checked and handed to
//! control.

use wire::bfd::{Control, LEN, MULTIHOP_PORT, PORT, TTL, Unsound};
use wire::{Flags, Headers, PacketBuf, View, protocol, udp};

use super::Cx;
use super::outer::{addresses, check_sums};
use crate::bfd::{BfdArrival, BfdHeard};
use crate::drops::DropReason;
use crate::snapshot::Uplink;

/// True for a packet to a port of BFD at an address of an uplink that has sessions.
pub(super) fn is_for_us(cx: &Cx, head: &[u8], headers: &Headers, index: u16, uplink: &Uplink) -> bool {
    cx.snapshot.bfd.has(index)
        && headers.proto == protocol::UDP
        && headers.is(Flags::L4)
        && matches!(headers.dport, PORT | MULTIHOP_PORT)
        && headers.ethernet(head).is_some_and(|eth| eth.dst.to_u64() == uplink.mac)
        && uplink.owns(addresses(head, headers).1)
}

/// Hands a packet that is [for this switch](is_for_us) to control.
///
/// # Errors
/// Why it is dropped.
pub(super) fn take<P: PacketBuf>(
    cx: &Cx,
    packet: &P,
    headers: &Headers,
    index: u16,
    uplink: &Uplink,
) -> Result<(), DropReason> {
    let multihop = headers.dport == MULTIHOP_PORT;
    if !multihop && headers.ttl != TTL {
        return Err(DropReason::BFD_TTL);
    }
    if headers.flags.intersects(Flags::FRAGMENT | Flags::IP_OPTIONS | Flags::SOURCE_ROUTED) {
        return Err(DropReason::BFD_MALFORMED);
    }
    let mut bytes = [0; LEN_READ];
    let len = payload(packet, headers, &mut bytes).ok_or(DropReason::BFD_MALFORMED)?;
    let control = *Control::parse(&bytes[..len]).map_err(|unsound| match unsound {
        Unsound::Authentication => DropReason::BFD_AUTHENTICATED,
        _ => DropReason::BFD_MALFORMED,
    })?;
    let (source, destination) = addresses(packet.head(), headers);
    let arrival = BfdArrival { uplink: index, source, destination, multihop };
    let session = cx.snapshot.bfd.find(control.your_discriminator.get(), &arrival);
    let session = session.ok_or(DropReason::BFD_UNKNOWN)?;
    let partial = cx.snapshot.ports.get(usize::from(cx.port)).is_some_and(|row| row.partial_checksums);
    check_sums(packet, headers, uplink, partial)?;
    cx.events.hear(BfdHeard { slot: session.slot, discriminator: session.discriminator, control })
}

/// What is read of a packet: the longest that its length field can claim, and so whether it lies.
const LEN_READ: usize = u8::MAX as usize;
const _: () = assert!(LEN_READ >= LEN);

/// Copies the beginning of the UDP payload; how much there was.
fn payload<P: PacketBuf>(packet: &P, headers: &Headers, into: &mut [u8; LEN_READ]) -> Option<usize> {
    let at = usize::from(headers.l4_offset);
    let claimed = usize::from(udp::Header::view_at(packet.head(), at)?.len.get());
    let wanted = claimed.checked_sub(udp::HEADER_LEN)?.min(LEN_READ);
    let (mut skip, mut done) = (at + udp::HEADER_LEN, 0);
    for segment in packet.segments() {
        let part = segment.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(segment.len());
        let part = &part[..part.len().min(wanted - done)];
        into.get_mut(done..done + part.len())?.copy_from_slice(part);
        done += part.len();
    }
    (done == wanted).then_some(done)
}
