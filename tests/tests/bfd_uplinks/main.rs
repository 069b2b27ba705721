//! BFD on uplinks, with bfdd of FRR at the other end: a path that dies behind a switch, with all links up, is left within the
//! detection time; who forges packets moves nothing.
//!
//! ```text
//!            ┌─ up0 ── bridge 0 ── u0 ─┐
//!  host (vswitch)       fabric        peer (bfdd, kernel vxlan)
//!            └─ up1 ── bridge 1 ── u1 ─┘
//! ```
//! Each way is a network; the VTEP addresses of both hosts are routed over either.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

mod ways;

use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tests::frr::Bfdd;
use tests::lab::{interface_mac, location, vpc};
use tests::{Family, pair, script, traffic, wait_for};
use ways::*;

fn dies_behind_a_switch(family: Family) {
    let ways = Ways::start(family, BFD);
    let bfdd = Bfdd::start(&ways.lab.peer, &both_ways(family));
    [0, 1].into_iter().for_each(|way| ways.await_up(&bfdd, way));
    for way in [0, 1] {
        let stream = ways.stream();
        await_both(&ways);
        let before = ways.counters();
        ways.cut(way, true);
        ways.await_session(way, "down", "left");
        let shown = ways.session(way);
        assert_eq!(shown["diagnostic"], "detection-time-expired", "{shown}");
        assert_eq!(ways.session(1 - way)["path"], "used");
        // All goes by the other one.
        let sent = ways.sent();
        wait_for("the other way to take the stream", PATIENCE, || {
            let now = ways.sent();
            assert!(now[way] - sent[way] < 50, "{sent:?} {now:?}: packets are still sent into the hole");
            (now[1 - way] - sent[1 - way] > 500).then_some(())
        });
        let peer = address(family, way, 1);
        wait_for("the other end to notice", PATIENCE, || {
            (bfdd.peer(&peer)["status"] == "down").then_some(())
        });
        let after = ways.counters();
        // The far end answers by what is left, and there is no tenant who notices.
        ways.answer_by(&[1 - way]);
        traffic::ping(&ways.near.netns, "10.0.0.2", 100, 20);
        let flows = stream.stop();
        for count in ["fwd.nft-misses", "fwd.nft-stale", "fwd.drops.no-neighbour", "fwd.drops.link-down"] {
            assert_eq!(after.get(count), before.get(count), "{count}");
        }
        let longest = flows.iter().map(|flow| flow.1).max().unwrap();
        // Of the others none is missing for as long as that takes.
        let hit = flows.iter().filter(|flow| flow.1 * EVERY_MS >= DETECTION_MS / 2).count();
        println!(
            "way {way}: {hit} of {FLOWS} flows lost datagrams, {longest} in a row at most: {} ms; all: {flows:?}",
            longest * EVERY_MS
        );
        assert!(
            (1..FLOWS).contains(&hit),
            "{flows:?}: only the flows of the way that died may lose anything"
        );
        assert!(longest * EVERY_MS <= DETECTION_MS + SLACK_MS, "{flows:?}");
        // It comes back, at both ends, and has its flows again; nothing is lost for it.
        let (stream, missed) = (ways.stream(), missed(&ways));
        ways.cut(way, false);
        ways.await_up(&bfdd, way);
        await_both(&ways);
        ways.answer_by(&[0, 1]);
        traffic::ping(&ways.near.netns, "10.0.0.2", 100, 20);
        assert_none_lost(&ways, stream, missed);
    }
    let events = ways.daemon.json("show events").to_string();
    for (word, count) in [("\"bfd-down\"", 2), ("\"bfd-up\"", 4)] {
        assert_eq!(events.matches(word).count(), count, "{word}: {events}");
    }
    assert!(!events.contains("uplink-down"), "{events}");
    ways.stop(bfdd);
}

#[test]
fn failover_bfd_leaves_a_way_that_died_behind_a_switch_over_ipv4() {
    dies_behind_a_switch(Family::V4);
}

#[test]
fn failover_bfd_leaves_a_way_that_died_behind_a_switch_over_ipv6() {
    dies_behind_a_switch(Family::V6);
}

