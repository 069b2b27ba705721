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

use super::pages::Pages;
use crate::config::EtcdConfig;

/// The longest time that a call may take.
const DEADLINE: Duration = Duration::from_secs(3);
/// The time to connect.
const CONNECT: Duration = Duration::from_secs(2);
/// A member that does not answer pings of HTTP/2 is gone.
const PING: Duration = Duration::from_secs(2);
/// Operations of one transaction; etcd takes 128 unless it is told otherwise.
const OPERATIONS: usize = 100;
/// The longest answer, in bytes: one that is to come within the deadline.
const ANSWER: usize = 16 << 20;
/// The longest message of a watch, in bytes.
const MESSAGE: usize = 64 << 20;

/// Why etcd did not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It, or the way to it, said so.
    #[error("{0}")]
    Etcd(etcd_client::Error),
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
    /// A message that is longer than what this host takes.
    #[error(
        "etcd has more to say at once than this host takes ({0}); everything is read anew, in smaller pieces"
    )]
    TooLong(String),
    /// A stream ended.
    #[error("etcd has ended the connection")]
    Ended,
}

/// A key that was read.
pub enum Entry {
    /// With its value.
    Pair(KeyValue),
    /// Its value is longer than any answer.
    TooLong(Vec<u8>),
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

    /// All keys under a prefix that ends with a slash, as they were at one revision: `at`, or the newest where it is 0. `hear` is given one
    /// after the other, so that no more than a page of them is held here. The revision.
    ///
    /// # Errors
    /// [`StoreError`]; some may have been heard.
    pub async fn load(&self, prefix: &str, at: i64, mut hear: impl FnMut(Entry)) -> Result<i64, StoreError> {
        let mut client = self.client.kv_client().max_decoding_message_size(ANSWER);
        let end = format!("{}0", prefix.trim_end_matches('/'));
        let (mut at, mut pages) = (at, Pages::under(prefix));
        while let Some((from, most)) = pages.next() {
            let options =
                |most| GetOptions::new().with_range(end.as_bytes()).with_limit(most).with_revision(at);
            match within(client.get(from.as_slice(), Some(options(most)))).await {
                Ok(mut answer) => {
                    if at == 0 {
                        at = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
                    }
                    let more = answer.more();
                    let pairs = answer.take_kvs();
                    pages.came(pairs.last().map(KeyValue::key), more);
                    pairs.into_iter().for_each(|pair| hear(Entry::Pair(pair)));
                }
                Err(StoreError::TooLong(_)) if pages.halve() => {}
                Err(StoreError::TooLong(_)) => {
                    let answer = within(client.get(from, Some(options(1).with_keys_only()))).await?;
                    let key = answer.kvs().first().map(|pair| pair.key().to_vec());
                    pages.skip(key.as_deref());
                    key.into_iter().for_each(|key| hear(Entry::TooLong(key)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(at)
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

impl From<etcd_client::Error> for StoreError {
    fn from(error: etcd_client::Error) -> Self {
        let etcd_client::Error::GRpcStatus(status) = &error else { return Self::Etcd(error) };
        // One code has several meanings: etcd gives it for revisions that are no more to be had or not yet, and this side's own gRPC for
        // messages that are too long.
        match (status.code(), status.message()) {
            (tonic::Code::OutOfRange, text) if text.contains("has been compacted") => Self::Compacted,
            (tonic::Code::OutOfRange, text) if text.contains("message length too large") => {
                Self::TooLong(text.to_owned())
            }
            _ => Self::Etcd(error),
        }
    }
}

fn read(path: &std::path::Path) -> Result<Vec<u8>, StoreError> {
    std::fs::read(path).map_err(|error| {
        StoreError::File(format!("{}: {error}; check the file that [control] etcd names", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use tonic::codec::{DecodeBuf, Decoder, Streaming};
    use tonic::{Code, Status};

    use super::*;

    struct Nothing;

    impl Decoder for Nothing {
        type Item = ();
        type Error = Status;

        fn decode(&mut self, _: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
            Ok(Some(()))
        }
    }

    #[tokio::test]
    async fn etcd_answers_that_are_too_long_are_told_from_compaction() {
        // Of 100 bytes, where 10 are taken: as the gRPC that is built in says it.
        let mut answer = Streaming::new_request(Nothing, "\0\0\0\0d".to_owned(), None, Some(10));
        let too_long = answer.message().await.unwrap_err();
        assert_eq!(too_long.code(), Code::OutOfRange);
        let read = |status| StoreError::from(etcd_client::Error::GRpcStatus(status));
        assert!(matches!(read(too_long), StoreError::TooLong(_)));
        let of_etcd =
            |text: &str| read(Status::out_of_range(format!("etcdserver: mvcc: required revision {text}")));
        assert!(matches!(of_etcd("has been compacted"), StoreError::Compacted));
        assert!(matches!(of_etcd("is a future revision"), StoreError::Etcd(_)));
        assert!(matches!(read(Status::unavailable("has been compacted")), StoreError::Etcd(_)));
    }
}
