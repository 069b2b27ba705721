//! Places for connections: bounded, and never all held by clients that ask nothing.
//!
//! A client is idle from when it was answered until its next request is whole; one that sends a request byte by byte is
//! idle. When the last place is taken and another client comes, the one that was idle for longest is told to leave; a
//! client whose request is under way keeps its place.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use tokio::sync::Notify;

use super::server::MAX_CLIENTS;

#[derive(Debug, Default)]
pub(super) struct ClientPlaces {
    taken: Vec<Weak<ClientState>>,
    /// Counts what clients do; it orders them by how long they have been idle.
    clock: Arc<AtomicU64>,
}

/// The place of one client; free again when this is dropped.
#[derive(Debug)]
pub(super) struct ClientPlace {
    shared: Arc<ClientState>,
    clock: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct ClientState {
    busy: AtomicBool,
    since: AtomicU64,
    leave: Notify,
}

impl ClientPlaces {
    /// True when no place is free.
    pub(super) fn is_full(&self) -> bool {
        self.taken.iter().filter(|place| place.strong_count() > 0).count() >= MAX_CLIENTS
    }

    /// A place: a free one, or that of the client that was idle for longest; none while all are at work.
    pub(super) fn take(&mut self) -> Option<ClientPlace> {
        self.taken.retain(|place| place.strong_count() > 0);
        if self.taken.len() >= MAX_CLIENTS {
            let idle = |place: &Weak<ClientState>| {
                place
                    .upgrade()
                    .filter(|shared| !shared.busy.load(Relaxed))
                    .map(|shared| shared.since.load(Relaxed))
            };
            let (_, oldest) =
                self.taken.iter().enumerate().filter_map(|(at, place)| Some((idle(place)?, at))).min()?;
            if let Some(shared) = self.taken.swap_remove(oldest).upgrade() {
                shared.leave.notify_one();
            }
        }
        let place = ClientPlace { shared: Arc::default(), clock: self.clock.clone() };
        place.idle();
        self.taken.push(Arc::downgrade(&place.shared));
        Some(place)
    }
}

impl ClientPlace {
    /// The client has been answered.
    pub(super) fn idle(&self) {
        self.shared.since.store(self.clock.fetch_add(1, Relaxed), Relaxed);
        self.shared.busy.store(false, Relaxed);
    }

    /// A request of the client is under way.
    pub(super) fn busy(&self) {
        self.shared.busy.store(true, Relaxed);
    }

    /// Waits until somebody else has the place.
    pub(super) async fn given_away(&self) {
        self.shared.leave.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repair_the_client_that_was_idle_for_longest_gives_way() {
        let mut places = ClientPlaces::default();
        let mut taken: Vec<ClientPlace> = (0..MAX_CLIENTS).map(|_| places.take().unwrap()).collect();
        assert!(places.is_full());
        // The first asks something and is answered; the second one is at work.
        taken[0].idle();
        taken[1].busy();
        let left = |place: &ClientPlace| {
            let mut notified = Box::pin(place.given_away());
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            notified.as_mut().poll(&mut context).is_ready()
        };
        let newest = places.take().unwrap();
        let gone: Vec<usize> = (0..MAX_CLIENTS).filter(|at| left(&taken[*at])).collect();
        assert_eq!(gone, [2]);
        // A place that comes free is taken first.
        drop(taken.pop());
        let another = places.take().unwrap();
        assert!((0..taken.len()).all(|at| !left(&taken[at])));
        // All at work: nobody has to go.
        [&newest, &another].into_iter().chain(&taken).for_each(ClientPlace::busy);
        assert!(places.take().is_none());
    }
}
