use std::net::Ipv4Addr;
use std::time::Duration;

use dhcproto::v4::{DhcpOption, Flags, Message, MessageType, Opcode, OptionCode};
use dhcproto::{Decodable, Decoder, Encodable};
use proptest::prelude::*;
use wire::{MacAddr, View, ipv4};

use super::sound;
use crate::config::{DhcpConfig, DhcpRoute, DomainName};
use crate::services::Answer;
use crate::services::dhcp4::Facts;

const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 7]);
const ROUTER: MacAddr = MacAddr([2, 0, 0x5e, 0, 0, 100]);
const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
const NONE: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

fn config() -> DhcpConfig {
    DhcpConfig {
        lease: Duration::from_secs(3600),
        dns: vec!["10.0.0.53".parse().unwrap(), "10.0.0.54".parse().unwrap()],
        domain: DomainName::near("blue.example"),
        mtu: None,
        routes: vec![
            DhcpRoute { to: "10.1.0.0/24".parse().unwrap(), via: None },
            DhcpRoute { to: "169.254.169.254/32".parse().unwrap(), via: Some("10.0.0.9".parse().unwrap()) },
        ],
    }
}

fn facts(dhcp: &DhcpConfig) -> Facts<'_> {
    Facts {
        mac: MAC,
        address: OWN,
        subnet: "10.0.0.0/24".parse().unwrap(),
        router: (ROUTER, GATEWAY),
        mtu: 1450,
        host_name: DomainName::near("vm7"),
        dhcp,
    }
}

/// A client's message.
fn message(kind: MessageType, ciaddr: Ipv4Addr, options: &[DhcpOption]) -> Message {
    let mut message = Message::new_with_id(0x1234_5678, ciaddr, NONE, NONE, NONE, &MAC.0);
    message.opts_mut().insert(DhcpOption::MessageType(kind));
    message.opts_mut().insert(DhcpOption::ClientIdentifier(vec![0xff, 1, 2, 3]));
    for option in options {
        message.opts_mut().insert(option.clone());
    }
    message
}

fn ask(message: &Message) -> Answer {
    facts(&config()).answer(&message.to_vec().unwrap())
}

/// The message in a frame, where it was sent, and that everything is right which is the same in every reply.
fn read(frame: &[u8]) -> (Message, MacAddr, Ipv4Addr) {
    let (headers, payload) = sound(frame);
    assert_eq!((headers.sport, headers.dport), (67, 68));
    assert!(payload.len() >= 300 && frame.len() <= 14 + 576, "{}", payload.len());
    let message = Message::decode(&mut Decoder::new(payload)).unwrap();
    assert_eq!(
        (message.opcode(), message.xid(), message.chaddr()),
        (Opcode::BootReply, 0x1234_5678, &MAC.0[..])
    );
    assert_eq!((message.siaddr(), message.giaddr()), (NONE, NONE));
    assert_eq!(option(&message, OptionCode::ServerIdentifier), DhcpOption::ServerIdentifier(GATEWAY));
    assert_eq!(
        option(&message, OptionCode::ClientIdentifier),
        DhcpOption::ClientIdentifier(vec![0xff, 1, 2, 3])
    );
    let ip = ipv4::Header::view_at(frame, 14).unwrap();
    let ethernet = headers.ethernet(frame).unwrap();
    assert_eq!((ip.src(), ethernet.src), (GATEWAY, ROUTER));
    (message, ethernet.dst, ip.dst())
}

#[track_caller]
fn option(message: &Message, code: OptionCode) -> DhcpOption {
    message.opts().get(code).unwrap_or_else(|| panic!("no {code:?}")).clone()
}

/// That a message tells all that the config says.
fn tells_all(message: &Message) {
    let told = |code| option(message, code);
    assert_eq!(told(OptionCode::SubnetMask), DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)));
    assert_eq!(told(OptionCode::Router), DhcpOption::Router(vec![GATEWAY]));
    assert_eq!(told(OptionCode::InterfaceMtu), DhcpOption::InterfaceMtu(1450));
    assert_eq!(told(OptionCode::BroadcastAddr), DhcpOption::BroadcastAddr(Ipv4Addr::new(10, 0, 0, 255)));
    let dns = vec![Ipv4Addr::new(10, 0, 0, 53), Ipv4Addr::new(10, 0, 0, 54)];
    assert_eq!(told(OptionCode::DomainNameServer), DhcpOption::DomainNameServer(dns));
    assert_eq!(told(OptionCode::DomainName), DhcpOption::DomainName("blue.example".into()));
    assert_eq!(told(OptionCode::Hostname), DhcpOption::Hostname("vm7".into()));
    let routes = vec![
        ("10.1.0.0/24".parse().unwrap(), GATEWAY),
        ("169.254.169.254/32".parse().unwrap(), Ipv4Addr::new(10, 0, 0, 9)),
        ("0.0.0.0/0".parse().unwrap(), GATEWAY),
    ];
    assert_eq!(told(OptionCode::ClasslessStaticRoute), DhcpOption::ClasslessStaticRoute(routes));
}

