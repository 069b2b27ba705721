//! The command line of `perf`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use perf::compare::cases::{Case, Flows, Job, Peer, Traffic};
use perf::compare::ovs::ExactMatchCache;
use perf::compare::{self, check, frames, report};
use perf::host::interrupt;

#[derive(Parser)]
#[command(version, about = "Measures the Jakiro vswitch")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare with other switches: same frames, same kind of ports, one core, by turns.
    Compare(Compare),
}

#[derive(Args)]
struct Compare {
    /// Who to compare with: testpmd, ovs (both kinds of megaflows), ovs-exact, ovs-wildcard; or the switch itself
    /// with the frames of `--traffic roce` on another UDP port: udp (a flow each), udp-few (a flow per address).
    #[arg(long, value_delimiter = ',', default_value = "testpmd,ovs")]
    peers: Vec<String>,
    /// What to do: l2, encap, decap.
    #[arg(long, value_delimiter = ',', default_value = "l2,encap,decap")]
    cases: Vec<Case>,
    /// Numbers of flows, as in 1,1k,100k.
    #[arg(long, value_delimiter = ',', default_value = "1,1k")]
    flows: Vec<Flows>,
    /// Length of the inner Ethernet frame, with its 4-byte frame check sequence (so 64 means 60 bytes in memory).
    #[arg(long, default_value_t = 64)]
    inner_bytes: usize,
    /// What the inner frames carry: tcp, rocev2 (or roce; a flow is a queue pair), mixed, udp, udp-few.
    #[arg(long, default_value = "tcp")]
    traffic: Traffic,
    /// Pairs of samples per row.
    #[arg(long, default_value_t = 10)]
    pairs: usize,
    /// Length of a sample in seconds.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// The core that forwards [default: the last one].
    #[arg(long)]
    core: Option<usize>,
    /// The daemon [default: `vswitch` beside this program].
    #[arg(long, conflicts_with = "peers_alone")]
    vswitch: Option<PathBuf>,
    /// OVS's exact-match cache: on, off, or auto (on up to 4096 flows, where it is faster so).
    #[arg(long, default_value = "auto")]
    ovs_emc: ExactMatchCache,
    /// Measure the peers without ours; our fields and the ratios are null.
    #[arg(long)]
    peers_alone: bool,
    /// Write the rows as JSON to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Keep the private folder (configs, frames in and out) and say where it is.
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Compare(options) => run_compare(options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("perf: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_compare(given: Compare) -> anyhow::Result<()> {
    anyhow::ensure!(
        frames::INNER_BYTES.contains(&given.inner_bytes),
        "--inner-bytes {} is not in {} to {}",
        given.inner_bytes,
        frames::INNER_BYTES.start(),
        frames::INNER_BYTES.end()
    );
    anyhow::ensure!(given.pairs > 0, "--pairs 0 measures nothing; 10 is a good number");
    anyhow::ensure!((0.1..=60.0).contains(&given.seconds), "--seconds {} is not in 0.1 to 60", given.seconds);
    interrupt::install()?;
    let vswitch = if given.peers_alone { None } else { Some(given.vswitch.map_or_else(sibling, Ok)?) };
    let peers: Vec<Vec<Peer>> =
        given.peers.iter().map(|word| Peer::parse_word(word)).collect::<Result<_, _>>()?;
    let jobs = given
        .cases
        .iter()
        .flat_map(|&case| given.flows.iter().map(move |flows| (case, flows.clone())))
        .map(|(case, flows)| Job { case, flows, inner_bytes: given.inner_bytes, traffic: given.traffic })
        .collect();
    let options = compare::Options {
        jobs,
        peers: peers.concat(),
        pairs: given.pairs,
        seconds: given.seconds,
        vswitch,
        core: given.core,
        exact_match_cache: given.ovs_emc,
        keep: given.keep,
    };
    println!("tunnel: {}", check::tunnel_text());
    println!(
        "Mpps and cyc (TSC cycles per packet) count the forwarding thread's CPU time; ratio is ours to the peer's"
    );
    println!("{}", report::table_head());
    let mut rows = Vec::new();
    let result = compare::run(&options, |row| {
        println!("{}", report::table_row(&row));
        rows.push(row);
    });
    // Also when it stopped early: minutes of measurement are not to be lost.
    if let Some(path) = given.json {
        let text = serde_json::to_string_pretty(&rows)?;
        std::fs::write(&path, text + "\n").with_context(|| format!("write {}", path.display()))?;
    }
    Ok(result?)
}

/// `vswitch` in the folder of this program.
fn sibling() -> anyhow::Result<PathBuf> {
    let here = std::env::current_exe().context("find this program")?;
    let path = here.with_file_name("vswitch");
    anyhow::ensure!(
        path.is_file(),
        "there is no {}; build it (cargo build --release -p vswitch), name it with --vswitch, or measure --peers-alone",
        path.display()
    );
    Ok(path)
}
