//! A switch and a console of it in one process, for tests and benches that look at both: what is typed goes the way of every client,
//! through the socket and the API, and between two commands the switch is there to be looked at. While a command is under way the
//! switch has its turns as in the daemon: an answer may wait for a port that one of them takes in.

use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::MissedTickBehavior;

use super::server::Server;
use crate::api::{self, Job};
use crate::commands;
use crate::console::CommandError;
use crate::controller::Controller;
use crate::daemon::PORTS_EVERY;
use crate::switch::TEND_EVERY_MS;

/// What a command gave back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// For people.
    pub text: String,
    /// For programs.
    pub json: Value,
}

/// A switch with a console.
pub struct InProcess {
    pub controller: Controller,
    runtime: Runtime,
    jobs: Receiver<Job>,
    lines: Sender<String>,
    answers: Receiver<Result<Answer, CommandError>>,
}

impl InProcess {
    /// Gives a switch a socket at this path, and a console that speaks to it.
    ///
    /// # Errors
    /// What is wrong with the path, or what the system has no more of.
    pub fn start(controller: Controller, socket: &Path) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let server = Server::bind(socket)?;
        let (to_control, jobs) = channel(1);
        let (clients, _) = api::start(to_control)?;
        runtime.spawn(server.serve(clients));
        let (lines, typed) = std::sync::mpsc::channel::<String>();
        let (tell, answers) = channel(1);
        let socket = socket.to_owned();
        let console = move || {
            let connected = commands::connect(&socket).context("a console of this process");
            let (mut session, console) = match connected {
                Ok(connected) => connected,
                Err(error) => {
                    let _ = tell.blocking_send(Err(CommandError::new(format!("{error:#}"))));
                    return;
                }
            };
            while let Ok(line) = typed.recv() {
                let answer = console.execute(&mut session, &line);
                let answer = answer.map(|answer| Answer { text: answer.text(), json: answer.json() });
                if tell.blocking_send(answer).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("console".into()).spawn(console)?;
        Ok(Self { controller, runtime, jobs, lines, answers })
    }

    /// Types a line, and does what it asks for.
    ///
    /// # Errors
    /// What was wrong with it.
    pub fn execute(&mut self, line: &str) -> Result<Answer, CommandError> {
        let gone = || CommandError::new("the console of this process has ended").lost();
        self.lines.send(line.to_owned()).map_err(|_| gone())?;
        let Self { controller, runtime, jobs, answers, .. } = self;
        runtime.block_on(async {
            let every = Duration::from_millis(TEND_EVERY_MS);
            let mut clock = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
            clock.set_missed_tick_behavior(MissedTickBehavior::Skip);
            loop {
                tokio::select! {
                    Some(job) = jobs.recv() => job(controller),
                    () = tokio::time::sleep(PORTS_EVERY), if controller.switch.is_trying() => {
                        controller.switch.tend_ports(Instant::now());
                    }
                    _ = clock.tick() => controller.switch.tend(Instant::now()),
                    answer = answers.recv() => return answer.unwrap_or_else(|| Err(gone())),
                }
            }
        })
    }
}
