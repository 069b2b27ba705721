//! An etcd of three members with TLS and users: the one in use dies, and who may not speak is told so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use tests::etcd::{Etcd, Fabric, Host, certificates, control, wait_for_place};
use tests::lab::vpc;
use tests::steady::Ping;
use tests::{Daemon, wait_for};

const RED: u32 = 100;
const SOON: Duration = Duration::from_secs(15);

#[test]
fn etcd_members_die_and_users_have_to_be_known() {
    let fabric = Fabric::new();
    let mut etcd = Etcd::start_members(3, Some(certificates()));
    for line in [
        "user add root:secret",
        "role add host",
        "role grant-permission host --prefix=true readwrite /vswitch/",
        "user add host:word",
        "user grant-role host host",
        "user grant-role root root",
        "auth enable",
    ] {
        etcd.ctl(&line.split(' ').collect::<Vec<_>>());
    }
    etcd.user = Some("root:secret".into());
    let hosts: Vec<Host> = (1..3).map(|number| Host::new(&fabric, &etcd, number)).collect();
    let red: Vec<_> = hosts.iter().map(|host| host.container("red", 1, host.number as u8)).collect();
    let folder = tests::Workdir::new("etcd-user");
    let password = folder.write("password", "word\n").display().to_string();
    let start = |at: usize, user: &str| -> Daemon {
        let host: &Host = &hosts[at];
        let body = [vpc("red", RED, &["10.0.0.0/16"], ""), red[at].vnic("")].concat();
        let text = host.config(&etcd, "", &body);
        Daemon::start_alone(&host.netns, &text.replacen(", grace", &format!(", {user}grace"), 1))
    };
    let user = format!("user = {{ name = \"host\", password-file = \"{password}\" }}, ");
    let first = start(0, &user);
    // Without a user it says what is wrong, and forwards all the same.
    let nobody = start(1, "");
    let said = wait_for("the refusal to be told", SOON, || {
        control(&nobody)["last-error"].as_str().map(str::to_owned)
    });
    assert!(
        said.contains("user name is empty") || said.contains("permission") || said.contains("auth"),
        "{said}"
    );
    assert!(!nobody.log().contains("word\""), "no secret is in the log");
    nobody.end();
    let second = start(1, &user);
    wait_for_place(&second, RED, &red[0].address, Some("vtep 172.16.0.1"), SOON);
    wait_for_place(&first, RED, &red[1].address, Some("vtep 172.16.0.2"), SOON);
    let ping = Ping::start(&red[0].netns, &red[1].address);
    // Each member in turn dies while it is the one in use, and comes back.
    for turn in 0..3u8 {
        let endpoint = control(&first)["endpoint"].as_str().expect("a member in use").to_owned();
        let member = (0..3).find(|member| etcd.endpoint(*member) == endpoint).unwrap();
        etcd.kill(member);
        let more = hosts[0].container("red", 2, turn + 1);
        first.ctl(&more.add());
        wait_for_place(&second, RED, &more.address, Some("vtep 172.16.0.1"), SOON);
        assert_ne!(control(&first)["endpoint"].as_str(), Some(endpoint.as_str()));
        etcd.revive(member);
        etcd.wait_until_healthy();
    }
    assert_eq!(ping.stop().0, 0, "packets were lost");
    for daemon in [first, second] {
        daemon.assert_conserved();
        daemon.stop();
    }
}
