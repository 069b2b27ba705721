use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use dhcproto::v6::{
    DhcpOption, DhcpOptions, IAAddr, IANA, IAPD, IATA, Message, MessageType, OptionCode, Status, StatusCode,
};
use dhcproto::{Decodable, Decoder, Encodable};
use proptest::prelude::*;
use wire::MacAddr;

use super::sound;
use crate::config::{DhcpConfig, DomainName};
use crate::services::Answer;
use crate::services::dhcp6::Facts;

const MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 7]);
const ROUTER: MacAddr = MacAddr([2, 0, 0x5e, 0, 0, 100]);
const OWN: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 7);
const OTHER: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 8);
const CLIENT: [u8; 4] = [0, 3, 9, 9];

fn config() -> DhcpConfig {
    DhcpConfig {
        lease: Duration::from_secs(3600),
        dns: vec!["fd00:1::35".parse().unwrap()],
        domain: DomainName::near("blue.example"),
        ..DhcpConfig::default()
    }
}

fn facts(dhcp: &DhcpConfig) -> Facts<'_> {
    Facts { mac: MAC, address: OWN, router: ROUTER, dhcp }
}

fn server_id() -> DhcpOption {
    DhcpOption::ServerId(facts(&config()).server_id())
}

fn client_id() -> DhcpOption {
    DhcpOption::ClientId(CLIENT.to_vec())
}

/// An association with addresses.
fn ia(id: u32, addresses: &[Ipv6Addr]) -> DhcpOption {
    let address = |addr: &Ipv6Addr| {
        DhcpOption::IAAddr(IAAddr { addr: *addr, preferred_life: 0, valid_life: 0, opts: DhcpOptions::new() })
    };
    DhcpOption::IANA(IANA { id, t1: 0, t2: 0, opts: addresses.iter().map(address).collect() })
}

fn message(kind: MessageType, options: &[DhcpOption]) -> Message {
    let mut message = Message::new_with_id(kind, [1, 2, 3]);
    for option in options {
        message.opts_mut().insert(option.clone());
    }
    message
}

fn ask(kind: MessageType, options: &[DhcpOption]) -> Answer {
    facts(&config()).answer(MAC.link_local(), &message(kind, options).to_vec().unwrap())
}

/// The message in a frame, after a look at what is the same in all.
fn read(frame: &[u8]) -> Message {
    let (headers, payload) = sound(frame);
    assert_eq!((headers.sport, headers.dport), (547, 546));
    let (ethernet, ip) = (headers.ethernet(frame).unwrap(), headers.ipv6(frame).unwrap());
    assert_eq!((ethernet.src, ethernet.dst), (ROUTER, MAC));
    assert_eq!((ip.src(), ip.dst()), (ROUTER.link_local(), MAC.link_local()));
    let message = Message::decode(&mut Decoder::new(payload)).unwrap();
    assert_eq!((message.xid(), message.opts().get(OptionCode::ServerId)), ([1, 2, 3], Some(&server_id())));
    message
}

/// The addresses of an association with their lifetimes, and its two times.
#[track_caller]
fn lent(message: &Message, id: u32) -> (Vec<(Ipv6Addr, u32, u32)>, u32, u32) {
    let all = message.opts().get_all(OptionCode::IANA).unwrap_or_default();
    let found = all.iter().find_map(|option| match option {
        DhcpOption::IANA(found) if found.id == id => Some(found),
        _ => None,
    });
    let found = found.expect("an association");
    let addresses = found.opts.iter().filter_map(|option| match option {
        DhcpOption::IAAddr(address) => Some((address.addr, address.preferred_life, address.valid_life)),
        _ => None,
    });
    (addresses.collect(), found.t1, found.t2)
}

fn status_of(options: &DhcpOptions) -> Option<Status> {
    match options.get(OptionCode::StatusCode) {
        Some(DhcpOption::StatusCode(StatusCode { status, .. })) => Some(*status),
        _ => None,
    }
}

fn tells_all(message: &Message) {
    let dns = DhcpOption::DomainNameServers(vec!["fd00:1::35".parse().unwrap()]);
    assert_eq!(message.opts().get(OptionCode::DomainNameServers), Some(&dns));
    let Some(DhcpOption::DomainSearchList(names)) = message.opts().get(OptionCode::DomainSearchList) else {
        panic!()
    };
    assert_eq!(names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["blue.example."]);
}

