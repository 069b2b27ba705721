//! Connections of clients, and their places: bounded, and never all held by clients that ask nothing. Those who may change the switch
//! have places of their own, and so have those who look; nobody takes the place of one of the others.
//!
//! When the last place is taken and another client comes, one of those that never asked anything is cut off, the one that came first; where
//! all have, the one that was silent for longest. A client that waits for an answer, or watches, is not silent. Where all have spoken just
//! now, or have something under way, the one that comes is sent away.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;
use tonic::Request;
use tonic::transport::server::Connected;

/// Connections by Unix sockets at a time: of clients that may change the switch, and of those that look.
const BY_UNIX: [usize; 2] = [256, 128];
/// Connections by TLS at a time.
const BY_TLS: [usize; 2] = [64, 64];
/// A client that has asked something, and spoken within this time, keeps its place; in milliseconds.
const FRESH_MS: u64 = 1000;
/// How often it is said that clients are sent away.
const TELL_EVERY: Duration = Duration::from_secs(10);

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
    Tls(Box<TlsStream<TcpStream>>),
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unix(_) => "Unix",
            Self::Tls(_) => "Tls",
        })
    }
}

/// What bytes come and go by.
trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// One for clients that may change the switch and one for those that look.
#[derive(Clone, Debug)]
pub(super) struct ByRole<T> {
    pub owners: T,
    pub readers: T,
}

impl<T> ByRole<T> {
    pub fn of(&self, role: Role) -> &T {
        match role {
            Role::Owner => &self.owners,
            Role::Reader => &self.readers,
        }
    }
}

/// Clients that are sent away, which is said once in a while: whoever comes again and again must not fill the log.
#[derive(Debug, Default)]
pub(super) struct SentAway(Mutex<Untold>);

#[derive(Debug, Default)]
struct Untold {
    told: Option<Instant>,
    clients: u64,
}

impl SentAway {
    /// One more, for this reason.
    pub fn add(&self, why: impl fmt::Display) {
        if let Some(clients) = self.count(Instant::now()) {
            tracing::warn!(clients, "API clients were sent away: {why}");
        }
    }

    /// One more; how many there were since it was said, when it is due to be said again.
    fn count(&self, now: Instant) -> Option<u64> {
        let mut untold = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        untold.clients += 1;
        if untold.told.is_some_and(|told| now.saturating_duration_since(told) < TELL_EVERY) {
            return None;
        }
        untold.told = Some(now);
        Some(std::mem::take(&mut untold.clients))
    }
}

/// The places of all connections.
#[derive(Debug)]
pub(super) struct Places {
    by_unix: ByRole<Pool>,
    by_tls: ByRole<Pool>,
}

impl Places {
    pub fn new() -> Self {
        let began = Instant::now();
        let pools = |[owners, readers]: [usize; 2]| ByRole {
            owners: Pool::new(owners, began),
            readers: Pool::new(readers, began),
        };
        Self { by_unix: pools(BY_UNIX), by_tls: pools(BY_TLS) }
    }
}

/// The places of connections that come by one way and may do the same.
#[derive(Debug)]
struct Pool {
    most: usize,
    began: Instant,
    taken: Mutex<Vec<Weak<Place>>>,
    sent_away: SentAway,
}

/// The place of one connection; free again when this is dropped.
#[derive(Debug)]
struct Place {
    has_asked: AtomicBool,
    /// Requests and streams of its client.
    under_way: AtomicUsize,
    began: Instant,
    /// When its client spoke last, in milliseconds since then.
    spoke: AtomicU64,
    is_given_away: AtomicBool,
    waker: AtomicWaker,
}

impl Place {
    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn speak(&self) {
        self.spoke.store(self.now(), Relaxed);
    }
}

impl Pool {
    fn new(most: usize, began: Instant) -> Self {
        Self { most, began, taken: Mutex::default(), sent_away: SentAway::default() }
    }

    /// A place: a free one, or that of whoever gives way; none while all are at work.
    fn take(&self) -> Option<Arc<Place>> {
        let now = self.began.elapsed().as_millis() as u64;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|place| place.strong_count() > 0);
        if taken.len() >= self.most {
            let silent = taken.iter().enumerate().filter_map(|(at, place)| {
                let place = place.upgrade()?;
                let (has_asked, spoke) = (place.has_asked.load(Relaxed), place.spoke.load(Relaxed));
                let is_at_work = place.under_way.load(Relaxed) > 0 || now.saturating_sub(spoke) <= FRESH_MS;
                (!has_asked || !is_at_work).then_some(((has_asked, spoke), at))
            });
            let (_, at) = silent.min()?;
            if let Some(place) = taken.swap_remove(at).upgrade() {
                place.is_given_away.store(true, Relaxed);
                place.waker.wake();
            }
        }
        let place = Arc::new(Place {
            has_asked: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            began: self.began,
            spoke: now.into(),
            is_given_away: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
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

    /// What it asked for is under way until this is dropped.
    pub fn begin(&self) -> UnderWay {
        if let Some(place) = self.place.upgrade() {
            place.under_way.fetch_add(1, Relaxed);
        }
        UnderWay(self.place.clone())
    }

    /// What whoever sent a request may do.
    pub fn role_of<T>(request: &Request<T>) -> Role {
        request.extensions().get::<Self>().map_or(Role::Reader, |caller| caller.role)
    }
}

/// A request or a stream, while its client waits for what is to come of it.
pub(super) struct UnderWay(Weak<Place>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(place) = self.0.upgrade() {
            place.under_way.fetch_sub(1, Relaxed);
            place.speak();
        }
    }
}

/// A connection of the API; it has its place until it is dropped.
pub(super) struct Connection {
    stream: Box<dyn Bytes>,
    role: Role,
    place: Arc<Place>,
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
    pub(super) fn by_tls(stream: TlsStream<TcpStream>, role: Role) -> Self {
        Self { stream: Stream::Tls(Box::new(stream)), role }
    }

