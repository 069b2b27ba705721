//! rcft: admission of reliable-connection queue pairs. The seat of the RC flow table; every QP is admitted.

use super::Cx;
use crate::burst::Burst;

/// Admits or refuses the queue pairs of RC packets. There is no table yet: nothing is refused.
#[inline(always)]
pub fn run<P>(_cx: &Cx, _burst: &mut Burst<P>) {}
