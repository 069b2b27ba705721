//! Commands of consoles that wait for ports: control goes on with everything else meanwhile.

use std::time::{Duration, Instant};

use super::protocol::{Reply, answer};
use super::server::Call;
use crate::console::Console;
use crate::shell::Shell;
use crate::switch::ahead::Next;

/// How long an answer waits for ports that are being closed.
pub const CLOSING: Duration = Duration::from_secs(3);

/// The commands that wait.
#[derive(Default)]
pub struct Parked {
    /// Those that are to be tried again.
    tries: Vec<(u64, Call)>,
    /// Those whose answers are right when ports are closed.
    answers: Vec<(Instant, Call, Reply)>,
}

impl Parked {
    /// True while none waits.
    pub fn is_empty(&self) -> bool {
        self.tries.is_empty() && self.answers.is_empty()
    }

    /// Answers a command, at once or when its ports are there.
    pub fn take(&mut self, call: Call, console: &Console<Shell>, shell: &mut Shell) {
        let attempt = shell.switch.new_attempt();
        self.run(attempt, call, console, shell);
    }

    fn run(&mut self, attempt: u64, call: Call, console: &Console<Shell>, shell: &mut Shell) {
        shell.switch.begin_try(attempt);
        let reply = answer(console, shell, &call.request, Shell::suspect);
        match shell.switch.end_try() {
            // Nobody may be left to take it.
            Next::Answer => drop(call.reply.send(reply)),
            Next::AnswerWhenClosed => self.answers.push((Instant::now(), call, reply)),
            Next::TryAgain => self.tries.push((attempt, call)),
        }
    }

    /// Goes on with those whose ports are there.
    pub fn go_on(&mut self, console: &Console<Shell>, shell: &mut Shell) {
        let ripe = |(attempt, _): &mut (u64, Call)| shell.switch.is_ripe(*attempt);
        let ripe: Vec<_> = self.tries.extract_if(.., ripe).collect();
        ripe.into_iter().for_each(|(attempt, call)| self.run(attempt, call, console, shell));
        let closing = shell.switch.has_ports_under_way();
        let closed = |(since, ..): &mut (Instant, Call, Reply)| !closing || since.elapsed() >= CLOSING;
        for (_, call, reply) in self.answers.extract_if(.., closed) {
            let _ = call.reply.send(reply);
        }
    }
}
