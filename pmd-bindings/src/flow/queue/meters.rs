//! A flow queue and its meters: what is asked of the device about them, and what follows from its answers.

use std::time::Instant;

use rules::{Cause, FlowError, Meter, Where};

use super::super::held;
use super::super::meter::{Profiles, profile_of};
use super::exchange::{Operation, REFUSALS, later};
use super::handle::{self, Handle, To};
use super::mark::{Mark, MarkId, Step, UnderWay, no_such_meter};
use super::{FlowQueue, NO_REASON, PATIENCE};

impl FlowQueue {
    /// Makes a meter, or changes its rates. Does not wait for the device, but for a little room in the queue.
    ///
    /// # Errors
    /// The driver's words; [`Cause::Again`] without room, and while the device does not answer about other meters.
    pub(super) fn make_or_change_meter(&mut self, mtr_id: u32, meter: Meter) -> Result<(), FlowError> {
        let Some(id) = self.marks.by_number.get(&mtr_id).copied() else {
            return self.make_meter(mtr_id, meter);
        };
        if let Some(mark) = self.marks.all.get_mut(&id) {
            (mark.unwanted, mark.rates) = (false, Some(meter));
        }
        self.marks.schedule(id);
        Ok(())
    }

    /// Has a meter go with the last rule that names it.
    ///
    /// # Errors
    /// [`Cause::Gone`] for a meter that is not there.
    pub(super) fn remove_meter(&mut self, mtr_id: u32) -> Result<(), FlowError> {
        let id = self.marks.by_number.get(&mtr_id).copied();
        let mark = id.and_then(|id| self.marks.all.get_mut(&id)).filter(|mark| !mark.unwanted);
        let mark = mark.ok_or_else(|| no_such_meter(Where::Handle, mtr_id))?;
        (mark.unwanted, mark.rates) = (true, None);
        if let Some(id) = id {
            self.marks.schedule(id);
        }
        Ok(())
    }

    fn make_meter(&mut self, mtr_id: u32, meter: Meter) -> Result<(), FlowError> {
        let began = Instant::now();
        let room = self.marks.room;
        let id = MarkId(held::number());
        let made = loop {
            let refusal = match self.ask_for_meter(id, meter) {
                Ok(made) => break made,
                Err(error) => error,
            };
            let goes = |mark: &Mark| mark.unwanted && mark.refusals < REFUSALS;
            let passes = match refusal.cause {
                Cause::Again => self.marks.late == 0,
                // Some may be on their way out.
                Cause::Full => self.marks.all.values().any(goes),
                _ => false,
            };
            if !passes || began.elapsed() > room {
                self.marks.room = room.saturating_sub(began.elapsed());
                return Err(refusal);
            }
            self.exchange()?;
        };
        self.marks.room = room.saturating_sub(began.elapsed());
        let (handle, profile) = made;
        let under_way = Some(self.marks.begin(id, Step::Make));
        let mark = Mark {
            mtr_id,
            handle,
            profiles: vec![profile],
            refused_profile: None,
            under_way,
            is_made: false,
            rates: None,
            unwanted: false,
            rules: 0,
            waiting: Vec::new(),
            refusals: 0,
            is_due: false,
        };
        self.marks.all.insert(id, mark);
        self.marks.by_number.insert(mtr_id, id);
        Ok(())
    }

    fn ask_for_meter(&mut self, id: MarkId, meter: Meter) -> Result<(Handle, u32), FlowError> {
        if self.marks.late > 0 {
            return Err(no_answer());
        }
        self.ask_about_meter(id, |to, profiles| {
            let number = profiles.write(to.port, meter)?;
            let made = profile_of(to.port, number).and_then(|profile| handle::make(to, profile));
            made.map(|handle| (handle, number)).inspect_err(|_| profiles.discard(to.port, number))
        })
    }

    /// Enqueues an operation of a meter.
    fn ask_about_meter<T>(
        &mut self,
        id: MarkId,
        enqueue: impl FnOnce(To, &mut Profiles) -> Result<T, FlowError>,
    ) -> Result<T, FlowError> {
        if !self.has_room() {
            return Err(FlowError::new(Cause::Again, Where::Unspecified, "the flow queue has no room"));
        }
        let tag = Operation::Meter(id).tag();
        let to = To { port: self.port(), queue: self.queue.into(), attr: later(), tag };
        let value = enqueue(to, &mut self.held().open()?.meters.profiles)?;
        self.outstanding += 1;
        Ok(value)
    }

    /// Enqueues changes and removals of meters, as long as there is room.
    pub(super) fn hand_over_meters(&mut self) {
        while self.has_room()
            && let Some(id) = self.marks.due.front().copied()
        {
            let result = self.hand_over_meter(id);
            let Err(error) = result else {
                self.marks.again_since = None;
                self.marks.due.pop_front();
                continue;
            };
            let since = *self.marks.again_since.get_or_insert_with(Instant::now);
            if error.cause == Cause::Again && since.elapsed() < PATIENCE {
                return;
            }
            self.marks.due.pop_front();
            self.give_up_meter(id, error);
        }
    }

