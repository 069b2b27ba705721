//! As many locations as a large region has: what they take in memory and time, in the book of the client of etcd and in the switch.

use std::sync::Arc;
use std::time::Instant;

use super::*;
use crate::cluster::book::{Book, Change};
use crate::cluster::keys::Published;
use crate::config::Name;

const LOCATIONS: u32 = 8_000_000;
const HOSTS: u32 = 200;
/// What the client of etcd hands over at once.
const BATCH: usize = 4096;

/// Resident memory in MB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
#[ignore = "takes 9 GiB of memory and six minutes"]
fn etcd_eight_million_locations() {
    let vni = Vni::new(1).unwrap();
    let name = |text: String| Name::new(&text).unwrap();
    let begun = (Instant::now(), resident());
    let mut book = Book::new(name("me".into()), std::time::Duration::from_secs(30));
    for host in 0..HOSTS {
        let own = name(format!("host-{host}"));
        let vnics = (host..LOCATIONS).step_by(HOSTS as usize).map(|number| {
            let [_, b, c, d] = (0x0080_0000 | number).to_be_bytes();
            let said = Published {
                mac: MacAddr([2, 0, 0, b, c, d]),
                vips: vec![IpAddr::from([10, b, c, d])],
                groups: Vec::new(),
                generation: u64::from(number) + 1,
            };
            Change::Vnic(own.clone(), name(format!("v{number}")), Some(said))
        });
        let mut all: Vec<Change> = vnics.collect();
        all.push(Change::Member(own.clone(), Some(Arc::from([vtep(host as u8 + 2)]))));
        book.hear(vni, all, Instant::now());
    }
    let heard = (begun.0.elapsed(), resident());
    let config = config(&[vpc("a", 1, ""), vnic("va", "a", 1)]);
    let mut lab = Lab::new(LOCATIONS + 65_536);
    lab.set(&config);
    let ready = (Instant::now(), resident());
    while book.has_news() {
        let news = book.take(BATCH, Instant::now());
        let come: Vec<LocationConfig> = news
            .stations
            .into_iter()
            .map(|station| LocationConfig {
                vtep: station.vteps[0],
                vni: station.vni,
                vip: station.vip,
                mac: station.mac,
                groups: station.groups,
            })
            .collect();
        let refused = lab.topology.follow_locations(&config, &come, &[], &lab.neighbours).unwrap();
        assert!(refused.is_empty(), "{refused:?}");
        lab.topology.commit();
        lab.topology.settle(&mut lab.neighbours);
    }
    let told = (ready.0.elapsed(), resident());
    eprintln!(
        "{LOCATIONS} locations of {HOSTS} hosts: heard by the book in {:?}, {} MB; taken in by the switch in batches of {BATCH} in {:?}, {} MB more",
        heard.0,
        heard.1 - begun.1,
        told.0,
        told.1 - heard.1
    );
    assert!(lab.used() as u32 > LOCATIONS);
}
