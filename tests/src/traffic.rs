//! Plain traffic between two machines of a scenario: pings and byte-for-byte transfers.
//!
//! It asserts completion and content, never bandwidth or latency: those drift with the machine.

use crate::{Netns, Workdir, script};
use std::time::Duration;

/// Pings and fails the test unless every echo comes back. `size` is ping's own: payload bytes, without headers.
#[track_caller]
pub fn ping(from: &Netns, to: &str, size: u32, count: u32) {
    let (size, count) = (size.to_string(), count.to_string());
    // Fragments are the sender's business: the kernel cuts what is longer than the interface's MTU.
    // All at once (-l): with answers at hand, ping waits no longer for the last one than two round trips or one interval, and
    // on a busy machine a short interval would make it give up an answer that is on its way.
    let args =
        ["ping", "-n", "-M", "dont", "-l", &count, "-c", &count, "-i", "2", "-W", "3", "-s", &size, to];
    let output = from.try_run(&args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !text.contains(" 0% packet loss") {
        // What the sender's kernel saw and did not like, if anything.
        let kernel = from.try_run(&["cat", "/proc/net/snmp", "/proc/net/netstat", "/proc/net/dev"]);
        eprintln!("kernel counters of {}:\n{}", from.name(), String::from_utf8_lossy(&kernel.stdout));
    }
    assert!(
        text.contains(" 0% packet loss"),
        "ping of {size} bytes from {} to {to} lost packets ({}):\n{text}{}",
        from.name(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Pings and fails the test if any echo comes back.
#[track_caller]
pub fn no_ping(from: &Netns, to: &str) {
    let output = from.try_run(&["ping", "-n", "-q", "-c", "3", "-i", "0.05", "-W", "1", to]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        !output.status.success() && !text.contains(" 0% packet loss"),
        "{to} answered {}:\n{text}",
        from.name()
    );
}

/// Pings one packet of `length` bytes, IP header included, that nobody may cut; the MTU that the answer names, or `None` when
/// the echo came back. Fails the test when there is silence.
#[track_caller]
pub fn ping_whole(from: &Netns, to: &str, length: u32) -> Option<u32> {
    let headers = if to.contains(':') { 40 + 8 } else { 20 + 8 };
    let size = (length - headers).to_string();
    let output = from.try_run(&["ping", "-n", "-M", "do", "-c", "1", "-W", "3", "-s", &size, to]);
    let text = [output.stdout, output.stderr].map(|b| String::from_utf8_lossy(&b).into_owned()).concat();
    // "Frag needed and DF set (mtu = 1450)", "Packet too big: mtu=1450", and of the sender's own kernel "too long, mtu=1450".
    let named = text.split("mtu").nth(1).map(|rest| {
        let digits = rest.trim_start_matches([' ', '=', ':']);
        digits.chars().take_while(char::is_ascii_digit).collect::<String>()
    });
    if output.status.success() {
        return None;
    }
    let mtu = named.and_then(|digits| digits.parse().ok());
    Some(mtu.unwrap_or_else(|| {
        panic!("no answer to {length} bytes from {} to {to}:\n{text}", from.name());
    }))
}

/// Sends `bytes` random bytes by TCP and by UDP from `client` to `server`, which sends them back; both compare every byte.
#[track_caller]
pub fn transfer(client: &Netns, server: &Netns, address: &str, bytes: u32) {
    transfer_by(&["tcp", "udp"], client, server, address, bytes);
}

/// As `transfer`, by some of the protocols.
#[track_caller]
pub fn transfer_by(protocols: &[&str], client: &Netns, server: &Netns, address: &str, bytes: u32) {
    let dir = Workdir::new("transfer");
    let helper = script::path("transfer.py").display().to_string();
    for protocol in protocols {
        let bytes = bytes.to_string();
        let args = [script::PYTHON, &helper, "serve", *protocol, address, &bytes];
        let mut process = server.spawn(&format!("serve-{protocol}"), &args, &dir);
        process.wait_output("ready", Duration::from_secs(10));
        client.run(&[script::PYTHON, &helper, "send", protocol, address, &bytes]);
        let status = process.wait(Duration::from_secs(10));
        assert!(status.success(), "the {protocol} server saw other bytes: {}", process.output());
    }
}
