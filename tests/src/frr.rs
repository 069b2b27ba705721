//! bfdd of FRR, as Debian has it, as the other end of BFD sessions: a private copy in a namespace, with folders and sockets of
//! its own. The machine's own FRR service, if there is one, is never touched.

use crate::{Netns, Process, Workdir, process, wait_for};
use serde_json::Value;
use std::time::Duration;

const BFDD: &str = "/usr/lib/frr/bfdd";
const USER: &str = "frr";
const START: Duration = Duration::from_secs(10);

/// A running bfdd.
#[derive(Debug)]
pub struct Bfdd {
    process: Process,
    dir: Workdir,
}

impl Bfdd {
    /// Starts it in a namespace; `peers` are the lines below `bfd` in its config.
    #[track_caller]
    pub fn start(netns: &Netns, peers: &str) -> Bfdd {
        let dir = Workdir::new("bfdd");
        let config = dir.write("bfdd.conf", &format!("bfd\n{peers}")).display().to_string();
        let path = dir.path().display().to_string();
        // It gives up being root before it makes its sockets.
        process::run(&["chown", "-R", &format!("{USER}:{USER}"), &path]);
        let at = |name: &str| dir.path().join(name).display().to_string();
        let (pid, zebra, control) = (at("bfdd.pid"), at("zserv.sock"), at("control.sock"));
        // It forgets who started it when it changes its user, so that it would outlive a test that is killed: its process
        // namespace does not.
        let in_namespace =
            ["unshare", "--pid", "--fork", "--kill-child=KILL", "sh", "-c", "\"$@\"; exit $?", "sh"];
        let bfdd = [
            BFDD,
            "--user",
            USER,
            "--group",
            USER,
            "--vty_socket",
            &path,
            "-i",
            &pid,
            "-z",
            &zebra,
            "--bfdctl",
            &control,
            "-P",
            "0",
            "-f",
            &config,
            "--log",
            "stdout",
        ];
        let process = netns.spawn("bfdd", &[&in_namespace[..], &bfdd[..]].concat(), &dir);
        let mut bfdd = Bfdd { process, dir };
        wait_for("bfdd to answer", START, || {
            if let Some(status) = bfdd.process.exited() {
                panic!("bfdd ended at start ({status}):\n{}", bfdd.process.output());
            }
            bfdd.try_vtysh(&["show bfd peers json"])
        });
        bfdd
    }

    fn try_vtysh(&self, commands: &[&str]) -> Option<String> {
        let path = self.dir.path().display().to_string();
        let mut args = vec!["vtysh", "--vty_socket", &path, "-d", "bfdd"];
        commands.iter().for_each(|command| args.extend(["-c", command]));
        let output = process::try_run(&args);
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs commands of its console, one after another.
    #[track_caller]
    pub fn vtysh(&self, commands: &[&str]) -> String {
        self.try_vtysh(commands)
            .unwrap_or_else(|| panic!("vtysh refused {commands:?}:\n{}", self.process.output()))
    }

    /// What it says of its session with an address; null when there is none.
    #[track_caller]
    pub fn peer(&self, address: &str) -> Value {
        let text = self.vtysh(&["show bfd peers json"]);
        let peers: Value =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("bfdd spoke no JSON ({e}): {text}"));
        let mut peers = peers.as_array().into_iter().flatten();
        peers.find(|peer| peer["peer"] == address).cloned().unwrap_or_default()
    }
}
