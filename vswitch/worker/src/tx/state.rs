//! What control tells the workers of a port while packets flow.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// What control knows of a port and its workers want to know.
#[derive(Debug)]
pub struct PortState {
    /// False without a link, or without a peer.
    link: AtomicBool,
    /// The longest frame that the driver takes.
    max_frame: AtomicU32,
}

impl PortState {
    /// A port with a link, for frames of up to so many bytes.
    pub fn new(max_frame: u32) -> Self {
        Self { link: AtomicBool::new(true), max_frame: AtomicU32::new(max_frame) }
    }

    /// Tells whether somebody is there to read.
    pub fn set_link(&self, up: bool) {
        self.link.store(up, Ordering::Relaxed);
    }

    /// Whether somebody is there to read.
    pub fn link(&self) -> bool {
        self.link.load(Ordering::Relaxed)
    }

    /// Sets the longest frame.
    pub fn set_max_frame(&self, bytes: u32) {
        self.max_frame.store(bytes, Ordering::Relaxed);
    }

    /// The longest frame.
    pub fn max_frame(&self) -> u32 {
        self.max_frame.load(Ordering::Relaxed)
    }
}
