//! Traffic that goes on while a scenario does other things: a ping, numbered datagrams of many flows, a TCP stream.
//!
//! Each is started, left alone, ended, and then says what it saw. It asserts that nothing was lost, doubled, reordered or
//! changed, and that enough went through to mean something; never how fast.

use crate::{Netns, Process, Workdir, script};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

/// Numbered datagrams of many flows from one machine to another and back, each flow in order, none lost.
#[derive(Debug)]
pub struct Flows {
    client: Process,
    server: Process,
    until: PathBuf,
    _dir: Workdir,
}

impl Flows {
    /// Starts `flows` flows; they end with [`Flows::stop`].
    #[track_caller]
    pub fn start(client: &Netns, server: &Netns, address: &str, flows: u32) -> Flows {
        Self::run(client, server, address, flows, 5, true)
    }

    /// Sends `count` datagrams in each of `flows` flows, and fails the test unless all came, and came back, in order.
    #[track_caller]
    pub fn exchange(client: &Netns, server: &Netns, address: &str, flows: u32, count: u32) {
        let datagrams = Self::run(client, server, address, flows, count, false).finish(flows, true);
        assert_eq!(datagrams, i64::from(flows) * i64::from(count));
    }

    #[track_caller]
    fn run(client: &Netns, server: &Netns, address: &str, flows: u32, count: u32, endless: bool) -> Flows {
        let dir = Workdir::new("flows");
        let helper = script::path("flows.py").display().to_string();
        let until = dir.path().join("until");
        let mut serving = server.spawn("flows-serve", &[script::PYTHON, &helper, "serve", address], &dir);
        serving.wait_output("ready", LIMIT);
        let (flows, count, path) = (flows.to_string(), count.to_string(), until.display().to_string());
        let mut args = vec![script::PYTHON, &helper, "send", address, &flows, &count];
        if endless {
            args.push(&path);
        }
        let sending = client.spawn("flows-send", &args, &dir);
        Flows { client: sending, server: serving, until, _dir: dir }
    }

    /// Ends them; fails the test unless every datagram came, and came back, in the order of its flow. How many there were.
    #[track_caller]
    pub fn stop(self, flows: u32) -> i64 {
        self.end();
        self.finish(flows, true)
    }

    /// Ends them; fails the test unless every datagram came, and came back, once. For senders that share their cores with a flood: when
    /// the kernel moves them, what they sent by a veth waits in the backlogs of two CPUs, in no order.
    #[track_caller]
    pub fn stop_in_any_order(self, flows: u32) -> i64 {
        self.end();
        self.finish(flows, false)
    }

    fn end(&self) {
        std::fs::write(&self.until, "").expect("a file in a folder of our own");
    }

    #[track_caller]
    fn finish(mut self, flows: u32, ordered: bool) -> i64 {
        let sender = last_json(&mut self.client);
        let server = last_json(&mut self.server);
        for (who, said) in [("sender", &sender), ("server", &server)] {
            let count = |name: &str| said[name].as_i64().unwrap_or(-1);
            let disordered = if ordered { count("disordered") } else { 0 };
            let faults = (count("lost"), disordered, count("doubled"));
            assert_eq!(faults, (0, 0, 0), "(lost, disordered, doubled) as the {who} saw it: {said}");
            assert_eq!(count("flows"), i64::from(flows), "{who}: {said}");
        }
        assert_eq!(sender["datagrams"], server["datagrams"]);
        sender["datagrams"].as_i64().unwrap_or(0)
    }
}

/// One TCP connection whose bytes are compared at both ends.
#[derive(Debug)]
pub struct Stream {
    client: Process,
    server: Process,
    until: PathBuf,
    _dir: Workdir,
}

impl Stream {
    /// Connects and begins to send.
    #[track_caller]
    pub fn start(client: &Netns, server: &Netns, address: &str) -> Stream {
        let dir = Workdir::new("stream");
        let helper = script::path("stream.py").display().to_string();
        let until = dir.path().join("until");
        let mut serving = server.spawn("stream-serve", &[script::PYTHON, &helper, "serve", address], &dir);
        serving.wait_output("ready", LIMIT);
        let path = until.display().to_string();
        let mut sending =
            client.spawn("stream-send", &[script::PYTHON, &helper, "send", address, &path], &dir);
        sending.wait_output("connected", LIMIT);
        Stream { client: sending, server: serving, until, _dir: dir }
    }

    /// Ends it; fails the test unless every byte came back as it was sent. How many bytes there were.
    #[track_caller]
    pub fn stop(mut self) -> i64 {
        std::fs::write(&self.until, "").expect("a file in a folder of our own");
        let said = last_json(&mut self.client);
        let status = self.server.wait(LIMIT);
        assert!(status.success(), "the server of the stream: {}", self.server.output());
        said["bytes"].as_i64().unwrap_or(0)
    }
}

/// A ping that goes on: a hundred echoes a second, each with seconds to come back.
#[derive(Debug)]
pub struct Ping {
    process: Process,
    _dir: Workdir,
}

impl Ping {
    /// Starts it and waits for the first answers.
    #[track_caller]
    pub fn start(from: &Netns, to: &str) -> Ping {
        let dir = Workdir::new("ping");
        let mut process = from.spawn("ping", &["ping", "-n", "-i", "0.01", "-W", "5", to], &dir);
        process.wait_output("icmp_seq=3 ", LIMIT);
        Ping { process, _dir: dir }
    }

    /// Ends it; how many echoes were lost, and how many there were. Those that were on their way at the end are open: the
    /// ones behind the last answer, of half a second at most.
    #[track_caller]
    pub fn stop(mut self) -> (i64, i64) {
        self.process.signal("INT");
        self.process.wait(LIMIT);
        let text = self.process.output();
        let number = |word: &str| {
            let line = text.lines().find(|l| l.contains("packets transmitted")).unwrap_or_default();
            let part = line.split(", ").find(|p| p.contains(word)).unwrap_or_default();
            part.split(' ').next().and_then(|n| n.parse::<i64>().ok()).unwrap_or(-1)
        };
        let (sent, received) = (number("transmitted"), number("received"));
        assert!(sent > 0 && received > 0, "{text}");
        assert!(!text.contains("DUP"), "{text}");
        let numbers =
            text.split("icmp_seq=").skip(1).filter_map(|rest| rest.split(' ').next()?.parse::<i64>().ok());
        let last = numbers.max();
        let open = sent - last.unwrap_or(0);
        assert!(open <= 50, "no answer to the last {open} of {sent}: {text}");
        (sent - received - open, sent)
    }
}

/// The JSON of a helper's last line, after it ended well.
#[track_caller]
fn last_json(process: &mut Process) -> Value {
    let status = process.wait(LIMIT);
    let text = process.output();
    assert!(status.success(), "the helper ended with {status}: {text}");
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|e| panic!("no JSON at the end ({e}): {text}"))
}
