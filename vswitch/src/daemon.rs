//! The daemon: the control thread's one loop. It owns the switch; consoles, signals and the clock take turns.
//!
//! Nothing here touches a packet: workers go on whatever happens in this loop.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::api;
use crate::config::{Config, Source};
use crate::confinement::confine;
use crate::console::repl;
use crate::control::guard::caught;
use crate::control::parked::Parked;
use crate::control::server::{Call, Caller, Server};
use crate::shell::Shell;
use crate::state;
use crate::state::owners::Owners;
use crate::switch::ahead::Next;
use crate::switch::rcft::BUSY_EVERY_MS;
use crate::switch::{Switch, TEND_EVERY_MS};

/// Requests of all consoles that may wait.
const CALLS: usize = 64;
/// Between two looks for ports that somebody waits for.
const PORTS_EVERY: Duration = Duration::from_millis(2);
/// Time for the last answers to leave.
const FAREWELL: Duration = Duration::from_millis(50);

/// How the daemon is run.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// The config.
    pub config: Config,
    /// Its file, for reloads.
    pub file: Option<PathBuf>,
    /// A console on this terminal.
    pub interactive: bool,
}

/// Runs the switch until it is told to end.
///
/// # Errors
/// What kept it from starting, and what to do.
pub fn run(options: DaemonOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the control runtime")?;
    runtime.block_on(control(options))
}

async fn control(options: DaemonOptions) -> anyhow::Result<()> {
    // Signals first: one that comes while the ports are being attached must end the switch in order, too.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    // The socket next: a second daemon must not touch the ports of the first.
    let server = Server::bind(&options.config.api.socket)?;
    let readers = match &options.config.api.group {
        Some(group) => Some(Server::bind_for_readers(&options.config.api.read_socket(), group)?),
        None => None,
    };
    let tcp = options.config.api.tcp.as_ref().map(api::tcp::Tcp::bind).transpose()?;
    let keys = tcp.as_ref().map(api::tcp::Tcp::keys);
    let state_file = options.config.control.state.clone().or_else(service_state);
    let file = options.file.as_deref().map(Source::load).transpose()?;
    let (config, owners) = match &state_file {
        Some(path) => state::restore(options.config, file.as_ref(), path)?,
        None => (options.config, Owners::default()),
    };
    if let Err(error) = pmd::process::raise_descriptor_limit() {
        tracing::warn!(%error, "the limit of open files stays as it is: hundreds of vhost-user ports may not fit");
    }
    let mut switch = Switch::start(config)?;
    switch.set_state_file(state_file.as_deref());
    switch.set_config_file(file);
    switch.set_owners(owners);
    let (mut shell, console) = Shell::new(switch)?;
    shell.config_file = options.file;
    shell.keys = keys;

    let (calls, mut requests) = mpsc::channel::<Call>(CALLS);
    let (jobs, mut work) = mpsc::channel::<api::Job>(CALLS);
    let programs = api::start(jobs, tcp).context("cannot start the API's thread")?;
    let (ended, mut console_ended) = mpsc::channel::<()>(1);
    if options.interactive {
        interactive(Caller::new(calls.clone()), ended.clone())?;
    }
    let socket = server.path().to_owned();
    let reading = readers.map(|server| tokio::spawn(server.serve(calls.clone(), programs.clone())));
    let mut serving = tokio::spawn(server.serve(calls, programs));
    // DPDK is up and its threads are there: whatever they start from now on is confined, too.
    let seccomp = shell.switch.bare_config().control.seccomp;
    if let Err(error) = confine(seccomp) {
        tracing::warn!(%error, "system calls are not confined; write `[control] seccomp = \"off\"` where the kernel has no filters");
    }
    tracing::info!(socket = %socket.display(), ?seccomp, "the switch runs");
    let mut deaf = false;
    let mut parked = Parked::default();
    let mut reloading = None;
    let mut clock = tokio::time::interval(Duration::from_millis(TEND_EVERY_MS));
    clock.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            Some(call) = requests.recv() => {
                parked.take(call, &console, &mut shell);
                if shell.shutdown {
                    tokio::time::sleep(FAREWELL).await;
                    break;
                }
            }
            Some(job) = work.recv() => job(&mut shell),
            () = tokio::time::sleep(PORTS_EVERY), if !parked.is_empty() || reloading.is_some() => {
                turn(&mut shell, "a turn of ports", |switch| switch.tend_ports(Instant::now()));
                parked.go_on(&console, &mut shell);
                if let Some(attempt) = reloading.take_if(|attempt| shell.switch.is_ripe(*attempt)) {
                    reloading = reload(&mut shell, attempt);
                }
            }
            _ = clock.tick() => turn(&mut shell, "a turn of control", |switch| switch.tend(Instant::now())),
            () = tokio::time::sleep(Duration::from_millis(BUSY_EVERY_MS)), if shell.switch.is_busy() => {
                turn(&mut shell, "a turn of queue pairs", Switch::hurry);
            }
            ended = &mut serving, if !deaf => {
                // Consoles cannot connect any more; everything else goes on, and signals still end it in order.
                tracing::error!(?ended, "the control socket is closed; restart the switch when it suits");
                deaf = true;
            }
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            _ = hangup.recv() => {
                let attempt = shell.switch.new_attempt();
                reloading = reload(&mut shell, attempt);
            }
            Some(()) = console_ended.recv() => {
                tracing::info!("the console was left; the switch runs on until SIGTERM or Ctrl-C");
            }
        }
    }
    tracing::info!("the switch ends");
    shell.switch.stop();
    if let Some(reading) = reading {
        reading.abort();
        let _ = reading.await;
    }
    if !deaf {
        serving.abort();
        let _ = serving.await;
    }
    Ok(())
}

