//! [`Shares`]: a queue in which each owner may have a few places, so that a storm of one costs others nothing.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use crossbeam::queue::ArrayQueue;

/// Why something found no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// Its owner has as many as may be, or is nobody that the queue knows.
    OfOwner,
    /// All places are taken.
    InAll,
}

/// The queue, and how much of it is of each owner.
pub(super) struct Shares<T> {
    queue: ArrayQueue<(u32, T)>,
    waiting: Box<[AtomicU8]>,
}

impl<T> Shares<T> {
    /// Of so many places, for owners whose numbers are below `owners`.
    pub fn new(places: usize, owners: usize) -> Self {
        Self { queue: ArrayQueue::new(places), waiting: (0..owners).map(|_| AtomicU8::new(0)).collect() }
    }

    /// Takes something in unless `most` of its owner wait already. Several workers may be here at once: that is a few more.
    ///
    /// # Errors
    /// [`NoPlace`].
    pub fn push(&self, owner: u32, most: u8, item: T) -> Result<(), NoPlace> {
        let waiting = self.waiting.get(owner as usize).ok_or(NoPlace::OfOwner)?;
        if waiting.load(Relaxed) >= most {
            return Err(NoPlace::OfOwner);
        }
        waiting.fetch_add(1, Relaxed);
        self.queue.push((owner, item)).map_err(|_| {
            waiting.fetch_sub(1, Relaxed);
            NoPlace::InAll
        })
    }

    /// The oldest.
    pub fn pop(&self) -> Option<T> {
        let (owner, item) = self.queue.pop()?;
        if let Some(waiting) = self.waiting.get(owner as usize) {
            waiting.fetch_sub(1, Relaxed);
        }
        Some(item)
    }
}
