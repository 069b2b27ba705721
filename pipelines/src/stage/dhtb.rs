//! dhtb: the hierarchical token buckets. Their seat; no bucket is configured, every packet passes.

use super::Cx;
use crate::burst::Burst;

/// Debits the buckets of each packet. There is no tree yet: nothing is marked, queued or dropped.
#[inline(always)]
pub fn run<P>(_cx: &Cx, _burst: &mut Burst<P>) {}
