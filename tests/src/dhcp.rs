//! Stock DHCP clients in a machine of a scenario, with a folder `/etc` and a host name of their own: their scripts write both.

use crate::{Netns, Process, Workdir};
use std::path::PathBuf;

/// A machine's own `/etc`, and the clients' files.
#[derive(Debug)]
pub struct Clients<'n> {
    netns: &'n Netns,
    dir: Workdir,
}

impl<'n> Clients<'n> {
    /// Those of a machine.
    pub fn of(netns: &'n Netns) -> Clients<'n> {
        Clients { netns, dir: Workdir::new("dhcp") }
    }

    /// A file of the machine.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The text of a file of the machine; empty when there is none.
    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Runs a client to its end; fails the test when it fails. What it said.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> String {
        let command = self.command(args);
        self.netns.run(&command.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Starts a client beside the test.
    #[track_caller]
    pub fn spawn(&self, name: &str, args: &[&str]) -> Process {
        let command = self.command(args);
        self.netns.spawn(name, &command.iter().map(String::as_str).collect::<Vec<_>>(), &self.dir)
    }

    /// `dhclient` for IPv4, in the foreground, with `more` arguments.
    #[track_caller]
    pub fn dhclient(&self, family: &str, more: &[&str]) -> Process {
        let (leases, pid) =
            (self.path("leases").display().to_string(), self.path("pid").display().to_string());
        let fixed = ["dhclient", family, "-d", "-v", "-lf", leases.as_str(), "-pf", pid.as_str()];
        self.spawn(&format!("dhclient{family}"), &[&fixed[..], more, &["eth0"]].concat())
    }

    fn command(&self, args: &[&str]) -> Vec<String> {
        let etc = self.path("etc").display().to_string();
        let script = format!("[ -d {etc} ] || cp -a /etc {etc}; mount --bind {etc} /etc && exec \"$@\"");
        let before = ["unshare", "--mount", "--uts", "sh", "-c", script.as_str(), "sh"];
        before.iter().chain(args).map(|word| (*word).to_owned()).collect()
    }
}
