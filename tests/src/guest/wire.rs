//! What RoCEv2 was on the wire: captures on the underlay or in a guest, and sums over them.
//!
//! The counting is done by `peers/roce.py`, which also computes every ICRC by means of its own.

use super::{Guest, Job};
use crate::{Netns, Process, Workdir, process, script, wait_for};
use serde_json::Value;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A capture of whole frames on the underlay, seen where they arrive: at `up0` of either host.
///
/// The senders' packet sockets go past captures on their own side.
#[derive(Debug)]
pub struct Underlay {
    captures: Vec<(Process, PathBuf)>,
    _dir: Workdir,
}

impl Underlay {
    /// Starts capturing VxLAN that arrives at these hosts.
    #[track_caller]
    pub fn start(hosts: &[&Netns]) -> Underlay {
        let dir = Workdir::new("underlay");
        let start = |host: &&Netns| {
            let file = dir.path().join(format!("{}.pcap", host.name()));
            let path = file.display().to_string();
            let args = [
                "tcpdump",
                "-Z",
                "root",
                "-n",
                "-i",
                "up0",
                "-Q",
                "in",
                "-B",
                "65536",
                "--immediate-mode",
                "-U",
                "-w",
                &path,
                "udp",
                "port",
                "4789",
            ];
            let mut process = host.spawn("tcpdump-underlay", &args, &dir);
            process.wait_output("listening on", Duration::from_secs(10));
            (process, file)
        };
        let captures = hosts.iter().map(start).collect();
        Underlay { captures, _dir: dir }
    }

    /// Stops capturing and sums up what was seen; fails the test when the capture lost packets.
    #[track_caller]
    pub fn stop(mut self) -> Seen {
        self.halt();
        Seen::of(&self.files())
    }

    /// Stops capturing; when packets of RoCEv2 came from an inner address, in seconds of the clock, and by which VTEP.
    #[track_caller]
    pub fn stop_timed(mut self, from: IpAddr) -> Vec<(f64, IpAddr)> {
        self.halt();
        self.files().into_iter().flat_map(|file| times(file, from)).collect()
    }

    /// As `stop`, with the verdict on every queue pair; `loss` holes are forgiven.
    #[track_caller]
    pub fn stop_judged(mut self, loss: u32) -> (Seen, Verdict) {
        self.halt();
        (Seen::of(&self.files()), Verdict::of(&self.files(), loss))
    }

    /// As `stop_judged` while traffic goes on: what came after either capture's last packet is left out.
    #[track_caller]
    pub fn judge_amid(mut self, loss: u32) -> Verdict {
        self.interrupt();
        Verdict::of(&self.files(), loss)
    }

    fn files(&self) -> Vec<&Path> {
        self.captures.iter().map(|(_, file)| file.as_path()).collect()
    }

    /// Waits until nothing more comes, and stops capturing.
    #[track_caller]
    fn halt(&mut self) {
        for (_, file) in &self.captures {
            let size = || std::fs::metadata(file).map(|m| m.len()).ok();
            let mut last = (size(), Instant::now());
            wait_for("the capture to be written", Duration::from_secs(30), || {
                if size() != last.0 {
                    last = (size(), Instant::now());
                }
                (last.1.elapsed() > Duration::from_millis(300)).then_some(())
            });
        }
        self.interrupt();
    }

    #[track_caller]
    fn interrupt(&mut self) {
        for (process, _) in &self.captures {
            process.signal("INT");
        }
        for (process, _) in &mut self.captures {
            process.wait(Duration::from_secs(20));
            let said = process.output();
            assert!(said.contains("\n0 packets dropped by kernel"), "the capture lost packets:\n{said}");
        }
    }
}

/// Each packet is two lines of tcpdump: `TIME IP VTEP.PORT > VTEP.4789: VXLAN, ...` and `IP ADDRESS.PORT > ADDRESS.4791: ...`.
#[track_caller]
fn times(file: &Path, from: IpAddr) -> Vec<(f64, IpAddr)> {
    let path = file.display().to_string();
    let text = process::run(&["tcpdump", "-n", "-tt", "-r", &path]);
    let mut found = Vec::new();
    let mut outer = None;
    let inner = format!("IP {from}.");
    for line in text.lines() {
        if let Some((time, rest)) = line.split_once(" IP ").filter(|(time, _)| !time.is_empty()) {
            let vtep = rest.split(' ').next().and_then(|end| end.rsplit_once('.')?.0.parse().ok());
            outer = time.parse().ok().zip(vtep);
        } else if line.trim_start().starts_with(&inner) && line.contains(".4791: ") {
            found.extend(outer.take());
        }
    }
    found
}

/// What `peers/gobackn.py` says of captures: whether reliable connections kept the rules on the way.
#[derive(Debug)]
pub struct Verdict(Value);

impl Verdict {
    /// Judges the captures of one point, merged by time; `loss` holes are forgiven when they are filled again.
    #[track_caller]
    pub fn of(files: &[&Path], loss: u32) -> Verdict {
        let paths: Vec<String> = files.iter().map(|f| f.display().to_string()).collect();
        let loss = format!("loss={loss}");
        let mut args = vec!["judge", &loss];
        args.extend(paths.iter().map(String::as_str));
        Verdict(script::run("gobackn.py", &args))
    }

    /// Compares what was sent with what arrived, each a capture: a network may lose, and change nothing else.
    #[track_caller]
    pub fn of_way(sent: &Path, arrived: &Path) -> Verdict {
        let [sent, arrived] = [sent, arrived].map(|path| path.display().to_string());
        Verdict(script::run("gobackn.py", &["way", &sent, &arrived]))
    }

