//! Applications that are at work while the network is changed under them: switches killed and started again, rules taken away and
//! given back, a quota lowered below what is in use, and a guest that moves to the other host. What they compute and store is
//! verified at the end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::{Duration, Instant};
use tests::guest::rdma::Path;
use tests::guest::{self, Job, Site, apps, rdma, site, wire};
use tests::lab::Lab;
use tests::{Daemon, Family, wait_for};

/// a's group: TCP and echo requests either way, and RDMA from anybody. By RDMA it begins nothing itself: what it may begin, the
/// other end may go on with, whatever rules let in.
const GROUPS: &str = "[[security-group]]\nname = \"servers\"\nvpc = \"red\"\ndefault-out = \"deny\"\nrules = [\n\
     { direction = \"in\", protocol = \"tcp\" },\n{ direction = \"in\", protocol = \"icmp\" },\n\
     { direction = \"in\", protocol = \"icmpv6\" },\n{ direction = \"in\", protocol = \"rdma\" },\n\
     { direction = \"out\", protocol = \"tcp\" },\n{ direction = \"out\", protocol = \"icmp\" },\n\
     { direction = \"out\", protocol = \"icmpv6\" },\n]\n";
/// Nobody gives way for being silent: the quota is then the quota, whatever an application does not say for a while. Connections that
/// say nothing for minutes (mpirun's own, over TCP) outlast a restart.
const TIMES: &str =
    "[rcft]\nidle-timeout = \"1h\"\nsilent-after = \"2h\"\n[security]\nrestart-grace = \"10min\"\n";
/// Tells an application that it has done enough.
const ENOUGH: &str = "/run/enough";
/// How long it may take until an application goes on after a change: a few timeouts of its transport.
const PATIENCE: Duration = Duration::from_secs(90);
/// Reasons of drops while a switch starts again or refuses what it is told to, and, for a packet or two on their way, while a guest
/// moves (`inner-source`, `no-location`).
const NAMED: [&str; 6] =
    ["security-in", "security-out", "qp-quota", "no-neighbour", "no-location", "inner-source"];

fn start() -> Site {
    let [mut a, mut b] = apps::two_guests();
    a.more = "security-groups = [\"servers\"]\n".to_owned();
    b.more = "refuse = \"reject\"\n".to_owned();
    let sections = site::vpcs("") + GROUPS + TIMES;
    Site::start_with(Lab::new(Family::V4), &sections, &[a], &[b], &guest::image_of_apps())
}

/// RoCEv2 packets that the switch of a vNIC handed to it.
#[track_caller]
fn delivered(switch: &Daemon, vnic: &str) -> i64 {
    let shown = switch.json(&format!("show vnic {vnic}"));
    shown[0]["rdma-tx-packets"].as_i64().unwrap_or_else(|| panic!("{shown:#}"))
}

/// Waits until either guest has got some more packets of the application, which `job` in b is.
#[track_caller]
fn goes_on(site: &Site, job: &Job, after: &str) {
    let began = Instant::now();
    let before: Vec<i64> = site.switches.iter().zip(["a", "b"]).map(|(s, vnic)| delivered(s, vnic)).collect();
    wait_for(&format!("the application to go on after {after}"), PATIENCE, || {
        let now = site.switches.iter().zip(["a", "b"]).map(|(s, vnic)| delivered(s, vnic));
        if let Some(ended) = site.guest("b").ended(job, Duration::from_millis(100)) {
            panic!("the application ended after {after} ({}):\n{}", ended.status, ended.output);
        }
        now.zip(&before).all(|(now, before)| now > before + 100).then_some(())
    });
    eprintln!("        went on {:.1} s after {after}", began.elapsed().as_secs_f32());
}

/// All changes under an application whose `queue_pairs` are b's; `speak` is a script in b that uses those which are silent.
#[track_caller]
fn change_everything(site: &mut Site, job: &Job, queue_pairs: i64, speak: &str) {
    goes_on(site, job, "its start");
    for (at, host) in [(0, &site.lab.host), (1, &site.lab.peer)] {
        let began = Instant::now();
        let process = site.switches[at].process();
        process.signal("KILL");
        process.wait(Duration::from_secs(10));
        site.switches[at].restart(host);
        eprintln!(
            "        switch {at} answered again {:.1} s after it was killed",
            began.elapsed().as_secs_f32()
        );
    }
    goes_on(site, job, "both switches were killed and started again");

    let [at_a, at_b] = &site.switches[..] else { panic!("two switches") };
    at_a.ctl("security-group allow servers in udp 9");
    at_a.ctl("security-group revoke servers in udp 9");
    goes_on(site, job, "a rule that nobody needs came and went");
    at_a.ctl("security-group revoke servers in rdma");
    let then = delivered(at_a, "a");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(delivered(at_a, "a"), then, "nothing is delivered any more");
    at_a.ctl("security-group allow servers in rdma");
    goes_on(site, job, "the rule that it needs was taken away and given back");

    apps::run(site.guest("b"), speak);
    // Less than what is in use: nobody is thrown out, and nobody gets in.
    wait_for("the queue pairs to be admitted anew", PATIENCE, || {
        (apps::rcft(at_b, "b", "in-use") >= queue_pairs).then_some(())
    });
    let in_use = apps::rcft(at_b, "b", "in-use");
    at_b.ctl("rcft set b quota 1");
    let path = Path::new(site, "b", "a", false);
    let second = rdma::begin(&path, &rdma::rping(&path, 7174, 3)).finish();
    assert!(!second.client.ok() && second.client.output.contains("REJECTED"), "{}", second.client.output);
    assert!(apps::rcft(at_b, "b", "rejected") >= 1);
    assert_eq!(apps::rcft(at_b, "b", "in-use"), in_use, "nobody was thrown out");
    goes_on(site, job, "its quota was lowered below what it has");
    at_b.ctl("rcft set b quota none");
    // rping may stumble over its own end, all of its pings verified before that.
    let second = rdma::begin(&path, &rdma::rping(&path, 7174, 3)).finish();
    assert!(second.proven && second.server.ok(), "{second:#?}");
    goes_on(site, job, "a second job got in beside it");
}