const HOUR: ([(Ipv6Addr, u32, u32); 1], u32, u32) = ([(OWN, 3600, 3600)], 1800, 2880);

fn lends(message: &Message, id: u32) {
    let (addresses, t1, t2) = lent(message, id);
    assert_eq!((&addresses[..], t1, t2), (&HOUR.0[..], HOUR.1, HOUR.2));
}

#[test]
fn services_dhcpv6_advertises_and_gives_the_vnics_address() {
    let Answer::Told(frame) = ask(MessageType::Solicit, &[client_id(), ia(5, &[])]) else { panic!() };
    let advertisement = read(&frame);
    assert_eq!(advertisement.msg_type(), MessageType::Advertise);
    assert_eq!(advertisement.opts().get(OptionCode::ClientId), Some(&client_id()));
    lends(&advertisement, 5);
    tells_all(&advertisement);
    assert!(advertisement.opts().get(OptionCode::RapidCommit).is_none());
    // In two messages.
    let rapid = [client_id(), DhcpOption::RapidCommit, ia(5, &[])];
    let Answer::Given(frame) = ask(MessageType::Solicit, &rapid) else { panic!() };
    let reply = read(&frame);
    assert_eq!(reply.msg_type(), MessageType::Reply);
    assert!(reply.opts().get(OptionCode::RapidCommit).is_some());
    lends(&reply, 5);
    for (kind, server) in
        [(MessageType::Request, true), (MessageType::Renew, true), (MessageType::Rebind, false)]
    {
        let mut options = vec![client_id(), ia(5, &[OWN])];
        options.extend(server.then(server_id));
        let Answer::Given(frame) = ask(kind, &options) else { panic!("{kind:?}") };
        let reply = read(&frame);
        assert_eq!(reply.msg_type(), MessageType::Reply);
        lends(&reply, 5);
        tells_all(&reply);
    }
}

#[test]
fn services_dhcpv6_takes_time_from_other_addresses() {
    let Answer::Given(frame) = ask(MessageType::Renew, &[client_id(), server_id(), ia(5, &[OTHER])]) else {
        panic!()
    };
    let (mut addresses, ..) = lent(&read(&frame), 5);
    addresses.sort();
    assert_eq!(addresses, [(OWN, 3600, 3600), (OTHER, 0, 0)]);
}

#[test]
fn services_dhcpv6_has_one_address_and_no_prefix() {
    let options = [
        client_id(),
        server_id(),
        ia(5, &[]),
        ia(6, &[]),
        DhcpOption::IATA(IATA { id: 7, opts: DhcpOptions::new() }),
        DhcpOption::IAPD(IAPD { id: 8, t1: 0, t2: 0, opts: DhcpOptions::new() }),
    ];
    let Answer::Given(frame) = ask(MessageType::Request, &options) else { panic!() };
    let reply = read(&frame);
    let mut lenders = 0;
    for option in reply.opts().iter() {
        match option {
            DhcpOption::IANA(found) if status_of(&found.opts).is_none() => lenders += 1,
            DhcpOption::IANA(IANA { opts, .. }) | DhcpOption::IATA(IATA { opts, .. }) => {
                assert_eq!(status_of(opts), Some(Status::NoAddrsAvail));
            }
            DhcpOption::IAPD(found) => assert_eq!(status_of(&found.opts), Some(Status::NoPrefixAvail)),
            _ => {}
        }
    }
    assert_eq!(lenders, 1);
    // Prefixes alone: nothing to give.
    let Answer::Refused(_) = ask(MessageType::Request, &[client_id(), server_id(), options[5].clone()])
    else {
        panic!()
    };
}

#[test]
fn services_dhcpv6_confirms_its_own_address_only() {
    let Answer::Told(frame) = ask(MessageType::Confirm, &[client_id(), ia(5, &[OWN])]) else { panic!() };
    assert_eq!(status_of(read(&frame).opts()), Some(Status::Success));
    let Answer::Refused(frame) = ask(MessageType::Confirm, &[client_id(), ia(5, &[OWN, OTHER])]) else {
        panic!()
    };
    assert_eq!(status_of(read(&frame).opts()), Some(Status::NotOnLink));
    assert_eq!(ask(MessageType::Confirm, &[client_id(), ia(5, &[])]), Answer::Silence);
}

