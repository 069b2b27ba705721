//! What a vNIC may have of a ledger.

/// What a vNIC may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerLimits {
    /// Queue pairs at a time.
    pub quota: u32,
    /// New queue pairs per second; 0: no limit.
    pub new_rate: u32,
    /// Answer connection requests over the quota with a reject.
    pub reject: bool,
}

impl LedgerLimits {
    /// No limit but the table.
    pub const NONE: Self = Self { quota: u32::MAX, new_rate: 0, reject: false };
}
