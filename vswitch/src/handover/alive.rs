//! [`Alive`]: what a new process says while it says nothing else.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use super::wire::{Link, Message};
use super::{ALIVE_EVERY, HandoverError};

/// A thread that says that this process lives, until this goes.
#[derive(Debug)]
pub(super) struct Alive {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Alive {
    /// Starts it. Nobody else sends by this link meanwhile.
    pub fn start(link: &Link) -> Result<Self, HandoverError> {
        let (mut link, (stop, stopped)) = (link.try_clone()?, sync_channel(0));
        let thread = Builder::new().name("alive".into()).spawn(move || {
            while stopped.recv_timeout(ALIVE_EVERY) == Err(RecvTimeoutError::Timeout) {
                // Who does not take it is gone, which the next message tells.
                if link.send(&Message::Alive, ALIVE_EVERY).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Alive {
    /// What it says has been said when this returns.
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
