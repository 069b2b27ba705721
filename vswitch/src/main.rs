//! `vswitch`: the daemon, its console and its tools.
// They panic where nobody takes what is printed.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand};
use vswitch::commands;
use vswitch::config::process::ApiConfig;
use vswitch::console::Output;
use vswitch::console::lexer;
use vswitch::console::repl::{self, Ending};
use vswitch::console::table::printable;
use vswitch::daemon;
use vswitch::nic_check::probe::{PATIENCE, Probe, Program, own};
use vswitch::nic_check::{self, Device, HostView};
use vswitch::switch::pool_size::Shortage;
use vswitch_log as log;

/// Jakiro vswitch: a software switch for clouds that carry RDMA and TCP together.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run the switch
    Run {
        /// Config file (TOML); without one the switch starts empty
        #[arg(long)]
        config: Option<PathBuf>,
        /// Console on this terminal; `quit` leaves it, and Ctrl-C ends the switch after that only; `shutdown` ends it at once
        #[arg(short, long)]
        interactive: bool,
    },
    /// Run the switch in place of one that runs: with its tables, and without an outage worth the name. It goes on as `run` does
    Upgrade {
        /// Config file (TOML) of the switch that runs, whose control socket it names
        #[arg(long)]
        config: PathBuf,
    },
    /// Check a config without touching a port
    Check {
        /// Config file (TOML)
        #[arg(long)]
        config: PathBuf,
    },
    /// Attach a console to a running switch
    Console {
        /// Its control socket
        #[arg(long, default_value = ApiConfig::DEFAULT_SOCKET)]
        socket: PathBuf,
        /// Answers in JSON
        #[arg(long)]
        json: bool,
        /// Stop at the first error, with a failure status
        #[arg(long)]
        strict: bool,
    },
    /// Run one console command; the exit status is non-zero when it fails
    Ctl {
        /// Its control socket
        #[arg(long, default_value = ApiConfig::DEFAULT_SOCKET)]
        socket: PathBuf,
        /// The answer in JSON
        #[arg(long)]
        json: bool,
        /// The command; options may stand before and behind it
        #[arg(required = true)]
        command: Vec<String>,
    },
    /// Look at a NIC
    Nic {
        #[command(subcommand)]
        verb: NicVerb,
    },
}

#[derive(Subcommand)]
enum NicVerb {
    /// Say what a NIC and its machine are like, what is wanted, and the command for each difference; changes nothing.
    /// The exit status is 0 when all is fine, 1 when there is something to change, 2 when it could not be looked at
    Check {
        /// Its PCI address, such as 0000:3b:00.0; or the name of a virtual device, such as net_tap0
        device: String,
        /// Config file (TOML) that says what is wanted
        #[arg(long)]
        config: Option<PathBuf>,
        /// Ask the device which rules it takes: by the switch that runs with it, else by a process that starts DPDK with this
        /// device only, for rules and no packets
        #[arg(long)]
        probe: bool,
        /// The control socket of the switch that runs with it, and no other way; else the config's
        #[arg(long, requires = "probe")]
        socket: Option<PathBuf>,
        /// Seconds that the process may take
        #[arg(long, requires = "probe", default_value_t = PATIENCE.as_secs(), value_parser = clap::value_parser!(u64).range(1..=3600))]
        timeout: u64,
        /// The answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// What `check --probe` runs: starts DPDK with one device, asks it, and says so on standard output
    #[command(hide = true)]
    Ask {
        device: String,
        #[arg(long)]
        config: Option<PathBuf>,
    },
}

/// What a shell shows of a program that SIGPIPE ended: 128 and the signal's number.
const PIPE_CLOSED: u8 = 128 + 13;
/// The status of a check of a NIC that could not be looked at.
const NOT_LOOKED_AT: u8 = 2;
const NO_LOG: &str = "cannot start the thread that writes the log";

fn main() -> ExitCode {
    let cli = Cli::parse();
    let code = run(cli.command).unwrap_or_else(|error| {
        let kind = error.downcast_ref().map(std::io::Error::kind);
        if kind == Some(ErrorKind::BrokenPipe) {
            // Whoever read the answer has had enough of it: as the signal would have ended this.
            return ExitCode::from(PIPE_CLOSED);
        }
        log::say(&format!("vswitch: {}", printable(&told(&error))));
        ExitCode::FAILURE
    });
    log::finish();
    code
}

/// An error with its causes, each said once: many errors quote their cause already.
fn told(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |told, cause| match told.as_str() {
        "" => cause,
        said if said.contains(&cause) => told,
        _ => format!("{told}: {cause}"),
    })
}

fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Run { config, interactive } => {
            log::start().context(NO_LOG)?;
            let parsed = config.as_deref().map(daemon::read_config).transpose()?.unwrap_or_default();
            let options = daemon::DaemonOptions { config: parsed, file: config, interactive, upgrade: false };
            daemon::run(options)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Upgrade { config } => {
            log::start().context(NO_LOG)?;
            let parsed = daemon::read_config(&config)?;
            let options = daemon::DaemonOptions {
                config: parsed,
                file: Some(config),
                interactive: false,
                upgrade: true,
            };
            daemon::run(options)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Check { config } => {
            let parsed = daemon::read_config(&config)?;
            let shortage = vswitch::switch::pool_size::check(&parsed);
            if let Some(Shortage { text, .. }) = shortage.as_ref().filter(|shortage| shortage.is_fatal) {
                anyhow::bail!("{}: {text}", config.display());
            }
            let mut out = std::io::stdout().lock();
            writeln!(
                out,
                "{}: good; {} uplinks, {} VPCs, {} vNICs, {} locations",
                config.display(),
                parsed.uplinks.len(),
                parsed.vpcs.len(),
                parsed.vnics.len(),
                parsed.locations.len()
            )?;
            if let Some(note) = vswitch::switch::offload::note(&parsed) {
                writeln!(out, "note: {note}")?;
            }
            let notes = vswitch::topology::flood_notes(&parsed).into_iter();
            let notes = notes.chain(vswitch::topology::route_notes(&parsed));
            let notes = notes.chain(vswitch::topology::peering_notes(&parsed));
            for note in notes.chain(daemon::notes(&parsed)) {
                writeln!(out, "note: {note}")?;
            }
            if let Some(Shortage { text, .. }) = shortage {
                writeln!(out, "note: {text}")?;
            }
            for vswitch::rdma::QuotaShare { whose, quota, .. } in vswitch::rdma::shares(&parsed) {
                writeln!(
                    out,
                    "note: {whose} = \"{quota}\": which number that is, the device says when the switch runs"
                )?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Verb::Console { socket, json, strict } => {
            let options = repl::ReplOptions { json, strict, ..repl::ReplOptions::for_user() };
            let (session, console) = commands::connect(&socket)?;
            Ok(match repl::run(console, session, &options)? {
                Ending::Clean => ExitCode::SUCCESS,
                Ending::Failed | Ending::Lost => ExitCode::FAILURE,
            })
        }
        Verb::Ctl { socket, json, command } => ctl(&socket, json, &lexer::joined(&command)),
        Verb::Nic { verb: NicVerb::Ask { device, config } } => {
            log::start().context(NO_LOG)?;
            let config = config.as_deref().map(daemon::read_config).transpose()?;
            own::run(&Device::parse(&device)?, config.as_ref(), &mut std::io::stdout())?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Nic { verb: NicVerb::Check { device, config, probe, socket, timeout, json } } => {
            let patience = probe.then(|| Duration::from_secs(timeout));
            let report = match nic(&device, config.as_deref(), patience, socket.as_deref()) {
                Ok(report) => report,
                Err(error) => {
                    writeln!(std::io::stderr(), "vswitch: {}", printable(&told(&error)))?;
                    return Ok(ExitCode::from(NOT_LOOKED_AT));
                }
            };
            let text = if json {
                format!("{}\n", serde_json::to_string_pretty(&report.json())?)
            } else {
                report.text()
            };
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes())?;
            out.flush()?;
            Ok(ExitCode::from(report.status()))
        }
    }
}

/// Looks at a device, and asks it about rules where that may take so long.
fn nic(
    device: &str,
    file: Option<&std::path::Path>,
    patience: Option<Duration>,
    socket: Option<&std::path::Path>,
) -> anyhow::Result<nic_check::NicReport> {
    let device = &Device::parse(device)?;
    let config = file.map(daemon::read_config).transpose()?;
    let shown = file.map(|file| file.display().to_string()).unwrap_or_default();
    let given = config.as_ref().map(|config| (config, shown.as_str()));
    let host = &HostView::here();
    let probed = patience.map(|patience| {
        let program = Program::own(device.name(), file).map_err(|error| error.to_string())?;
        Probe { host, device, config: config.as_ref(), socket, program, patience }.ask()
    });
    Ok(nic_check::check(host, device, given, probed.as_ref())?)
}

fn ctl(socket: &std::path::Path, json: bool, line: &str) -> anyhow::Result<ExitCode> {
    if repl::is_nothing(line) {
        anyhow::bail!("this is no command; `vswitch ctl help` lists them");
    }
    let (mut session, console) = commands::connect(socket)?;
    let answer = match console.execute(&mut session, line) {
        Ok(answer) => answer,
        Err(mut error) => {
            if let Some(before) = error.before.take() {
                say(&Output::of(*before), json)?;
            }
            return Err(error.into());
        }
    };
    say(&answer, json)?;
    Ok(ExitCode::SUCCESS)
}

/// An answer on standard output.
fn say(answer: &Output, json: bool) -> anyhow::Result<()> {
    let mut text = if json { serde_json::to_string_pretty(&answer.json())? } else { answer.text() };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
