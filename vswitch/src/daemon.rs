//! The daemon: the control thread's one loop. It owns the switch; consoles, signals and the clock take turns.
//!
//! Nothing here touches a packet: workers go on whatever happens in this loop.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::MissedTickBehavior;

use crate::api;
use crate::config::process::ApiConfig;
use crate::config::{Config, Source};
use crate::console::repl;
use crate::control::guard::caught;
use crate::control::protocol::answer;
use crate::control::server::{Call, Caller, Server};
use crate::handover::give::{Door, Successor};
use crate::handover::take::Predecessor;
use crate::shell::Shell;
use crate::state;
use crate::switch::rcft::BUSY_EVERY_MS;
use crate::switch::{Switch, TEND_EVERY_MS};

/// Requests of all consoles that may wait.
const CALLS: usize = 64;
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
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let api = options.config.api.clone();
    let state_file = options.config.control.state.clone().or_else(service_state);
    let file = options.file.as_deref().map(Source::load).transpose()?;
    if let Err(error) = pmd::process::raise_descriptor_limit() {
        tracing::warn!(%error, "the limit of open files stays as it is: hundreds of vhost-user ports may not fit");
    }
    let restored = |config| match &state_file {
        Some(path) => state::restore(config, file.as_ref(), path),
        None => Ok(config),
    };
    let (mut switch, sockets, predecessor) = if options.upgrade {
        let mut predecessor = Predecessor::find(&api.socket)?;
        tracing::info!(pid = predecessor.pid, "getting ready to take over from the switch that runs");
        let mut switch = Switch::prepare(&options.config, true)?;
        let tables = predecessor.freeze()?;
        let config = restored(options.config)?;
        config.validate()?;
        predecessor.take()?;
        switch.succeed(config, &tables)?;
        let sockets = Sockets::bind(&api)?;
        (switch, sockets, Some(predecessor))
    } else {
        // The socket next: a second daemon must not touch the ports of the first.
        let sockets = Sockets::bind(&api)?;
        (Switch::start(restored(options.config)?)?, sockets, None)
    };
    switch.set_state_file(state_file.as_deref());
    switch.set_config_file(file);
    let (mut shell, console) = Shell::new(switch)?;
    shell.config_file = options.file;
    tracing::info!(socket = %api.socket.display(), "the switch runs");

    let (calls, mut requests) = mpsc::channel::<Call>(CALLS);
    let (jobs, mut work) = mpsc::channel::<api::Job>(CALLS);
    let programs = api::start(jobs).context("cannot start the API's thread")?;
    let (ended, mut console_ended) = mpsc::channel::<()>(1);
    if options.interactive {
        interactive(Caller::new(calls.clone()), ended.clone())?;
    }
    let mut serving = sockets.serve(&calls, &programs);
    let (newcomers, mut successors) = mpsc::channel::<Successor>(1);
    let open_door = || {
        Door::open(&api.socket, newcomers.clone())
            .inspect_err(
                |error| tracing::warn!(%error, "there is no socket for an upgrade: it takes a restart"),
            )
            .ok()
    };
    let mut door = open_door();
    if let Some(predecessor) = predecessor {
        predecessor.done();
    }
    let mut deaf = false;
    let mut clock = tokio::time::interval(Duration::from_millis(TEND_EVERY_MS));
    clock.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            Some(call) = requests.recv() => {
                let reply = answer(&console, &mut shell, &call.request, Shell::suspect);
                let _ = call.reply.send(reply);
                if shell.shutdown {
                    tokio::time::sleep(FAREWELL).await;
                    break;
                }
            }
            Some(job) = work.recv() => job(&mut shell),
            _ = clock.tick() => turn(&mut shell, "a turn of control", |switch| switch.tend(Instant::now())),
            () = tokio::time::sleep(Duration::from_millis(BUSY_EVERY_MS)), if shell.switch.is_busy() => {
                turn(&mut shell, "a turn of queue pairs", Switch::hurry);
            }
            Some(successor) = successors.recv() => {
                let handed = hand_over(successor, &mut shell.switch, &mut serving).await;
                if handed {
                    shell.switch.is_succeeded();
                    door.iter_mut().for_each(Door::keep);
                    break;
                }
                if serving.is_closed() {
                    // The new process may have put its own in its place.
                    door.iter_mut().for_each(Door::keep);
                    door = open_door();
                    match Sockets::bind(&api) {
                        Ok(sockets) => (serving, deaf) = (sockets.serve(&calls, &programs), false),
                        Err(error) => {
                            tracing::error!(%error, "the control socket cannot be opened again; restart the switch when it suits");
                            deaf = true;
                        }
                    }
                }
            }
            ended = serving.ended(), if !deaf => {
                // Consoles cannot connect any more; everything else goes on, and signals still end it in order.
                tracing::error!(?ended, "the control socket is closed; restart the switch when it suits");
                deaf = true;
            }
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            _ = hangup.recv() => {
                if let Err(fault) = caught("a reload", || reload(&mut shell)) {
                    shell.suspect(&fault);
                }
            }
            Some(()) = console_ended.recv() => {
                tracing::info!("the console was left; the switch runs on until SIGTERM or Ctrl-C");
            }
        }
    }
    tracing::info!("the switch ends");
    shell.switch.stop();
    serving.close().await;
    drop(door);
    Ok(())
}