/// The switch asks whoever it is told to, and takes no silence for an answer that was never given.
#[test]
fn failover_bfd_of_peers_that_never_spoke_or_stand_aside_moves_nothing() {
    let ways = Ways::start(Family::V4, BFD);
    let none_lost = |during: &dyn Fn()| {
        let missed = missed(&ways);
        let stream = ways.stream();
        await_both(&ways);
        during();
        await_both(&ways);
        assert_none_lost(&ways, stream, missed);
    };
    // Nobody speaks BFD there: for well over a detection time.
    none_lost(&|| {
        wait_for("three questions", PATIENCE, || (ways.session(0)["sent"].as_i64() > Some(2)).then_some(()));
        assert_eq!(
            (ways.session(0)["state"].clone(), ways.session(0)["path"].clone()),
            ("down".into(), "used".into())
        );
    });
    let mut bfdd = Bfdd::start(&ways.lab.peer, &both_ways(Family::V4));
    [0, 1].into_iter().for_each(|way| ways.await_up(&bfdd, way));
    // Somebody there takes one session down, and up again.
    let configure = |bfdd: &Bfdd, line: &str| {
        bfdd.vtysh(&["configure terminal", "bfd", "peer 192.168.0.1 local-address 192.168.0.2", line]);
    };
    none_lost(&|| {
        configure(&bfdd, "shutdown");
        ways.await_session(0, "down", "used");
        assert_eq!(ways.session(0)["peer-state"], "admin-down");
    });
    configure(&bfdd, "no shutdown");
    ways.await_up(&bfdd, 0);
    // It dies on both ways: there is nothing to be won by giving both up.
    drop(bfdd);
    [0, 1].into_iter().for_each(|way| ways.await_session(way, "down", "left"));
    none_lost(&|| ());
    bfdd = Bfdd::start(&ways.lab.peer, &both_ways(Family::V4));
    [0, 1].into_iter().for_each(|way| ways.await_up(&bfdd, way));
    ways.stop(bfdd);
}

/// Intervals change under sessions that are up, and sessions go and come with the config; a restart begins anew.
#[test]
fn failover_bfd_follows_the_config_while_it_runs() {
    let mut ways = Ways::start(Family::V4, BFD);
    let bfdd = Bfdd::start(&ways.lab.peer, &both_ways(Family::V4));
    [0, 1].into_iter().for_each(|way| ways.await_up(&bfdd, way));
    let reload = |ways: &Ways, bfd: &str| {
        ways.daemon.rewrite_config(&config(Family::V4, &ways.near, &ways.far, bfd));
        ways.daemon.ctl("config reload");
    };
    reload(&ways, "bfd = { min-tx = \"400ms\", min-rx = \"200ms\", multiplier = 5 }");
    wait_for("both ends to keep to the new intervals", PATIENCE, || {
        let (own, theirs) = (ways.session(0), bfdd.peer("192.168.0.1"));
        let ours = own["interval-ms"] == 400.0 && own["detection-ms"] == 600.0;
        let told = theirs["remote-transmit-interval"] == 400 && theirs["remote-receive-interval"] == 200;
        (ours && told && theirs["remote-detect-multiplier"] == 5).then_some(())
    });
    for way in [0, 1] {
        let (own, theirs) = (ways.session(way), bfdd.peer(&address(Family::V4, way, 1)));
        assert_eq!((own["ups"].as_i64(), &theirs["status"]), (Some(1), &"up".into()), "{own} {theirs}");
    }
    let refused = ways.daemon.try_ctl("config reload").is_ok();
    assert!(refused, "the same config again");
    ways.daemon.rewrite_config(&config(Family::V4, &ways.near, &ways.far, "bfd = { min-tx = \"10ms\" }"));
    let error = ways.daemon.try_ctl("config reload").unwrap_err();
    assert!(error.contains("min-tx 10ms is shorter than 80ms"), "{error}");
    assert_eq!(ways.session(1)["state"], "up", "a refused config changes nothing");
    // Without BFD its peers are told that it was wanted so, and paths stay.
    reload(&ways, "");
    assert_eq!(ways.daemon.json("show bfd").as_array().map(Vec::len), Some(0));
    wait_for("the other end to hear why", PATIENCE, || {
        let theirs = bfdd.peer("192.168.0.1");
        let told = theirs["remote-diagnostic"] == "administratively down";
        (theirs["status"] == "down" && told).then_some(())
    });
    traffic::ping(&ways.near.netns, "10.0.0.2", 100, 20);
    reload(&ways, BFD);
    [0, 1].into_iter().for_each(|way| ways.await_up(&bfdd, way));
    // The end of the switch is told, too, and its start begins with nothing known.
    ways.daemon.process().signal("TERM");
    ways.daemon.assert_clean_end();
    wait_for("the other end to hear of the end", PATIENCE, || {
        let theirs = bfdd.peer("192.168.1.1");
        (theirs["status"] == "down" && theirs["remote-diagnostic"] == "administratively down").then_some(())
    });
    ways.daemon.restart(&ways.lab.host);
    [0, 1].into_iter().for_each(|way| ways.await_up(&bfdd, way));
    traffic::ping(&ways.near.netns, "10.0.0.2", 100, 20);
    ways.stop(bfdd);
}

