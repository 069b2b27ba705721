//! The API over TCP: certificates say who may do what, and nobody else gets anywhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::time::Duration;

use serde_json::{Value, json};
use tests::api::{self, Api, NETWORKS};
use tests::steady::Ping;
use tests::tls::Authority;
use tests::{Daemon, Netns, Workdir, binary, process, script};
use vswitch_api::v1::Kind;
use vswitch_api::v1::object::Spec;

const ADDRESS: &str = "127.0.0.1:7447";

/// Certificates as an operator makes them, and clients that have them.
struct Clients {
    authority: Authority,
    stubs: Workdir,
}

impl std::ops::Deref for Clients {
    type Target = Authority;

    fn deref(&self) -> &Authority {
        &self.authority
    }
}

impl Clients {
    fn new() -> Self {
        let stubs = Workdir::new("stubs");
        let (proto, out) = (binary::workspace().join("vswitch/proto"), stubs.path().display().to_string());
        let proto = proto.display();
        process::run(&[
            "bash",
            "-c",
            &format!(
                "protoc -I {proto} --python_out={out} --grpc_python_out={out} \
                 --plugin=protoc-gen-grpc_python=/usr/bin/grpc_python_plugin {proto}/vswitch/v1/*.proto"
            ),
        ]);
        let authority = Authority::new(&["ca", "other-ca"]);
        authority.sign("switch", "ca", "DNS:switch.test", "-days 2");
        Self { authority, stubs }
    }

    /// What a client with this certificate gets.
    fn client(&self, host: &Netns, ca: &str, certificate: &str, vpc: &str) -> Value {
        self.client_at(ADDRESS, host, ca, certificate, vpc)
    }

    fn client_at(&self, address: &str, host: &Netns, ca: &str, certificate: &str, vpc: &str) -> Value {
        let of = |what: &str| match certificate {
            "-" => "-".to_owned(),
            _ => self.path(&format!("{certificate}.{what}")).display().to_string(),
        };
        let (pem, key) = (of("pem"), of("key"));
        let helper = script::path("api_tls.py").display().to_string();
        let (path, ca) = (format!("PYTHONPATH={}", self.stubs.path().display()), self.path(ca));
        let said = host.run(&[
            "env",
            &path,
            script::PYTHON,
            &helper,
            address,
            &ca.display().to_string(),
            &pem,
            &key,
            vpc,
        ]);
        serde_json::from_str(said.lines().last().unwrap_or_default())
            .unwrap_or_else(|e| panic!("{e}: {said}"))
    }

    fn tcp(&self, without: &str) -> String {
        let at = |name: &str| self.path(name).display().to_string();
        let keys = [
            format!("listen = \"{ADDRESS}\""),
            format!("certificate = \"{}\"", at("switch.pem")),
            format!("key = \"{}\"", at("switch.key")),
            format!("client-ca = \"{}\"", at("ca.pem")),
            "admins = [\"operator.test\", \"spiffe://test/controller\"]".to_owned(),
            "readers = [\"monitor.test\"]".to_owned(),
        ];
        let kept = keys.iter().filter(|key| without.is_empty() || !key.starts_with(without));
        format!("tcp = {{ {} }}\n", kept.cloned().collect::<Vec<_>>().join(", "))
    }
}

fn got(look: &str, change: &str) -> Value {
    json!({ "look": look, "change": change })
}

/// Starts a switch whose `[api]` has more than the harness writes.
fn start(host: &Netns, api: &str) -> Daemon {
    host.ip("link set lo up");
    Daemon::start_with_api(host, NETWORKS, api)
}

