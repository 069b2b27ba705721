//! The signals that end the process.

use std::io;
use std::time::Duration;

use anyhow::bail;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long the runtime looks for signals that have come.
const LOOK: Duration = Duration::from_millis(1);

/// Trapped from its making on.
#[derive(Debug)]
pub(super) struct Signals {
    pub interrupt: Signal,
    pub terminate: Signal,
}

impl Signals {
    /// Traps them.
    pub fn trap() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Asked between the steps of an upgrade that can be left as they are: whoever ends this process by then must not end the network with
    /// it.
    ///
    /// # Errors
    /// One has come.
    pub async fn go_on(&mut self) -> anyhow::Result<()> {
        let has_come = tokio::select! {
            biased;
            Some(()) = self.interrupt.recv() => true,
            Some(()) = self.terminate.recv() => true,
            // The runtime sees what has come while it waits for something.
            () = tokio::time::sleep(LOOK) => false,
        };
        if has_come {
            bail!("interrupted; the old switch runs on");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal as Kind, raise};

    use super::*;

    #[test]
    fn a_signal_that_came_while_nobody_looked_ends_an_upgrade() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for kind in [Kind::SIGINT, Kind::SIGTERM] {
                let mut signals = Signals::trap().unwrap();
                signals.go_on().await.unwrap();
                raise(kind).unwrap();
                let said = signals.go_on().await.unwrap_err().to_string();
                assert_eq!(said, "interrupted; the old switch runs on");
            }
        });
    }
}