/// The state file of a service of systemd that has a folder for it (`StateDirectory`, systemd.exec(5)).
fn service_state() -> Option<PathBuf> {
    let folders = std::env::var_os("STATE_DIRECTORY")?;
    let folder = std::env::split_paths(&folders).next().filter(|folder| folder.is_absolute())?;
    Some(folder.join("state"))
}

/// Does one of control's own tasks, whatever becomes of it.
fn turn(shell: &mut Shell, what: &str, work: impl FnOnce(&mut Switch)) {
    if let Err(fault) = caught(what, || work(&mut shell.switch)) {
        shell.suspect(&fault);
    }
}

/// Reads the config file again; the number of the attempt when it is to be tried again.
fn reload(shell: &mut Shell, attempt: u64) -> Option<u64> {
    let Some(path) = shell.config_file.clone() else {
        tracing::warn!("SIGHUP: the switch was started without a config file");
        return None;
    };
    shell.switch.begin_try(attempt);
    let result = caught("a reload", || shell.reload_config(&path));
    if shell.switch.end_try() == Next::TryAgain {
        return Some(attempt);
    }
    match result {
        Ok(Ok(())) => tracing::info!(file = %path.display(), "config reloaded"),
        Ok(Err(error)) => {
            tracing::error!(%error, "the config was not reloaded; the switch runs on as it was");
        }
        Err(fault) => shell.suspect(&fault),
    }
    None
}

/// A console on this terminal, on a thread of its own.
fn interactive(caller: Caller, ended: mpsc::Sender<()>) -> anyhow::Result<()> {
    std::thread::Builder::new()
        .name("console".into())
        .spawn(move || {
            if let Err(error) = repl::run(caller, &repl::ReplOptions::for_user()) {
                tracing::error!(%error, "the console ended");
            }
            let _ = ended.blocking_send(());
        })
        .context("cannot start the console's thread")?;
    Ok(())
}

/// Reads and checks a config file.
///
/// # Errors
/// Every fault with its place.
pub fn read_config(path: &Path) -> anyhow::Result<Config> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the config {shown}"))?;
    Ok(Config::parse(&text, &shown)?)
}