/// A config that takes the switch long to go over to: with 60,000 locations more.
fn long(ways: &Ways, bfd: &str) -> String {
    let family = ways.lab.family();
    let mut many =
        config(family, &ways.near, &ways.far, bfd) + &vpc("bulk", pair::VNIS[1], &["20.0.0.0/8"], "");
    for n in 0..60_000u32 {
        let address = std::net::Ipv4Addr::from_bits(0x1400_0000 + n).to_string();
        many += &location(family.remote_vtep(), pair::VNIS[1], pair::MACS[2], &[&address]);
    }
    many
}

/// A link that is lost while a long change is read, compared or saved is given up before that is done.
#[test]
fn failover_of_a_link_waits_for_no_long_change() {
    let ways = Ways::start_beside_others(Family::V4, "");
    let stream = ways.stream();
    await_both(&ways);
    ways.daemon.rewrite_config(&long(&ways, ""));
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let start = now();
    let (cut, done) = std::thread::scope(|scope| {
        let reload = scope.spawn(|| {
            ways.daemon.ctl("config reload");
            now()
        });
        std::thread::sleep(Duration::from_millis(300));
        let cut = now();
        ways.fabric.ip("link set f1 down");
        (cut, reload.join().unwrap())
    });
    let events = ways.daemon.json("show events");
    let lost = |row: &&Value| row["event"] == "uplink-down" && row["facts"]["uplink"] == "up1";
    let lost = events["events"].as_array().unwrap().iter().find(lost).unwrap_or_else(|| panic!("{events}"));
    let noticed = lost["time-ms"].as_f64().unwrap() / 1000.0;
    let flows = stream.stop();
    let longest = flows.iter().map(|flow| flow.1).max().unwrap() * EVERY_MS;
    println!(
        "the reload took {:.3} s, the link went {:.3} s after its start and was given up {:.3} s after that; {longest} ms of a flow were lost",
        done - start,
        cut - start,
        noticed - cut
    );
    // Before, both took until the change was done.
    let half = (done - cut) / 2.0;
    assert!(
        noticed - cut < half && f64::from(longest) < half * 1000.0,
        "{start} {cut} {noticed} {done} {flows:?}"
    );
    ways.daemon.stop();
}

