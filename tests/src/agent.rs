//! Crafted frames: sends any frame into any interface of a scenario and tells what came out elsewhere.
//!
//! One Python process (`tests/peers/agent.py`, scapy) lives as long as the scenario, so that a scenario can look at the
//! switch's counters between two frames. Frames are written as scapy expressions; the assertions stay in the scenario.

use crate::{Lab, Netns, Workdir, process, script};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    dir: Workdir,
}

/// What came of one exchange.
#[derive(Debug)]
pub struct Exchange {
    /// How many frames were sent.
    pub sent: i64,
    seen: Value,
}

impl Exchange {
    /// The frames that arrived on a watched wire, as JSON objects of their facts.
    #[track_caller]
    pub fn on(&self, wire: &str) -> &[Value] {
        self.seen[wire].as_array().unwrap_or_else(|| panic!("'{wire}' was not watched"))
    }
}

impl Agent {
    /// Starts it on the lab's underlay ("peer" is the other host's end of the cable) and on further machines' `eth0`.
    ///
    /// Expressions know `up_mac`, `peer_mac`, `local_vtep`, `remote_vtep` and the given `names`.
    #[track_caller]
    pub fn start(lab: &Lab, machines: &[(&str, &Netns)], names: &[(&str, &str)]) -> Agent {
        let dir = Workdir::new("agent");
        let helper = script::path("agent.py").display().to_string();
        let errors = File::create(dir.path().join("errors.log")).expect("a log file in a folder just made");
        // Starting scapy writes nothing and needs no network.
        let mut child = process::bound_to_us(&[script::PYTHON, "-B", &helper])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {}: {e}: run scripts/bootstrap", script::PYTHON));
        let requests = child.stdin.take().expect("stdin was piped");
        let answers = BufReader::new(child.stdout.take().expect("stdout was piped"));
        let mut agent = Agent { child, requests, answers, dir };
        let mut wires = json!({"peer": [lab.peer.name(), "up0"]});
        for (name, netns) in machines {
            wires[*name] = json!([netns.name(), "eth0"]);
        }
        let mut known = json!({
            "up_mac": lab.uplink_mac(),
            "peer_mac": lab.peer_mac(),
            "local_vtep": lab.family().local_vtep(),
            "remote_vtep": lab.family().remote_vtep(),
        });
        for (name, value) in names {
            known[*name] = json!(value);
        }
        agent.ask(&json!({"wires": wires, "names": known}));
        agent
    }

    /// Sends frames (scapy expressions, each one frame or a list of frames) into a wire and watches others.
    #[track_caller]
    pub fn exchange<S: AsRef<str>>(&mut self, from: &str, frames: &[S], watch: &[&str]) -> Exchange {
        let frames: Vec<&str> = frames.iter().map(AsRef::as_ref).collect();
        let mut answer = self.ask(&json!({"from": from, "frames": frames, "watch": watch}));
        Exchange { sent: answer["sent"].as_i64().unwrap_or(0), seen: answer["seen"].take() }
    }

    /// As `exchange`, with ARP and neighbour discovery among the frames seen.
    #[track_caller]
    pub fn exchange_with_discovery(&mut self, from: &str, frames: &[&str], watch: &[&str]) -> Exchange {
        let mut answer =
            self.ask(&json!({"from": from, "frames": frames, "watch": watch, "discovery": true}));
        Exchange { sent: answer["sent"].as_i64().unwrap_or(0), seen: answer["seen"].take() }
    }

    #[track_caller]
    fn ask(&mut self, request: &Value) -> Value {
        let sent = writeln!(self.requests, "{request}").and_then(|()| self.requests.flush());
        let mut line = String::new();
        let got = sent.and_then(|()| self.answers.read_line(&mut line));
        if !matches!(got, Ok(n) if n > 0) {
            let errors = std::fs::read_to_string(self.dir.path().join("errors.log")).unwrap_or_default();
            panic!("the frame agent ended at {request}:\n{errors}");
        }
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("the frame agent answered {line}: {e}"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