#[test]
fn api_tls_certificates_say_who_may_do_what() {
    let authority = Clients::new();
    for (name, ca, subject, valid) in [
        ("operator", "ca", "DNS:operator.test", "-days 2"),
        ("controller", "ca", "URI:spiffe://test/controller", "-days 2"),
        ("monitor", "ca", "DNS:monitor.test,DNS:else.test", "-days 2"),
        ("stranger", "ca", "DNS:stranger.test", "-days 2"),
        ("wildcard", "ca", "DNS:*.test", "-days 2"),
        ("forged", "other-ca", "DNS:operator.test", "-days 2"),
        // It ended before it began.
        ("expired", "ca", "DNS:operator.test", "-days -1"),
    ] {
        authority.sign(name, ca, subject, valid);
    }
    let host = Netns::new("host");
    let mut daemon = start(&host, &authority.tcp(""));
    let mut api = Api::connect(daemon.socket());
    let pods = [("one", 1), ("two", 2)].map(|(name, number)| {
        api.create(Spec::Vnic(api::tap_vnic(name, "red", number))).unwrap();
        api::plug(&host, name, number)
    });
    pods[0].run(&["ping", "-c", "3", "-i", "0.2", "-W", "2", "10.0.0.2"]);
    let ping = Ping::start(&pods[0], "10.0.0.2");
    let nothing = got("UNAVAILABLE", "UNAVAILABLE");
    for (certificate, wanted) in [
        ("operator", got("OK", "OK")),
        ("controller", got("OK", "OK")),
        ("monitor", got("OK", "PERMISSION_DENIED")),
        ("stranger", nothing.clone()),
        ("wildcard", nothing.clone()),
        ("forged", nothing.clone()),
        ("expired", nothing.clone()),
        ("-", nothing.clone()),
    ] {
        let told = authority.client(&host, "ca.pem", certificate, &format!("by-{certificate}"));
        assert_eq!(told, wanted, "{certificate}");
    }
    // The switch shows a certificate, too: a client that trusts somebody else does not talk to it.
    assert_eq!(authority.client(&host, "other-ca.pem", "operator", "no"), nothing);
    // No TLS, an older one, garbage, and clients that say nothing: as many of them as there are places, and more.
    let socat = |what: &str| format!("timeout 2 socat -u {what} TCP:{ADDRESS} || true");
    for what in ["SYSTEM:'printf PRI'", "/dev/urandom", "EXEC:'cat /proc/self/maps'"] {
        host.run(&["bash", "-c", &socat(what)]);
    }
    let older = format!(
        "openssl s_client -connect {ADDRESS} -tls1_2 -cert {0} -key {1} < /dev/null 2>&1 || true",
        authority.path("operator.pem").display(),
        authority.path("operator.key").display()
    );
    let said = host.run(&["bash", "-c", &older]);
    assert!(said.contains("alert") || said.contains("Cipher is (NONE)"), "{said}");
    let silent = format!("for n in $(seq 60); do socat -u TCP:{ADDRESS} /dev/null & done; wait");
    let dir = Workdir::new("silent");
    let mut silent = host.spawn("silent", &["timeout", "20", "bash", "-c", &silent], &dir);
    std::thread::sleep(Duration::from_millis(500));
    // They have their deadline; the local socket is another way in.
    api.get(Kind::Vpc, "red").unwrap();
    silent.wait(Duration::from_secs(30));
    assert_eq!(authority.client(&host, "ca.pem", "operator", "after")["change"], "OK");
    assert!(api.list(Kind::Vpc, 100).iter().any(|entry| entry.key.as_ref().unwrap().id == "by-controller"));
    assert_eq!(ping.stop().0, 0, "packets were lost");

    // Other certificates, without a restart: who was trusted before is so no more.
    authority.sign("late", "other-ca", "DNS:operator.test", "-days 2");
    authority.sign("switch", "other-ca", "DNS:switch.test", "-days 2");
    std::fs::copy(authority.path("ca.pem"), authority.path("old-ca.pem")).unwrap();
    std::fs::copy(authority.path("other-ca.pem"), authority.path("ca.pem")).unwrap();
    assert_eq!(
        authority.client(&host, "old-ca.pem", "operator", "still")["look"],
        "OK",
        "not read again yet"
    );
    daemon.ctl("config reload");
    assert_eq!(authority.client(&host, "other-ca.pem", "operator", "no"), nothing);
    assert_eq!(authority.client(&host, "other-ca.pem", "late", "late"), got("OK", "OK"));
    // Files that are no good are refused, and those of before hold.
    authority.write("ca.pem", "no certificate");
    let refused = daemon.try_ctl("config reload").unwrap_err();
    assert!(refused.contains("client-ca") && refused.contains("ca.pem"), "{refused}");
    assert_eq!(authority.client(&host, "other-ca.pem", "late", "late"), got("OK", "OK"));
    drop(pods);
    daemon.assert_conserved();
    daemon.process().signal("TERM");
    daemon.assert_clean_end();
}

#[test]
fn api_tls_an_address_that_comes_later_is_no_reason_not_to_start() {
    let authority = Clients::new();
    authority.sign("monitor", "ca", "DNS:monitor.test", "-days 2");
    let host = Netns::new("host");
    host.sysctl(&["net.ipv6.conf.lo.disable_ipv6=0"]);
    for (address, there) in [("192.0.2.9", "192.0.2.9/24"), ("[2001:db8::9]", "2001:db8::9/64")] {
        let listen = format!("{address}:7447");
        let daemon = start(&host, &authority.tcp("").replace(ADDRESS, &listen));
        daemon.ctl("show vpc");
        host.ip(&format!("addr add {there} dev lo"));
        assert_eq!(
            authority.client_at(&listen, &host, "ca.pem", "monitor", "blue"),
            got("OK", "PERMISSION_DENIED"),
            "{address}"
        );
        daemon.end();
    }
}

#[test]
fn api_tls_is_refused_without_what_makes_it_safe() {
    let authority = Clients::new();
    let host = Netns::new("host");
    host.ip("link set lo up");
    let program = binary::release("vswitch").display().to_string();
    let dir = Workdir::new("refused");
    let check = |api: &str| {
        let socket = dir.path().join("s.sock");
        let text = format!("[api]\nsocket = \"{}\"\n{api}", socket.display());
        let path = dir.write("c.toml", &text).display().to_string();
        let output = process::try_run(&[&program, "check", "--config", &path]);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned(), path)
    };
    assert!(check(&authority.tcp("")).0);
    for (without, word) in
        [("client-ca", "client-ca"), ("key", "key"), ("certificate", "certificate"), ("listen", "listen")]
    {
        let (good, said, _) = check(&authority.tcp(without));
        assert!(!good && said.contains(word), "{without}: {said}");
    }
    let nobody = authority.tcp("admins").replace("readers = [\"monitor.test\"]", "readers = []");
    let (good, said, _) = check(&nobody);
    assert!(!good && said.contains("admins"), "{said}");
    let both = authority.tcp("").replace("readers = [\"monitor.test\"]", "readers = [\"operator.test\"]");
    let (good, said, _) = check(&both);
    assert!(!good && said.contains("operator.test"), "{said}");
    // What only the machine can say is said at start.
    for (name, text, word) in [
        ("switch.key", "no key", "key"),
        ("switch.pem", "no certificate", "certificate"),
        ("ca.pem", "", "client-ca"),
    ] {
        let kept = std::fs::read(authority.path(name)).unwrap();
        authority.write(name, text);
        let (good, _, path) = check(&authority.tcp(""));
        assert!(good, "a check touches no other file");
        let output = process::try_run(&[&program, "run", "--config", &path]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(word) && said.contains("PEM"), "{name}: {said}");
        std::fs::write(authority.path(name), kept).unwrap();
    }
}
