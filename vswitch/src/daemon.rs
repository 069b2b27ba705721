//! The daemon: the control thread's one loop. It owns the switch; clients of the API, signals and the clock take turns.
//!
//! Nothing here touches a packet: workers go on whatever happens in this loop.

mod followers;
mod giving;
mod here;
mod signals;
mod sockets;
mod taking;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::api;
use crate::api::tcp::{Keys, Tcp};
use crate::commands;
use crate::config::{Config, Source};
use crate::confinement::confine;
use crate::console::repl;
use crate::control::guard::caught;
use crate::controller::Controller;
use crate::handover::give::{Door, Successor};
use crate::handover::take::Predecessor;
use crate::handover::terms::Terms;
use crate::state;
use crate::state::owners::Owners;
use crate::switch::ahead::Next;
use crate::switch::rcft::BUSY_EVERY_MS;
use crate::switch::{Switch, TEND_EVERY_MS};
pub use here::notes;

use followers::Followers;
use giving::hand_over;
use here::Here;
use signals::Signals;
use sockets::{ByTcp, Sockets};
use taking::{Released, take_over};

/// Requests of all clients that may wait.
const JOBS: usize = 64;
/// How soon the control socket is opened again where that was not possible.
const SOCKETS_AGAIN: Duration = Duration::from_secs(1);
/// Between two looks for ports that somebody waits for.
pub(crate) const PORTS_EVERY: Duration = Duration::from_millis(2);
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
    /// In place of the switch that runs.
    pub upgrade: bool,
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
    let mut signals = Signals::trap()?;
    let mut hangup = signal(SignalKind::hangup())?;
    let api = options.config.api.clone();
    let state_file = options.config.control.state.clone().or_else(service_state);
    let file = options.file.as_deref().map(Source::load).transpose()?;
    if let Err(error) = pmd::process::raise_descriptor_limit() {
        tracing::warn!(%error, "the limit of open files stays as it is: hundreds of vhost-user ports may not fit");
    }
    let restored = |config| match &state_file {
        Some(path) => state::restore(config, file.as_ref(), path),
        None => Ok((config, Owners::default())),
    };
    let keys = api.tcp.as_ref().map(Keys::read).transpose()?.map(Arc::new);
    let here = Here::find(&options.config)?;
    let (mut switch, owners, lock, sockets, tcp, predecessor) = if options.upgrade {
        let mut predecessor = Predecessor::find(&api.socket, state_file.as_deref())?;
        tracing::info!(pid = predecessor.pid, "getting ready to take over from the switch that runs");
        // As the config is now, with what was made at run time: DPDK needs what its ports do, and little is left to do when nobody forwards.
        let (config, _) = restored(options.config.clone())?;
        let mut switch = Switch::prepare(&config, state_file.as_deref(), true)?;
        switch.open_beside(&config);
        signals.go_on().await?;
        let tables = predecessor.freeze()?;
        let (config, owners) = restored(options.config)?;
        config.validate()?;
        signals.go_on().await?;
        predecessor.take(switch.interfaces_beside(), || switch.forget_beside())?;
        let released =
            Released { config, tables: &tables, state: state_file.as_deref(), api: &api, here: &here };
        let (lock, sockets) = take_over(&mut switch, released)?;
        (switch, owners, lock, sockets, None, Some(predecessor))
    } else {
        // The socket next: a second daemon must not touch the ports of the first.
        let sockets = Sockets::bind(&api, here.readers)?;
        let tcp = match (&api.tcp, &keys) {
            (Some(tcp), Some(keys)) => Some(Tcp::listen(tcp, keys.clone())?),
            _ => None,
        };
        let lock = state::lock::take_told(state_file.as_deref())?;
        let (config, owners) = restored(options.config)?;
        let switch = Switch::start_anew(config, Some(&api.socket), state_file.as_deref())?;
        (switch, owners, lock, sockets, tcp, None)
    };
    switch.set_state_file(state_file.as_deref(), lock);
    switch.set_config_file(file);
    switch.set_owners(owners);
    // Whatever folder the process is in later, it is this file.
    let file = options.file.map(|file| std::path::absolute(&file).unwrap_or(file));
    let mut controller = Controller::new(switch, file);
    controller.keys = keys.clone();

    let (jobs, mut work) = mpsc::channel::<api::Job>(JOBS);
    let mut followers = Followers::new(here.host, state_file.clone(), jobs.clone());
    let (clients, tcps) = api::start(jobs).context("cannot start the API's thread")?;
    let (ended, mut console_ended) = mpsc::channel::<()>(1);
    let mut has_console = options.interactive;
    if has_console {
        interactive(api.socket.clone(), ended.clone())?;
    }
    let mut serving = sockets.serve(&clients);
    let (newcomers, mut successors) = mpsc::channel::<Successor>(1);
    let terms = Terms::of(state_file.as_deref());
    let open_door = || {
        Door::open(&api.socket, terms.clone(), newcomers.clone())
            .inspect_err(
                |error| tracing::warn!(%error, "there is no socket for an upgrade: it takes a restart"),
            )
            .ok()
    };
    // Who has the door open is the switch: not before the old one ends.
    if let Some(predecessor) = predecessor {
        // It comes back when this process, which has nothing any more by then, hangs up.
        let (told, _link) = match signals.go_on().await {
            Ok(()) => (predecessor.done().map_err(anyhow::Error::from), None),
            Err(error) => (Err(error), Some(predecessor)),
        };
        if told.is_err() {
            controller.switch.is_superseded();
            controller.switch.stop();
            return told;
        }
    }
    let mut door = open_door();
    let mut by_tcp = ByTcp::new(api.tcp.clone(), keys, tcps);
    by_tcp.open(tcp);
    followers.start(&mut controller, Instant::now());
    vswitch_log::share_core();
    // DPDK is up and its threads are there: whatever they start from now on is confined, too.
    let seccomp = controller.switch.bare_config().control.seccomp;
    if let Err(error) = confine(seccomp) {
        tracing::warn!(%error, "system calls are not confined; write `[control] seccomp = \"off\"` where the kernel has no filters");
    }
    tracing::info!(socket = %api.socket.display(), ?seccomp, "the switch runs");
    // When the control socket is to be opened again, while nobody can connect; and whether it was told why it cannot.
    let mut deaf: Option<(Instant, bool)> = None;
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
            _ = clock.tick() => {
                turn(&mut controller, "a turn of control", |switch| switch.tend(Instant::now()));
                followers.start(&mut controller, Instant::now());
                if let Some((_, is_told)) = deaf.filter(|(due, _)| *due <= Instant::now()) {
                    serving.close().await;
                    deaf = match Sockets::bind(&api, here.readers) {
                        Ok(sockets) => {
                            serving = sockets.serve(&clients);
                            tracing::info!(socket = %api.socket.display(), "the control socket is open again");
                            None
                        }
                        Err(error) => {
                            if !is_told {
                                tracing::error!(%error, "the control socket cannot be opened again yet; it is tried every {SOCKETS_AGAIN:?}");
                            }
                            Some((Instant::now() + SOCKETS_AGAIN, true))
                        }
                    };
                }
            }
            () = tokio::time::sleep(Duration::from_millis(BUSY_EVERY_MS)), if controller.switch.is_busy() => {
                turn(&mut controller, "a turn of queue pairs", Switch::hurry);
            }
            Some(successor) = successors.recv() => {
                let handed = hand_over(successor, &mut controller, &mut serving, &mut by_tcp).await;
                if handed {
                    controller.switch.is_succeeded();
                    door.iter_mut().for_each(Door::keep);
                    break;
                }
                if serving.is_closed() {
                    // The new process may have put its own in its place.
                    door.iter_mut().for_each(Door::keep);
                    door = open_door();
                    by_tcp.open(None);
                    deaf = Some((Instant::now(), false));
                }
            }
            ended = serving.ended(), if deaf.is_none() => {
                // Nobody can connect meanwhile; everything else goes on, and signals still end it in order.
                // Without the API's thread nobody would be answered.
                let again = !clients.is_closed();
                tracing::error!(?ended, again, "the control socket is closed; where it is not opened again, restart the switch when it suits");
                deaf = again.then(|| (Instant::now() + SOCKETS_AGAIN, false));
            }
            _ = signals.interrupt.recv() => {
                if !has_console {
                    break;
                }
                // Whoever types it waits for a command's answer: that is no reason to take everybody's network down.
                tracing::warn!("a command is not given up half done, and the switch runs on; `quit` leaves the console, `shutdown` ends the switch");
            }
            _ = signals.terminate.recv() => break,
            _ = hangup.recv() => {
                // One that still waits for ports goes on with them, by what the file says now.
                let attempt = reloading.take().unwrap_or_else(|| controller.switch.new_attempt());
                reloading = reload(&mut controller, attempt);
            }
            Some(()) = console_ended.recv() => {
                has_console = false;
                tracing::info!("the console was left; the switch runs on until SIGTERM or Ctrl-C");
            }
        }
    }
    tracing::info!("the switch ends");
    controller.switch.stop();
    serving.close().await;
    drop(door);
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