    /// A number of it.
    #[track_caller]
    pub fn figure(&self, name: &str) -> i64 {
        self.0[name].as_i64().unwrap_or_else(|| panic!("no {name}: {:#}", self.0))
    }

    /// Fails the test when a rule was broken, but for these.
    #[track_caller]
    pub fn assert_kept_but(&self, rules: &[&str]) {
        let broken = self.0["violations"].as_array().into_iter().flatten();
        let broken: Vec<&Value> =
            broken.filter(|v| v["rule"].as_str().is_none_or(|rule| !rules.contains(&rule))).collect();
        assert!(broken.is_empty(), "{broken:#?}\nof {:#}", self.0);
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let figures = self.0.as_object().into_iter().flatten().filter(|(_, value)| value.is_number());
        let figures: Vec<String> = figures.map(|(name, value)| format!("{name} {value}")).collect();
        f.write_str(&figures.join(", "))
    }
}

/// A capture in a guest, on its `eth0`.
#[derive(Debug)]
pub struct Inside<'a> {
    guest: &'a Guest,
    job: Job,
}

impl<'a> Inside<'a> {
    /// Starts capturing at most `count` packets that match a filter, each up to `bytes` bytes.
    #[track_caller]
    pub fn start(guest: &'a Guest, filter: &str, count: u32, bytes: u32) -> Inside<'a> {
        guest.run("rm -f /tmp/inside.pcap");
        let job = guest.start(&format!(
            "exec tcpdump -Z root -n --immediate-mode -i eth0 -B 16384 -s {bytes} -c {count} -U -w /tmp/inside.pcap '{filter}' 2>/tmp/inside.log"
        ));
        // The file begins when the socket is there.
        guest.until("grep -q 'listening on' /tmp/inside.log", Duration::from_secs(30));
        Inside { guest, job }
    }

    /// Stops capturing and brings the packets over into a file.
    #[track_caller]
    pub fn stop(self, file: &Path) -> Seen {
        // What is on its way through the kernel is written first.
        let size = "stat -c %s /tmp/inside.pcap";
        self.guest
            .until(&format!("[ \"$({size}; usleep 300000)\" = \"$({size})\" ]"), Duration::from_secs(30));
        self.guest.stop(self.job);
        let coded = self.guest.run("base64 /tmp/inside.pcap");
        let text: String = coded.split_whitespace().collect();
        let bytes = super::base64::decode(&text).expect("base64 writes base64");
        std::fs::write(file, bytes).unwrap_or_else(|e| panic!("cannot write {}: {e}", file.display()));
        Seen::of(&[file])
    }
}

/// Sums over the RoCEv2 packets of captures.
#[derive(Debug)]
pub struct Seen(Value);

/// One direction of one kind of packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Packets.
    pub packets: i64,
    /// Bytes of payload, without headers and padding.
    pub payload: i64,
    /// Packets with the congestion mark.
    pub ce: i64,
    /// Packets with a wrong ICRC.
    pub icrc_wrong: i64,
    /// Packets that were captured in part, so that nobody knows.
    pub icrc_unseen: i64,
}

impl Seen {
    /// Sums up capture files.
    #[track_caller]
    pub fn of(files: &[&Path]) -> Seen {
        let paths: Vec<String> = files.iter().map(|f| f.display().to_string()).collect();
        let mut args = vec!["sum"];
        args.extend(paths.iter().map(String::as_str));
        Seen(script::run("roce.py", &args))
    }

    /// The sum of all streams that `wanted` takes, each a JSON object with vni, vlan, source, destination and kind.
    pub fn sum(&self, wanted: impl Fn(&Value) -> bool) -> Sums {
        let mut sums = Sums::default();
        for stream in self.0["streams"].as_array().into_iter().flatten().filter(|s| wanted(s)) {
            let of = |name: &str| stream[name].as_i64().unwrap_or(0);
            sums.packets += of("packets");
            sums.payload += of("payload");
            sums.ce += of("ce");
            sums.icrc_wrong += of("icrc-wrong");
            sums.icrc_unseen += of("icrc-unseen");
        }
        sums
    }

    /// The sum over all kinds that begin so ("RC ", "RC WRITE", "CM REQ"), whoever sent them.
    pub fn kind(&self, prefix: &str) -> Sums {
        self.sum(|stream| stream["kind"].as_str().is_some_and(|kind| kind.starts_with(prefix)))
    }

    /// As `kind`, in one VNI.
    pub fn kind_in(&self, vni: u32, prefix: &str) -> Sums {
        self.sum(|s| s["vni"] == vni && s["kind"].as_str().is_some_and(|kind| kind.starts_with(prefix)))
    }
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for s in self.0["streams"].as_array().into_iter().flatten() {
            writeln!(
                f,
                "vni {} vlan {} {} > {} {}: {} packets, {} bytes",
                s["vni"], s["vlan"], s["source"], s["destination"], s["kind"], s["packets"], s["payload"]
            )?;
        }
        Ok(())
    }
}

/// Takes packets out of a capture into a file of their own: `kinds` as "RC SEND_ONLY=2".
#[track_caller]
pub fn pick(from: &Path, to: &Path, kinds: &[String]) {
    let (from, to) = (from.display().to_string(), to.display().to_string());
    let mut args = vec!["pick", &from, &to];
    args.extend(kinds.iter().map(String::as_str));
    let done = script::run("roce.py", &args);
    assert_eq!(done["missing"], serde_json::json!({}), "packets that {from} does not have");
    process::run(&["tcpdump", "-Z", "root", "-n", "-r", &to]);
}
