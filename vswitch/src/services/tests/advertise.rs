//! What the virtual router advertises, and how it takes that back.

use std::net::Ipv6Addr;

use wire::MacAddr;
use wire::build::router::{NameServer, OnLinkPrefix, RouterAdvertisement};
use wire::icmpv6::{ND_HOP_LIMIT, option};
use wire::l4::{ChecksumVerdict, verify};

use crate::config::Config;
use crate::services::advertise::{Offer, Told};
use crate::topology::Topology;
use crate::topology::testing::Names;
use crate::topology::underlay::Neighbours;

const ROUTER: MacAddr = MacAddr([2, 0, 0x5e, 0, 0, 100]);
const OTHER: MacAddr = MacAddr([2, 0, 0x5e, 0, 0, 200]);
/// How long everything holds.
const SECONDS: u32 = 1800;

fn offer(router: MacAddr, prefixes: &[&str], servers: &[&str]) -> Offer {
    let prefix = |text: &&str| OnLinkPrefix { prefix: text.parse().unwrap(), len: 64, lifetime: SECONDS };
    let server = |text: &&str| NameServer { address: text.parse().unwrap(), lifetime: SECONDS };
    let said = RouterAdvertisement {
        managed: true,
        lifetime: SECONDS as u16,
        mtu: 1450,
        prefixes: prefixes.iter().map(prefix).collect(),
        dns: servers.iter().map(server).collect(),
    };
    Offer { router, said }
}

/// What a frame says: whose it is, how long that is a router, and how long prefixes and name servers hold.
#[derive(Debug, PartialEq)]
struct Said {
    router: MacAddr,
    lifetime: u16,
    prefixes: Vec<(String, u32)>,
    servers: Vec<(String, u32)>,
}

fn said(router: MacAddr, lifetime: u16, prefixes: &[(&str, u32)], servers: &[(&str, u32)]) -> Said {
    let owned = |pairs: &[(&str, u32)]| pairs.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
    Said { router, lifetime, prefixes: owned(prefixes), servers: owned(servers) }
}

fn read(frame: &[u8]) -> Said {
    let headers = wire::parse::parse(frame, frame.len()).expect("a frame that parses");
    assert_eq!((headers.ttl, verify(&headers, [frame])), (ND_HOP_LIMIT, ChecksumVerdict::Good));
    let router = headers.ethernet(frame).unwrap().src;
    assert_eq!(headers.ipv6(frame).unwrap().src(), router.link_local());
    let message = &frame[usize::from(headers.l4_offset)..];
    let word = |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let address = |bytes: &[u8]| Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap()).to_string();
    let mut read = said(router, u16::from_be_bytes([message[6], message[7]]), &[], &[]);
    let mut rest = &message[16..];
    while !rest.is_empty() {
        let (one, others) = rest.split_at(usize::from(rest[1]) * 8);
        match one[0] {
            option::PREFIX_INFORMATION => {
                assert_eq!(word(one, 4), word(one, 8), "valid and preferred");
                read.prefixes.push((address(&one[16..]), word(one, 4)));
            }
            option::RDNSS => {
                read.servers.extend(one[8..].chunks(16).map(|server| (address(server), word(one, 4))));
            }
            _ => {}
        }
        rest = others;
    }
    read
}

/// What is said now, which a worker takes.
fn say(told: &mut Told) -> Vec<Said> {
    let frames = told.frames().iter().map(|frame| read(frame)).collect();
    told.said(true);
    frames
}

#[test]
fn services_prefixes_and_name_servers_that_go_are_taken_back() {
    let mut told = Told::default();
    told.update(Some(offer(ROUTER, &["fd00:1::", "fd00:2::"], &["fd00::35", "fd00::36"])));
    let all = [("fd00:1::", SECONDS), ("fd00:2::", SECONDS)];
    let whole = said(ROUTER, 1800, &all, &[("fd00::35", SECONDS), ("fd00::36", SECONDS)]);
    assert_eq!(say(&mut told), [whole]);
    assert!(!told.is_new() && told.interval(0, 1).unwrap().as_secs() >= 200);
    let less = offer(ROUTER, &["fd00:1::"], &["fd00::36"]);
    told.update(Some(less.clone()));
    assert!(told.is_new());
    for _ in 0..3 {
        assert_eq!(told.interval(0, 1).unwrap().as_secs(), 3);
        let prefixes = [("fd00:1::", SECONDS), ("fd00:2::", 0)];
        let servers = [("fd00::36", SECONDS), ("fd00::35", 0)];
        assert_eq!(say(&mut told), [said(ROUTER, 1800, &prefixes, &servers)]);
        told.update(Some(less.clone()));
    }
    let rest = said(ROUTER, 1800, &[("fd00:1::", SECONDS)], &[("fd00::36", SECONDS)]);
    assert_eq!(say(&mut told), [rest]);
    assert!(told.interval(0, 1).unwrap().as_secs() >= 200);
}

