//! The client against a control that counts what is asked of it. DPDK runs once per process, so each test wants a process of its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::sync::mpsc;
use wire::MacAddr;

use super::*;
use crate::api::Job;
use crate::cluster::book::Change;
use crate::cluster::keys::Published;
use crate::controller::Controller;
use crate::switch::{Switch, testing};

/// Control, on a thread of its own, and how often it was asked for something.
struct Control {
    thread: JoinHandle<()>,
    asked: Arc<AtomicUsize>,
}

impl Control {
    /// With a switch that has nothing, and a client of it.
    fn start() -> (Self, Follower) {
        let nowhere = "/nonexistent/generations".into();
        Self::start_with(&Files { generations: nowhere, members: None, past: None })
    }

    /// The same, with what is kept over a restart.
    fn start_with(files: &Files) -> (Self, Follower) {
        Self::start_as("", files)
    }

    /// The same, with more of a config.
    fn start_as(more: &str, files: &Files) -> (Self, Follower) {
        let config = testing::config(&format!(
            "[forward]\nauto-start = false\n[control]\netcd = {{ endpoints = [\"http://127.0.0.1:1\"], host = \"own\" }}\n{more}"
        ));
        let (etcd, own) = (config.control.etcd.clone().unwrap(), Name::new("own").unwrap());
        let (jobs, mut waiting) = mpsc::channel::<Job>(8);
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let thread = std::thread::spawn(move || {
            let mut controller = Controller::new(Switch::start(config).unwrap(), None);
            while let Some(job) = waiting.blocking_recv() {
                count.fetch_add(1, Ordering::Relaxed);
                job(&mut controller);
            }
            controller.switch.stop();
        });
        let shared = Shared::new(&etcd, &own);
        (Self { thread, asked }, Follower::new(etcd, own, files, Asker::new(jobs), shared))
    }

    /// How often it was asked since this was last asked.
    fn asked(&self) -> usize {
        self.asked.swap(0, Ordering::Relaxed)
    }
}

