//! Daemons of FRR, as Debian has them: private copies in namespaces, with folders and sockets of their own. The machine's own FRR
//! service, if there is one, is never touched. Here is what they have in common, and bfdd as the other end of BFD sessions.

use crate::{Netns, Process, Workdir, process, wait_for};
use serde_json::Value;
use std::time::Duration;

const FRR: &str = "/usr/lib/frr";
const USER: &str = "frr";
const START: Duration = Duration::from_secs(10);

/// It forgets who started it when it changes its user, so that it would outlive a test that is killed: its process namespace
/// does not.
const IN_NAMESPACE: [&str; 8] =
    ["unshare", "--pid", "--fork", "--kill-child=KILL", "sh", "-c", "\"$@\"; exit $?", "sh"];

/// Gives a folder to FRR's user: daemons give up being root before they make their sockets.
#[track_caller]
pub(crate) fn give_away(dir: &Workdir) {
    process::run(&["chown", "-R", &format!("{USER}:{USER}"), &dir.path().display().to_string()]);
}

/// Starts a daemon in a namespace, on the config `<program>.conf` of a folder.
pub(crate) fn launch(netns: &Netns, dir: &Workdir, program: &str, more: &[&str]) -> Process {
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (path, binary) = (dir.path().display().to_string(), format!("{FRR}/{program}"));
    let (pid, config) = (at(&format!("{program}.pid")), at(&format!("{program}.conf")));
    let zserv = at("zserv.sock");
    let args = [
        &binary,
        "--user",
        USER,
        "--group",
        USER,
        "--vty_socket",
        &path,
        "-i",
        &pid,
        "-z",
        &zserv,
        "-P",
        "0",
        "-f",
        &config,
        "--log",
        "stdout",
    ];
    netns.spawn(program, &[&IN_NAMESPACE[..], &args[..], more].concat(), dir)
}

/// What a daemon of a folder says to commands of its console; nothing where it refuses one, or does not answer.
pub(crate) fn try_vtysh(dir: &Workdir, daemon: &str, commands: &[&str]) -> Option<String> {
    let path = dir.path().display().to_string();
    let mut args = vec!["vtysh", "--vty_socket", &path, "-d", daemon];
    commands.iter().for_each(|command| args.extend(["-c", command]));
    let output = process::try_run(&args);
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

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
        dir.write("bfdd.conf", &format!("bfd\n{peers}"));
        give_away(&dir);
        let control = dir.path().join("control.sock").display().to_string();
        let process = launch(netns, &dir, "bfdd", &["--bfdctl", &control]);
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
        try_vtysh(&self.dir, "bfdd", commands)
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
