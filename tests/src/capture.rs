//! A packet capture beside a scenario, kept only when the scenario fails.
//!
//! It sees every interface of one namespace. The file of a failed test stays in `scenario-pcaps/` of the target folder; of a long one,
//! the two files that hold its last packets, the older of which is overwritten in turn.

use crate::{Netns, Process, Workdir, binary};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Millions of bytes after which the next of the two files is written: a scenario that storms for half an hour must fill no disk, nor
/// have everybody wait for it.
const ROUND: &str = "250";

/// A running capture.
#[derive(Debug)]
pub struct Capture {
    process: Process,
    file: PathBuf,
    keep_as: PathBuf,
    /// Keeps the folder of the file as long as the capture.
    _dir: Workdir,
}

impl Capture {
    /// Starts capturing on all interfaces of a namespace and returns when it sees packets.
    #[track_caller]
    pub fn start(netns: &Netns) -> Capture {
        let dir = Workdir::new("pcap");
        let file = dir.path().join("all.pcap");
        let test = std::thread::current().name().unwrap_or("test").replace("::", "-");
        let keep_as =
            binary::target_dir().join("scenario-pcaps").join(format!("{test}-{}.pcap", netns.name()));
        let path = file.display().to_string();
        let size = ["-s", "2048", "-C", ROUND, "-W", "2"];
        let args = [&["tcpdump", "-Z", "root", "-n", "-U", "-i", "any", "-w", &path], &size[..]].concat();
        let mut process = netns.spawn("tcpdump", &args, &dir);
        process.wait_output("listening on", Duration::from_secs(10));
        Capture { process, file, keep_as, _dir: dir }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Ended by signal so that what it still buffers gets written; the test fails already, so no further panic here.
            let _ = crate::process::try_run(&["kill", "-INT", &self.process.pid().to_string()]);
            for _ in 0..100 {
                if self.process.exited().is_some() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            if let Some(folder) = self.keep_as.parent() {
                let _ = fs::create_dir_all(folder);
            }
            for number in ["0", "1"] {
                // As tcpdump names them.
                let from = self.file.with_extension(format!("pcap{number}"));
                let to = match number {
                    "0" => self.keep_as.clone(),
                    _ => self.keep_as.with_extension("later.pcap"),
                };
                if from.exists() && fs::copy(from, &to).is_ok() {
                    eprintln!("packets of this scenario: {}", to.display());
                }
            }
        }
    }
}
