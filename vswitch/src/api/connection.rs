//! Connections: those that the control socket's server took, and that turned out to speak HTTP/2, and those by TLS.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

/// What a client may do, by the socket that it came by or by its certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Owner,
    /// Look.
    Reader,
}

/// A connection, and what was read of it.
#[derive(Debug)]
pub struct Accepted {
    stream: Stream,
    read: Vec<u8>,
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

/// A connection of the API; it has its place until it is dropped.
pub(super) struct Connection {
    stream: Box<dyn Bytes>,
    role: Role,
    read: Vec<u8>,
    /// How much of `read` was taken.
    taken: usize,
    _place: OwnedSemaphorePermit,
}

impl Accepted {
    /// By a Unix socket, with what was read of it.
    pub fn by_unix(stream: StdStream, read: Vec<u8>, role: Role) -> Self {
        Self { stream: Stream::Unix(stream), read, role }
    }

    /// By TLS.
    pub(super) fn by_tls(stream: TlsStream<TcpStream>, role: Role, place: OwnedSemaphorePermit) -> Self {
        Self { stream: Stream::Tls(Box::new(stream), place), read: Vec::new(), role }
    }

    /// The same on the runtime of this thread; `None` when there is no place for it, or it is gone.
    pub(super) fn into_connection(self, places: Arc<Semaphore>) -> Option<Connection> {
        let (stream, place): (Box<dyn Bytes>, _) = match self.stream {
            Stream::Unix(stream) => {
                let Ok(place) = places.try_acquire_owned() else {
                    tracing::warn!("an API client was sent away: there are too many");
                    return None;
                };
                (Box::new(UnixStream::from_std(stream).ok()?), place)
            }
            Stream::Tls(stream, place) => (stream, place),
        };
        Some(Connection { stream, role: self.role, read: self.read, taken: 0, _place: place })
    }
}
impl Connected for Connection {
    type ConnectInfo = Role;

    fn connect_info(&self) -> Role {
        self.role
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(rest) = this.read.get(this.taken..).filter(|rest| !rest.is_empty()) {
            let count = rest.len().min(buf.remaining());
            buf.put_slice(&rest[..count]);
            this.taken += count;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.stream).poll_read(cx, buf)
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
