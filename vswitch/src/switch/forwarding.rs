//! Whether workers receive packets, and what they do with them.

use std::sync::Arc;

use worker::{Mode, WorkerCommand};

use super::{Switch, SwitchError, start};
use crate::config::ForwardMode;

impl Switch {
    /// Receives packets, or stops to.
    ///
    /// # Errors
    /// [`SwitchError::Worker`]; what was asked for last holds when the worker answers again.
    pub fn set_forwarding(&mut self, on: bool) -> Result<(), SwitchError> {
        self.wants_forwarding = Some(on);
        self.have_forwarded(|| WorkerCommand::Forward(on), on && self.mode == Mode::Overlay)?;
        self.forwarding = on;
        self.wants_forwarding = None;
        Ok(())
    }

    /// Tells the workers what to forward, and the device whether it may, too; where a worker does not hear it, hardware stops.
    fn have_forwarded(
        &mut self,
        command: impl Fn() -> WorkerCommand,
        in_hardware: bool,
    ) -> Result<(), SwitchError> {
        let told = self.pool.post_all(command).and_then(|()| self.pool.barrier());
        let on = in_hardware && told.is_ok();
        let followed = self.offload.set_forwarding(&self.pool, self.topology.snapshot(), on);
        Ok(told.and(followed)?)
    }

    /// Changes the forwarding mode.
    ///
    /// # Errors
    /// [`SwitchError::Worker`]; then the mode of before is in force on all workers that answer, and on the others when they do.
    pub fn set_mode(&mut self, mode: Mode) -> Result<(), SwitchError> {
        let told =
            self.have_forwarded(|| WorkerCommand::Mode(mode), self.forwarding && mode == Mode::Overlay);
        self.is_mode_doubtful = told.is_err();
        if told.is_err() {
            // Some have it already, and others take it when they answer; this comes behind it.
            let before = self.mode;
            let _ = self.pool.post_all(|| WorkerCommand::Mode(before));
            return told;
        }
        self.mode = mode;
        Arc::make_mut(&mut self.config).forward.mode = match mode {
            Mode::Overlay => ForwardMode::Overlay,
            Mode::Io => ForwardMode::Io,
            Mode::Mac => ForwardMode::Mac,
        };
        Ok(())
    }

    /// Has the workers do with packets what the config says, where one did not take that yet.
    pub(super) fn tend_mode(&mut self) {
        let mode = start::mode(self.config.forward.mode);
        if (mode != self.mode || self.is_mode_doubtful)
            && !self.pool.has_silent()
            && let Err(error) = self.set_mode(mode)
        {
            tracing::warn!(%error, "a worker does not know the forwarding mode yet");
        }
    }

    /// Has the workers receive packets, or not, where one did not take that yet.
    pub(super) fn tend_forwarding(&mut self) {
        if let Some(on) = self.wants_forwarding
            && !self.pool.has_silent()
            && let Err(error) = self.set_forwarding(on)
        {
            tracing::warn!(%error, on, "a worker does not know yet whether to receive packets");
        }
    }
}
