//! etcd, as the rest needs it: one member at a time, every call within a deadline.
//!
//! A balancer over all members would hide which of them answers, and keeps asking one that is cut off from the others; so the caller
//! chooses a member, and goes on to the next one when it fails.

use std::future::Future;
use std::time::Duration;

use etcd_client::{
    Certificate, Client, ConnectOptions, GetOptions, Identity, KeyValue, LeaseKeepAliveStream, LeaseKeeper,
    PutOptions, TlsOptions, Txn, TxnOp, WatchOptions, WatchRequestSender, WatchResponseStream,
};

use crate::config::EtcdConfig;

/// The longest time that a call may take.
const DEADLINE: Duration = Duration::from_secs(3);
/// The time to connect.
const CONNECT: Duration = Duration::from_secs(2);
/// A member that does not answer pings of HTTP/2 is gone.
const PING: Duration = Duration::from_secs(2);
/// Keys of one answer.
const PAGE: i64 = 4096;
/// Operations of one transaction; etcd takes 128 unless it is told otherwise.
const OPERATIONS: usize = 100;
/// The longest message of a watch, or of an answer.
const MESSAGE: usize = 64 << 20;

/// Why etcd did not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It, or the way to it, said so.
    #[error("{0}")]
    Etcd(#[from] etcd_client::Error),
    /// It did not answer.
    #[error("it does not answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// A file of the config cannot be read.
    #[error("{0}")]
    File(String),
    /// The lease of this host has ended.
    #[error(
        "the lease of this host has ended, and with it what the host had published; it is published again"
    )]
    LeaseEnded,
    /// What was watched is no more to be had.
    #[error("etcd has compacted changes that had not been read; everything is read anew")]
    Compacted,
    /// A stream ended.
    #[error("etcd has ended the connection")]
    Ended,
}

/// A member of etcd.
pub struct Store {
    client: Client,
}

impl Store {
    /// Connects to a member.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn connect(endpoint: &str, config: &EtcdConfig) -> Result<Self, StoreError> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT)
            .with_keep_alive(PING, PING)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some(tls) = &config.tls {
            let mut with = TlsOptions::new().ca_certificate(Certificate::from_pem(read(&tls.ca)?));
            if let (Some(certificate), Some(key)) = (&tls.certificate, &tls.key) {
                with = with.identity(Identity::from_pem(read(certificate)?, read(key)?));
            }
            options = options.with_tls(with);
        }
        if let Some(user) = &config.user {
            let password = String::from_utf8_lossy(&read(&user.password_file)?).into_owned();
            options = options.with_user(user.name.clone(), password.trim_end_matches(['\r', '\n']));
        }
        let client = within(Client::connect([endpoint], Some(options))).await?;
        Ok(Self { client })
    }

    /// All keys under a prefix that ends with a slash, as they were at one revision: `at`, or the newest where it is 0. The revision.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn load(&self, prefix: &str, at: i64) -> Result<(Vec<KeyValue>, i64), StoreError> {
        let mut client = self.client.kv_client().max_decoding_message_size(MESSAGE);
        let end = format!("{}0", prefix.trim_end_matches('/'));
        let (mut from, mut at, mut all) = (prefix.as_bytes().to_vec(), at, Vec::new());
        loop {
            let options = GetOptions::new().with_range(end.as_bytes()).with_limit(PAGE).with_revision(at);
            let mut answer = within(client.get(from, Some(options))).await.map_err(or_compacted)?;
            if at == 0 {
                at = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
            }
            let more = answer.more();
            all.extend(answer.take_kvs());
            match all.last().filter(|_| more) {
                None => return Ok((all, at)),
                // The next key there can be.
                Some(last) => from = [last.key(), &[0]].concat(),
            }
        }
    }

    /// Puts values under a lease, and takes keys out, a number of them at one revision each. That of each value that was put, in order.
    ///
    /// # Errors
    /// [`StoreError`]; some may have been done.
    pub async fn change(
        &self,
        puts: Vec<(String, Vec<u8>)>,
        deletes: Vec<String>,
        lease: i64,
    ) -> Result<Vec<i64>, StoreError> {
        let mut client = self.client.kv_client();
        let mut revisions = Vec::with_capacity(puts.len());
        let put = |(key, value)| TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)));
        for chunk in puts.chunks(OPERATIONS) {
            let operations: Vec<TxnOp> = chunk.iter().cloned().map(put).collect();
            let answer = within(client.txn(Txn::new().and_then(operations))).await?;
            let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
            revisions.extend(std::iter::repeat_n(revision, chunk.len()));
        }
        for chunk in deletes.chunks(OPERATIONS) {
            let operations: Vec<TxnOp> = chunk.iter().map(|key| TxnOp::delete(key.as_str(), None)).collect();
            within(client.txn(Txn::new().and_then(operations))).await?;
        }
        Ok(revisions)
    }

    /// A lease of so long.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn grant(&self, time: Duration) -> Result<i64, StoreError> {
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        Ok(within(self.client.lease_client().grant(seconds, None)).await?.id())
    }

    /// Ends a lease, with all keys under it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn revoke(&self, lease: i64) -> Result<(), StoreError> {
        within(self.client.lease_client().revoke(lease)).await.map(drop)
    }

    /// Renews a lease, and what renews it further.
    ///
    /// # Errors
    /// [`StoreError::LeaseEnded`] when there is no such lease any more.
    pub async fn keep(&self, lease: i64) -> Result<(LeaseKeeper, LeaseKeepAliveStream), StoreError> {
        let mut client = self.client.lease_client();
        let (keeper, mut answers) = match within(client.keep_alive(lease)).await {
            // The client asks once by itself, and calls a lease that is gone an error of its own.
            Err(StoreError::Etcd(etcd_client::Error::LeaseKeepAliveError(_))) => {
                return Err(StoreError::LeaseEnded);
            }
            result => result?,
        };
        let mut keeper = keeper;
        within(keeper.keep_alive()).await?;
        match within(answers.message()).await? {
            Some(answer) if answer.ttl() > 0 => Ok((keeper, answers)),
            Some(_) => Err(StoreError::LeaseEnded),
            None => Err(StoreError::Ended),
        }
    }

    /// Watches a first prefix, as number `id`; more are added by what this returns.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn watch(
        &self,
        prefix: &str,
        id: i64,
        from: i64,
    ) -> Result<(WatchRequestSender, WatchResponseStream), StoreError> {
        let mut client = self.client.watch_client().max_decoding_message_size(MESSAGE);
        Ok(within(client.watch(prefix, Some(watching(id, from)))).await?.split())
    }
}

/// A watch of a prefix, of changes from a revision on.
pub fn watching(id: i64, from: i64) -> WatchOptions {
    WatchOptions::new().with_prefix().with_watch_id(id).with_start_revision(from)
}

async fn within<T>(call: impl Future<Output = Result<T, etcd_client::Error>>) -> Result<T, StoreError> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(StoreError::Silent(DEADLINE)),
    }
}

/// A revision that is no more to be had is one that everything is read anew for.
fn or_compacted(error: StoreError) -> StoreError {
    match &error {
        StoreError::Etcd(etcd_client::Error::GRpcStatus(status))
            if status.code() == tonic::Code::OutOfRange =>
        {
            StoreError::Compacted
        }
        _ => error,
    }
}

fn read(path: &std::path::Path) -> Result<Vec<u8>, StoreError> {
    std::fs::read(path).map_err(|error| {
        StoreError::File(format!("{}: {error}; check the file that [control] etcd names", path.display()))
    })
}
