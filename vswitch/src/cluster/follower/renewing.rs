//! Renews the lease of this host, beside whatever else is under way: taking in hundreds of thousands of addresses may take longer than
//! a lease, and the host is there all the while.

use std::time::{Duration, Instant};

use etcd_client::{LeaseKeepAliveStream, LeaseKeeper};

use crate::cluster::status::Shared;
use crate::cluster::store::StoreError;

/// So many requests in a row that were not answered: etcd, or the way to it, is gone.
const UNANSWERED: u32 = 2;

/// Renews a lease of this length until that fails; why it did.
pub(super) async fn renew(
    (mut keeper, mut answers): (LeaseKeeper, LeaseKeepAliveStream),
    lease: Duration,
    shared: Shared,
) -> StoreError {
    let mut renewal = tokio::time::interval(lease / 3);
    renewal.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut unanswered, mut renewed) = (0, Instant::now());
    loop {
        tokio::select! {
            answer = answers.message() => match answer {
                Ok(Some(answer)) if answer.ttl() > 0 => {
                    (unanswered, renewed) = (0, Instant::now());
                    shared.lock().renewed = Some(renewed);
                }
                Ok(Some(_)) => return StoreError::LeaseEnded,
                Ok(None) => return StoreError::Ended,
                Err(error) => return error.into(),
            },
            _ = renewal.tick() => {
                // Requests are counted, not time: what else runs on this thread may have kept it from hearing the answer.
                if unanswered >= UNANSWERED {
                    return StoreError::Silent(renewed.elapsed());
                }
                if let Err(error) = keeper.keep_alive().await {
                    return error.into();
                }
                unanswered += 1;
            }
        }
    }
}