/// A long change keeps control from its turns for several detection times: no end gives up a path that forwards.
#[test]
fn failover_bfd_stays_up_while_control_is_busy() {
    let family = Family::V4;
    let ways = Ways::start(family, BFD);
    let bfdd = Bfdd::start(&ways.lab.peer, &both_ways(family));
    [0, 1].into_iter().for_each(|way| ways.await_up(&bfdd, way));
    let (stream, missed) = (ways.stream(), missed(&ways));
    await_both(&ways);
    let before = ways.counters();
    ways.daemon.rewrite_config(&long(&ways, BFD));
    let start = Instant::now();
    ways.daemon.ctl("config reload");
    let took = start.elapsed();
    let repeated = |counters: &tests::Counters| counters.get("fwd.bfd-repeated");
    let after = ways.counters();
    println!(
        "the reload took {took:?}; {} packets were repeated meanwhile",
        repeated(&after) - repeated(&before)
    );
    // Otherwise nothing was shown.
    assert!(took > 2 * Duration::from_millis(DETECTION_MS.into()), "{took:?}");
    assert!(repeated(&after) - repeated(&before) >= 8, "{after:?}");
    // The other end would have told of it, after the switch had time to hear it.
    std::thread::sleep(2 * Duration::from_millis(DETECTION_MS.into()));
    for way in [0, 1] {
        let (shown, theirs) = (ways.session(way), bfdd.peer(&address(family, way, 1)));
        assert_eq!((shown["ups"].as_i64(), &theirs["status"]), (Some(1), &"up".into()), "{shown} {theirs}");
    }
    assert_none_lost(&ways, stream, missed);
    let events = ways.daemon.json("show events").to_string();
    assert!(!events.contains("\"bfd-down\""), "{events}");
    // Who is not wanted any more is not spoken for.
    ways.daemon.rewrite_config(&config(family, &ways.near, &ways.far, ""));
    ways.daemon.ctl("config reload");
    wait_for("the other end to hear why", PATIENCE, || {
        let theirs = bfdd.peer("192.168.0.1");
        (theirs["status"] == "down" && theirs["remote-diagnostic"] == "administratively down").then_some(())
    });
    let before = repeated(&ways.counters());
    std::thread::sleep(3 * Duration::from_millis(DETECTION_MS.into()));
    assert_eq!(repeated(&ways.counters()), before);
    ways.stop(bfdd);
}

/// A VTEP behind routers is asked through each uplink; its path alone is left.
#[test]
fn failover_bfd_asks_vteps_over_several_hops() {
    let family = Family::V4;
    let asks = "bfd = { min-tx = \"100ms\", min-rx = \"100ms\", peers = [\"192.168.WAY.2\"], vteps = [\"172.16.0.2\"] }";
    let ways = Ways::start(family, "");
    let text = config(family, &ways.near, &ways.far, asks);
    // Each uplink has a peer on its own link.
    let (first, second) = text.split_once("name = \"up1\"").unwrap();
    let text = [first.replace("WAY", "0"), "name = \"up1\"".into(), second.replace("WAY", "1")].concat();
    ways.daemon.rewrite_config(&text);
    ways.daemon.ctl("config reload");
    let peer = |way: usize| {
        format!(
            " peer {} multihop local-address 172.16.0.2\n  receive-interval 100\n  transmit-interval 100\n exit\n",
            address(family, way, 1)
        )
    };
    let bfdd = Bfdd::start(&ways.lab.peer, &[0, 1].map(peer).concat());
    let far = |way: usize| -> Value {
        let shown = ways.daemon.json("show bfd");
        let is_far = |row: &&Value| row["multihop"] == true && row["uplink"] == format!("up{way}");
        shown.as_array().unwrap().iter().find(is_far).cloned().unwrap()
    };
    let await_up = |way: usize| {
        wait_for("both ends to be up", PATIENCE, || {
            let (own, theirs) = (far(way), bfdd.peer(&address(family, way, 1)));
            (own["state"] == "up" && own["interval-ms"] == 100.0 && theirs["status"] == "up").then_some(())
        });
    };
    [0, 1].into_iter().for_each(await_up);
    let stream = ways.stream();
    await_both(&ways);
    ways.cut(1, true);
    wait_for("the way to be left", PATIENCE, || (far(1)["path"] == "left").then_some(()));
    let sent = ways.sent();
    wait_for("the other way to take the stream", PATIENCE, || {
        let now = ways.sent();
        assert!(now[1] - sent[1] < 50, "{sent:?} {now:?}: packets are still sent into the hole");
        (now[0] - sent[0] > 500).then_some(())
    });
    let longest = stream.stop().iter().map(|flow| flow.1).max().unwrap();
    println!("{} ms without packets", longest * EVERY_MS);
    assert!(longest * EVERY_MS <= DETECTION_MS + SLACK_MS, "{longest} in a row");
    ways.cut(1, false);
    await_up(1);
    assert_eq!(far(1)["path"], "used");
    ways.stop(bfdd);
}