/// Moves b to a's host while its application is at work, which then ends; what it wrote is returned.
#[track_caller]
fn move_and_end(site: &Site, job: Job) -> String {
    let [at_a, at_b] = &site.switches[..] else { panic!("two switches") };
    let socket = site.new_plug("b").display().to_string();
    let vm = site.vm("b");
    at_a.ctl(&format!(
        "vnic add b vpc red mac {} vips {} mtu {} port vhost-user path={socket}",
        vm.mac,
        vm.vips().join(","),
        site::MTU
    ));
    at_b.ctl(&format!("vnic move b vtep {}", Family::V4.local_vtep()));
    // Both counters are of a's switch: what moves them is local to it.
    let before = (delivered(at_a, "a"), delivered(at_a, "b"));
    wait_for("the application to go on after its guest moved", PATIENCE, || {
        (delivered(at_a, "a") > before.0 + 100 && delivered(at_a, "b") > before.1 + 100).then_some(())
    });
    site.guest("b").run(&format!("touch {ENOUGH}"));
    let ended = site.guest("b").finish(job, apps::LIMIT);
    assert!(ended.ok(), "({}) {}", ended.status, ended.output);
    ended.output
}

#[test]
#[ignore = "takes minutes: scripts/test --only apps, or --full"]
fn apps_faults_leave_storage_whole() {
    if !guest::can_run() {
        return;
    }
    let mut site = start();
    let ip = site.vm("a").ip(false);
    apps::run(site.guest("a"), &apps::nvme_target(ip, 64));
    apps::run(site.guest("b"), &apps::nvme_mount(ip));
    let underlay = wire::Underlay::start(&[&site.lab.host, &site.lab.peer]);
    // Slow enough for the capture of all of it to be judged.
    let fio = apps::fio_verify("/mnt/nvme", 2, 1).replace("fio ", "fio --rate=512k,512k ");
    let job = site.guest("b").start(&format!(
        "n=0\nuntil [ -e {ENOUGH} ]; do ({fio}) >/tmp/fio 2>&1 || {{ cat /tmp/fio; exit 1; }}; n=$((n + 1)); done\necho rounds $n"
    ));
    // The queue pair of administration says nothing while the other one works.
    change_everything(&mut site, &job, 2, "nvme id-ctrl /dev/nvme0");
    let verdict = underlay.judge_amid(u32::MAX);
    eprintln!("        the underlay: {verdict}");
    verdict.assert_kept_but(&["unprovoked"]);
    assert!(verdict.figure("repetitions") > 0, "what was lost was sent again");
    let said = move_and_end(&site, job);
    eprintln!("        {}", said.trim());
    apps::run(site.guest("b"), apps::NVME_END);
    for switch in &site.switches {
        site::assert_no_drops_but(switch, &NAMED);
    }
    site.stop();
}

#[test]
#[ignore = "takes minutes: scripts/test --only apps, or --full"]
fn apps_faults_leave_messages_right() {
    if !guest::can_run() {
        return;
    }
    let mut site = start();
    let rshd = apps::start_rshd(site.guest("a"));
    let client = site.vm("b").ip(false);
    let program = format!("allreduce 1000000 500 {ENOUGH}");
    let path = Path::new(&site, "b", "a", true);
    apps::meet(&path);
    let line = apps::mpirun(&path, client, &program);
    let job = site.guest("b").start(&line);
    change_everything(&mut site, &job, 1, "true");
    let said = move_and_end(&site, job);
    assert!(said.contains("RIGHT: ") && !said.contains("WRONG"), "{said}");
    eprintln!("        {}", said.lines().last().unwrap_or(""));
    site.guest("a").stop(rshd);
    for switch in &site.switches {
        site::assert_no_drops_but(switch, &NAMED);
    }
    site.stop();
}
