//! The old process's side: a socket on which new ones ask, and the steps by which it lets go to one of them.
//!
//! Whoever has said hello has the only place there is, and keeps it for as long as it says that it lives; everybody else hears at once who
//! has it. What a process does that has not said hello holds up nobody.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt};
use tokio::sync::mpsc;

use super::tables::Chunk;
use super::terms::Terms;
use super::wire::{Link, Message};
use super::{ALIVE_EVERY, HandoverError, VERSION, socket_beside};
use crate::control::server::{BindError, bind_unseen};

/// How long a message may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the new process may take from its first word to the one that begins the upgrade: it starts DPDK meanwhile.
const PREPARATION: Duration = Duration::from_secs(120);
/// How long it may say nothing while it gets ready or works: it says that it lives.
const SILENCE: Duration = ALIVE_EVERY.saturating_mul(10);
/// How long it may take with the tables.
const TABLES: Duration = Duration::from_secs(10);
/// How long it may say nothing in that time, in which nobody else is answered.
const SILENCE_WITH_TABLES: Duration = ALIVE_EVERY.saturating_mul(4);
/// How long it may take to open ports and sockets.
const WORK: Duration = Duration::from_secs(30);
/// Processes that have not said hello yet.
const MOST_STRANGERS: usize = 16;

/// The socket on which new processes ask.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    is_kept: bool,
    listener: Arc<UnixListener>,
    is_shut: Arc<AtomicBool>,
}

/// Which chunks a new process takes, of those that not every one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Takes {
    forwarding: bool,
    ports: bool,
}

impl Takes {
    fn takes(self, chunk: &Chunk) -> bool {
        match chunk {
            Chunk::Forwarding(..) => self.forwarding,
            Chunk::Ports(_) => self.ports,
            _ => true,
        }
    }
}

/// A new process that is ready, and has asked for the tables.
#[derive(Debug)]
pub struct Successor {
    link: Link,
    takes: Takes,
    waits_for_end: bool,
    _place: Taken,
}

