//! `perf hosts`: one TCP stream between two containers, over this switch, Open vSwitch and what the kernel has for that.
//!
//! ```text
//!   local    container a --veth-- bridge | switch --veth-- container b
//!   remote   container a --veth-- bridge+vxlan | switch --veth-- bridge+vxlan | switch --veth-- container b
//! ```
//! Hosts and containers are network namespaces. One network is up at a time, made anew for each measurement, and who goes first
//! changes from round to round.

mod network;
mod ovs;
pub mod report;
mod stream;

use std::path::PathBuf;

use clap::ValueEnum;

use crate::compare::record::Machine;
use crate::host::netns::Netns;
use crate::host::ovs::{DAEMON, REMEDY};
use crate::host::scratch::Scratch;
use crate::host::{hugepages, interrupt, process};
use crate::options::{sibling, within, word, write_json};
use crate::{Error, Result};

use network::Network;
use report::{HostsReport, HostsSample};

/// One TCP stream between containers of one host and of two, beside the kernel's bridge and vxlan and Open vSwitch.
#[derive(Debug, Clone, clap::Args)]
pub struct HostsOptions {
    /// Length of a stream in seconds.
    #[arg(long, default_value_t = 5, value_parser = within::<u32>(1, 600))]
    seconds: u32,
    /// Rounds; each has a stream of every case.
    #[arg(long, default_value_t = 5, value_parser = within::<usize>(1, 1000))]
    rounds: usize,
    /// The daemon [default: `vswitch` beside this program]. Given again: other builds of it, measured by turns with the first.
    #[arg(long)]
    vswitch: Vec<PathBuf>,
    /// The build of the daemon before a change, measured by turns with the others.
    #[arg(long)]
    before: Option<PathBuf>,
    /// These cases alone. Without the kernel's there is no ratio.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Case>,
    /// Write everything as JSON to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Keep the private folder (configs) and say where it is.
    #[arg(long)]
    keep: bool,
}

/// Between whom, and over what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// Containers of one host, the kernel's bridge.
    LocalKernel,
    /// Containers of one host, Open vSwitch's userspace datapath with segmentation offload (userspace-tso-enable).
    LocalOvs,
    /// Containers of one host, the switch with ports of kind `veth`.
    LocalVeth,
    /// Containers of one host without offloads, the switch with ports of kind `af-packet`.
    LocalAfPacket,
    /// Containers of two hosts, the kernel's bridge and vxlan.
    RemoteKernel,
    /// Containers of two hosts without offloads, Open vSwitch's userspace datapath and VxLAN tunnel (without
    /// userspace-tso-enable, which its version 3.1 does not have for tunnels).
    RemoteOvs,
    /// Containers of two hosts, the switch with ports and uplink of kind `veth`.
    RemoteVeth,
    /// Containers of two hosts, the switch with ports of kind `veth` and a tap as its uplink, which a bridge joins with what leads to
    /// the other host: super-frames go whole inside the tunnel (Linux 6.17).
    RemoteTap,
    /// Containers of two hosts without offloads, the switch with ports and uplink of kind `af-packet`.
    RemoteAfPacket,
}

impl Case {
    /// The word on the command line and in reports.
    fn name(self) -> String {
        word(&self)
    }

    const fn is_remote(self) -> bool {
        !matches!(self, Self::LocalKernel | Self::LocalOvs | Self::LocalVeth | Self::LocalAfPacket)
    }

    const fn forwarder(self) -> Forwarder {
        match self {
            Self::LocalKernel | Self::RemoteKernel => Forwarder::Kernel,
            Self::LocalOvs | Self::RemoteOvs => Forwarder::Ovs,
            Self::LocalVeth | Self::RemoteVeth => Forwarder::Switch { ports: "veth", uplink: "veth" },
            Self::RemoteTap => Forwarder::Switch { ports: "veth", uplink: "tap" },
            Self::LocalAfPacket | Self::RemoteAfPacket => {
                Forwarder::Switch { ports: "af-packet", uplink: "af-packet" }
            }
        }
    }

    /// Whether checksums and segments may be left to the devices. The sockets of the others are told nothing of what is left to do.
    const fn leaves_segments_whole(self) -> bool {
        !matches!(self, Self::RemoteOvs | Self::LocalAfPacket | Self::RemoteAfPacket)
    }

    /// The kernel's own with the same containers.
    const fn kernel(self) -> Self {
        if self.is_remote() { Self::RemoteKernel } else { Self::LocalKernel }
    }
}

/// Who forwards in a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Forwarder {
    /// The kernel alone.
    Kernel,
    Ovs,
    /// Ours, with ports of one kind, and an uplink of one.
    Switch {
        ports: &'static str,
        uplink: &'static str,
    },
}

/// A case, and the build of the daemon where one takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Contender {
    case: Case,
    build: Option<(String, PathBuf)>,
}

impl Contender {
    fn name(&self) -> String {
        let build = self.build.as_ref().map_or("", |(name, _)| name);
        format!("{} {build}", self.case.name()).trim_end().to_owned()
    }
}

/// Programs this runs, and what to do where one is missing.
const PROGRAMS: [(&str, &str); 5] = [
    ("iperf3", "install Debian's package iperf3"),
    ("ip", "install Debian's package iproute2"),
    ("ethtool", "install Debian's package ethtool"),
    ("ping", "install Debian's package iputils-ping"),
    ("sysctl", "install Debian's package procps"),
];

