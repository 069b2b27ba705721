//! Tunnel ECN: what becomes of the ECN field when a packet enters and leaves the tunnel.

use wire::Ecn;

/// How the outer ECN field is made at encapsulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnEncap {
    /// Copy, CE included: normal mode of RFC 6040 section 4.1.
    #[default]
    Rfc6040,
    /// CE becomes ECT(0), the rest is copied: full-functionality mode of RFC 3168 section 9.1.1.
    Rfc3168,
    /// Outer Not-ECT always: compatibility mode of RFC 6040 section 4.1.
    Rfc6040Compat,
}

impl EcnEncap {
    /// The outer field for an inner one.
    #[inline(always)]
    pub const fn outer(self, inner: Ecn) -> Ecn {
        match (self, inner) {
            (Self::Rfc6040Compat, _) => Ecn::NotEct,
            (Self::Rfc3168, Ecn::Ce) => Ecn::Ect0,
            (_, inner) => inner,
        }
    }
}

/// The inner field after decapsulation, or `None` for a drop (RFC 6040 section 4.2, figure 4).
#[inline(always)]
pub const fn decap(inner: Ecn, outer: Ecn) -> Option<Ecn> {
    match (inner, outer) {
        (Ecn::NotEct, Ecn::Ce) => None,
        (Ecn::NotEct, _) => Some(Ecn::NotEct),
        (Ecn::Ce, _) | (_, Ecn::Ce) => Some(Ecn::Ce),
        (Ecn::Ect0, Ecn::Ect1) => Some(Ecn::Ect1),
        (inner, _) => Some(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Ecn::{Ce, Ect0, Ect1, NotEct};

    #[test]
    fn decapsulation_is_the_table_of_rfc_6040() {
        // Rows: inner; columns: outer Not-ECT, ECT(0), ECT(1), CE.
        let table = [
            (NotEct, [Some(NotEct), Some(NotEct), Some(NotEct), None]),
            (Ect0, [Some(Ect0), Some(Ect0), Some(Ect1), Some(Ce)]),
            (Ect1, [Some(Ect1), Some(Ect1), Some(Ect1), Some(Ce)]),
            (Ce, [Some(Ce), Some(Ce), Some(Ce), Some(Ce)]),
        ];
        for (inner, row) in table {
            for (outer, expected) in [NotEct, Ect0, Ect1, Ce].into_iter().zip(row) {
                assert_eq!(decap(inner, outer), expected, "inner {inner:?} outer {outer:?}");
            }
        }
    }

    #[test]
    fn encapsulation_by_mode() {
        for inner in Ecn::ALL {
            assert_eq!(EcnEncap::Rfc6040.outer(inner), inner);
            assert_eq!(EcnEncap::Rfc6040Compat.outer(inner), NotEct);
            assert_eq!(EcnEncap::Rfc3168.outer(inner), if inner == Ce { Ect0 } else { inner });
        }
    }
}