impl Door {
    /// Opens it beside a control socket, for this user alone; in place of what another process of this user has left there.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn open(
        control: &Path,
        terms: Terms,
        successors: mpsc::Sender<Successor>,
    ) -> Result<Self, BindError> {
        let path = socket_beside(control);
        let listener = bind_unseen(&path, None, |bound, path| fs::rename(bound, path))?;
        let system = |source| BindError::System { what: "serve", path: path.clone(), source };
        listener.set_nonblocking(false).map_err(system)?;
        let (listener, is_shut) = (Arc::new(listener), Arc::new(AtomicBool::new(false)));
        let door =
            Self { path: path.clone(), is_kept: false, listener: listener.clone(), is_shut: is_shut.clone() };
        // On threads that nobody waits for: who asks is answered while control hands over to another one, and one that says nothing
        // does not hold up the end of this process.
        let serve = move || serve(&listener, &is_shut, &terms, &successors);
        Builder::new().name("upgrade".into()).spawn(serve).map_err(system)?;
        Ok(door)
    }

    /// The path is another process's now.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.is_shut.store(true, Ordering::Release);
        // Nobody can connect any more, and who waits for that is woken up.
        let _ = nix::sys::socket::shutdown(self.listener.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        if !self.is_kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The place of the one process that takes over.
#[derive(Clone, Debug, Default)]
struct Place(Arc<Mutex<Option<(i32, Instant)>>>);

/// The place is taken until this goes.
#[derive(Debug)]
struct Taken(Place);

impl Place {
    fn lock(&self) -> MutexGuard<'_, Option<(i32, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it for a process, or says who has it.
    fn take(&self, pid: i32) -> Result<Taken, String> {
        let mut taken = self.lock();
        if let Some((pid, since)) = *taken {
            let seconds = since.elapsed().as_secs();
            return Err(format!(
                "process {pid} asked {seconds} s ago, and is about to take over; try again when it has, or has ended"
            ));
        }
        *taken = Some((pid, Instant::now()));
        Ok(Taken(self.clone()))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

/// Counts who has not said hello yet.
#[derive(Debug)]
struct Stranger(Arc<AtomicUsize>);

impl Stranger {
    fn one_more(count: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |count: usize| (count < MOST_STRANGERS).then_some(count + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self(count.clone()))
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve(listener: &UnixListener, is_shut: &AtomicBool, terms: &Terms, successors: &mpsc::Sender<Successor>) {
    let (place, strangers) = (Place::default(), Arc::new(AtomicUsize::new(0)));
    while !is_shut.load(Ordering::Acquire) {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let Ok(peer) = getsockopt(&stream, sockopt::PeerCredentials) else {
            tracing::warn!("nobody knows who asked for an upgrade");
            continue;
        };
        if let Some(why) = terms.refusal_of_user(peer.uid()) {
            tracing::warn!(pid = peer.pid(), uid = peer.uid(), "another user asked for an upgrade");
            send_away(stream, why);
            continue;
        }
        let Some(stranger) = Stranger::one_more(&strangers) else {
            let why =
                format!("{MOST_STRANGERS} processes have connected and not said what they want; try again");
            send_away(stream, why);
            continue;
        };
        let (place, terms, successors, pid) = (place.clone(), terms.clone(), successors.clone(), peer.pid());
        let heard = move || match hear(stream, pid, &place, stranger, &terms) {
            Ok(successor) => drop(successors.blocking_send(successor)),
            Err(error) => tracing::warn!(pid, %error, "an upgrade came to nothing; the switch runs on"),
        };
        if let Err(error) = Builder::new().name("upgrade".into()).spawn(heard) {
            tracing::warn!(pid, %error, "an upgrade came to nothing; the switch runs on");
        }
    }
}

/// Says why not, to one that is not listened to. What does not fit into the socket is not waited for.
fn send_away(stream: UnixStream, why: String) {
    let _ = Link::new(stream).send(&Message::Refused { why }, Duration::from_millis(1));
}

/// Until it asks for the tables.
fn hear(
    stream: UnixStream,
    pid: i32,
    place: &Place,
    stranger: Stranger,
    terms: &Terms,
) -> Result<Successor, HandoverError> {
    let mut link = Link::new(stream);
    let refuse = |link: &mut Link, why: String| {
        link.send(&Message::Refused { why: why.clone() }, PATIENCE)?;
        Err(HandoverError::Refused(why))
    };
    let (takes, waits_for_end, state, whereabouts) = match link.receive(PATIENCE)? {
        Message::Hello {
            version: VERSION,
            takes_forwarding: forwarding,
            waits_for_end,
            state,
            whereabouts,
            takes_ports: ports,
        } => (Takes { forwarding, ports }, waits_for_end, state, whereabouts),
        Message::Hello { version, .. } => {
            let why = format!(
                "it speaks version {VERSION} of the hand-over, the new one {version}: restart instead"
            );
            return refuse(&mut link, why);
        }
        _ => return Err(HandoverError::out_of_turn()),
    };
    let taken = match terms.refusal(&state, &whereabouts).map_or_else(|| place.take(pid), Err) {
        Ok(taken) => taken,
        Err(why) => return refuse(&mut link, why),
    };
    drop(stranger);
    let pid = std::process::id();
    link.send(&Message::Ready { version: VERSION, pid, hears_alive: true, tells_end: true }, PATIENCE)?;
    match link.receive_alive(SILENCE, PREPARATION)? {
        Message::Freeze => Ok(Successor { link, takes, waits_for_end, _place: taken }),
        _ => Err(HandoverError::out_of_turn()),
    }
}

impl Successor {
    /// Says why not.
    pub fn refuse(&mut self, why: String) {
        let _ = self.link.send(&Message::Refused { why }, PATIENCE);
    }

    /// Gives it the tables; returns when it has them and wants the rest, with the interfaces on which it has ports, too.
    ///
    /// # Errors
    /// [`HandoverError`]: nothing has changed.
    pub fn give(&mut self, tables: Vec<Chunk>) -> Result<Vec<String>, HandoverError> {
        let began = Instant::now();
        let taken: Vec<Chunk> = tables.into_iter().filter(|chunk| self.takes.takes(chunk)).collect();
        for message in taken.into_iter().map(Message::Tables).chain([Message::Complete]) {
            // One that takes them a byte at a time is late, too.
            self.link.send(&message, PATIENCE.min(TABLES.saturating_sub(began.elapsed())))?;
        }
        match self.link.receive_alive(SILENCE_WITH_TABLES, TABLES)? {
            Message::Take { beside } => Ok(beside),
            _ => Err(HandoverError::out_of_turn()),
        }
    }

    /// Says that nothing is forwarded any more.
    ///
    /// # Errors
    /// [`HandoverError`]: it is gone.
    pub fn stopped(&mut self) -> Result<(), HandoverError> {
        self.link.send(&Message::Stopped, PATIENCE)
    }

    /// Says that everything is free; returns when the new process forwards, and knows that this one ends.
    ///
    /// # Errors
    /// [`HandoverError`]: it is gone, or will be, and this one has to come back.
    pub fn released(&mut self) -> Result<(), HandoverError> {
        self.link.send(&Message::Released, PATIENCE)?;
        match self.link.receive_alive(SILENCE, WORK)? {
            Message::Done if self.waits_for_end => self.link.send(&Message::Ended, PATIENCE),
            Message::Done => Ok(()),
            _ => Err(HandoverError::out_of_turn()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::take::Predecessor;
    use crate::handover::terms::StatePlace;
    use crate::handover::whereabouts::Whereabouts;

    const ALL: Takes = Takes { forwarding: true, ports: true };

    /// What a new process hears whose state is there, from one that keeps it in a file.
    fn answer(state: StatePlace) -> Message {
        let (old, new) = UnixStream::pair().unwrap();
        let (place, strangers) = (Place::default(), Arc::new(AtomicUsize::new(0)));
        let stranger = Stranger::one_more(&strangers).unwrap();
        let terms = Terms::of(Some(Path::new("/nowhere/state")));
        let hears = std::thread::spawn(move || hear(old, 1, &place, stranger, &terms).map(drop));
        let mut link = Link::new(new);
        let hello = Message::Hello {
            version: VERSION,
            takes_forwarding: true,
            state,
            waits_for_end: true,
            whereabouts: Whereabouts::here(),
            takes_ports: true,
        };
        link.send(&hello, PATIENCE).unwrap();
        let answer = link.receive(PATIENCE).unwrap();
        drop(link);
        assert!(hears.join().unwrap().is_err());
        answer
    }

    #[test]
    fn one_with_another_state_file_hears_why_it_gets_nothing() {
        for state in [StatePlace::Nowhere, StatePlace::File("/elsewhere/state".into())] {
            let answer = answer(state);
            assert!(
                matches!(&answer, Message::Refused { why } if why.contains("/nowhere/state")),
                "{answer:?}"
            );
        }
        for state in [StatePlace::Untold, StatePlace::File("/nowhere/state".into())] {
            assert!(matches!(answer(state), Message::Ready { .. }));
        }
    }

    #[test]
    fn another_user_hears_why_he_gets_nothing() {
        let control = std::env::temp_dir().join(format!("door-{}.sock", std::process::id()));
        let (successors, _nobody) = mpsc::channel(1);
        let door = Door::open(&control, Terms::of_another_user(), successors).unwrap();
        let said = Predecessor::find(&control, None).unwrap_err().to_string();
        assert!(said.contains("as that user"), "{said}");
        drop(door);
    }

    /// The chunks that a new process gets of these.
    fn given(takes: Takes, tables: Vec<Chunk>) -> Vec<Chunk> {
        let (old, new) = UnixStream::pair().unwrap();
        let place = Place::default().take(1).unwrap();
        let link = Link::new(old);
        let mut successor = Successor { link, takes, waits_for_end: false, _place: place };
        let gives = std::thread::spawn(move || successor.give(tables).map(|_| ()));
        let (mut link, mut chunks) = (Link::new(new), Vec::new());
        loop {
            match link.receive(PATIENCE).unwrap() {
                Message::Tables(chunk) => chunks.push(chunk),
                Message::Complete => break,
                other => panic!("{other:?}"),
            }
        }
        link.send(&Message::Take { beside: Vec::new() }, PATIENCE).unwrap();
        gives.join().unwrap().unwrap();
        chunks
    }

    #[test]
    fn only_one_that_waits_for_it_hears_that_this_one_ends_and_if_it_cannot_this_one_comes_back() {
        for (waits_for_end, stays) in [(true, true), (false, true), (true, false), (false, false)] {
            let (old, new) = UnixStream::pair().unwrap();
            let place = Place::default().take(1).unwrap();
            let mut successor = Successor { link: Link::new(old), takes: ALL, waits_for_end, _place: place };
            let releases = std::thread::spawn(move || successor.released());
            let mut link = Link::new(new);
            assert!(matches!(link.receive(PATIENCE).unwrap(), Message::Released));
            if !stays {
                // As one that has given up waiting.
                assert!(link.receive_last(Duration::from_millis(1)).is_err());
            }
            link.send(&Message::Done, PATIENCE).unwrap();
            assert_eq!(releases.join().unwrap().is_ok(), stays || !waits_for_end);
            assert_eq!(matches!(link.receive(PATIENCE), Ok(Message::Ended)), stays && waits_for_end);
        }
    }

    #[test]
    fn only_one_that_takes_it_is_told_which_ports_are_there_and_whether_the_switch_forwards() {
        let ports = Chunk::Ports(vec![("vm1".into(), 7)]);
        let forwarding = Chunk::Forwarding(false, vec!["vm1".into()]);
        let all = vec![Chunk::Neighbours(Vec::new()), ports, forwarding];
        assert_eq!(given(ALL, all.clone()), all);
        assert_eq!(given(Takes { ports: false, ..ALL }, all.clone()), [all[0].clone(), all[2].clone()]);
        assert_eq!(given(Takes { forwarding: false, ..ALL }, all.clone()), all[..2]);
    }
}
