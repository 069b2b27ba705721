//! The API over TCP: with TLS 1.3 alone, and with a certificate of the client, whose name says what he may do.
//!
//! Handshakes are made on the API's thread, each within a deadline and some of them at a time: whoever connects and says nothing, or
//! something else, costs a place for that long, and neither control nor packets notice. A client whose certificate the CA did not
//! sign, or whose name nobody listed, is sent away before the first request. Keys and certificates are files, which are read again
//! with the config file: new connections have the new ones.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto::ring, version};
use tokio_rustls::server::TlsStream;
use webpki::EndEntityCert;

use super::connection::{Accepted, Role, SentAway};
use crate::config::ApiTcpConfig;

/// How long a client may take to show who it is.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Handshakes under way at a time; a client too many is sent away.
const HANDSHAKES: usize = 32;
/// Connections that may wait to be taken.
const BACKLOG: u32 = 128;
/// Between two attempts to take connections when the system has no more room for them.
const PAUSE: Duration = Duration::from_millis(100);

/// Why the API is not to be had over TCP.
#[derive(Debug, thiserror::Error)]
pub enum TcpError {
    #[error(
        "[api] tcp: cannot read {what} {path}: {reason}; it is a file in PEM format that the switch's user may read"
    )]
    File {
        /// Which of the files.
        what: &'static str,
        path: String,
        reason: String,
    },
    #[error(
        "[api] tcp: the {what} cannot be used: {reason}; `openssl verify` and `openssl x509 -noout -text` say more"
    )]
    Unusable {
        /// Which of the files.
        what: &'static str,
        reason: String,
    },
    #[error(
        "[api] tcp: cannot listen on {address}: {source}; choose another address, or see who has it (`ss -ltnp`)"
    )]
    Listen { address: SocketAddr, source: io::Error },
}

/// The files that say who the switch is and whom it trusts, as they were last read.
#[derive(Debug)]
pub struct Keys {
    config: ApiTcpConfig,
    tls: RwLock<Arc<ServerConfig>>,
}

impl Keys {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn read(config: &ApiTcpConfig) -> Result<Self, TcpError> {
        Ok(Self { tls: RwLock::new(Arc::new(server(config)?)), config: config.clone() })
    }

    /// Reads the files again. The ones of before hold when they are not good.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn read_again(&self) -> Result<(), TcpError> {
        let tls = Arc::new(server(&self.config)?);
        *self.tls.write().unwrap_or_else(PoisonError::into_inner) = tls;
        Ok(())
    }

    fn acceptor(&self) -> TlsAcceptor {
        let tls = self.tls.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(tls.clone())
    }

    /// What somebody with this certificate may do.
    fn role(&self, certificate: &CertificateDer<'_>) -> Option<Role> {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        let names: Vec<&str> = certificate.valid_dns_names().chain(certificate.valid_uri_names()).collect();
        let is_one_of = |listed: &[String]| listed.iter().any(|name| names.contains(&name.as_str()));
        match () {
            () if is_one_of(&self.config.admins) => Some(Role::Owner),
            () if is_one_of(&self.config.readers) => Some(Role::Reader),
            () => {
                tracing::warn!(
                    ?names,
                    "an API client was sent away: its certificate names nobody of `[api] tcp`"
                );
                None
            }
        }
    }
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TcpError> {
    let fault = |reason: String| TcpError::File { what, path: path.display().to_string(), reason };
    let all = CertificateDer::pem_file_iter(path).map_err(|error| fault(error.to_string()))?;
    let all = all.collect::<Result<Vec<_>, _>>().map_err(|error| fault(error.to_string()))?;
    if all.is_empty() {
        return Err(fault("there is no certificate in it".into()));
    }
    Ok(all)
}