#[test]
fn services_a_router_that_advertises_no_more_says_so_three_times() {
    let mut told = Told::default();
    told.update(Some(offer(ROUTER, &["fd00:1::"], &["fd00::35"])));
    say(&mut told);
    told.update(None);
    for _ in 0..3 {
        let last = said(ROUTER, 0, &[("fd00:1::", 0)], &[("fd00::35", 0)]);
        assert_eq!(say(&mut told), [last]);
        told.update(None);
    }
    assert_eq!((told.frames().len(), told.interval(0, 1)), (0, None));
    // Nothing was ever said.
    let mut told = Told::default();
    told.update(None);
    assert_eq!((told.frames().len(), told.interval(0, 1)), (0, None));
}

#[test]
fn services_a_router_with_another_mac_address_takes_back_the_first_one() {
    let mut told = Told::default();
    told.update(Some(offer(ROUTER, &["fd00:1::", "fd00:2::"], &[])));
    say(&mut told);
    told.update(Some(offer(OTHER, &["fd00:1::"], &[])));
    let now = |prefixes: &[(&str, u32)]| said(OTHER, 1800, prefixes, &[]);
    let first = say(&mut told);
    assert_eq!(first, [said(ROUTER, 0, &[], &[]), now(&[("fd00:1::", SECONDS), ("fd00:2::", 0)])]);
    // What comes back is not taken back any more.
    told.update(Some(offer(ROUTER, &["fd00:1::", "fd00:2::"], &[])));
    let all = [("fd00:1::", SECONDS), ("fd00:2::", SECONDS)];
    assert_eq!(say(&mut told), [said(OTHER, 0, &[], &[]), said(ROUTER, 1800, &all, &[])]);
    // Nobody is there to take it: it is new until somebody does.
    told.update(Some(offer(ROUTER, &[], &[])));
    told.said(false);
    assert!(told.is_new());
    say(&mut told);
    assert!(!told.is_new());
}

/// What a vNIC with two addresses of IPv6 is offered, by what its first subnet says besides.
fn offered(more: &str) -> Option<Offer> {
    let text = format!(
        "[[vpc]]\nname = \"a\"\nvni = 1\n[[subnet]]\nvpc = \"a\"\nprefix = \"fd00:1::/64\"\n{more}\n\
         [[subnet]]\nvpc = \"a\"\nprefix = \"fd00:2::/64\"\n\
         [[vnic]]\nname = \"va\"\nvpc = \"a\"\nmac = \"02:00:00:00:00:01\"\nvips = [\"fd00:1::1\", \"fd00:2::1\"]\n\
         port = {{ kind = \"null\" }}\n"
    );
    let config = Config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}"));
    let mut topology = Topology::new(64);
    topology.rebuild(&config, &Names(&["va"]), &Neighbours::default()).unwrap();
    let snapshot = topology.commit();
    let vnic = snapshot.vnics.iter().flatten().next().unwrap();
    Offer::of(&config, snapshot.vpc(vnic.vpc).unwrap(), vnic)
}

#[test]
fn services_what_is_advertised_follows_from_the_config() {
    assert_eq!(offered(""), None);
    for (ra, lifetime, others) in [
        ("ra = {}", 1800, 1800),
        ("ra = { lifetime = \"2h\" }", 7200, 7200),
        ("ra = { lifetime = \"20min\" }", 1200, 1800),
        ("ra = { lifetime = \"0s\" }", 0, 1800),
    ] {
        let Some(Offer { router, said }) = offered(&format!("{ra}\ndhcp = {{ dns = [\"fd00:1::35\"] }}"))
        else {
            panic!("{ra}")
        };
        assert_eq!((said.managed, said.lifetime), (true, lifetime), "{ra}");
        let read = read(&said.frame(router));
        assert_eq!(read.prefixes, [("fd00:1::".to_owned(), others)], "{ra}");
        assert_eq!(read.servers, [("fd00:1::35".to_owned(), others)], "{ra}");
    }
}
