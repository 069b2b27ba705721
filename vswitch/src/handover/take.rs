//! The new process's side.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::alive::Alive;
use super::tables::Tables;
use super::terms::StatePlace;
use super::whereabouts::Whereabouts;
use super::wire::{Link, Message};
use super::{HandoverError, RELEASE, VERSION, socket_beside};

/// How long the old process may take for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it may take to hear that it may end, on a machine that has other work.
const END: Duration = Duration::from_secs(10);
/// How long the socket of a process that has closed its end may still be there while it ends.
const LEAVING: Duration = Duration::from_millis(200);

/// A switch that runs and has said that it hands over.
#[derive(Debug)]
pub struct Predecessor {
    link: Link,
    socket: PathBuf,
    /// Its process.
    pub pid: u32,
    hears_alive: bool,
    tells_end: bool,
    /// While nothing else is said.
    alive: Option<Alive>,
}

impl Predecessor {
    /// Finds the switch that has a control socket.
    ///
    /// # Errors
    /// [`HandoverError`]: nobody is there, or why it does not hand over.
    pub fn find(control: &Path, state: Option<&Path>) -> Result<Self, HandoverError> {
        let socket = socket_beside(control);
        let stream = UnixStream::connect(&socket);
        let stream = stream.map_err(|source| HandoverError::Nobody { path: socket.clone(), source })?;
        let mut link = Link::new(stream);
        let hello = Message::Hello {
            version: VERSION,
            takes_forwarding: true,
            state: StatePlace::of(state),
            waits_for_end: true,
            whereabouts: Whereabouts::here(),
            takes_ports: true,
        };
        // One that sends this process away may have hung up before it heard anything, and has said why.
        let answer = match link.send(&hello, PATIENCE) {
            Ok(()) => link.receive(PATIENCE),
            Err(error) => link.receive(PATIENCE).map_err(|_| error),
        };
        match answer? {
            Message::Ready { pid, hears_alive, tells_end, .. } => {
                let mut found = Self { link, socket, pid, hears_alive, tells_end, alive: None };
                found.works()?;
                Ok(found)
            }
            other => Err(unexpected(other)),
        }
    }

    /// It is told that this process lives, until the next message.
    fn works(&mut self) -> Result<(), HandoverError> {
        self.alive = self.hears_alive.then(|| Alive::start(&self.link)).transpose()?;
        Ok(())
    }

    fn send(&mut self, message: &Message) -> Result<(), HandoverError> {
        self.alive = None;
        self.link.send(message, PATIENCE)
    }

    /// Its tables. From now on it answers nobody else.
    ///
    /// # Errors
    /// [`HandoverError`].
    pub fn freeze(&mut self) -> Result<Tables, HandoverError> {
        self.send(&Message::Freeze)?;
        let mut tables = Tables::default();
        loop {
            match self.link.receive(PATIENCE)? {
                Message::Tables(chunk) => {
                    if !tables.add(chunk) {
                        return Err(HandoverError::Message("more rows than any switch has".into()));
                    }
                }
                Message::Complete => {
                    self.works()?;
                    return Ok(tables);
                }
                other => return Err(unexpected(other)),
            }
        }
    }

    /// Has it let go of everything, but for ports on the interfaces on which this process has some, too; does `stopped` when it forwards
    /// no more. One that has ended meanwhile has done so.
    ///
    /// # Errors
    /// [`HandoverError`]: it goes on.
    pub fn take(&mut self, beside: Vec<String>, stopped: impl FnOnce()) -> Result<(), HandoverError> {
        let asked = self.send(&Message::Take { beside });
        let released = match asked.and_then(|()| self.link.receive(RELEASE)) {
            Ok(Message::Stopped) => {
                stopped();
                self.link.receive(RELEASE)
            }
            Ok(other) => return Err(unexpected(other)),
            Err(error) => {
                stopped();
                Err(error)
            }
        };
        match released {
            Ok(Message::Released) => self.works(),
            Ok(other) => Err(unexpected(other)),
            Err(error) if error.is_end() && self.is_dead() => {
                tracing::warn!(
                    pid = self.pid,
                    "the old switch ended before it let go; this one goes on without it"
                );
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Tells it that it may end, before this process has the socket for upgrades; returns when it does, or has.
    ///
    /// # Errors
    /// [`HandoverError::TooLate`]: it has not heard that in its time, has come back and forwards. Of the two this one has to go.
    pub fn done(mut self) -> Result<(), HandoverError> {
        let heard = match self.send(&Message::Done) {
            Ok(()) if self.tells_end => self.link.receive_last(END).and_then(|message| match message {
                Message::Ended => Ok(()),
                other => Err(unexpected(other)),
            }),
            told => told,
        };
        match heard {
            Ok(()) => Ok(()),
            Err(error) if self.is_dead() => {
                tracing::info!(%error, "the old switch ended by itself");
                Ok(())
            }
            Err(error) => Err(HandoverError::TooLate { pid: self.pid, why: Box::new(error) }),
        }
    }

    /// Its socket is there as long as it is.
    fn is_dead(&self) -> bool {
        const AGAIN: Duration = Duration::from_millis(20);
        let refused = |error: io::Error| {
            matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
        };
        let began = Instant::now();
        loop {
            let is_dead = UnixStream::connect(&self.socket).is_err_and(refused);
            if is_dead || began.elapsed() > LEAVING {
                return is_dead;
            }
            std::thread::sleep(AGAIN);
        }
    }
}

fn unexpected(message: Message) -> HandoverError {
    match message {
        Message::Refused { why } => HandoverError::Refused(why),
        other => HandoverError::Message(format!("a message out of turn: {}", name_of(&other))),
    }
}

fn name_of(message: &Message) -> String {
    format!("{message:?}").chars().take_while(|c| c.is_alphanumeric()).collect()
}