fn server(config: &ApiTcpConfig) -> Result<ServerConfig, TcpError> {
    let unusable = |what: &'static str| move |reason: String| TcpError::Unusable { what, reason };
    let mut roots = RootCertStore::empty();
    for root in certificates("client-ca", &config.client_ca)? {
        roots.add(root).map_err(|error| unusable("client-ca")(error.to_string()))?;
    }
    let chain = certificates("certificate", &config.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&config.key).map_err(|error| TcpError::File {
        what: "key",
        path: config.key.display().to_string(),
        reason: error.to_string(),
    })?;
    let provider = Arc::new(ring::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| unusable("client-ca")(error.to_string()))?;
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])
        .map_err(|error| unusable("certificate")(error.to_string()))?;
    let mut tls = builder
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)
        .map_err(|error| unusable("certificate with its key")(error.to_string()))?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    // Whoever comes again shows his certificate again.
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    tls.send_tls13_tickets = 0;
    Ok(tls)
}

fn listener(address: SocketAddr, anywhere: bool) -> io::Result<StdListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    setsockopt(&socket, sockopt::IpFreebind, &anywhere)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)?.into_std()
}

/// Clients that did not get as far as to be connections.
#[derive(Default)]
struct ByReason {
    too_many: SentAway,
    silent: SentAway,
    /// Those with whom no TLS could be spoken.
    refused: SentAway,
}

/// The listening socket.
#[derive(Debug)]
pub struct Tcp {
    listener: StdListener,
    keys: Arc<Keys>,
    until: oneshot::Receiver<()>,
}

impl Tcp {
    /// Listens at the address of a config; who may come in is said by the keys. An address that no interface has yet, because the machine
    /// is still coming up, is no reason to be without a network: connections come once one has it (`IP_FREEBIND` of ip(7)).
    ///
    /// It listens until the other half of what this returns is dropped.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn listen(config: &ApiTcpConfig, keys: Arc<Keys>) -> Result<(Self, oneshot::Sender<()>), TcpError> {
        let address = config.listen;
        let listener = match listener(address, false) {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                tracing::warn!(%address, "no interface has the address of [api] tcp yet: clients are answered when one has");
                listener(address, true)
            }
            listener => listener,
        };
        let listener = listener.map_err(|source| TcpError::Listen { address, source })?;
        tracing::info!(%address, "the API listens by TCP");
        let (keep, until) = oneshot::channel();
        Ok((Self { listener, keys, until }, keep))
    }

    /// Takes connections for as long as it is to listen, and somebody takes them over.
    pub(super) async fn serve(mut self, accepted: mpsc::Sender<Accepted>) -> io::Result<()> {
        let listener = TcpListener::from_std(self.listener)?;
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
        let sent_away = Arc::<ByReason>::default();
        loop {
            let stream = tokio::select! {
                stream = listener.accept() => stream,
                () = accepted.closed() => return Ok(()),
                _ = &mut self.until => return Ok(()),
            };
            let stream = match stream {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, most likely.
                    tracing::warn!(%error, "cannot accept an API client");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let Ok(handshake) = handshakes.clone().try_acquire_owned() else {
                sent_away.too_many.add(format_args!("{HANDSHAKES} are saying who they are already"));
                continue;
            };
            let (keys, accepted, sent_away) = (self.keys.clone(), accepted.clone(), sent_away.clone());
            tokio::spawn(async move {
                let _handshake = handshake;
                match tokio::time::timeout(HANDSHAKE, shake(&keys, stream)).await {
                    Ok(Ok(Some((stream, role)))) => {
                        let _ = accepted.send(Accepted::by_tls(stream, role)).await;
                    }
                    Ok(Ok(None)) => {}
                    Ok(Err(error)) => sent_away.refused.add(error),
                    Err(_) => sent_away
                        .silent
                        .add(format_args!("they did not say who they are within {HANDSHAKE:?}")),
                }
            });
        }
    }
}

/// The connection of a client that may do something.
async fn shake(keys: &Keys, stream: TcpStream) -> io::Result<Option<(TlsStream<TcpStream>, Role)>> {
    stream.set_nodelay(true)?;
    let stream = keys.acceptor().accept(stream).await?;
    let (_, session) = stream.get_ref();
    let certificate = session.peer_certificates().and_then(<[_]>::first);
    let role = certificate.and_then(|certificate| keys.role(certificate));
    Ok(role.map(|role| (stream, role)))
}