#[tokio::test]
async fn etcd_many_refused_objects_cost_control_little_whatever_else_changes() {
    let (control, mut follower) = Control::start();
    for subnet in 0..100 {
        let value = format!(r#"{{"subnet": {{"vpc": "red", "prefix": "10.0.{subnet}.0/24"}}}}"#);
        follower.objects.hear(&format!("subnet/{subnet:03}"), Some(value.as_bytes()));
    }
    follower.objects_to_control().await.unwrap();
    assert_eq!(follower.objects.faults().len(), 100);
    // As one, and then each by itself, some of them at a time.
    assert_eq!(control.asked(), 1 + 100_usize.div_ceil(32));
    // Other things change all the time; control was at the tries for some milliseconds, and so is left alone for longer than this takes.
    for _ in 0..20 {
        follower.stirred = true;
        follower.turn().await.unwrap();
    }
    assert!(control.asked() <= 1 + 100_usize.div_ceil(32), "they are tried once more at the most");
    // Another tenant's object is no reason, and is done at once.
    follower.objects.hear("vpc/blue", Some(br#"{"vpc": {"name": "blue", "vni": 200}}"#));
    follower.objects_to_control().await.unwrap();
    assert_eq!((control.asked(), follower.objects.faults().len()), (1, 100));
    // What they wait for comes: they are there when they are tried next.
    follower.objects.hear("vpc/red", Some(br#"{"vpc": {"name": "red", "vni": 100}}"#));
    follower.objects_to_control().await.unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while !follower.objects.faults().is_empty() {
        assert!(Instant::now() < until, "{:?}", follower.objects.faults());
        tokio::time::sleep(TURN).await;
        follower.stirred = true;
        follower.turn().await.unwrap();
    }
    let config = follower.asker.ask("a look", |controller| controller.switch.config()).await.unwrap();
    assert_eq!(config.subnets.len(), 100);
    drop(follower);
    control.thread.join().unwrap();
}

async fn vpcs(follower: &Follower) -> usize {
    let config = follower.asker.ask("a look", |controller| controller.switch.config()).await.unwrap();
    config.vpcs.len()
}

#[tokio::test]
async fn etcd_that_went_back_takes_no_objects_away_while_the_switch_runs() {
    let (control, mut follower) = Control::start();
    follower.has_only(&BTreeSet::new(), 90);
    follower.objects.hear("red", Some(br#"{"vpc": {"name": "red", "vni": 100}}"#));
    follower.objects_to_control().await.unwrap();
    // Emptied; and read once more before it has come as far as it was.
    for at in [5, 6] {
        follower.has_only(&BTreeSet::new(), at);
        follower.objects_to_control().await.unwrap();
        let fault = follower.shared.lock().faults.values().next().cloned().unwrap();
        assert!(fault.contains("is at revision 5 and was at 90"), "{fault}");
        assert_eq!(vpcs(&follower).await, 1);
    }
    // Put again, and taken away while nobody watched.
    follower.objects.hear("red", Some(br#"{"vpc": {"name": "red", "vni": 100}}"#));
    follower.objects_to_control().await.unwrap();
    assert!(follower.shared.lock().faults.is_empty());
    follower.has_only(&BTreeSet::new(), 8);
    follower.objects_to_control().await.unwrap();
    assert_eq!(vpcs(&follower).await, 0);
    drop(follower);
    control.thread.join().unwrap();
}

#[tokio::test]
async fn etcd_that_went_back_takes_no_objects_away_at_a_start() {
    let path = std::env::temp_dir().join(format!("vswitch-went-back-{}", std::process::id()));
    let claimed = r#"{"100 v": {"mac": "02:00:00:00:00:01", "vips": ["10.0.0.1"], "generation": 90}}"#;
    std::fs::write(&path, claimed).unwrap();
    let files = Files { generations: path.clone(), members: None, past: None };
    let (control, mut follower) = Control::start_with(&files);
    follower.objects.hear("red", Some(br#"{"vpc": {"name": "red", "vni": 100}}"#));
    follower.objects_to_control().await.unwrap();
    // As a new process has it.
    follower.objects = Objects::default();
    follower.has_only(&BTreeSet::new(), 5);
    follower.adopt().await.unwrap();
    follower.objects_to_control().await.unwrap();
    assert_eq!((vpcs(&follower).await, follower.shared.lock().faults.len()), (1, 1));
    // etcd that did not go back has lost nothing.
    (follower.objects, follower.past) = (Objects::default(), Past::default());
    follower.past.reaches(5);
    follower.has_only(&BTreeSet::new(), 5);
    follower.adopt().await.unwrap();
    follower.objects_to_control().await.unwrap();
    assert_eq!((vpcs(&follower).await, follower.shared.lock().faults.len()), (0, 0));
    drop(follower);
    control.thread.join().unwrap();
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test]
async fn etcd_that_went_back_takes_no_objects_away_after_it_either() {
    let folder = std::env::temp_dir().join(format!("vswitch-lost-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name| folder.join(name);
    let files = Files { generations: file("generations"), members: None, past: Some(file("etcd")) };
    let (control, mut follower) = Control::start_with(&files);
    follower.has_only(&BTreeSet::new(), 90);
    for (name, vni) in [("red", 100), ("blue", 200)] {
        let value = format!(r#"{{"vpc": {{"name": "{name}", "vni": {vni}}}}}"#);
        follower.objects.hear(name, Some(value.as_bytes()));
    }
    follower.objects_to_control().await.unwrap();
    follower.turn().await.unwrap();
    let restart = |follower: &mut Follower| {
        follower.past = Past::read(files.past.as_deref());
        follower.objects = Objects::after(follower.past.losses());
        follower.adopted = false;
        follower.shared.lock().faults.clear();
    };
    // Emptied while this host is down; it keeps both, and the processes after it do.
    for at in [5, 6, 7] {
        restart(&mut follower);
        follower.has_only(&BTreeSet::new(), at);
        follower.adopt().await.unwrap();
        follower.objects_to_control().await.unwrap();
        let fault = follower.shared.lock().faults.values().next().cloned().unwrap();
        assert!(fault.contains("is at revision 5 and was at 90") && fault.contains("2 in all"), "{fault}");
        assert_eq!(vpcs(&follower).await, 2);
    }
    // One of them is put again, and taken away while this host is down: it was not lost the second time.
    follower.objects.hear("red", Some(br#"{"vpc": {"name": "red", "vni": 100}}"#));
    follower.objects_to_control().await.unwrap();
    restart(&mut follower);
    follower.has_only(&BTreeSet::new(), 9);
    follower.adopt().await.unwrap();
    follower.objects_to_control().await.unwrap();
    let fault = follower.shared.lock().faults.values().next().cloned().unwrap();
    assert!(fault.contains("1 in all (KIND_VPC blue)"), "{fault}");
    assert_eq!(vpcs(&follower).await, 1);
    // What somebody else took away here is no more to be told.
    follower.objects.hear("blue", Some(br#"{"vpc": {"name": "blue", "vni": 200}}"#));
    follower.objects.hear("blue", None);
    follower.objects_to_control().await.unwrap();
    assert_eq!((vpcs(&follower).await, follower.shared.lock().faults.len()), (0, 0));
    restart(&mut follower);
    follower.has_only(&BTreeSet::new(), 10);
    follower.adopt().await.unwrap();
    follower.objects_to_control().await.unwrap();
    assert_eq!((vpcs(&follower).await, follower.shared.lock().faults.len()), (0, 0));
    drop(follower);
    control.thread.join().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn etcd_very_many_objects_go_to_control_in_pieces_and_in_their_order() {
    let (control, mut follower) = Control::start();
    for subnet in 0..1100 {
        let value = format!(
            r#"{{"subnet": {{"vpc": "red", "prefix": "10.{}.{}.0/24"}}}}"#,
            subnet / 256,
            subnet % 256
        );
        follower.objects.hear(&format!("a/{subnet:04}"), Some(value.as_bytes()));
    }
    // What the others need comes first, whatever its key.
    follower.objects.hear("z/red", Some(br#"{"vpc": {"name": "red", "vni": 100}}"#));
    follower.objects_to_control().await.unwrap();
    assert_eq!((control.asked(), follower.objects.faults().len()), (3, 0));
    let config = follower.asker.ask("a look", |controller| controller.switch.config()).await.unwrap();
    assert_eq!((config.vpcs.len(), config.subnets.len()), (1, 1100));
    drop(follower);
    control.thread.join().unwrap();
}

/// A VLT of four slots, for a network that has no vNIC here.
const TINY: &str = "[vlt]\nentries = 4\n\
    [[uplink]]\nname = \"up\"\nport = { kind = \"null\" }\naddresses = [\"172.16.0.1/24\"]\n\
    [[vpc]]\nname = \"red\"\nvni = 100\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n";

fn red() -> Vni {
    Vni::new(100).unwrap()
}

fn host(number: u8) -> Name {
    Name::new(&format!("host-{number}")).unwrap()
}

/// A host says that it takes part.
fn takes_part(number: u8) -> Change {
    Change::Member(host(number), Some(Arc::from([IpAddr::from([172, 16, 0, number])])))
}

/// A host says that it has a vNIC with this MAC address, or none.
fn has(number: u8, mac: Option<u8>) -> Change {
    let said = mac.map(|mac| Published {
        mac: MacAddr([2, 0, 0, 0, 0, mac]),
        vips: vec![IpAddr::from([10, 0, 0, number])],
        groups: Vec::new(),
        generation: 1,
    });
    Change::Vnic(host(number), Name::new("v").unwrap(), said)
}

/// What is refused, in order.
fn refused(follower: &Follower) -> Vec<String> {
    let status = follower.shared.lock();
    status.faults.keys().filter(|(kind, _)| *kind == "refused").map(|(_, what)| what.clone()).collect()
}

/// Where addresses are, by their last bytes and those of their MAC addresses, and how often each event was told.
async fn known(follower: &Follower) -> (Vec<(IpAddr, u8)>, [usize; 2]) {
    let look = |controller: &mut Controller| {
        let switch = &controller.switch;
        let places = switch.topology().locations().map(|location| (location.vip, location.mac.0[5]));
        let events = ["vlt-full", "etcd-refused"];
        (
            places.collect(),
            events.map(|kind| switch.events().iter().filter(|event| event.kind == kind).count()),
        )
    };
    follower.asker.ask("a look", look).await.unwrap()
}

/// Has control do what it does a few times a second.
async fn tend(follower: &Follower) {
    let tend = |controller: &mut Controller| controller.switch.tend(Instant::now());
    follower.asker.ask("a turn", tend).await.unwrap();
}

/// A turn after a change elsewhere, for which control has the time.
async fn turn(follower: &mut Follower) {
    tend(follower).await;
    (follower.stirred, follower.tries) = (true, Tries::default());
    follower.turn().await.unwrap();
}

/// Turns until so much is refused.
async fn turn_until(follower: &mut Follower, wanted: impl Fn(&[String]) -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !wanted(&refused(follower)) {
        assert!(Instant::now() < until, "{:?}", refused(follower));
        turn(follower).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn etcd_what_the_vlt_has_no_room_for_holds_nothing_up_and_comes_when_there_is_room() {
    let nowhere = "/nonexistent/generations".into();
    let (control, mut follower) =
        Control::start_as(TINY, &Files { generations: nowhere, members: None, past: None });
    let at = |number: u8| IpAddr::from([10, 0, 0, number]);
    // Each host has a station, and three of them have the first places; of the hosts themselves one has the last.
    let three = [2, 3, 4].into_iter().flat_map(|number| [takes_part(number), has(number, Some(number))]);
    follower.book.hear_all(red(), three.collect(), Instant::now());
    follower.tell(Instant::now()).await.unwrap();
    assert_eq!(control.asked(), 1, "once is enough");
    assert_eq!(refused(&follower), ["VTEP 172.16.0.3 in VNI 100", "VTEP 172.16.0.4 in VNI 100"]);
    let (places, events) = known(&follower).await;
    assert_eq!((places, events), (vec![(at(2), 2), (at(3), 3), (at(4), 4)], [1, 0]));
    // With one more, which finds no place, and one that says it is this host, come others' changes.
    let own = Change::Member(host(9), Some(Arc::from([IpAddr::from([172, 16, 0, 1])])));
    let more = vec![has(5, Some(5)), takes_part(5), has(9, Some(9)), own, has(4, Some(44))];
    follower.book.hear(red(), more, Instant::now());
    control.asked();
    follower.tell(Instant::now()).await.unwrap();
    assert!(!follower.book.has_news() && follower.asked_again.is_none());
    let all = [
        "10.0.0.5 in VNI 100",
        "10.0.0.9 in VNI 100",
        "VTEP 172.16.0.3 in VNI 100",
        "VTEP 172.16.0.4 in VNI 100",
        "VTEP 172.16.0.5 in VNI 100",
    ];
    assert_eq!(refused(&follower), all);
    let (places, events) = known(&follower).await;
    assert_eq!((places, events), (vec![(at(2), 2), (at(3), 3), (at(4), 44)], [1, 1]));
    // Where nothing changes there is a look now and then; where something does, what has no room is not tried.
    control.asked();
    for _ in 0..20 {
        follower.stirred = false;
        follower.turn().await.unwrap();
    }
    assert!(control.asked() <= 1);
    for _ in 0..20 {
        turn(&mut follower).await;
    }
    assert!(control.asked() <= 20 * 3, "a turn of control's own, a look, and what may be otherwise by now");
    assert_eq!(
        (refused(&follower), known(&follower).await.1),
        (all.map(String::from).to_vec(), [1, 1]),
        "told once"
    );
    // A station goes: something else has its place, which nobody says again.
    follower.book.hear(red(), vec![has(2, None)], Instant::now());
    follower.tell(Instant::now()).await.unwrap();
    turn_until(&mut follower, |refused| refused.len() == all.len() - 1).await;
    assert!(refused(&follower).contains(&all[1].to_owned()));
    // Others go, and all hosts have their places.
    follower.book.hear(red(), vec![has(3, None), has(4, None), has(5, None)], Instant::now());
    follower.tell(Instant::now()).await.unwrap();
    turn_until(&mut follower, |refused| refused == &all[1..2]).await;
    // What was wrong with the last one is mended, when there is room for it.
    let changes = [2, 3].map(|number| Change::Member(host(number), None));
    follower.book.hear(red(), changes.into_iter().chain([takes_part(9)]).collect(), Instant::now());
    follower.tell(Instant::now()).await.unwrap();
    turn_until(&mut follower, <[String]>::is_empty).await;
    assert_eq!(known(&follower).await.0, [(IpAddr::from([10, 0, 0, 9]), 9)]);
    assert!(follower.refusals.is_empty());
    drop(follower);
    control.thread.join().unwrap();
}

/// A network with a security group and room for what others say.
const RED: &str = "[[uplink]]\nname = \"up\"\nport = { kind = \"null\" }\naddresses = [\"172.16.0.1/24\"]\n\
    [[vpc]]\nname = \"red\"\nvni = 100\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n\
    [[security-group]]\nname = \"web\"\nvpc = \"red\"\n";
/// A vNIC that is where the station of host 2 was.
const MOVED_HERE: &str = "[[vnic]]\nname = \"m\"\nvpc = \"red\"\nmac = \"02:00:00:00:00:02\"\nvips = [\"10.0.0.2\"]\n\
    port = { kind = \"null\" }\n";

/// A client that was told of the station of host 2, which is in the group `web`, and of changes of the config from then on.
async fn with_station() -> (Control, Follower, broadcast::Receiver<Changed>) {
    let nowhere = "/nonexistent/generations".into();
    let (control, mut follower) =
        Control::start_as(RED, &Files { generations: nowhere, members: None, past: None });
    let look = |controller: &mut Controller| {
        (controller.switch.shared_config(), controller.switch.changes().watch())
    };
    let (config, changes) = follower.asker.ask("a look", look).await.unwrap();
    follower.seen = Some(config);
    let said = Published {
        mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vips: vec![IpAddr::from([10, 0, 0, 2])],
        groups: vec![Name::new("web").unwrap()],
        generation: 1,
    };
    let station = Change::Vnic(host(2), Name::new("v").unwrap(), Some(said));
    follower.book.hear_all(red(), vec![takes_part(2), station], Instant::now());
    follower.tell(Instant::now()).await.unwrap();
    assert_eq!(groups_of_station(&follower).await, Some(vec!["web".to_owned()]));
    (control, follower, changes)
}

/// The groups that the station of host 2 is in; `None` where it is nowhere.
async fn groups_of_station(follower: &Follower) -> Option<Vec<String>> {
    let look = |controller: &mut Controller| {
        let station = controller.switch.topology().location(red(), IpAddr::from([10, 0, 0, 2]))?;
        Some(station.groups.iter().map(ToString::to_string).collect())
    };
    follower.asker.ask("a look", look).await.unwrap()
}

#[tokio::test]
async fn etcd_what_the_config_had_for_a_moment_is_told_again() {
    let (control, mut follower, mut changes) = with_station().await;
    // A machine comes here, and goes back before anybody looks: its location went when it came.
    let come_and_go = |controller: &mut Controller| {
        let moved = testing::config(&(RED.to_owned() + MOVED_HERE)).vnics[0].clone();
        controller.switch.edit(|config| {
            config.vnics.push_back(moved);
            Ok(())
        })?;
        controller.switch.edit(|config| {
            config.vnics.clear();
            Ok(())
        })
    };
    follower.asker.ask("a change", come_and_go).await.unwrap().unwrap();
    assert_eq!(groups_of_station(&follower).await, None);
    for round in 0..2 {
        let (mut concern, mut passing) = (0, BTreeSet::new());
        while let Ok(change) = changes.try_recv() {
            passing.extend(follower.take_up(&change));
            concern += usize::from(concerns_config(&change));
        }
        assert_eq!(concern, 2, "round {round}");
        let look = |controller: &mut Controller| controller.switch.shared_config();
        follower.seen = Some(follower.asker.ask("a look", look).await.unwrap());
        follower.ask_for_passing(passing);
        follower.tell(Instant::now()).await.unwrap();
        assert_eq!(groups_of_station(&follower).await, Some(vec!["web".to_owned()]), "round {round}");
        // A group goes with whoever is in it, and is made again.
        let make_anew = |controller: &mut Controller| {
            let switch = &mut controller.switch;
            let group = testing::config(RED).security_groups;
            let out = crate::config::LocationConfig {
                groups: Vec::new(),
                ..switch.topology().location(red(), IpAddr::from([10, 0, 0, 2])).cloned().unwrap()
            };
            let out = crate::config::Relocation { come: vec![out], ..crate::config::Relocation::NONE };
            switch.edit_and_place(out, crate::switch::Missing::Refused, Vec::new(), |config| {
                config.security_groups.clear();
                Ok(())
            })?;
            switch.edit(|config| {
                config.security_groups = group;
                Ok(())
            })
        };
        if round == 0 {
            follower.asker.ask("a change", make_anew).await.unwrap().unwrap();
            assert_eq!(groups_of_station(&follower).await, Some(Vec::new()));
        }
    }
    drop(follower);
    control.thread.join().unwrap();
}

#[tokio::test]
async fn etcd_a_group_that_is_not_etcds_keeps_its_members_whatever_keys_go() {
    let (control, mut follower, _changes) = with_station().await;
    follower.objects.hear("web", Some(br#"{"security_group": {"vpc": "red", "name": "web"}}"#));
    follower.objects_to_control().await.unwrap();
    follower.objects.hear("web", None);
    follower.objects_to_control().await.unwrap();
    assert_eq!(groups_of_station(&follower).await, Some(vec!["web".to_owned()]));
    drop(follower);
    control.thread.join().unwrap();
}
