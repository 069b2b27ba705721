//! Asking control from another thread: what is asked is done between control's other tasks, and the answer waited for.

use tokio::sync::{mpsc, oneshot};

use super::guard::{Fault, caught};
use crate::api::Job;
use crate::controller::Controller;

/// The way to control.
#[derive(Clone, Debug)]
pub struct Asker(mpsc::Sender<Job>);

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// Control takes no requests any more.
    #[error("the switch is ending; ask again when it runs")]
    Ending,
    /// What was asked panicked.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl Asker {
    /// Asks by jobs.
    pub fn new(jobs: mpsc::Sender<Job>) -> Self {
        Self(jobs)
    }

    /// Has control do `work`, which `what` names, and waits for what it says.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn ask<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&mut Controller) -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |controller| {
            let result = caught(what, || work(controller));
            if let Err(fault) = &result {
                controller.suspect(fault);
            }
            // Whoever asked may be gone.
            let _ = answer.send(result);
        });
        self.0.send(job).await.map_err(|_| Unanswered::Ending)?;
        Ok(answered.await.map_err(|_| Unanswered::Ending)??)
    }
}
