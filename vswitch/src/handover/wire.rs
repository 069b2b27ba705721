//! Messages of an upgrade: a length of four bytes, and JSON. Both are bounded, and so is the time that each takes.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::HandoverError;
use super::tables::Chunk;
use super::terms::StatePlace;
use super::whereabouts::Whereabouts;

/// Bytes of a message.
const MOST: usize = 4 << 20;
/// What is there already is read in no time, on a machine that does something else, too.
const AT_ONCE: Duration = Duration::from_millis(100);

/// What the processes say to each other.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Message {
    Hello {
        version: u32,
        /// It takes [`Chunk::Forwarding`], which not every one does that speaks this version.
        #[serde(default)]
        takes_forwarding: bool,
        /// Where it keeps its state.
        #[serde(default)]
        state: StatePlace,
        /// It waits for [`Message::Ended`], which not every one does that speaks this version.
        #[serde(default)]
        waits_for_end: bool,
        /// Where it is, and what it may do.
        #[serde(default)]
        whereabouts: Whereabouts,
        /// It takes [`Chunk::Ports`], which not every one does that speaks this version.
        #[serde(default)]
        takes_ports: bool,
    },
    Ready {
        version: u32,
        pid: u32,
        /// It takes [`Message::Alive`], which not every one does that speaks this version.
        #[serde(default)]
        hears_alive: bool,
        /// It says [`Message::Ended`] to one that waits for it.
        #[serde(default)]
        tells_end: bool,
    },
    Refused {
        why: String,
    },
    /// The new process says nothing else for a while.
    Alive,
    Freeze,
    Tables(Chunk),
    Complete,
    /// With the interfaces on which it has ports already.
    Take {
        beside: Vec<String>,
    },
    Stopped,
    Released,
    Done,
    /// The old process does not come back.
    Ended,
}

/// A connection to the other process.
#[derive(Debug)]
pub(super) struct Link(UnixStream);

impl Link {
    /// On a connection that blocks.
    pub fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// Sends a message, in a time.
    pub fn send(&mut self, message: &Message, limit: Duration) -> Result<(), HandoverError> {
        let body = serde_json::to_vec(message).map_err(io::Error::other)?;
        let length = u32::try_from(body.len()).ok().filter(|&length| length as usize <= MOST);
        let length = length.ok_or_else(|| io::Error::other("a message is too long"))?;
        let bytes = [&length.to_be_bytes()[..], &body].concat();
        let end = Instant::now() + limit;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            self.0.set_write_timeout(Some(left(end)?))?;
            match self.0.write(rest) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(late(error).into()),
            }
        }
        Ok(())
    }

    /// The next message, which has to come in a time.
    pub fn receive(&mut self, limit: Duration) -> Result<Message, HandoverError> {
        let end = Instant::now() + limit;
        let mut length = [0; 4];
        self.fill(&mut length, end)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > MOST {
            return Err(HandoverError::Message(format!(
                "a message of {length} bytes, at most {MOST} are taken"
            )));
        }
        let mut body = vec![0; length];
        // What has begun in its time is heard to its end, which was sent with it.
        self.fill(&mut body, end.max(Instant::now() + AT_ONCE))?;
        serde_json::from_slice(&body)
            .map_err(|error| HandoverError::Message(format!("what is no message: {error}")))
    }

    /// As [`receive`](Self::receive), of one that lives and says so until the message comes.
    pub fn receive_alive(&mut self, silence: Duration, limit: Duration) -> Result<Message, HandoverError> {
        let end = Instant::now() + limit;
        loop {
            match self.receive(silence.min(left(end)?))? {
                Message::Alive => {}
                message => return Ok(message),
            }
        }
    }

    /// As [`receive`](Self::receive), of a message after which the other end goes on as if it had been heard: what it has not said when this
    /// returns, it cannot say any more, and hears so.
    pub fn receive_last(&mut self, limit: Duration) -> Result<Message, HandoverError> {
        self.receive(limit).or_else(|error| {
            self.0.shutdown(Shutdown::Read)?;
            // It may have been said just before.
            self.receive(AT_ONCE).map_err(|_| error)
        })
    }

    /// The same connection, once more.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    fn fill(&mut self, mut into: &mut [u8], end: Instant) -> io::Result<()> {
        while !into.is_empty() {
            self.0.set_read_timeout(Some(left(end)?))?;
            match self.0.read(into) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => into = &mut into[read..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(late(error)),
            }
        }
        Ok(())
    }
}

fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// The kernel says of a deadline that the call would block.
fn late(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(50);

    fn pair() -> (Link, UnixStream) {
        let (one, other) = UnixStream::pair().unwrap();
        (Link::new(one), other)
    }

    #[test]
    fn what_is_sent_is_received() {
        let (mut one, other) = pair();
        let ready = Message::Ready { version: 1, pid: 7, hears_alive: true, tells_end: true };
        one.send(&ready, SOON).unwrap();
        let message = Link::new(other).receive(SOON).unwrap();
        assert_eq!(format!("{message:?}"), format!("{ready:?}"));
    }

    #[test]
    fn one_that_does_not_say_whether_it_hears_signs_of_life_or_tells_its_end_does_not() {
        let (mut one, mut other) = pair();
        let body = br#"{"ready":{"version":1,"pid":7}}"#;
        other.write_all(&[&(body.len() as u32).to_be_bytes()[..], body].concat()).unwrap();
        let message = one.receive(SOON).unwrap();
        assert!(
            matches!(message, Message::Ready { hears_alive: false, tells_end: false, .. }),
            "{message:?}"
        );
    }

    #[test]
    fn one_that_does_not_say_that_it_takes_forwarding_or_waits_for_an_end_does_not() {
        let (mut one, mut other) = pair();
        let body = br#"{"hello":{"version":1}}"#;
        other.write_all(&[&(body.len() as u32).to_be_bytes()[..], body].concat()).unwrap();
        let message = one.receive(SOON).unwrap();
        let state = StatePlace::Untold;
        let expected = Message::Hello {
            version: 1,
            takes_forwarding: false,
            state,
            waits_for_end: false,
            whereabouts: Whereabouts::default(),
            takes_ports: false,
        };
        assert_eq!(format!("{message:?}"), format!("{expected:?}"));
    }

    #[test]
    fn places_of_states_go_over_as_they_are() {
        for state in [StatePlace::Nowhere, StatePlace::File("/var/lib/vswitch/state".into())] {
            let (mut one, other) = pair();
            let hello = Message::Hello {
                version: 1,
                takes_forwarding: true,
                state,
                waits_for_end: true,
                whereabouts: Whereabouts::here(),
                takes_ports: true,
            };
            one.send(&hello, SOON).unwrap();
            let message = Link::new(other).receive(SOON).unwrap();
            assert_eq!(format!("{message:?}"), format!("{hello:?}"));
        }
    }

    /// Of the two exactly one goes on: what was said in the last moment is heard, and what was not cannot be said any more.
    #[test]
    fn a_last_word_is_heard_or_cannot_be_said() {
        let (mut one, other) = pair();
        let mut other = Link::new(other);
        other.send(&Message::Ended, SOON).unwrap();
        assert!(
            matches!(one.receive_last(Duration::ZERO), Ok(Message::Ended)),
            "it was there before its time was over"
        );
        let (mut one, other) = pair();
        let mut other = Link::new(other);
        assert!(one.receive_last(Duration::from_millis(1)).is_err());
        assert!(other.send(&Message::Ended, SOON).unwrap_err().is_end());
    }

    #[test]
    fn signs_of_life_make_up_for_silence_until_the_time_is_over() {
        let (mut one, other) = pair();
        let mut other = Link::new(other);
        let lives = std::thread::spawn(move || {
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(20));
                other.send(&Message::Alive, SOON).unwrap();
            }
            other.send(&Message::Freeze, SOON).unwrap();
            other
        });
        let message = one.receive_alive(Duration::from_secs(2), Duration::from_secs(20)).unwrap();
        assert!(matches!(message, Message::Freeze), "{message:?}");
        let mut other = lives.join().unwrap();
        let late = one.receive_alive(SOON, Duration::from_secs(20)).unwrap_err();
        assert!(matches!(late, HandoverError::Link(error) if error.kind() == io::ErrorKind::TimedOut));
        let over = std::thread::spawn(move || while other.send(&Message::Alive, SOON).is_ok() {});
        let late = one.receive_alive(Duration::from_secs(2), SOON).unwrap_err();
        assert!(matches!(late, HandoverError::Link(error) if error.kind() == io::ErrorKind::TimedOut));
        drop(one);
        over.join().unwrap();
    }

    #[test]
    fn garbage_silence_and_ends_are_told_apart() {
        let (mut one, mut other) = pair();
        assert!(
            matches!(one.receive(SOON), Err(HandoverError::Link(error)) if error.kind() == io::ErrorKind::TimedOut)
        );
        other.write_all(&[0xff; 64]).unwrap();
        assert!(matches!(one.receive(SOON), Err(HandoverError::Message(_))));
        let (mut one, mut other) = pair();
        other.write_all(b"\0\0\0\x04nope").unwrap();
        assert!(matches!(one.receive(SOON), Err(HandoverError::Message(_))));
        other.write_all(b"\0\0\0\x04no").unwrap();
        drop(other);
        assert!(one.receive(SOON).unwrap_err().is_end());
        assert!(one.send(&Message::Released, SOON).unwrap_err().is_end());
    }
}
