//! What the switch is to have otherwise, carried out by control: a batch at a time, and pieces of one where something of it cannot be.

use std::time::{Duration, Instant};

use super::{AGAIN, Ended, Evpn};
use crate::controller::Controller;
use crate::evpn::apply::{Applied, Changes, RouteChange, apply, try_piece};
use crate::evpn::halves::Pieces;
use crate::switch::SwitchError;
use crate::switch::view::View;

impl Evpn {
    pub(super) async fn apply(&mut self, now: Instant) -> Result<(), Ended> {
        while !self.dirty.is_empty() {
            let view = |controller: &mut Controller| View::of(&controller.switch);
            let Some(view) = self.control.ask("looking at the switch", view).await? else { break };
            let changes = self.applier.changes(&mut self.dirty, &self.book, &view, Instant::now());
            if changes.is_empty() {
                continue;
            }
            if !self.carry_out(changes, now).await? {
                break;
            }
        }
        Ok(())
    }

    /// Has control do it; false when it is to be tried again later.
    async fn carry_out(&mut self, changes: Changes, now: Instant) -> Result<bool, Ended> {
        let asked = changes.clone();
        let done =
            self.control.ask("what other hosts say", move |controller| apply(controller, asked)).await?;
        let Some(applied) = done else {
            // Nobody knows how far it came.
            self.applier.took(&changes, &Applied::failed("control failed at it"), &mut self.dirty);
            self.not_before = Some(now + AGAIN);
            return Ok(false);
        };
        self.applier.took(&changes, &applied, &mut self.dirty);
        self.changed(applied.revisions);
        if let Some(error) = applied.error {
            self.put_off(error, now);
            return Ok(false);
        }
        match applied.unclear.is_empty() {
            true => Ok(true),
            false => self.try_halves(applied.unclear, now).await,
        }
    }

    /// Finds out which of some routes cannot be, and brings the others in: control does others' work between two pieces. False when it is to be
    /// tried again later.
    async fn try_halves(&mut self, routes: Vec<RouteChange>, now: Instant) -> Result<bool, Ended> {
        let (mut pieces, mut took) = (Pieces::of(routes), Duration::ZERO);
        while let Some(piece) = pieces.next() {
            let asked = piece.clone();
            let work = move |controller: &mut Controller| try_piece(controller, &asked);
            let tried = self.control.ask("what other hosts say", work).await?;
            let error = match tried {
                Some(tried) => {
                    took += tried.took;
                    self.changed(tried.revisions);
                    match tried.result {
                        Ok(()) => continue,
                        Err(error @ SwitchError::Worker(_)) => Some(error.to_string()),
                        Err(error) => {
                            if let Some(route) = pieces.refused(piece) {
                                self.applier.refuse(route, error.to_string());
                            }
                            continue;
                        }
                    }
                }
                None => None,
            };
            // What is left is looked at anew.
            let left = std::iter::from_fn(|| pieces.next()).flatten().chain(piece);
            self.dirty.prefixes.extend(left.map(|route| (route.vni, route.to)));
            self.put_off(error.unwrap_or_else(|| "control failed at it".into()), now);
            return Ok(false);
        }
        self.applier.tried_for(took, Instant::now());
        Ok(true)
    }

    /// A change of this client's own was made between two revisions of the switch.
    fn changed(&mut self, (before, after): (u64, u64)) {
        if self.revision == Some(before) {
            // Nobody else has changed anything meanwhile.
            self.revision = Some(after);
        }
    }

    fn put_off(&mut self, error: String, now: Instant) {
        tracing::warn!(error, "what other hosts say cannot be taken in; it is tried again");
        self.status.lock().last_error = error;
        self.not_before = Some(now + AGAIN);
    }
}
