//! `ring`: packets stay inside the process. For the lab.
//!
//! A ring without a peer loops back. With a peer, what the one sends the other receives: each direction has its
//! rings, which are made by the end that is opened first and go with the one that is closed last. The ends may
//! come and go in any order.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pmd::{Eal, Port, PortError, Ring};

use super::{DevicePlan, DeviceSpec, OpenError, Opening, Traits};
use crate::config::port_spec::RingPort;

/// Packets that a ring holds.
pub(super) const PACKETS: u16 = 1023;
/// The driver's limit.
const MAX_QUEUES: u16 = 16;

static OPEN: Mutex<Vec<OpenEnd>> = Mutex::new(Vec::new());

fn open_ends() -> MutexGuard<'static, Vec<OpenEnd>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One open end that has a name.
#[derive(Debug)]
struct OpenEnd {
    name: String,
    peer: Option<String>,
    rings: PortRings,
}

/// The rings of both directions, a ring for each queue.
#[derive(Clone, Debug)]
pub(super) struct PortRings {
    rx: Vec<Ring>,
    tx: Vec<Ring>,
}

impl PortRings {
    pub(super) fn attach(&self, eal: &Eal, unique: &str) -> Result<Port, PortError> {
        Port::from_rings(eal, unique, &self.rx, &self.tx)
    }

    /// Packets that were sent and that nobody has fetched.
    pub(super) fn sent(&self) -> usize {
        self.tx.iter().map(Ring::packets).sum()
    }

    fn crossed(&self) -> Self {
        Self { rx: self.tx.clone(), tx: self.rx.clone() }
    }
}

/// An end, and its entry in the list of open ends if it has a name. Dropping it takes the entry out and empties the rings it
/// received from: nobody fetches what is in them.
#[derive(Debug)]
pub(super) struct End {
    name: Option<String>,
    pub(super) rings: PortRings,
}

impl Drop for End {
    fn drop(&mut self) {
        let Some(name) = &self.name else { return };
        let mut open = open_ends();
        if let Some(index) = open.iter().position(|entry| &entry.name == name) {
            let entry = open.swap_remove(index);
            entry.rings.rx.iter().for_each(Ring::clear);
        }
    }
}

pub(super) fn plan(spec: &RingPort, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    let (eal, request) = (opening.eal, opening.request);
    let queues = request.queues.clamp(1, MAX_QUEUES);
    let make = |way: &str| {
        let ring = |queue| Ring::new(eal, &format!("port{}{way}{queue}", request.unique), PACKETS);
        (0..queues)
            .map(ring)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|source| super::refused("ring", request.name, source))
    };
    let loopback = || make("l").map(|rings| PortRings { rx: rings.clone(), tx: rings });
    let pair = || Ok(PortRings { rx: make("r")?, tx: make("t")? });

    let Some(name) = &spec.name else {
        return Ok(plan_for(loopback()?, None));
    };
    let mut open = open_ends();
    let refuse = |why: String| Err(OpenError::Ring { name: name.clone(), why });
    if open.iter().any(|entry| &entry.name == name) {
        return refuse("a ring of this name is open already; detach it first, or choose another name".into());
    }
    let rings = match &spec.peer {
        None => loopback()?,
        Some(peer) if peer == name => {
            return refuse("it is its own peer; leave the peer out to loop back".into());
        }
        Some(peer) => match open.iter().find(|entry| &entry.name == peer) {
            Some(other) if other.peer.as_ref() == Some(name) => other.rings.crossed(),
            Some(other) => {
                let theirs = other.peer.as_deref().unwrap_or("nobody: it loops back");
                return refuse(format!(
                    "its peer {peer} has another peer ({theirs}); name each in the other"
                ));
            }
            None => pair()?,
        },
    };
    open.push(OpenEnd { name: name.clone(), peer: spec.peer.clone(), rings: rings.clone() });
    Ok(plan_for(rings, Some(name.clone())))
}

fn plan_for(rings: PortRings, name: Option<String>) -> DevicePlan {
    let queues = u16::try_from(rings.rx.len()).unwrap_or(MAX_QUEUES);
    let mut plan = DevicePlan::new(DeviceSpec::Rings(rings.clone()), Traits::exactly(queues));
    plan.ring = Some(End { name, rings });
    plan
}
