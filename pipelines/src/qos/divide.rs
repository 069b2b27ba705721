//! How a parent's rate is divided among its children: assured rates first, the rest by weight to those who want
//! it, and what nobody wants by weight to all, so that one that wakes up finds something.

/// A child, and what it was given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChildShare {
    /// What it would use, in bits per second; infinite when it was held back lately.
    pub demand: f64,
    /// What it gets before anybody gets more.
    pub assured: f64,
    /// Never more than this.
    pub ceil: f64,
    /// Its part of what is left.
    pub weight: f64,
    /// Bits per second that the division gives it.
    pub share: f64,
}

/// Divides `rate` among the claims. The shares never add up to more than `rate`, unless the assured rates do.
pub fn divide(rate: f64, claims: &mut [ChildShare]) {
    let mut left = rate;
    for claim in claims.iter_mut() {
        claim.share = claim.assured.min(claim.demand).min(claim.ceil);
        left -= claim.share;
    }
    left = fill(left, claims, |claim| claim.demand.min(claim.ceil));
    fill(left, claims, |claim| claim.ceil);
}

/// Raises shares by weight up to a limit each, until nothing is left or nobody takes more; returns what is left.
fn fill(mut left: f64, claims: &mut [ChildShare], limit: impl Fn(&ChildShare) -> f64) -> f64 {
    // Each round satisfies at least one claim, or uses everything up.
    while left > 1.0 {
        let open = |claim: &&mut ChildShare| claim.share + 0.5 < limit(claim);
        let weights: f64 = claims.iter_mut().filter(open).map(|claim| claim.weight).sum();
        if weights <= 0.0 {
            break;
        }
        let unit = left / weights;
        let mut given = 0.0;
        for claim in claims.iter_mut().filter(open) {
            let more = (unit * claim.weight).min(limit(claim) - claim.share);
            claim.share += more;
            given += more;
        }
        left -= given;
    }
    left.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GREEDY: ChildShare =
        ChildShare { demand: f64::INFINITY, assured: 0.0, ceil: f64::INFINITY, weight: 1.0, share: 0.0 };

    fn shares(rate: f64, claims: &[ChildShare]) -> Vec<f64> {
        let mut claims = claims.to_vec();
        divide(rate, &mut claims);
        claims.iter().map(|claim| claim.share.round()).collect()
    }

    #[test]
    fn dhtb_divides_by_weight_after_what_is_assured() {
        let heavy = ChildShare { weight: 3.0, ..GREEDY };
        assert_eq!(shares(1000.0, &[GREEDY, heavy]), [250.0, 750.0]);
        let assured = ChildShare { assured: 400.0, ..GREEDY };
        assert_eq!(shares(1000.0, &[assured, GREEDY]), [700.0, 300.0]);
        let modest = ChildShare { demand: 100.0, ..GREEDY };
        assert_eq!(shares(1000.0, &[modest, GREEDY, GREEDY]), [100.0, 450.0, 450.0]);
        let capped = ChildShare { ceil: 200.0, ..GREEDY };
        assert_eq!(shares(1000.0, &[capped, GREEDY]), [200.0, 800.0]);
        // Nobody wants it all: what is left over is there for who wakes up.
        assert_eq!(shares(1000.0, &[modest, modest]), [500.0, 500.0]);
        assert_eq!(shares(1000.0, &[]), [0.0; 0]);
    }

    proptest! {
        #[test]
        fn dhtb_division_is_fair_and_complete(
            rate in 1e3f64..1e12,
            raw in prop::collection::vec((0.0f64..2.0, any::<bool>(), 0.0f64..0.3, 0.1f64..1.5, 1u32..9), 1..40),
        ) {
            let n = raw.len() as f64;
            let mut claims: Vec<ChildShare> = raw.iter().map(|&(demand, greedy, assured, ceil, weight)| {
                let ceil = ceil * rate;
                ChildShare {
                    demand: if greedy { f64::INFINITY } else { demand * rate },
                    assured: (assured * rate / n).min(ceil),
                    ceil,
                    weight: f64::from(weight),
                    share: 0.0,
                }
            }).collect();
            divide(rate, &mut claims);
            let sum: f64 = claims.iter().map(|claim| claim.share).sum();
            let most: f64 = claims.iter().map(|claim| claim.ceil).sum();
            prop_assert!(sum <= rate * 1.0001 + 2.0);
            // Work-conserving: everything is given that may be.
            prop_assert!(sum >= rate.min(most) * 0.9999 - 2.0 - n, "{} of {}", sum, rate.min(most));
            for claim in &claims {
                prop_assert!(claim.share <= claim.ceil * 1.0001 + 1.0);
                prop_assert!(claim.share + 1.0 >= claim.assured.min(claim.demand).min(claim.ceil));
            }
            // Of two that were held back and are below their ceilings, neither has more beyond its assured rate,
            // by weight.
            let held: Vec<&ChildShare> = claims.iter()
                .filter(|claim| claim.demand.is_infinite() && claim.share < claim.ceil * 0.999)
                .collect();
            for pair in held.windows(2) {
                let unit = |claim: &ChildShare| (claim.share - claim.assured) / claim.weight;
                prop_assert!((unit(pair[0]) - unit(pair[1])).abs() <= rate * 1e-4 + 2.0);
            }
        }
    }
}