#[test]
fn services_dhcpv6_confirms_what_clients_give_back_or_decline() {
    let all = [client_id(), server_id(), ia(5, &[OWN])];
    let Answer::Released(Some(frame)) = ask(MessageType::Release, &all) else { panic!() };
    assert_eq!(status_of(read(&frame).opts()), Some(Status::Success));
    let Answer::Declined(addresses, Some(frame)) = ask(MessageType::Decline, &all) else { panic!() };
    assert_eq!((addresses, status_of(read(&frame).opts())), (vec![IpAddr::V6(OWN)], Some(Status::Success)));
    // What it never had.
    let Answer::Released(Some(frame)) =
        ask(MessageType::Release, &[client_id(), server_id(), ia(5, &[OTHER])])
    else {
        panic!()
    };
    let reply = read(&frame);
    let Some(DhcpOption::IANA(found)) = reply.opts().get(OptionCode::IANA) else { panic!() };
    assert_eq!(status_of(&found.opts), Some(Status::NoBinding));
}

#[test]
fn services_dhcpv6_informs_without_an_address() {
    for options in [vec![], vec![client_id()], vec![client_id(), server_id()]] {
        let Answer::Told(frame) = ask(MessageType::InformationRequest, &options) else { panic!() };
        let reply = read(&frame);
        assert_eq!(reply.msg_type(), MessageType::Reply);
        tells_all(&reply);
        assert!(reply.opts().get(OptionCode::IANA).is_none());
    }
    assert_eq!(ask(MessageType::InformationRequest, &[client_id(), ia(5, &[])]), Answer::Silence);
}

#[test]
fn services_dhcpv6_is_silent_to_what_no_client_may_say() {
    use MessageType::*;
    let others = DhcpOption::ServerId(vec![0, 3, 0, 1, 9]);
    for kind in [Request, Renew, Release, Decline] {
        assert_eq!(ask(kind, &[client_id(), ia(5, &[OWN])]), Answer::Silence, "{kind:?} without a server");
        assert_eq!(
            ask(kind, &[client_id(), others.clone(), ia(5, &[OWN])]),
            Answer::Silence,
            "{kind:?} of another"
        );
        assert_eq!(ask(kind, &[server_id(), ia(5, &[OWN])]), Answer::Silence, "{kind:?} of nobody");
    }
    for kind in [Solicit, Confirm, Rebind] {
        assert_eq!(
            ask(kind, &[client_id(), server_id(), ia(5, &[OWN])]),
            Answer::Silence,
            "{kind:?} with a server"
        );
        assert_eq!(ask(kind, &[ia(5, &[OWN])]), Answer::Silence, "{kind:?} of nobody");
    }
    assert_eq!(ask(InformationRequest, &[others]), Answer::Silence);
    for kind in [Advertise, Reply, Reconfigure, RelayForw, RelayRepl] {
        assert_eq!(ask(kind, &[client_id()]), Answer::Silence, "{kind:?}");
    }
}

fn frame_of(answer: Answer) -> Option<Vec<u8>> {
    match answer {
        Answer::Told(frame) | Answer::Given(frame) | Answer::Refused(frame) => Some(frame),
        Answer::Released(frame) | Answer::Declined(_, frame) => frame,
        Answer::Silence => None,
    }
}

#[test]
fn services_dhcpv6_damaged_messages_are_answered_or_not_and_nothing_else() {
    let options = [client_id(), DhcpOption::RapidCommit, ia(5, &[OWN, OTHER])];
    let whole = message(MessageType::Solicit, &options).to_vec().unwrap();
    let dhcp = config();
    let answer = |bytes: &[u8]| frame_of(facts(&dhcp).answer(MAC.link_local(), bytes));
    for at in 0..whole.len() {
        answer(&whole[..at]);
        for value in 0..=255 {
            let mut damaged = whole.clone();
            damaged[at] = value;
            if let Some(frame) = answer(&damaged) {
                sound(&frame);
            }
        }
    }
}

proptest! {
    #[test]
    fn services_dhcpv6_any_bytes_are_answered_or_not(kind in 0u8..16, bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let dhcp = config();
        let payload = [&[kind, 0, 0, 1, 0, 1, 0, 1, 9][..], &bytes].concat();
        if let Some(frame) = frame_of(facts(&dhcp).answer(MAC.link_local(), &payload)) {
            sound(&frame);
        }
    }
}
