//! Network namespaces: one per host of a scenario.
//!
//! Their names carry the process id, they go with the value, and those of dead processes are removed on the way.
//! Nothing here touches the machine's own interfaces.

use crate::process::{self, Process};
use crate::workdir::{Workdir, owner_is_dead};
use std::process::{Command, Output};

const STEM: &str = "vs";

/// A network namespace that lives as long as this value.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Makes a namespace with its loopback up, IPv6 autoconfiguration and duplicate address detection off.
    ///
    /// IPv6 itself stays off until `enable_ipv6`: its unasked-for router and listener messages would blur counters. What a
    /// kernel with IPv6 says of the multicast groups it joins it says twice (RFC 3810 section 6.1); here the second time is
    /// at once, before a switch is there to count it, and not some time within the next second.
    #[track_caller]
    pub fn new(label: &str) -> Netns {
        process::need_root();
        let name = format!("{STEM}{}-{label}", std::process::id());
        process::run(&["ip", "netns", "add", &name]);
        let netns = Netns { name };
        netns.sysctl(&[
            "net.ipv6.conf.all.disable_ipv6=1",
            "net.ipv6.conf.default.disable_ipv6=1",
            "net.ipv6.conf.default.accept_dad=0",
            "net.ipv6.conf.default.router_solicitations=0",
            "net.ipv6.conf.default.mldv2_unsolicited_report_interval=1",
            "net.ipv4.conf.all.rp_filter=0",
            "net.ipv4.conf.default.rp_filter=0",
        ]);
        netns.ip("link set lo up");
        netns
    }

    /// Removes namespaces and folders of test processes that are gone, as a killed run leaves them.
    pub fn reap() {
        let listed = process::try_run(&["ip", "-o", "netns", "list"]);
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            let name = line.split_whitespace().next().unwrap_or("");
            if name.strip_prefix(STEM).is_some_and(owner_is_dead) {
                let _ = process::try_run(&["ip", "netns", "del", name]);
            }
        }
        Workdir::reap();
    }

    /// Its name, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Turns IPv6 on for interfaces that are added from now on, and for those that are there.
    #[track_caller]
    pub fn enable_ipv6(&self) {
        self.sysctl(&["net.ipv6.conf.all.disable_ipv6=0", "net.ipv6.conf.default.disable_ipv6=0"]);
    }

    /// Writes sysctls of this namespace ("key=value").
    #[track_caller]
    pub fn sysctl(&self, settings: &[&str]) {
        let mut args = vec!["sysctl", "-q", "-w"];
        args.extend(settings);
        self.run(&args);
    }

    /// Runs one `ip` command in it; words are split at blanks.
    #[track_caller]
    pub fn ip(&self, line: &str) -> String {
        let mut args = vec!["ip", "-n", &self.name];
        args.extend(line.split_whitespace());
        process::run(&args)
    }

    /// Runs a program in it to its end; fails the test when the program fails.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> String {
        process::run(&self.prefixed(args))
    }

    /// Runs a program in it to its end, whatever comes of it.
    #[track_caller]
    pub fn try_run(&self, args: &[&str]) -> Output {
        process::try_run(&self.prefixed(args))
    }

    /// A command line that runs in this namespace and dies with the test.
    pub fn command(&self, args: &[&str]) -> Command {
        process::bound_to_us(&self.prefixed(args))
    }

    /// Starts a program in it, beside the test, with its output in a file of `dir`.
    #[track_caller]
    pub fn spawn(&self, name: &str, args: &[&str], dir: &Workdir) -> Process {
        let log = dir.path().join(format!("{}-{name}.log", self.name));
        Process::spawn(name, self.command(args), log)
    }

    /// The names of its interfaces, sorted.
    pub fn interfaces(&self) -> Vec<String> {
        let text = self.ip("-o link show");
        let mut names: Vec<String> = text
            .lines()
            .filter_map(|l| l.split(": ").nth(1))
            .map(|n| n.split('@').next().unwrap_or(n).to_owned())
            .collect();
        names.sort();
        names
    }

    fn prefixed(&self, args: &[&str]) -> Vec<String> {
        ["ip", "netns", "exec", &self.name].iter().chain(args).map(|s| (*s).to_owned()).collect()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = process::try_run(&["ip", "netns", "del", &self.name]);
    }
}

/// A cable between two namespaces: a veth pair whose ends leave no checksum to the other side.
///
/// A veth end leaves checksums unfilled by default, and a packet socket on it would hand them on like that.
#[track_caller]
pub fn cable(a: (&Netns, &str), b: (&Netns, &str), mtu: u32) {
    let mtu = mtu.to_string();
    process::run(&[
        "ip",
        "link",
        "add",
        a.1,
        "mtu",
        &mtu,
        "netns",
        a.0.name(),
        "type",
        "veth",
        "peer",
        "name",
        b.1,
        "mtu",
        &mtu,
        "netns",
        b.0.name(),
    ]);
    for (netns, interface) in [a, b] {
        netns.run(&["ethtool", "-K", interface, "tx", "off"]);
        netns.ip(&format!("link set {interface} up"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cable_carries_a_ping_and_goes_with_its_namespaces() {
        let (left, right) = (Netns::new("left"), Netns::new("right"));
        cable((&left, "left0"), (&right, "right0"), 1500);
        left.ip("addr add 10.9.0.1/24 dev left0");
        right.ip("addr add 10.9.0.2/24 dev right0");
        left.run(&["ping", "-q", "-c", "1", "-W", "2", "10.9.0.2"]);
        assert_eq!(left.interfaces(), ["left0", "lo"]);
        let name = left.name().to_owned();
        drop(left);
        assert!(!process::run(&["ip", "netns", "list"]).contains(&name));
    }
}
