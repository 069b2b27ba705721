//! What the log and the events say of refused queue pairs: at most once a second for each vNIC.

use std::fmt;
use std::net::IpAddr;

use pipelines::Now;
use pipelines::drops::DropReason;
use pipelines::snapshot::Snapshot;
use serde_json::json;
use wire::Qpn;

use super::{RcftControl, SECOND};
use crate::switch::events::EventLog;

/// A queue pair that a worker refused a vNIC ([`Event::QpRefused`](pipelines::event::Event::QpRefused)).
pub struct QpRefusal {
    pub vnic: u32,
    /// Where the queue pair is that it would have sent to ...
    pub peer: IpAddr,
    /// ... and its number there.
    pub qpn: Qpn,
    pub reason: DropReason,
}

/// A request for a connection that a worker answered with a reject
/// ([`Event::ConnectionRejected`](pipelines::event::Event::ConnectionRejected)).
pub struct ConnectionRejection {
    pub vnic: u32,
    pub peer: IpAddr,
    /// True when the vNIC asked, false when the peer did.
    pub asked: bool,
    /// The queue pair of whoever asked.
    pub qpn: Qpn,
}

/// How far a vNIC is with its quota, for what is said of a refusal.
struct QuotaUse<'s> {
    name: &'s str,
    used: u32,
    /// `None` without a quota.
    quota: Option<u32>,
}

impl fmt::Display for QuotaUse<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in use, ", self.used)?;
        match self.quota {
            Some(quota) => write!(f, "quota {quota}"),
            None => write!(f, "no quota"),
        }
    }
}

impl RcftControl {
    /// A worker refused a queue pair.
    pub fn refused(
        &mut self,
        QpRefusal { vnic, peer, qpn, reason }: QpRefusal,
        snapshot: &Snapshot,
        now: Now,
        events: &mut EventLog,
    ) {
        let Some(quota_use) = self.may_tell(vnic, snapshot, now, events) else { return };
        let QuotaUse { name, used, quota } = quota_use;
        let (reason, number) = (reason.name(), qpn.get());
        tracing::warn!(vnic = name, %peer, qpn = number, reason, used, quota, "queue pair refused");
        let text = format!("{name} was refused a queue pair to {peer} qp {number:#x}: {reason}; {quota_use}");
        let facts = json!({
            "vnic": name, "peer": peer, "qpn": number, "reason": reason, "in-use": used, "quota": quota,
        });
        events.add("qp-refused", text, facts);
    }

    /// A request for a connection was answered with a reject.
    pub fn rejected(
        &mut self,
        ConnectionRejection { vnic, peer, asked, qpn }: ConnectionRejection,
        snapshot: &Snapshot,
        now: Now,
        events: &mut EventLog,
    ) {
        let Some(quota_use) = self.may_tell(vnic, snapshot, now, events) else { return };
        let QuotaUse { name, used, quota } = quota_use;
        let (reason, number) = (DropReason::QP_QUOTA.name(), qpn.get());
        tracing::warn!(vnic = name, %peer, asked, qpn = number, used, quota, "connection rejected");
        let refused = if asked {
            format!("{name} (qp {number:#x}) was refused a connection to {peer}")
        } else {
            format!("{peer} (qp {number:#x}) was refused a connection to {name}")
        };
        let text = format!("{refused}: {reason}, its request was answered with a reject; {quota_use}");
        let facts = json!({
            "vnic": name, "peer": peer, "asked": asked, "qpn": number, "reason": reason, "answer": "reject",
            "in-use": used, "quota": quota,
        });
        events.add("qp-refused", text, facts);
    }

    /// Says when a vNIC has reached its quota, once until it is under it again.
    pub(super) fn look(&mut self, vnic: u32, snapshot: &Snapshot, events: &mut EventLog) {
        let (used, quota) = (self.in_use(vnic), self.limits(vnic).quota);
        if used < quota {
            self.full.remove(&vnic);
            return;
        }
        if quota == 0 || !self.full.insert(vnic) {
            return;
        }
        let Some(name) = snapshot.vnic(vnic).map(|vnic| vnic.name.as_str()) else { return };
        tracing::warn!(vnic = name, used, quota, "quota of queue pairs reached");
        let text = format!("{name} has reached its quota: {used} of {quota} queue pairs in use");
        events.add("quota-reached", text, json!({ "vnic": name, "in-use": used, "quota": quota }));
    }

    /// What is said beside a refusal of a vNIC, when one may be told again: once a second for each vNIC. `None` when not, or
    /// when the vNIC is gone.
    fn may_tell<'s>(
        &mut self,
        vnic: u32,
        snapshot: &'s Snapshot,
        now: Now,
        events: &mut EventLog,
    ) -> Option<QuotaUse<'s>> {
        let name = snapshot.vnic(vnic)?.name.as_str();
        if self.logged.get(&vnic).is_some_and(|at| now.tick.wrapping_sub(*at) < SECOND) {
            return None;
        }
        self.logged.insert(vnic, now.tick);
        self.look(vnic, snapshot, events);
        let quota = self.limits(vnic).quota;
        Some(QuotaUse { name, used: self.in_use(vnic), quota: (quota != u32::MAX).then_some(quota) })
    }
}
