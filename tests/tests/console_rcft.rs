//! What the console says of queue pairs: counters of both directions, pairing, lists, the biggest ones, and errors that
//! say what to do. As text and as JSON.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::{Value, json};
use tests::{Agent, Daemon, Family, Lab, Scene, lab};

/// The queue pairs in an answer of `show qp`.
fn pairs(daemon: &Daemon, command: &str) -> Vec<Value> {
    daemon.json(command)["queue-pairs"].as_array().unwrap().clone()
}

/// Asserts fields of a direction.
#[track_caller]
fn assert_facts(row: &Value, facts: &[(&str, Value)]) {
    for (name, value) in facts {
        assert_eq!(&row[*name], value, "{name} of {row:#}");
    }
}

#[test]
fn console_shows_what_a_queue_pair_does() {
    let mut scene = Scene::start(Family::V4, "", "");
    // In sequence, ahead, behind; marked; a notification; a full packet that tells the MTU.
    scene
        .outbound(&[
            "rc('red', 'far', 17, psn=0)",
            "rc('red', 'far', 17, psn=1, tos=3)",
            "rc('red', 'far', 17, psn=5)",
            "rc('red', 'far', 17, psn=1)",
            "rc('red', 'far', 17, opcode=0x06, psn=6, body=bytes(16 + 1024))",
            "roce('red', 'far', struct.pack('!BBHII', 0x81, 0, 0xffff, 0x40 << 24 | 17, 0) + bytes(16))",
        ])
        .assert_passed();
    scene
        .inbound(&[
            "tunnel(ack('far', 'red', 33, psn=1))",
            "tunnel(ack('far', 'red', 33, psn=2, syndrome=0x60))",
            "tunnel(ack('far', 'red', 33, psn=2, syndrome=0x62))",
            "tunnel(ack('far', 'red', 33, psn=2, syndrome=0x21))",
        ])
        .assert_passed();
    let found = pairs(&scene.daemon, "show qp red 17");
    assert_eq!((found.len(), &found[0]["paired-by"]), (1, &json!("being the only one")), "{found:#?}");
    let out = &found[0]["out"];
    let frame = 14 + 20 + 8 + 12 + 16 + 4;
    assert_facts(
        out,
        &[
            ("vnic", json!("red")),
            ("direction", json!("out")),
            ("address", json!("10.0.0.2")),
            ("qpn", json!(17)),
            ("state", json!("admitted")),
            ("packets", json!(5)),
            ("bytes", json!(5 * frame + 1024)),
            ("ce", json!(1)),
            ("cnp", json!(1)),
            ("acks", json!(0)),
            ("gaps", json!(1)),
            ("retransmissions", json!(1)),
            ("path-mtu", json!(1024)),
            ("next-psn", json!(7)),
            ("last-opcode", json!("rc write-first")),
        ],
    );
    assert!(
        out["first-seen-seconds"].as_f64().unwrap() >= out["last-seen-seconds"].as_f64().unwrap(),
        "{out}"
    );
    assert_facts(
        &found[0]["in"],
        &[
            ("direction", json!("in")),
            ("address", json!("10.0.0.1")),
            ("qpn", json!(33)),
            ("state", json!("counted")),
            ("packets", json!(4)),
            ("acks", json!(1)),
            ("nak-sequence", json!(1)),
            ("nak-remote-access", json!(1)),
            ("nak-invalid-request", json!(0)),
            ("rnr", json!(1)),
            ("last-opcode", json!("rc ack")),
        ],
    );
    // The same queue pair by its own number, and in hexadecimal.
    assert_eq!(pairs(&scene.daemon, "show qp red 0x21")[0]["out"]["qpn"], 17);
    let text = scene.daemon.ctl("show qp red 0x11");
    for words in [
        "queue pair 0x11 of red, paired by being the only one",
        "to 10.0.0.2 qp 0x11",
        "from the wire to 10.0.0.1 qp 0x21",
        "2 (1 psn sequence, 0 invalid request, 1 remote access, 0 remote operational, 0 other)",
        "rc write-first",
        "s ago",
    ] {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
    // With a second one it is not sure any more, until the connection manager says it.
    scene.outbound(&["rc('red', 'far', 18)"]).assert_passed();
    let found = pairs(&scene.daemon, "show qp red 17");
    assert_eq!((&found[0]["in"], &found[0]["paired-by"]), (&Value::Null, &Value::Null));
    assert!(scene.daemon.ctl("show qp red 17").contains("(the other direction is not paired)"));
    scene.outbound(&["req('red', 'far', 5, 33)"]).assert_passed();
    scene.inbound(&["tunnel(rep('far', 'red', 9, 5, 17))"]).assert_passed();
    let found = pairs(&scene.daemon, "show qp red 17");
    assert_eq!((&found[0]["in"]["qpn"], &found[0]["paired-by"]), (&json!(33), &json!("cm")));
    let found = pairs(&scene.daemon, "show qp red 33");
    assert_eq!((&found[0]["out"]["qpn"], &found[0]["paired-by"]), (&json!(17), &json!("cm")));
    scene.stop();
}

#[test]
fn console_lists_queue_pairs_and_finds_the_biggest() {
    let mut scene = Scene::start(Family::V4, "", "[rcft]\nentries = 4096\nquota = 5\n");
    let mut frames = Vec::new();
    for qpn in 100..107u32 {
        frames.extend((0..qpn - 99).map(|psn| format!("rc('red', 'far', {qpn}, psn={psn})")));
    }
    scene.outbound(&frames);
    scene.inbound(&["tunnel(rc('far', 'red', 0x200, psn=1))", "tunnel(rc('far', 'red', 0x200, psn=9))"]);
    let text = scene.daemon.ctl("show rcft");
    for words in ["packets dropped", "red", "5 of 4096 queue pairs in use; the tables take", "unknown"] {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
    let answer = scene.daemon.json("show rcft");
    assert_facts(&answer, &[("in-use", json!(5)), ("entries", json!(4096)), ("unknown", json!(0))]);
    assert_facts(
        &answer["vnics"][0],
        &[
            ("name", json!("red")),
            ("in-use", json!(5)),
            ("quota", json!(5)),
            ("opened", json!(5)),
            ("refused", json!(2)),
            ("packets-dropped", json!(6 + 7)),
            ("rejected", json!(0)),
            ("from-wire", json!(1)),
        ],
    );
    let bytes = answer["memory-bytes"].as_u64().unwrap();
    assert!(bytes / 4096 <= 256, "{bytes} bytes of tables");
    let list = scene.daemon.json("show rcft red");
    let rows = list["queue-pairs"].as_array().unwrap();
    assert_eq!(rows.len(), 6, "{list:#}");
    assert_eq!((&rows[0]["qpn"], &rows[0]["packets"]), (&json!(100), &json!(1)));
    assert_eq!((&rows[5]["direction"], &rows[5]["gaps"]), (&json!("in"), &json!(1)));
    assert!(scene.daemon.ctl("show rcft red").contains("5 in use, quota 5; 1 seen from the wire"));
    for command in ["show rcft top 2 by packets", "show rcft red top 2 by bytes"] {
        let top = scene.daemon.json(command);
        let numbers: Vec<&Value> =
            top["queue-pairs"].as_array().unwrap().iter().map(|row| &row["qpn"]).collect();
        assert_eq!(numbers, [104, 103], "{top:#}");
    }
    let top = scene.daemon.json("show rcft top 9 by gaps");
    assert_eq!(top["queue-pairs"].as_array().unwrap().len(), 1, "{top:#}");
    assert!(scene.daemon.ctl("show rcft top 9 by cnp").contains("no queue pair has any cnp"));
    // A refused one, as the event remembers it.
    let refused = scene.daemon.json("show events");
    let refused =
        refused["events"].as_array().unwrap().iter().find(|event| event["event"] == "qp-refused").unwrap();
    let shown = scene.daemon.json(&format!("show qp red {}", refused["facts"]["qpn"]));
    assert_eq!(shown["refused"]["reason"], "qp-quota", "{shown:#}");
    scene.stop();
}

#[test]
fn console_rcft_errors_say_what_to_do() {
    let scene = Scene::start(Family::V4, "", "");
    for (command, words) in [
        ("show rcft nobody", "no vNIC nobody; `show vnic` lists them"),
        ("show qp red 77", "red has no queue pair 77 (0x4d); `show rcft red` lists them"),
        ("show qp red 0x1000000", "give 0 to 16777215"),
        ("show qp red x", "is no number of a queue pair"),
        ("show qp nobody 1", "no vNIC nobody"),
        ("show rcft top 0 by bytes", "ask for 1 to 10000"),
        ("show rcft top 5 by nothing", "expected"),
        ("rcft set red quota many", "\"many\" is not a quota"),
        ("rcft set red quota -1", "is not a quota"),
        ("rcft set red quota 5% of mlx5_9", "there is no RDMA device mlx5_9"),
        ("rcft set nobody quota 5", "nobody"),
        ("rcft evict nobody all", "no vNIC nobody"),
        ("rcft evict red 10.0.0.2 5", "red has no queue pair to 10.0.0.2 qp 0x5"),
    ] {
        let said = scene.daemon.try_ctl(command).expect_err(command);
        assert!(said.contains(words), "{command}: {said}");
    }
    assert!(scene.daemon.ctl("rcft evict red all").contains("red has no queue pairs in use"));
    assert!(scene.daemon.ctl("show events").contains("nothing happened"));
    assert!(scene.daemon.ctl("help rcft").contains("rcft evict <vnic:name> all"));
    drop(scene);
}

/// Two vNICs of one host: a packet passes once, and is one side's "out" and the other side's "in".
#[test]
fn console_joins_two_vnics_of_one_host() {
    let lab = Lab::new(Family::V4);
    lab.peer.ip("addr flush dev up0");
    let one = lab.tenant("one", "red", "02:00:00:00:01:01", &["10.0.0.1/24"]);
    let two = lab.tenant("two", "red", "02:00:00:00:01:02", &["10.0.0.2/24"]);
    let config =
        [lab.uplink(""), lab::vpc("red", 100, &["10.0.0.0/24"], ""), one.vnic(), two.vnic()].concat();
    let daemon = Daemon::start(&lab.host, &config);
    one.plug_mute(&lab.host);
    two.plug_mute(&lab.host);
    let names = [
        ("one_mac", "02:00:00:00:01:01"),
        ("one_ip", "10.0.0.1"),
        ("two_mac", "02:00:00:00:01:02"),
        ("two_ip", "10.0.0.2"),
    ];
    let mut agent = Agent::start(&lab, &[("one", &one.netns), ("two", &two.netns)], &names);
    let sent = agent.exchange("one", &["rc('one', 'two', 0x22)", "rc('one', 'two', 0x22, psn=1)"], &["two"]);
    assert_eq!(sent.on("two").len(), 2);
    let sent = agent.exchange("two", &["ack('two', 'one', 0x11)"], &["one"]);
    assert_eq!(sent.on("one").len(), 1);
    let found = pairs(&daemon, "show qp one 0x22");
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_facts(&found[0]["out"], &[("packets", json!(2)), ("address", json!("10.0.0.2"))]);
    assert_facts(&found[0]["in"], &[("packets", json!(1)), ("acks", json!(1)), ("qpn", json!(0x11))]);
    // The other side's view, by its own number and by the peer's.
    for command in ["show qp two 0x22", "show qp two 0x11"] {
        let found = pairs(&daemon, command);
        assert_eq!(found.len(), 1, "{command}: {found:#?}");
        assert_facts(&found[0]["out"], &[("packets", json!(1)), ("qpn", json!(0x11))]);
        assert_facts(
            &found[0]["in"],
            &[("packets", json!(2)), ("qpn", json!(0x22)), ("direction", json!("in"))],
        );
    }
    drop(agent);
    daemon.stop();
}
