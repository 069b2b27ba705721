//! What the underlay says of itself without being asked: announcements, and advertisements that claim little.

use pipelines::event::{Binding, Claim, Event};
use wire::build::Path;
use wire::build::control::{arp_reply, arp_request};
use wire::icmpv6::{LinkAddress, NeighbourHeader, option};
use wire::{MacAddr, View};

use testkit::*;

#[test]
fn repair_garp_tells_control_where_a_next_hop_is_now() {
    let mut world = plain();
    let mac = MacAddr([2, 0, 0, 0, 0x78, 2]);
    let binding = Binding { address: host_v4(2).into(), mac };
    let told =
        |confirms| Some(Event::Neighbour { uplink: 0, binding, claim: Claim { overrides: true, confirms } });
    // A gratuitous request, a gratuitous reply, questions for somebody else and for us: they show that it reaches us, not that we
    // reach it.
    let request = arp_request((mac, host_v4(2)), host_v4(2));
    let headers = wire::parse::parse(&request, request.len()).unwrap();
    let mut reply = arp_reply(&headers, &request, mac).unwrap();
    reply[..6].fill(0xff);
    for (frame, counted) in [
        (request, "underlay-other"),
        (reply, "consumed"),
        (arp_request((mac, host_v4(2)), host_v4(9)), "underlay-other"),
    ] {
        world.expect(UPLINK, &[frame], &[(counted, 1)]);
        assert_eq!(world.shared.events.pop(), told(false));
    }
    world.one(UPLINK, &arp_request((mac, host_v4(2)), host_v4(1)), &[]);
    assert_eq!(world.shared.events.pop(), told(false));
    // Its answer to our question does.
    let question = arp_request((host_mac(1), host_v4(1)), host_v4(2));
    let headers = wire::parse::parse(&question, question.len()).unwrap();
    world.expect(UPLINK, &[arp_reply(&headers, &question, mac).unwrap()], &[("consumed", 1)]);
    assert_eq!(world.shared.events.pop(), told(true));
    // A probe (RFC 5227) claims nothing, nobody speaks for our own address, and a group is no station.
    for (mac, address) in
        [(mac, "0.0.0.0".parse().unwrap()), (mac, host_v4(1)), (MacAddr::BROADCAST, host_v4(2))]
    {
        world.pass(UPLINK, &arp_request((mac, address), host_v4(3)));
        assert_eq!(world.shared.events.pop(), None);
    }
}

#[test]
fn repair_advertisements_are_worth_what_their_flags_say() {
    let mut world = plain();
    let (mac, here) = (host_mac(2), (host_mac(1), host_v6(1)));
    for (flags, linked, overrides, confirms) in [
        (NeighbourHeader::SOLICITED | NeighbourHeader::OVERRIDE, true, true, true),
        (NeighbourHeader::SOLICITED, true, false, true),
        (NeighbourHeader::OVERRIDE, true, true, false),
        (0, true, false, false),
        // Without the option there is no address to replace another one with.
        (NeighbourHeader::SOLICITED | NeighbourHeader::OVERRIDE, false, false, true),
    ] {
        let message = NeighbourHeader::advertisement(host_v6(2), flags);
        let link = LinkAddress::new(option::TARGET_LINK_ADDRESS, mac);
        let body = if linked { [message.bytes(), link.bytes()].concat() } else { message.bytes().to_vec() };
        let frame = Path::v6((mac, host_v6(2)), here).with_ttl(255).ip(58, &body);
        world.expect(UPLINK, &[frame], &[("consumed", 1)]);
        let claim = Claim { overrides, confirms };
        let binding = Binding { address: host_v6(2).into(), mac };
        let told = Event::Neighbour { uplink: 0, binding, claim };
        assert_eq!(world.shared.events.pop(), Some(told));
    }
    // One to everybody that says it was asked for.
    let body = |flags: u32| {
        let link = LinkAddress::new(option::TARGET_LINK_ADDRESS, mac);
        [NeighbourHeader::advertisement(host_v6(2), flags).bytes(), link.bytes()].concat()
    };
    let all = (wire::MacAddr([0x33, 0x33, 0, 0, 0, 1]), "ff02::1".parse().unwrap());
    for (flags, is_heard) in [(NeighbourHeader::OVERRIDE, true), (NeighbourHeader::SOLICITED, false)] {
        let frame = Path::v6((mac, host_v6(2)), all).with_ttl(255).ip(58, &body(flags));
        world.pass(UPLINK, &frame);
        assert_eq!(world.shared.events.pop().is_some(), is_heard, "{flags:x}");
    }
}