    /// The same on the runtime of this thread; `None` when there is no place for it, or it is gone.
    pub(super) fn into_connection(self, places: &Places) -> Option<Connection> {
        let (stream, pools): (Box<dyn Bytes>, _) = match self.stream {
            Stream::Unix(stream) => (Box::new(UnixStream::from_std(stream).ok()?), &places.by_unix),
            Stream::Tls(stream) => (stream, &places.by_tls),
        };
        let pool = pools.of(self.role);
        let Some(place) = pool.take() else {
            pool.sent_away.add(format_args!("there are {} such as they, all at work", pool.most));
            return None;
        };
        Some(Connection { stream, role: self.role, place })
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
            self.place.speak();
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

    /// Places that have been there for a minute.
    fn pool(most: usize) -> Pool {
        Pool::new(most, Instant::now() - Duration::from_secs(60))
    }

    fn caller(place: &Arc<Place>) -> Caller {
        Caller { role: Role::Reader, place: Arc::downgrade(place) }
    }

    /// Those that lost their places.
    fn gone(taken: &[Arc<Place>]) -> Vec<usize> {
        (0..taken.len()).filter(|at| taken[*at].is_given_away.load(Relaxed)).collect()
    }

    #[test]
    fn those_that_never_asked_give_way_first_and_then_who_was_silent_for_longest() {
        let pool = pool(20);
        let mut taken: Vec<_> = (0..20).map(|_| pool.take().unwrap()).collect();
        for (at, place) in taken.iter().enumerate() {
            place.spoke.store(1000 + at as u64, Relaxed);
            place.has_asked.store(at != 7 && at != 9, Relaxed);
        }
        // The first has said something since.
        taken[0].spoke.store(50_000, Relaxed);
        let come = || {
            let place = pool.take().unwrap();
            caller(&place).ask();
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
        taken.iter().for_each(|place| place.speak());
        assert!(pool.take().is_none());
    }

    #[test]
    fn who_waits_for_an_answer_or_watches_keeps_its_place() {
        let pool = pool(3);
        let taken: Vec<_> = (0..3).map(|_| pool.take().unwrap()).collect();
        taken.iter().for_each(|place| caller(place).ask());
        let long_ago = || taken.iter().for_each(|place| place.spoke.store(1000, Relaxed));
        let mut under_way: Vec<_> = taken.iter().map(|place| caller(place).begin()).collect();
        under_way.push(caller(&taken[1]).begin());
        long_ago();
        assert!(pool.take().is_none(), "nobody is silent");
        // One of two things that are under way has ended.
        under_way.remove(1);
        long_ago();
        assert!(pool.take().is_none());
        // Who was answered just now may go on asking.
        under_way.remove(0);
        assert!(pool.take().is_none());
        long_ago();
        assert!(pool.take().is_some());
        assert_eq!(gone(&taken), [0]);
    }

    #[tokio::test]
    async fn nobody_who_looks_takes_the_place_of_one_who_may_change_the_switch() {
        let places = Places::new();
        let mut others = Vec::new();
        let mut come = |role| {
            let (ours, theirs) = StdStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            others.push(theirs);
            Accepted::by_unix(ours, role).into_connection(&places)
        };
        let [most, most_readers] = BY_UNIX;
        let owners: Vec<_> = (0..most).map(|_| come(Role::Owner).unwrap()).collect();
        // None of them has ever asked for anything, and yet it is readers who give way to readers.
        let readers: Vec<_> = (0..2 * most_readers).map(|_| come(Role::Reader).unwrap()).collect();
        let lost = |connections: &[Connection]| {
            connections.iter().filter(|connection| connection.place.is_given_away.load(Relaxed)).count()
        };
        assert_eq!((lost(&owners), lost(&readers)), (0, most_readers));
        assert!(come(Role::Owner).is_some());
        assert_eq!((lost(&owners), lost(&readers)), (1, most_readers));
    }

    #[test]
    fn clients_that_are_sent_away_are_told_of_once_in_a_while() {
        let (sent_away, now) = (SentAway::default(), Instant::now());
        assert_eq!(sent_away.count(now), Some(1));
        for _ in 0..1000 {
            assert_eq!(sent_away.count(now + TELL_EVERY / 2), None);
        }
        assert_eq!(sent_away.count(now + TELL_EVERY), Some(1001));
        assert_eq!(sent_away.count(now + TELL_EVERY), None);
    }
}
