//! Which of rte_flow's APIs a port's rules go through, and what the template and queue API is set up with.
//!
//! `rte_flow_configure` comes between configuring a port and starting it, and is never undone: a port that is started
//! again keeps what it had.

use dpdk_sys as sys;
use rules::{Cause, FlowError, Where};

use super::error;

/// Which API of rte_flow the rules of a port go through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowEngine {
    /// The synchronous one: each call waits for the device.
    #[default]
    Sync,
    /// Templates and queues where the driver has them, else the synchronous one.
    Auto(FlowQueues),
    /// Templates and queues, or the port does not start.
    Async(FlowQueues),
}

/// The flow queues that a port is started with, and what it sets aside for their rules. Where the driver says that it has
/// less of something, that is what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowQueues {
    /// How many; each belongs to one thread.
    pub queues: u16,
    /// Operations that a queue holds.
    pub depth: u32,
    /// Counters to set aside.
    pub counters: u32,
    /// Ages to set aside.
    pub ages: u32,
    /// Meters to set aside.
    pub meters: u32,
    /// Rules of one table. Where more rules are alike, another table is made for them.
    pub rules_per_table: u32,
}

impl FlowQueues {
    /// One queue for so many rules, each of which may count, age and meter.
    pub fn for_rules(rules: u32) -> Self {
        const DEPTH: u32 = 1024;
        const METERS: u32 = 1 << 16;
        const TABLE: u32 = 1 << 16;
        let rules = rules.max(1);
        Self {
            queues: 1,
            depth: DEPTH,
            counters: rules,
            ages: rules,
            meters: rules.min(METERS),
            rules_per_table: rules.min(TABLE),
        }
    }

    /// No more than the port has. Drivers that do not say how much they have of something say 0.
    fn within(self, limits: FlowLimits) -> Self {
        let least = |wanted: u32, most: u32| if most == 0 { wanted } else { wanted.min(most) };
        Self {
            queues: self.queues.min(u16::try_from(limits.queues).unwrap_or(u16::MAX)),
            depth: least(self.depth, limits.depth),
            counters: least(self.counters, limits.counters),
            ages: least(self.ages, limits.ages),
            meters: least(self.meters, limits.meters),
            rules_per_table: self.rules_per_table,
        }
    }
}

/// What a port has for flow queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimits {
    /// Queues.
    pub queues: u32,
    /// Operations of a queue.
    pub depth: u32,
    /// Counters.
    pub counters: u32,
    /// Ages.
    pub ages: u32,
    /// Meters.
    pub meters: u32,
}

/// What a configured port has for flow queues.
pub(super) fn limits(port: u16) -> Result<FlowLimits, FlowError> {
    // SAFETY: integers, for which zero is a value.
    let mut info: sys::rte_flow_port_info = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut queue: sys::rte_flow_queue_info = unsafe { std::mem::zeroed() };
    error::check(None, |error| {
        // SAFETY: a configured port and two places for the answer.
        unsafe { sys::rte_flow_info_get(port, &raw mut info, &raw mut queue, error) }
    })?;
    Ok(FlowLimits {
        queues: info.max_nb_queues,
        depth: queue.max_size,
        counters: info.max_nb_counters,
        ages: info.max_nb_aging_objects,
        meters: info.max_nb_meters,
    })
}

/// Sets up the engine of a port that is configured and not started; `before` is what an earlier start has set up. The
/// flow queues that there are then.
pub(crate) fn configure(
    port: u16,
    engine: &FlowEngine,
    before: Option<FlowQueues>,
) -> Result<Option<FlowQueues>, FlowError> {
    let (wanted, needed) = match engine {
        FlowEngine::Sync => return Ok(None),
        FlowEngine::Auto(wanted) => (wanted, false),
        FlowEngine::Async(wanted) => (wanted, true),
    };
    if before.is_some() {
        return Ok(before);
    }
    match set_up(port, *wanted) {
        Ok(queues) => Ok(Some(queues)),
        Err(error) if needed => Err(error),
        Err(error) if error.cause == Cause::Unsupported => Ok(None),
        Err(error) => {
            tracing::warn!(port, %error, "the port's flow queues cannot be used: rules go through the synchronous API");
            Ok(None)
        }
    }
}

fn set_up(port: u16, wanted: FlowQueues) -> Result<FlowQueues, FlowError> {
    let limits = limits(port)?;
    if limits.queues == 0 {
        let message = "the driver has templates and no flow queues";
        return Err(FlowError::new(Cause::Unsupported, Where::Unspecified, message));
    }
    let config = wanted.within(limits);
    // SAFETY: integers, for which zero is a value: the driver's default.
    let mut attr: sys::rte_flow_port_attr = unsafe { std::mem::zeroed() };
    attr.nb_counters = config.counters;
    attr.nb_aging_objects = config.ages;
    attr.nb_meters = config.meters;
    let queue = sys::rte_flow_queue_attr { size: config.depth };
    let mut queues = vec![&raw const queue; usize::from(config.queues)];
    error::check(None, |error| {
        // SAFETY: a configured, stopped port; attributes for as many queues as it is told.
        unsafe { sys::rte_flow_configure(port, &raw const attr, config.queues, queues.as_mut_ptr(), error) }
    })?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_asked_for_than_there_is() {
        let wanted = FlowQueues::for_rules(1 << 20);
        assert_eq!((wanted.queues, wanted.counters, wanted.rules_per_table), (1, 1 << 20, 1 << 16));
        let limits = FlowLimits { queues: 4, depth: 64, counters: 0, ages: 100, meters: 0 };
        let fitting = wanted.within(limits);
        assert_eq!((fitting.queues, fitting.depth, fitting.ages), (1, 64, 100));
        // What the driver does not tell is left for it to refuse.
        assert_eq!((fitting.counters, fitting.meters), (wanted.counters, wanted.meters));
        assert_eq!(FlowQueues::for_rules(0).rules_per_table, 1);
    }
}
