//! Bad input at the console and at its socket: every refusal names the thing and what to do, and the switch goes on as it was.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tests::{Daemon, Family, Scene, process};

/// What a whole console session prints (both outputs), fed from a pipe.
fn console(daemon: &Daemon, input: &[u8]) -> String {
    let file = daemon.dir().path().join("input");
    std::fs::write(&file, input).unwrap();
    let line = format!(
        "'{}' console --socket '{}' <'{}' 2>&1",
        daemon.program().display(),
        daemon.socket().display(),
        file.display()
    );
    String::from_utf8_lossy(&process::try_run(&["sh", "-c", &line]).stdout).into_owned()
}

#[test]
fn console_refusals_name_the_thing() {
    let scene = Scene::start(Family::V4, "", "");
    let before = scene.daemon.ctl("show vlt");
    let ten_kb = "n".repeat(10_000);
    let cases: Vec<(String, &[&str])> = vec![
        ("shwo vnic".into(), &["shwo"]),
        ("show".into(), &["not complete", "workers"]),
        ("show nothing-like-this".into(), &["nothing-like-this"]),
        ("vlt set 16777216 10.0.0.3 mac 02:00:00:00:01:03 vtep 172.16.0.2".into(), &["16777216", "16777215"]),
        ("vlt set 999 10.0.0.3 mac 02:00:00:00:01:03 vtep 172.16.0.2".into(), &["999"]),
        ("vlt set 100 10.0.0.3 mac 02:00:00:00:01:03 vtep 172.16.0.1".into(), &["172.16.0.1"]),
        ("vlt set 100 10.0.0.3 mac 02:00:00:00:01:03 vtep 224.0.0.1".into(), &["224.0.0.1"]),
        ("vlt set 100 10.0.0.300 mac 02:00:00:00:01:03 vtep 172.16.0.2".into(), &["10.0.0.300"]),
        ("vlt set 100 10.0.0.3 mac 02:00:00 vtep 172.16.0.2".into(), &["02:00:00"]),
        ("port detach no-such-port".into(), &["no-such-port"]),
        (format!("show vnic {ten_kb}"), &["nnn"]),
        (format!("port detach {ten_kb}"), &["63"]),
    ];
    for (command, words) in cases {
        let shown: String = command.chars().take(60).collect();
        let error = scene.daemon.try_ctl(&command).expect_err(&shown);
        assert!(error.len() < 2_000, "'{shown}': the refusal is {} bytes long", error.len());
        for word in words {
            assert!(error.contains(word), "'{shown}': the refusal does not say '{word}': {error}");
        }
    }
    assert_eq!(scene.daemon.ctl("show vlt"), before, "refused commands changed something");
}

#[test]
fn console_takes_a_line_of_a_megabyte_and_goes_on() {
    let scene = Scene::start(Family::V4, "", "");
    let mut input = b"show vnic\n".to_vec();
    input.extend(std::iter::repeat_n(b'x', 1 << 20));
    input.extend_from_slice(b"\nshow vlt\n");
    let output = console(&scene.daemon, &input);
    assert!(output.contains("02:00:00:00:01:01"), "the command before was answered: {output:.2000}");
    assert!(output.contains("10.0.0.2"), "the command behind was answered: {output:.2000}");
    assert!(output.len() < 20_000, "the refusal repeats the line: {} bytes", output.len());
    scene.daemon.ctl("show workers");
}

#[test]
fn console_socket_survives_garbage() {
    let scene = Scene::start(Family::V4, "", "");
    let socket = scene.daemon.socket().to_owned();
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the socket is its owner's alone");
    let garbage: Vec<Vec<u8>> = vec![
        b"\n\n\n".to_vec(),
        b"not json at all\n".to_vec(),
        b"{\"id\":1}\n".to_vec(),
        b"[1,2,3]\n{\"id\":{},\"command\":7}\n".to_vec(),
        vec![0xff; 4096],
        [vec![b'{'; 1 << 20], b"\n".to_vec()].concat(),
        format!("{{\"id\":1,\"command\":\"{}\",\"json\":false}}\n", "x".repeat(1 << 20)).into_bytes(),
    ];
    for bytes in garbage {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        // The switch may close the connection while we still write: that is its right.
        let _ = stream.write_all(&bytes);
        let _ = stream.read(&mut [0; 4096]);
        scene.daemon.ctl("show workers");
    }
    // One that says half of what a client begins with, and nothing more, holds nobody up.
    let mut half = UnixStream::connect(&socket).unwrap();
    half.write_all(b"PRI * HTTP/2.0\r\n").unwrap();
    for _ in 0..5 {
        scene.daemon.ctl("show workers");
    }
}