/// Huge pages for two switches, in MiB.
const MEMORY: u64 = 2 * network::MEMORY;

pub fn run(options: &HostsOptions) -> anyhow::Result<()> {
    for (program, remedy) in PROGRAMS {
        if !process::findable(program) {
            Err(Error::missing(format!("there is no {program}"), remedy))?;
        }
    }
    let contenders = options.contenders()?;
    interrupt::install()?;
    Netns::clear_dead();
    let scratch = Scratch::create(options.keep)?;
    let hugepages = hugepages::reserve_or_say(MEMORY, &scratch);
    let contenders = possible(contenders, hugepages.is_some())?;
    let first = contenders.iter().find_map(|contender| contender.build.as_ref());
    let machine = Machine::here(first.map(|(_, path)| path.as_path()));
    let mut report = HostsReport::new(machine, options.seconds);
    print!("{}", report.head());
    let samples = measure(options, &contenders, &scratch, &mut report);
    // Also when it stopped early: minutes of measurement are not to be lost.
    report.summarise(contenders.iter().map(|contender| (contender.name(), contender.case.kernel().name())));
    print!("{}", report.text());
    options.json.as_ref().map_or(Ok(()), |path| write_json(path, &report))?;
    samples?;
    report.verdict().map_err(|words| Error::Failed(words).into())
}

impl HostsOptions {
    /// Everybody, in the order of a round.
    fn contenders(&self) -> anyhow::Result<Vec<Contender>> {
        let mut paths = self.vswitch.clone();
        if paths.is_empty() {
            paths.push(sibling()?);
        }
        let numbered = paths.into_iter().zip(1..);
        let name = |number: usize| if number == 1 { String::new() } else { number.to_string() };
        let mut builds: Vec<_> = numbered.map(|(path, number)| (name(number), path)).collect();
        builds.extend(self.before.clone().map(|path| ("before".to_owned(), path)));
        let cases = Case::value_variants().iter().copied();
        let cases = cases.filter(|case| self.only.is_empty() || self.only.contains(case));
        Ok(cases
            .flat_map(|case| match case.forwarder() {
                Forwarder::Kernel | Forwarder::Ovs => vec![Contender { case, build: None }],
                Forwarder::Switch { .. } => {
                    builds.iter().map(|build| Contender { case, build: Some(build.clone()) }).collect()
                }
            })
            .collect())
    }
}

/// Those that can run on this machine, who must not be none; says so of the others.
fn possible(mut contenders: Vec<Contender>, has_hugepages: bool) -> Result<Vec<Contender>> {
    let of_ovs = |contender: &Contender| contender.case.forwarder() == Forwarder::Ovs;
    if !contenders.iter().any(of_ovs) {
        return Ok(contenders);
    }
    let (reason, remedy) = match (process::findable(DAEMON), has_hugepages) {
        (true, true) => return Ok(contenders),
        (false, _) => (format!("{DAEMON} is not there"), REMEDY),
        (true, false) => ("its DPDK needs huge pages".into(), "free some memory, and run as root"),
    };
    contenders.retain(|contender| !of_ovs(contender));
    let what = format!("the cases of Open vSwitch are left out, because {reason}");
    if contenders.is_empty() {
        return Err(Error::missing(what, remedy));
    }
    eprintln!("{what}; {remedy}");
    Ok(contenders)
}

fn measure(
    options: &HostsOptions,
    contenders: &[Contender],
    scratch: &Scratch,
    report: &mut HostsReport,
) -> Result<()> {
    for round in 0..options.rounds {
        // Forwards and backwards by turns: a drift of the machine's speed is nobody's.
        let mut order: Vec<&Contender> = contenders.iter().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for (place, contender) in order.into_iter().enumerate() {
            let folder = scratch.folder(&format!("{round}-{place}"))?;
            let vswitch = contender.build.as_ref().map(|(_, path)| path.as_path());
            let mut network = Network::start(contender.case, vswitch, &folder)?;
            let before = network.counted()?;
            let stream = stream::run(&network.containers, options.seconds)?;
            let drops = network.drops_since(&before)?;
            let sample = HostsSample { round, contender: contender.name(), stream, drops };
            println!("{}", report::SAMPLES.row(&sample));
            report.samples.push(sample);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: Vec<Case>, before: Option<PathBuf>) -> Vec<String> {
        let vswitch = vec!["x".into(), "y".into()];
        let options = HostsOptions { seconds: 1, rounds: 1, vswitch, before, only, json: None, keep: false };
        options.contenders().unwrap().iter().map(Contender::name).collect()
    }

    #[test]
    fn every_build_takes_every_case_and_the_kernel_takes_its_own_once() {
        assert_eq!(names(Vec::new(), None).len(), 4 + 2 * 5);
        assert_eq!(
            names(vec![Case::RemoteVeth, Case::RemoteKernel], Some("z".into())),
            ["remote-kernel", "remote-veth", "remote-veth 2", "remote-veth before"]
        );
    }

    #[test]
    fn open_vswitch_is_left_out_where_it_cannot_run() {
        let all = [Case::LocalKernel, Case::LocalOvs].map(|case| Contender { case, build: None });
        assert_eq!(possible(all.to_vec(), false).unwrap(), all[..1]);
        assert_eq!(possible(all[..1].to_vec(), false).unwrap(), all[..1]);
        let words = possible(all[1..].to_vec(), false).unwrap_err().to_string();
        assert!(words.starts_with("the cases of Open vSwitch are left out, because "), "{words}");
    }
}
