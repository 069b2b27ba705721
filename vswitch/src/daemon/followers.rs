//! The threads that speak with other hosts: the clients of etcd and of gobgpd. They are started when the switch runs, so where the system has
//! no thread that is no reason to end it: it is tried again.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::api::Job;
use crate::config::Name;
use crate::controller::Controller;
use crate::{cluster, evpn};

/// Between two attempts.
const AGAIN: Duration = Duration::from_secs(5);

/// What starts them, and whether it has.
pub(super) struct Followers {
    /// This host's name in etcd, where there is one.
    host: Option<Name>,
    state: Option<PathBuf>,
    jobs: mpsc::Sender<Job>,
    /// When it is tried next; never again when all are there.
    due: Option<Instant>,
}

impl Followers {
    /// Starts nothing yet.
    pub fn new(host: Option<Name>, state: Option<PathBuf>, jobs: mpsc::Sender<Job>) -> Self {
        Self { host, state, jobs, due: Some(Instant::now()) }
    }

    /// Starts those that the config has and that are not there, when that is due.
    pub fn start(&mut self, controller: &mut Controller, now: Instant) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        self.due = None;
        if controller.cluster.is_none()
            && let Some(host) = &self.host
        {
            let config = controller.switch.bare_config();
            let started = cluster::start(config, host, self.state.as_deref(), self.jobs.clone());
            controller.cluster = self.told("follow etcd", started, now).flatten();
        }
        if controller.evpn.is_none()
            && let Some(config) = controller.switch.bare_config().control.evpn.clone()
        {
            controller.evpn = self.told("start EVPN", evpn::start(config, self.jobs.clone()), now);
        }
    }

    fn told<T>(&mut self, what: &str, started: io::Result<T>, now: Instant) -> Option<T> {
        started
            .inspect_err(|error| {
                tracing::error!(%error, "cannot {what}; the switch runs on, and it is tried again in {AGAIN:?}");
                self.due = Some(now + AGAIN);
            })
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_does_not_let_start_is_tried_again() {
        let (jobs, _work) = mpsc::channel(1);
        let mut followers = Followers::new(None, None, jobs);
        let now = Instant::now();
        followers.due = None;
        assert_eq!(followers.told("start it", Ok(7), now), Some(7));
        assert_eq!(followers.due, None);
        let full = || io::Error::from(io::ErrorKind::WouldBlock);
        assert_eq!(followers.told::<u8>("start it", Err(full()), now), None);
        assert_eq!(followers.due, Some(now + AGAIN));
    }
}