fn withstands_forged_packets(family: Family) {
    let ways = Ways::start(family, BFD);
    let bfdd = Bfdd::start(&ways.lab.peer, &both_ways(family));
    [0, 1].into_iter().for_each(|way| ways.await_up(&bfdd, way));
    let stream = ways.stream();
    await_both(&ways);
    // As the kernel counts them, those of the true peer among them.
    let came = || -> i64 {
        let told = ways.lab.host.run(&["cat", "/sys/class/net/up0/statistics/rx_packets"]);
        told.trim().parse().unwrap()
    };
    let came_before = came();
    let before = ways.counters();
    let heard = ways.session(0)["heard"].as_i64().unwrap();
    // Out of the bridge to the switch: on its link, and with a look at what its peer says.
    let helper = script::path("bfd_storm.py").display().to_string();
    let mac = interface_mac(&ways.lab.host, "up0");
    let (own, peer) = (address(family, 0, 1), address(family, 0, 2));
    let known = ways.session(0)["discriminator"].to_string();
    let args = [script::PYTHON, &helper, "br0", &mac, &own, &peer, "10000", "5", &known];
    let mut storm = ways.fabric.spawn("storm", &args, &ways.dir);
    // Control answers meanwhile, and sends in time: with the far end, which misses it after 300 ms, it is up all along.
    let mut slowest = Duration::ZERO;
    let mut asked = 0;
    while storm.exited().is_none() {
        let start = Instant::now();
        let shown = ways.session(0);
        slowest = slowest.max(start.elapsed());
        asked += 1;
        assert_eq!((&shown["state"], &shown["path"]), (&"up".into(), &"used".into()), "{shown}");
    }
    println!("asked {asked} times under the storm, {slowest:?} at the slowest");
    assert!(storm.wait(PATIENCE).success(), "{}", storm.output());
    let text = storm.output();
    let names: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    println!("forged: {names}");
    for way in [0, 1] {
        let (shown, theirs) = (ways.session(way), bfdd.peer(&address(family, way, 1)));
        assert_eq!((shown["ups"].as_i64(), &theirs["status"]), (Some(1), &"up".into()), "{shown} {theirs}");
    }
    let gained = ways.session(0)["heard"].as_i64().unwrap() - heard;
    assert!(gained >= 30, "only {gained} packets of the true peer were heard");
    assert_none_lost(&ways, stream, before.get("port.near.imissed"));
    let after = ways.counters();
    // What the kernel's ring for the switch could not hold is not the switch's, and nobody knows which packets those were.
    let missed = after.get("port.up0.imissed") - before.get("port.up0.imissed");
    let (mut dropped, mut forged) = (0, 0);
    for (name, sent) in names.as_object().unwrap() {
        let path = format!("fwd.drops.{name}");
        let (here, sent) = (after.get(&path) - before.get(&path), sent.as_i64().unwrap());
        assert!(
            here <= sent && here >= sent - missed,
            "{name}: {here} of {sent} dropped, {missed} not received"
        );
        (dropped, forged) = (dropped + here, forged + sent);
    }
    // Packets of the true peer may be among those that the ring could not hold, and nobody else's.
    let came = came() - came_before;
    let figures =
        format!("{dropped} of {forged} forged packets dropped by name, {missed} not received: {names}");
    println!("{figures}");
    assert!(dropped > 20_000 && (forged..=came).contains(&(dropped + missed)), "{came} came: {figures}");
    assert_eq!(after.get("fwd.drops.bfd-limit"), before.get("fwd.drops.bfd-limit"));
    ways.stop(bfdd);
}

#[test]
fn failover_bfd_withstands_forged_packets_over_ipv4() {
    withstands_forged_packets(Family::V4);
}

#[test]
fn failover_bfd_withstands_forged_packets_over_ipv6() {
    withstands_forged_packets(Family::V6);
}
