//! Rules that were taken away by a change and that the device has not let go while the change waited for that: packets may meet them.

use super::OffloadControl;

/// What is known of such rules.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Late {
    /// How many there were when the device was waited for in vain the last time; 0 once all are gone.
    rules: usize,
    /// The change under way was among those that waited.
    in_change: bool,
    is_told: bool,
}

/// What is new about rules that the device does not let go in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateNews {
    /// So many are there still.
    Late(usize),
    /// None is any more.
    Gone,
}

impl OffloadControl {
    /// A change begins.
    pub fn begin_change(&mut self) {
        self.late.in_change = false;
    }

    /// Rules that packets may meet though they were taken away: those that the device has not answered for, and those that it keeps in
    /// force.
    fn in_force(&self) -> usize {
        self.manager.leaving() + self.manager.forwarding()
    }

    /// The device was waited for.
    pub(super) fn waited(&mut self) {
        let rules = self.in_force();
        if rules > 0 {
            (self.late.rules, self.late.in_change) = (rules, true);
        }
    }

    /// Rules that the change under way has waited for in vain.
    pub fn late_in_change(&self) -> usize {
        if self.late.in_change { self.late.rules } else { 0 }
    }

    /// Rules that changes have waited for in vain and that are not known to be gone since.
    pub fn late(&self) -> usize {
        self.late.rules
    }

    /// What is new about them, once.
    pub fn late_news(&mut self) -> Option<LateNews> {
        if self.late.rules == 0 {
            return None;
        }
        if self.in_force() == 0 {
            let was_told = std::mem::take(&mut self.late).is_told;
            return was_told.then_some(LateNews::Gone);
        }
        let was_told = std::mem::replace(&mut self.late.is_told, true);
        (!was_told).then_some(LateNews::Late(self.late.rules))
    }
}
