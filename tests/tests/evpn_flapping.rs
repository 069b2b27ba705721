//! A peer of EVPN that announces and withdraws without end: a MAC address that is also here, and stations of its own. Another tenant does not
//! notice, and the disk neither.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::api::Api;
use tests::bgp::{GRPC, Gobgpd, station, station_after};
use tests::lab::{Lab, Tenant, UNDERLAY_MTU, vpc};
use tests::netns::cable;
use tests::steady::Flows;
use tests::{Daemon, Family, Workdir, pair, wait_for};
use vswitch_api::v1::Kind;

const PATIENCE: Duration = Duration::from_secs(30);
const FLOWS: u32 = 16;
/// The network of the flapping stations, and that of a tenant who has nothing to do with them.
const VNI: u32 = pair::VNIS[0];
const OTHERS: u32 = pair::VNIS[1];
const VTEPS: [&str; 2] = ["172.16.0.1", "172.16.0.2"];
/// The MAC address that two hosts have.
const TWICE: &str = pair::MACS[0];

fn port(name: &str) -> String {
    format!("{{ kind = \"veth\", iface = \"{name}\" }}")
}

/// A host with a switch and a gobgpd, and another gobgpd that says what it is told.
struct Site {
    daemon: Daemon,
    gobgpd: Gobgpd,
    other: Gobgpd,
    flows: Option<Flows>,
    _near: Tenant,
    _tenants: [Tenant; 2],
    lab: Lab,
    state: Workdir,
}

impl Site {
    #[track_caller]
    fn start() -> Site {
        let lab = Lab::new(Family::V4);
        cable((&lab.host, "bgp0"), (&lab.peer, "bgp0"), 1500);
        for (netns, address) in [(&lab.host, "192.168.255.1"), (&lab.peer, "192.168.255.2")] {
            netns.ip(&format!("addr add {address}/24 dev bgp0"));
        }
        let near = lab.cabled_tenant("near", "red", TWICE, &["10.0.0.1/24"]);
        let one = lab.cabled_tenant("one", "blue", pair::MACS[1], &["10.0.0.1/24"]);
        let two = lab.cabled_tenant("two", "blue", pair::MACS[3], &["10.0.0.2/24"]);
        let state = Workdir::new("state");
        let config = [
            format!(
                "[control]\nstate = \"{}\"\nevpn = {{ gobgpd = \"{GRPC}\" }}\n",
                state.path().join("state").display()
            ),
            format!(
                "[[uplink]]\nname = \"up\"\nport = {}\naddresses = [\"{}/24\"]\nmtu = {UNDERLAY_MTU}\n",
                port("up0"),
                VTEPS[0]
            ),
            vpc("red", VNI, &["10.0.0.0/24"], ""),
            vpc("blue", OTHERS, &["10.0.0.0/24"], ""),
            near.vnic_on(&port("near")),
            one.vnic_on(&port("one")),
            two.vnic_on(&port("two")),
        ]
        .concat();
        let gobgpd = Gobgpd::start(&lab.host, VTEPS[0], &["192.168.255.2"]);
        let other = Gobgpd::start(&lab.peer, VTEPS[1], &["192.168.255.1"]);
        let daemon = Daemon::start_alone(&lab.host, &config);
        let flows = Flows::start(&one.netns, &two.netns, "10.0.0.2", FLOWS);
        gobgpd.await_session(PATIENCE);
        let site =
            Site { daemon, gobgpd, other, flows: Some(flows), _near: near, _tenants: [one, two], lab, state };
        site.await_evpn("three stations to be announced", |shown| shown["announced"]["stations"] == 3);
        site
    }

    fn evpn(&self) -> Value {
        self.daemon.json("show evpn")
    }

    #[track_caller]
    fn await_evpn(&self, what: &str, is: impl Fn(&Value) -> bool) {
        wait_for(what, PATIENCE, || is(&self.evpn()).then_some(()));
    }

    /// Where the switch says that an address is; null when it does not know.
    fn place(&self, vni: u32, ip: &str) -> Value {
        let shown = self.daemon.json(&format!("show vlt {vni}"));
        let mut rows = shown["locations"].as_array().into_iter().flatten();
        rows.find(|row| row["vip"] == ip).map(|row| row["where"].clone()).unwrap_or_default()
    }

    #[track_caller]
    fn await_place(&self, vni: u32, ip: &str, place: &str) {
        wait_for(&format!("{ip} to be at {place:?}"), PATIENCE, || {
            (self.place(vni, ip).as_str().unwrap_or_default() == place).then_some(())
        });
    }

    /// What the other end has of the address that is here, too: the attributes of its route.
    fn ours(&self) -> Option<String> {
        let routes = self.other.routes();
        let line = routes.lines().find(|line| line.contains(TWICE) && line.contains("rd:172.16.0.1:"))?;
        line.find("[{").map(|at| line[at..].to_owned())
    }

    /// The tenant who has nothing to do with it lost nothing.
    #[track_caller]
    fn end_flows(&mut self) {
        let datagrams = self.flows.take().unwrap().stop_in_any_order(FLOWS);
        assert!(datagrams > 1000, "{datagrams} datagrams only");
    }
}

