//! Connections of clients, and their places: bounded, and never all held by clients that ask nothing.
//!
//! When the last place is taken and another client comes, one of those that never asked anything is cut off, the one that came first; where
//! all have, the one that was silent for longest. A client that only watches is not silent: it answers the pings of the server. Where
//! all have spoken just now, the one that comes is sent away.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

/// Connections by Unix sockets at a time.
pub(super) const CONNECTIONS: usize = 256;
/// A client that has asked something, and spoken within this time, keeps its place; in milliseconds.
const FRESH_MS: u64 = 1000;

/// What a client may do, by the socket that it came by or by its certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Owner,
    /// Look.
    Reader,
}

/// A connection that was taken.
#[derive(Debug)]
pub struct Accepted {
    stream: Stream,
    role: Role,
}

enum Stream {
    Unix(StdStream),
    /// With its place among those.
    Tls(Box<TlsStream<TcpStream>>, OwnedSemaphorePermit),
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unix(_) => "Unix",
            Self::Tls(..) => "Tls",
        })
    }
}

/// What bytes come and go by.
trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// The places of all connections by Unix sockets.
#[derive(Debug)]
pub(super) struct Places {
    taken: Mutex<Vec<Weak<Place>>>,
    began: Instant,
}

/// The place of one connection; free again when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Place {
    has_asked: AtomicBool,
    /// When its client spoke last, in milliseconds since the places are there.
    spoke: AtomicU64,
    is_given_away: AtomicBool,
    waker: AtomicWaker,
}

impl Places {
    pub fn new() -> Self {
        Self { taken: Mutex::default(), began: Instant::now() }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// A place: a free one, or that of whoever gives way; none while all have spoken just now.
    fn take(&self) -> Option<Arc<Place>> {
        let now = self.now();
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|place| place.strong_count() > 0);
        if taken.len() >= CONNECTIONS {
            let silent = taken.iter().enumerate().filter_map(|(at, place)| {
                let place = place.upgrade()?;
                let (has_asked, spoke) = (place.has_asked.load(Relaxed), place.spoke.load(Relaxed));
                let may_go = !has_asked || now.saturating_sub(spoke) > FRESH_MS;
                may_go.then_some(((has_asked, spoke), at))
            });
            let (_, at) = silent.min()?;
            if let Some(place) = taken.swap_remove(at).upgrade() {
                place.is_given_away.store(true, Relaxed);
                place.waker.wake();
            }
        }
        let place = Arc::new(Place { spoke: now.into(), ..Place::default() });
        taken.push(Arc::downgrade(&place));
        Some(place)
    }
}

/// Who asks: every request has one among its extensions.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub role: Role,
    place: Weak<Place>,
}

impl Caller {
    /// Somebody without a connection.
    #[cfg(test)]
    pub fn anybody(role: Role) -> Self {
        Self { role, place: Weak::new() }
    }

    /// It has asked something.
    pub fn ask(&self) {
        if let Some(place) = self.place.upgrade() {
            place.has_asked.store(true, Relaxed);
        }
    }
}

/// A connection of the API; it has its place until it is dropped.
pub(super) struct Connection {
    stream: Box<dyn Bytes>,
    role: Role,
    place: Arc<Place>,
    places: Arc<Places>,
    /// Its place among those by TLS.
    _among_tls: Option<OwnedSemaphorePermit>,
}

impl Accepted {
    /// By a Unix socket.
    pub fn by_unix(stream: StdStream, role: Role) -> Self {
        Self { stream: Stream::Unix(stream), role }
    }

    /// What its client may do.
    pub fn role(&self) -> Role {
        self.role
    }

    /// By TLS.
    pub(super) fn by_tls(stream: TlsStream<TcpStream>, role: Role, place: OwnedSemaphorePermit) -> Self {
        Self { stream: Stream::Tls(Box::new(stream), place), role }
    }

    /// The same on the runtime of this thread; `None` when there is no place for it, or it is gone.
    pub(super) fn into_connection(self, places: &Arc<Places>) -> Option<Connection> {
        let (stream, place, among_tls): (Box<dyn Bytes>, _, _) = match self.stream {
            Stream::Unix(stream) => {
                let Some(place) = places.take() else {
                    tracing::warn!("an API client was sent away: there are {CONNECTIONS}, all at work");
                    return None;
                };
                (Box::new(UnixStream::from_std(stream).ok()?), place, None)
            }
            Stream::Tls(stream, permit) => (stream, Arc::default(), Some(permit)),
        };
        Some(Connection { stream, role: self.role, place, places: places.clone(), _among_tls: among_tls })
    }
}
impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        Caller { role: self.role, place: Arc::downgrade(&self.place) }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.place.waker.register(cx.waker());
        if self.place.is_given_away.load(Relaxed) {
            // As if it had hung up.
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.place.spoke.store(self.places.now(), Relaxed);
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_never_asked_give_way_first_and_then_who_was_silent_for_longest() {
        let places = Places { began: Instant::now() - std::time::Duration::from_secs(60), ..Places::new() };
        let mut taken: Vec<_> = (0..CONNECTIONS).map(|_| places.take().unwrap()).collect();
        for (at, place) in taken.iter().enumerate() {
            place.spoke.store(1000 + at as u64, Relaxed);
            place.has_asked.store(at != 7 && at != 9, Relaxed);
        }
        // The first has said something since.
        taken[0].spoke.store(50_000, Relaxed);
        let gone = |taken: &[Arc<Place>]| -> Vec<usize> {
            (0..taken.len()).filter(|at| taken[*at].is_given_away.load(Relaxed)).collect()
        };
        let come = || {
            let place = places.take().unwrap();
            place.has_asked.store(true, Relaxed);
            place
        };
        let mut newest = vec![come()];
        assert_eq!(gone(&taken), [7]);
        newest.push(come());
        assert_eq!(gone(&taken), [7, 9]);
        newest.push(come());
        assert_eq!(gone(&taken), [1, 7, 9]);
        // A place that comes free is taken first.
        drop(taken.pop());
        newest.push(come());
        assert_eq!(gone(&taken), [1, 7, 9]);
        // All have spoken just now.
        taken.iter().for_each(|place| place.spoke.store(places.now(), Relaxed));
        assert!(places.take().is_none());
    }
}
