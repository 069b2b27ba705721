//! The daemon: the control thread's one loop. It owns the switch; clients of the API, signals and the clock take turns.
//!
//! Nothing here touches a packet: workers go on whatever happens in this loop.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::api;
use crate::commands;
use crate::config::{Config, Source};
use crate::confinement::confine;
use crate::console::repl;
use crate::control::guard::caught;
use crate::control::server::Server;
use crate::controller::Controller;
use crate::state;
use crate::state::owners::Owners;
use crate::switch::ahead::Next;
use crate::switch::rcft::BUSY_EVERY_MS;
use crate::switch::{Switch, TEND_EVERY_MS};

/// Requests of all clients that may wait.
const JOBS: usize = 64;
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
    // Whatever folder the process is in later, it is this file.
    let file = options.file.map(|file| std::path::absolute(&file).unwrap_or(file));
    let mut controller = Controller::new(switch, file);
    controller.keys = keys;

    let (jobs, mut work) = mpsc::channel::<api::Job>(JOBS);
    let clients = api::start(jobs, tcp).context("cannot start the API's thread")?;
    let (ended, mut console_ended) = mpsc::channel::<()>(1);
    if options.interactive {
        interactive(server.path().to_owned(), ended.clone())?;
    }
    let socket = server.path().to_owned();
    let reading = readers.map(|server| tokio::spawn(server.serve(clients.clone())));
    let mut serving = tokio::spawn(server.serve(clients));
    // DPDK is up and its threads are there: whatever they start from now on is confined, too.
    let seccomp = controller.switch.bare_config().control.seccomp;
    if let Err(error) = confine(seccomp) {
        tracing::warn!(%error, "system calls are not confined; write `[control] seccomp = \"off\"` where the kernel has no filters");
    }
    tracing::info!(socket = %socket.display(), ?seccomp, "the switch runs");
    let mut deaf = false;
    let mut reloading = None;
    let mut clock = tokio::time::interval(Duration::from_millis(TEND_EVERY_MS));
    clock.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            Some(job) = work.recv() => {
                job(&mut controller);
                if controller.shutdown {
                    tokio::time::sleep(FAREWELL).await;
                    break;
                }
            }
            () = tokio::time::sleep(PORTS_EVERY), if reloading.is_some() || controller.switch.is_trying() => {
                turn(&mut controller, "a turn of ports", |switch| switch.tend_ports(Instant::now()));
                if let Some(attempt) = reloading.take_if(|attempt| controller.switch.is_ripe(*attempt)) {
                    reloading = reload(&mut controller, attempt);
                }
            }
            _ = clock.tick() => turn(&mut controller, "a turn of control", |switch| switch.tend(Instant::now())),
            () = tokio::time::sleep(Duration::from_millis(BUSY_EVERY_MS)), if controller.switch.is_busy() => {
                turn(&mut controller, "a turn of queue pairs", Switch::hurry);
            }
            ended = &mut serving, if !deaf => {
                // Nobody can connect any more; everything else goes on, and signals still end it in order.
                tracing::error!(?ended, "the control socket is closed; restart the switch when it suits");
                deaf = true;
            }
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            _ = hangup.recv() => {
                let attempt = controller.switch.new_attempt();
                reloading = reload(&mut controller, attempt);
            }
            Some(()) = console_ended.recv() => {
                tracing::info!("the console was left; the switch runs on until SIGTERM or Ctrl-C");
            }
        }
    }
    tracing::info!("the switch ends");
    controller.switch.stop();
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
fn turn(controller: &mut Controller, what: &str, work: impl FnOnce(&mut Switch)) {
    if let Err(fault) = caught(what, || work(&mut controller.switch)) {
        controller.suspect(&fault);
    }
}

/// Reads the config file again; the number of the attempt when it is to be tried again.
fn reload(controller: &mut Controller, attempt: u64) -> Option<u64> {
    controller.switch.begin_try(attempt);
    let result = caught("a reload", || api::reload(controller));
    if controller.switch.end_try() == Next::TryAgain {
        return Some(attempt);
    }
    match result {
        Ok(Ok(file)) => tracing::info!(%file, "config reloaded"),
        Ok(Err(error)) => {
            tracing::error!(%error, "the config was not reloaded; the switch runs on as it was");
        }
        Err(fault) => controller.suspect(&fault),
    }
    None
}

/// A console on this terminal, on a thread of its own.
fn interactive(socket: PathBuf, ended: mpsc::Sender<()>) -> anyhow::Result<()> {
    std::thread::Builder::new()
        .name("console".into())
        .spawn(move || {
            let run = || {
                let (session, console) = commands::connect(&socket)?;
                anyhow::Ok(repl::run(console, session, &repl::ReplOptions::for_user())?)
            };
            if let Err(error) = run() {
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