#[test]
fn evpn_duplicate_address_is_left_alone_until_its_vnic_comes_anew() {
    let mut site = Site::start();
    let theirs = |sequence| station_after(VTEPS[1], VNI, TWICE, "10.0.0.1", VTEPS[1], Some(sequence));
    let bare = || station(VTEPS[1], VNI, TWICE, "10.0.0.1", VTEPS[1]);
    // Away and back, twice, and away a fifth time.
    for round in 0..2 {
        wait_for("the other end to have ours", PATIENCE, || site.ours());
        site.other.announce([theirs(1 + 2 * round)].into_iter());
        site.await_evpn("it to have left", |shown| shown["left"] == round + 1);
        site.other.withdraw([bare()].into_iter());
        site.await_evpn("it to be here again", |shown| shown["announced"]["stations"] == 3);
    }
    wait_for("the other end to have ours with the fourth number", PATIENCE, || {
        site.ours().filter(|ours| ours.contains("mobility: 4")).map(drop)
    });
    site.other.announce([theirs(5)].into_iter());
    site.await_evpn("it to be a duplicate", |shown| shown["duplicates"][0]["mac"] == TWICE);
    // It goes on and on, and is answered no more.
    let before = site.ours();
    site.other.tell((0..1000).flat_map(|flap| [(theirs(6 + flap), true), (bare(), false)]));
    site.other.announce([theirs(2000)].into_iter());
    // What comes after it is taken in.
    site.other.announce([station(VTEPS[1], OTHERS, pair::MACS[2], "10.0.0.3", VTEPS[1])].into_iter());
    site.await_place(OTHERS, "10.0.0.3", "vtep 172.16.0.2");
    let shown = site.evpn();
    assert_eq!((&shown["left"], &shown["announced"]["stations"]), (&2.into(), &3.into()), "{shown}");
    assert_eq!(shown["duplicates"][0]["vtep"], VTEPS[1], "{shown}");
    assert_eq!(site.ours(), before);
    assert_eq!(site.place(VNI, "10.0.0.1"), "vnic near", "what is configured here stays here");
    let text = site.daemon.ctl("show evpn");
    assert!(text.contains("a duplicate, of which nothing is announced or taken in for"), "{text}");
    let events = site.daemon.json("show events").to_string();
    assert_eq!(events.matches("\"evpn-duplicate\"").count(), 1, "{events}");
    // The other one gets another address, and this one's vNIC comes anew.
    site.other.withdraw([bare()].into_iter());
    site.daemon.ctl("vnic del near");
    site.await_evpn("it to be none any more", |shown| shown["duplicates"] == Value::Array(Vec::new()));
    site.daemon.ctl(&format!("vnic add near vpc red mac {TWICE} vips 10.0.0.1 port veth iface=near"));
    wait_for("the other end to have ours again", PATIENCE, || site.ours());
    let events = site.daemon.json("show events").to_string();
    assert_eq!(events.matches("\"evpn-duplicate-over\"").count(), 1, "{events}");
    site.end_flows();
    site.daemon.stop();
}

/// Lines of the journals in a folder, and their bytes.
fn journals(folder: &Path) -> (usize, usize) {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let journals = entries.filter(|entry| entry.file_name().to_string_lossy().contains(".journal-"));
    let texts: Vec<String> = journals.map(|entry| std::fs::read_to_string(entry.path()).unwrap()).collect();
    (texts.iter().map(|text| text.lines().count()).sum(), texts.iter().map(String::len).sum())
}

#[test]
fn evpn_a_thousand_flaps_cost_the_disk_a_line_in_five_seconds() {
    let mut site = Site::start();
    let steady = station(VTEPS[1], VNI, pair::MACS[2], "10.0.0.2", VTEPS[1]);
    let flapping = || station(VTEPS[1], VNI, "02:00:00:00:0c:03", "10.0.0.3", VTEPS[1]);
    site.other.announce([steady].into_iter());
    site.await_place(VNI, "10.0.0.2", "vtep 172.16.0.2");
    let folder = site.state.path().to_owned();
    let before = journals(&folder);
    let revision = || {
        let mut api = Api::connect(site.daemon.socket());
        api.get(Kind::Vpc, "red").unwrap().revision
    };
    let first = revision();
    let began = Instant::now();
    // As fast as it goes, and then so that the switch takes each of them in for itself.
    site.other.tell((0..1000).flat_map(|_| [(flapping(), true), (flapping(), false)]));
    let paced = (0..400).map(|at| {
        std::thread::sleep(Duration::from_millis(30));
        (flapping(), at % 2 == 0)
    });
    site.other.tell(paced);
    site.other.announce([flapping()].into_iter());
    site.await_place(VNI, "10.0.0.3", "vtep 172.16.0.2");
    let (took, changes) = (began.elapsed(), revision() - first);
    let after = journals(&folder);
    let (lines, bytes) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    println!(
        "1200 flaps in {:.1} s, {changes} changes of the switch: {lines} lines of the journal, {bytes} bytes",
        took.as_secs_f64()
    );
    let most = 2 + usize::try_from(took.as_secs() / 5).unwrap();
    assert!(lines <= most && bytes <= 500 * most, "{lines} lines, {bytes} bytes in {took:?}");
    assert!(changes > 20, "{changes} changes only: it was not put to the test");
    // It is saved all the same: both are killed, and the switch knows it at once.
    let text = || {
        let entries = std::fs::read_dir(&folder).unwrap().flatten();
        entries.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).collect::<String>()
    };
    wait_for("both stations to be saved", PATIENCE, || {
        let text = text();
        (text.contains("10.0.0.2") && text.contains("02:00:00:00:0c:03")).then_some(())
    });
    // The last of the flaps may be one that has not been written yet.
    std::thread::sleep(Duration::from_secs(6));
    site.end_flows();
    site.gobgpd.kill();
    site.daemon.process().signal("KILL");
    site.daemon.process().wait(Duration::from_secs(10));
    site.daemon.restart(&site.lab.host);
    for address in ["10.0.0.2", "10.0.0.3"] {
        assert_eq!(site.place(VNI, address), "vtep 172.16.0.2");
    }
    assert_eq!(site.evpn()["connected"], false);
    site.daemon.stop();
}