/// The sockets of consoles and programs, not served yet.
struct Sockets {
    all: Server,
    readers: Option<Server>,
}

impl Sockets {
    fn bind(api: &ApiConfig) -> anyhow::Result<Self> {
        let all = Server::bind(&api.socket)?;
        let readers = match &api.group {
            Some(group) => Some(Server::bind_for_readers(&api.read_socket(), group)?),
            None => None,
        };
        Ok(Self { all, readers })
    }

    fn serve(self, calls: &mpsc::Sender<Call>, programs: &mpsc::Sender<api::Accepted>) -> Serving {
        let serve = |server: Server| tokio::spawn(server.serve(calls.clone(), programs.clone()));
        Serving { all: Some(serve(self.all)), readers: self.readers.map(serve) }
    }
}

/// The sockets, served.
struct Serving {
    all: Option<JoinHandle<std::io::Result<()>>>,
    readers: Option<JoinHandle<std::io::Result<()>>>,
}

impl Serving {
    /// When the control socket has ended by itself.
    async fn ended(&mut self) -> Result<std::io::Result<()>, JoinError> {
        match &mut self.all {
            Some(all) => {
                let ended = all.await;
                self.all = None;
                ended
            }
            None => std::future::pending().await,
        }
    }

    fn is_closed(&self) -> bool {
        self.all.is_none()
    }

    async fn close(&mut self) {
        for socket in [self.readers.take(), self.all.take()].into_iter().flatten() {
            socket.abort();
            let _ = socket.await;
        }
    }
}

/// Hands over to a new process; `true` when it forwards. Otherwise the switch goes on as it was, or is back.
async fn hand_over(mut successor: Successor, switch: &mut Switch, serving: &mut Serving) -> bool {
    if let Some(why) = switch.is_bound() {
        tracing::warn!(why, "an upgrade is refused; the switch runs on");
        successor.refuse(why);
        return false;
    }
    tracing::info!("a new process takes over");
    let tables = switch.tables();
    if let Err(error) = successor.give(tables) {
        tracing::warn!(%error, "an upgrade came to nothing; the switch runs on as it was");
        return false;
    }
    serving.close().await;
    let released = switch.let_go_all();
    match released
        .map_err(|error| error.to_string())
        .and_then(|()| successor.released().map_err(|error| error.to_string()))
    {
        Ok(()) => return true,
        Err(error) => tracing::error!(error, "the new process did not take over; this one comes back"),
    }
    drop(successor);
    if let Err(error) = switch.come_back() {
        tracing::error!(%error, "not everything is back");
    }
    false
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

fn reload(shell: &mut Shell) {
    let Some(path) = shell.config_file.clone() else {
        tracing::warn!("SIGHUP: the switch was started without a config file");
        return;
    };
    match shell.reload_config(&path) {
        Ok(()) => tracing::info!(file = %path.display(), "config reloaded"),
        Err(error) => tracing::error!(%error, "the config was not reloaded; the switch runs on as it was"),
    }
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