/// That a message lends the address for an hour.
fn lends(message: &Message) {
    assert_eq!(message.yiaddr(), OWN);
    assert_eq!(option(message, OptionCode::AddressLeaseTime), DhcpOption::AddressLeaseTime(3600));
    assert_eq!(option(message, OptionCode::Renewal), DhcpOption::Renewal(1800));
    assert_eq!(option(message, OptionCode::Rebinding), DhcpOption::Rebinding(3150));
}

#[test]
fn services_dhcpv4_offers_the_vnics_address() {
    // Whatever it would rather have (RFC 2131 section 4.3.1).
    for options in [vec![], vec![DhcpOption::RequestedIpAddress(Ipv4Addr::new(10, 0, 0, 8))]] {
        let Answer::Told(frame) = ask(&message(MessageType::Discover, NONE, &options)) else { panic!() };
        let (offer, mac, to) = read(&frame);
        assert_eq!((mac, to, offer.ciaddr()), (MAC, OWN, NONE));
        assert_eq!(offer.opts().msg_type(), Some(MessageType::Offer));
        lends(&offer);
        tells_all(&offer);
    }
}

#[test]
fn services_dhcpv4_answers_to_all_who_ask_for_that() {
    let mut discover = message(MessageType::Discover, NONE, &[]);
    discover.set_flags(Flags::default().set_broadcast());
    let Answer::Told(frame) = ask(&discover) else { panic!() };
    let (offer, mac, to) = read(&frame);
    assert_eq!((mac, to), (MacAddr([0xff; 6]), Ipv4Addr::BROADCAST));
    assert!(offer.flags().broadcast());
}

#[test]
fn services_dhcpv4_gives_the_address_in_every_state_of_the_client() {
    let requested = DhcpOption::RequestedIpAddress(OWN);
    let server = DhcpOption::ServerIdentifier(GATEWAY);
    // Selecting, INIT-REBOOT, renewing or rebinding (RFC 2131 section 4.3.2).
    for (ciaddr, options) in
        [(NONE, vec![server.clone(), requested.clone()]), (NONE, vec![requested]), (OWN, vec![])]
    {
        let Answer::Given(frame) = ask(&message(MessageType::Request, ciaddr, &options)) else { panic!() };
        let (ack, mac, to) = read(&frame);
        assert_eq!((mac, to, ack.ciaddr()), (MAC, OWN, ciaddr));
        assert_eq!(ack.opts().msg_type(), Some(MessageType::Ack));
        lends(&ack);
        tells_all(&ack);
    }
}

#[test]
fn services_dhcpv4_refuses_any_other_address() {
    let other = Ipv4Addr::new(10, 0, 0, 8);
    for (ciaddr, options) in [(NONE, vec![DhcpOption::RequestedIpAddress(other)]), (other, vec![])] {
        let Answer::Refused(frame) = ask(&message(MessageType::Request, ciaddr, &options)) else { panic!() };
        let (nak, mac, to) = read(&frame);
        assert_eq!((mac, to), (MacAddr([0xff; 6]), Ipv4Addr::BROADCAST));
        assert_eq!((nak.ciaddr(), nak.yiaddr()), (NONE, NONE));
        assert_eq!(nak.opts().msg_type(), Some(MessageType::Nak));
        for code in [OptionCode::AddressLeaseTime, OptionCode::SubnetMask, OptionCode::Router] {
            assert!(!nak.opts().contains(code), "{code:?}");
        }
    }
}

#[test]
fn services_dhcpv4_informs_without_a_lease() {
    let Answer::Told(frame) = ask(&message(MessageType::Inform, OWN, &[])) else { panic!() };
    let (ack, mac, to) = read(&frame);
    assert_eq!((mac, to, ack.ciaddr(), ack.yiaddr()), (MAC, OWN, OWN, NONE));
    assert_eq!(ack.opts().msg_type(), Some(MessageType::Ack));
    assert!(!ack.opts().contains(OptionCode::AddressLeaseTime));
    tells_all(&ack);
    assert_eq!(ask(&message(MessageType::Inform, NONE, &[])), Answer::Silence);
}

