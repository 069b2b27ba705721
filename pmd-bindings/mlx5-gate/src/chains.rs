//! What is put to the judge: every golden chain, and the chains of flows of all kinds over all underlays.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path as File, PathBuf};

use pipelines::Direction;
use pipelines::offload::translate::EntropySource;
use pipelines::qos::Class;
use rules::{FlowRule, testpmd};
use testkit::offload::{Host, pair, whole};
use testkit::{A, B, C, R, S, Station, UNDERLAYS, UPLINK, Underlay, lab, outer, routed, v4, v6};
use wire::build::Path;
use wire::roce::{Bth, opcode};
use wire::{Dscp, Psn, Qpn, Vni};

use crate::GateError;

/// Rules that belong together.
#[derive(Clone, Debug)]
pub struct Chain {
    /// What of: the name of a golden chain, or a kind of flows.
    pub name: String,
    /// Its rules, each once.
    pub rules: Vec<FlowRule>,
}

/// The golden chains of the translator, by name.
///
/// # Errors
/// When a file cannot be read, or is not what the translator writes.
pub fn golden() -> Result<Vec<Chain>, GateError> {
    let folder = File::new(env!("CARGO_MANIFEST_DIR")).join("../../pipelines/tests/offload/golden");
    let wrong = |file: &File, words: String| GateError::Chains { file: file.to_owned(), words };
    let entries = fs::read_dir(&folder).map_err(|error| wrong(&folder, error.to_string()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let read = |file: &PathBuf| {
        let text = fs::read_to_string(file).map_err(|error| wrong(file, error.to_string()))?;
        let rules = testpmd::commands(&text).map_err(|words| wrong(file, words))?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Chain { name, rules })
    };
    files.iter().map(read).collect()
}

const STATIONS: [Station; 5] = [A, B, C, R, S];
const QPN: u32 = 17;
const SOURCE_PORT: u16 = 50_001;

/// The chains of flows between all stations: bridged and routed, IPv4 and IPv6, with a tag and without, TCP, UDP, and
/// RDMA whole and by queue pair, over every underlay, with both entropies, with rates and without. By underlay.
pub fn of_all_kinds() -> Vec<Chain> {
    let mut chains = Vec::new();
    for underlay in UNDERLAYS {
        let mut rules = Rules::new();
        for entropy in [EntropySource::Exact, EntropySource::Hardware] {
            for limited in [false, true] {
                collect(&mut rules, underlay, entropy, limited);
            }
        }
        if !rules.is_empty() {
            chains.push(Chain { name: name(underlay), rules: rules.into_values().collect() });
        }
    }
    chains
}

fn name(underlay: Underlay) -> String {
    let Underlay { v6, vlan, zero_checksum6 } = underlay;
    let family = if v6 { "IPv6" } else { "IPv4" };
    let tag = if vlan.is_some() { ", VLAN" } else { "" };
    let checksum = if zero_checksum6 { ", UDP checksum 0" } else { "" };
    format!("all kinds over {family}{tag}{checksum}")
}

/// By their text.
type Rules = BTreeMap<String, FlowRule>;

/// The rules of all flows from all stations. A host has room for the flows of one.
fn collect(rules: &mut Rules, underlay: Underlay, entropy: EntropySource, limited: bool) {
    for (from, source) in STATIONS.into_iter().enumerate() {
        let mut host = host(underlay, entropy);
        for target in STATIONS.into_iter().filter(|target| *target != source) {
            frames(source, target).iter().for_each(|frame| send(&mut host, from, underlay, frame));
        }
        if limited {
            limit(&host);
        }
        for entry in host.entries() {
            for ask in [whole(entry.key), pair(entry.key, QPN, SOURCE_PORT)] {
                // What is refused stays in software: there is no rule to judge.
                let made =
                    host.chain(ask).map(|chain| chain.rules().into_iter().cloned().collect::<Vec<_>>());
                rules.extend(made.into_iter().flatten().map(|rule| (rule.testpmd(0), rule)));
            }
        }
    }
}

fn host(underlay: Underlay, entropy: EntropySource) -> Host {
    let mut world = lab(1, underlay);
    world.keep_vlan(0);
    let mut host = Host::new(world);
    host.options.entropy = entropy;
    host.options.dscps = [0, 26].into_iter().flat_map(Dscp::new).collect();
    host
}

fn send(host: &mut Host, from: usize, underlay: Underlay, frame: &[u8]) {
    // The first three are on this host, behind ports of their own.
    if from < 3 {
        host.world.pass(from as u16 + 1, frame);
    } else if let Ok(vni) = Vni::new(100) {
        host.world.pass(UPLINK, &outer(2, 1, underlay).vxlan(50_000, vni, frame));
    }
}

fn limit(host: &Host) {
    for direction in [Direction::In, Direction::Out] {
        for vnic in 0..host.world.snapshot.vnic_rows.len() as u32 {
            Class::ALL.into_iter().for_each(|class| host.limit(direction, vnic, class, 8_000_000_000));
        }
    }
}

fn frames(source: Station, target: Station) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for kind in 0..8u8 {
        let path = if kind & 1 == 0 { v4(source, target) } else { v6(source, target) };
        let path = if kind & 2 == 0 { path } else { routed(path) };
        let path = if kind & 4 == 0 { path } else { path.tagged(5) };
        frames.extend(of_path(path.with_tos(2)));
    }
    frames
}

fn of_path(path: Path) -> [Vec<u8>; 4] {
    let rdma =
        |port, opcode| path.roce(port, Bth::new(opcode, Qpn::truncated(QPN), Psn::truncated(1)), &[0; 36]);
    [
        path.tcp(1000, 80, 0x10, b"data"),
        path.udp(1000, 53, b"data"),
        rdma(SOURCE_PORT, opcode::RC_WRITE_ONLY),
        rdma(SOURCE_PORT + 1, opcode::UD_SEND_ONLY),
    ]
}

/// All of them, golden ones first.
///
/// # Errors
/// As [`golden`].
pub fn all() -> Result<Vec<Chain>, GateError> {
    let mut chains = golden()?;
    chains.extend(of_all_kinds());
    Ok(chains)
}