    fn hand_over_meter(&mut self, id: MarkId) -> Result<(), FlowError> {
        let Some(mark) = self.marks.all.get(&id) else { return Ok(()) };
        let (handle, rates, mtr_id) = (mark.handle, mark.rates, mark.mtr_id);
        let (step, written) = match (mark.next(), rates) {
            (Some(Step::Remove), _) => {
                self.ask_about_meter(id, |to, _| handle::remove(to, handle))?;
                self.marks.unname(mtr_id, id);
                (Step::Remove, None)
            }
            (Some(_), Some(rates)) => (Step::Change, Some(self.ask_for_change(id, handle, rates)?)),
            _ => {
                self.marks.not_due(id);
                return Ok(());
            }
        };
        let under_way = self.marks.begin(id, step);
        self.marks.not_due(id);
        if let Some(mark) = self.marks.all.get_mut(&id) {
            mark.under_way = Some(under_way);
            mark.rates = None;
            mark.profiles.extend(written);
        }
        Ok(())
    }

    /// Enqueues new rates for a meter. The profile that they are in.
    fn ask_for_change(&mut self, id: MarkId, handle: Handle, rates: Meter) -> Result<u32, FlowError> {
        let mut written = None;
        let changed = self.ask_about_meter(id, |to, profiles| {
            let number = *written.insert(profiles.write(to.port, rates)?);
            handle::change(to, handle, profile_of(to.port, number)?).map(|()| number)
        });
        if changed.is_err()
            && let Some(mark) = self.marks.all.get_mut(&id)
            && let Some(written) = written
        {
            // The driver may look at this one now, and surely not at that of the refusal before.
            let before = mark.refused_profile.replace(written);
            self.discard(before.as_slice());
        }
        changed
    }

    /// The driver does not take a change or a removal.
    fn give_up_meter(&mut self, id: MarkId, error: FlowError) {
        self.marks.not_due(id);
        let Some(mark) = self.marks.all.get_mut(&id) else { return };
        if mark.unwanted {
            return self.keep_meter(id, &error.to_string());
        }
        mark.rates = None;
        self.marks.failed.push((mark.mtr_id, error));
    }

    /// The device would not let a meter go: at once again, and after some times in a while.
    fn keep_meter(&mut self, id: MarkId, words: &str) {
        let Some(mark) = self.marks.all.get_mut(&id) else { return };
        mark.refusals += 1;
        if mark.refusals < REFUSALS {
            return self.marks.schedule(id);
        }
        if mark.refusals == REFUSALS {
            let (port, meter) = (self.running.id().get(), mark.mtr_id);
            tracing::warn!(
                port,
                meter,
                words,
                "the device does not let a meter go; it is asked again and again"
            );
        }
        self.marks.stuck.push(id);
        self.retry_later();
    }

    /// The device has answered the operation of a meter. False when there was none: the answer is for another queue.
    pub(super) fn meter_answered(&mut self, id: MarkId, done: bool) -> bool {
        let Some(mark) = self.marks.all.get_mut(&id) else { return false };
        let Some(UnderWay { step, is_late, .. }) = mark.under_way.take() else { return false };
        self.marks.late -= usize::from(is_late);
        let error = || FlowError::new(Cause::Other(libc::EIO), Where::Unspecified, NO_REASON);
        match (step, done) {
            (Step::Make, true) => {
                mark.is_made = true;
                for rule in std::mem::take(&mut mark.waiting) {
                    self.backlog.create(rule);
                }
            }
            (Step::Make, false) => self.abandon_meter(id, error()),
            (Step::Change, true) => {
                // It surely does not look at those before any more.
                let newest = mark.profiles.pop();
                let mut before = std::mem::replace(&mut mark.profiles, newest.into_iter().collect());
                before.extend(mark.refused_profile.take());
                self.discard(&before);
            }
            (Step::Change, false) => {
                if !is_late && !mark.unwanted {
                    self.marks.failed.push((mark.mtr_id, error()));
                }
            }
            (Step::Remove, true) => {
                let profiles = self.marks.all.remove(&id).map(Mark::into_profiles);
                self.discard(&profiles.unwrap_or_default());
            }
            (Step::Remove, false) => self.keep_meter(id, NO_REASON),
        }
        if step != Step::Remove {
            self.marks.schedule(id);
        }
        true
    }

    /// Tells of meters about which the device has not answered for long.
    pub(super) fn tell_late_meters(&mut self) {
        for (id, step) in self.marks.take_late() {
            match (step, self.marks.all.get(&id)) {
                (Step::Make, _) => self.abandon_meter(id, no_answer()),
                (Step::Change, Some(mark)) if !mark.unwanted => {
                    self.marks.failed.push((mark.mtr_id, no_answer()));
                }
                _ => {}
            }
        }
    }

    fn abandon_meter(&mut self, id: MarkId, error: FlowError) {
        for rule in self.marks.abandon(id, error.clone()) {
            // One that was destroyed in the meantime is not there any more.
            if self.rules.contains_key(&rule) {
                self.forget(rule);
                self.answers.push((rule, Err(error.clone())));
            }
        }
    }

    fn discard(&self, profiles: &[u32]) {
        let (port, held) = (self.port(), self.held());
        profiles.iter().for_each(|number| held.meters.profiles.discard(port, *number));
    }
}

fn no_answer() -> FlowError {
    let message = "the device has not answered for a second about a meter";
    FlowError::new(Cause::Again, Where::Unspecified, message)
}