#[test]
fn services_dhcpv4_is_silent_where_nothing_is_to_be_said() {
    let server = |address: [u8; 4]| DhcpOption::ServerIdentifier(address.into());
    let requested = DhcpOption::RequestedIpAddress(OWN);
    // The client chose another server.
    let others = message(MessageType::Request, NONE, &[server([10, 0, 0, 1]), requested.clone()]);
    assert_eq!(ask(&others), Answer::Silence);
    // It asks for nothing, or says what servers say.
    assert_eq!(ask(&message(MessageType::Request, NONE, &[])), Answer::Silence);
    for kind in [MessageType::Offer, MessageType::Ack, MessageType::Nak] {
        assert_eq!(ask(&message(kind, NONE, &[])), Answer::Silence);
    }
    let own = server(GATEWAY.octets());
    assert_eq!(ask(&message(MessageType::Release, OWN, std::slice::from_ref(&own))), Answer::Released(None));
    let declined = Answer::Declined(vec![OWN.into()], None);
    assert_eq!(ask(&message(MessageType::Decline, NONE, &[own, requested])), declined);
}

#[test]
fn services_dhcpv4_answers_fit_into_what_the_client_takes() {
    let mut dhcp = config();
    dhcp.dns = vec!["10.0.0.53".parse().unwrap(); DhcpConfig::MAX_DNS];
    dhcp.domain = DomainName::near(&vec!["x".repeat(62); 4].join("."));
    dhcp.routes = vec![DhcpRoute { to: "10.1.2.0/24".parse().unwrap(), via: None }; DhcpConfig::MAX_ROUTES];
    let length = |max: Option<u16>, mtu| {
        let options: Vec<_> = max.map(DhcpOption::MaxMessageSize).into_iter().collect();
        let request = message(MessageType::Discover, NONE, &options).to_vec().unwrap();
        let Answer::Told(frame) = (Facts { mtu, ..facts(&dhcp) }).answer(&request) else { panic!() };
        let (_, payload) = sound(&frame);
        let reply = Message::decode(&mut Decoder::new(payload)).unwrap();
        assert_eq!(reply.yiaddr(), OWN);
        assert!(
            reply.opts().contains(OptionCode::Router) && reply.opts().contains(OptionCode::AddressLeaseTime)
        );
        (frame.len() - 14, reply.opts().contains(OptionCode::DomainName))
    };
    let (whole, all) = length(Some(1500), 1450);
    assert!(all && whole > 576, "{whole}");
    for (max, mtu) in [(None, 1450), (Some(300), 1450), (Some(1500), 576)] {
        let (short, all) = length(max, mtu);
        assert!(!all && short <= 576, "{short}");
    }
}

#[test]
fn services_dhcpv4_damaged_requests_are_answered_or_not_and_nothing_else() {
    let options = [DhcpOption::RequestedIpAddress(OWN), DhcpOption::MaxMessageSize(1400)];
    let whole = message(MessageType::Request, NONE, &options).to_vec().unwrap();
    let dhcp = config();
    let facts = facts(&dhcp);
    for at in 0..whole.len() {
        facts.answer(&whole[..at]);
        for value in [0, 1, 6, 7, 0x7f, 0x80, 0xfe, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = value;
            if let Answer::Told(frame) | Answer::Given(frame) | Answer::Refused(frame) =
                facts.answer(&damaged)
            {
                sound(&frame);
            }
        }
    }
}

proptest! {
    #[test]
    fn services_dhcpv4_any_options_are_answered_or_not(options in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = message(MessageType::Discover, NONE, &[]).to_vec().unwrap();
        bytes.truncate(240);
        bytes.extend(options);
        let dhcp = config();
        if let Answer::Told(frame) | Answer::Given(frame) | Answer::Refused(frame) = facts(&dhcp).answer(&bytes) {
            sound(&frame);
        }
    }
}

#[test]
fn services_no_client_is_told_an_mtu_that_its_vnic_does_not_have() {
    for (told, mtu, wanted) in [(None, 1450, 1450), (Some(1400), 1450, 1400), (Some(9000), 1450, 1450)] {
        let dhcp = DhcpConfig { mtu: told, ..config() };
        let request = message(MessageType::Discover, NONE, &[]);
        let answer = Facts { mtu, ..facts(&dhcp) }.answer(&request.to_vec().unwrap());
        let Answer::Told(frame) = answer else { panic!("{answer:?}") };
        let (offer, ..) = read(&frame);
        assert_eq!(option(&offer, OptionCode::InterfaceMtu), DhcpOption::InterfaceMtu(wanted));
    }
}
