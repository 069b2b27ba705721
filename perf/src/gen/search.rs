//! The searches of RFC 2544, on anything that can be tried: no ports, no clock.

/// What a trial at a rate said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrialVerdict {
    /// No more was lost than may be.
    Passed,
    Failed,
    /// The generator did not bring forth what was asked for: nothing is known of the device.
    Unfair,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    /// The highest value that passed; 0 when none did.
    pub value: f64,
    /// Something higher could not be tried, because the generator did not bring it forth.
    pub limited: bool,
}

/// The highest value up to `most` that passes, to within `step`, by bisection (RFC 2544 section 26.1).
pub fn highest<E>(
    most: f64,
    step: f64,
    mut trial: impl FnMut(f64) -> Result<TrialVerdict, E>,
) -> Result<Found, E> {
    let mut limited = false;
    let (mut good, mut bad) = (0.0, most);
    let mut next = most;
    loop {
        match trial(next)? {
            TrialVerdict::Passed => good = next,
            TrialVerdict::Failed => (bad, limited) = (next, false),
            TrialVerdict::Unfair => (bad, limited) = (next, true),
        }
        if bad - good <= step || good >= most {
            return Ok(Found { value: good, limited });
        }
        next = f64::midpoint(good, bad);
    }
}

/// The rates of the frame loss curve (RFC 2544 section 26.3): 100 %, then 10 % less each, until two in a row lost nothing.
/// Returns what the trial of each said.
pub fn loss_curve<T, E>(
    mut trial: impl FnMut(f64) -> Result<T, E>,
    lost_nothing: impl Fn(&T) -> bool,
) -> Result<Vec<T>, E> {
    let mut rows = Vec::new();
    let mut clean = 0;
    for tenth in (1..=10).rev() {
        let row = trial(f64::from(tenth) / 10.0)?;
        clean = if lost_nothing(&row) { clean + 1 } else { 0 };
        rows.push(row);
        if clean == 2 {
            break;
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn device(capacity: f64) -> impl FnMut(f64) -> Result<TrialVerdict, Infallible> {
        move |rate| Ok(if rate <= capacity { TrialVerdict::Passed } else { TrialVerdict::Failed })
    }

    #[test]
    fn finds_what_a_device_of_known_capacity_can_do() {
        for capacity in [0.0, 1.0, 123_456.0, 7_777_777.0, 9_999_999.0] {
            let found = highest(1e7, 1e3, device(capacity)).unwrap();
            let short = capacity - found.value;
            assert!((0.0..=1e3).contains(&short), "{capacity}: {found:?}");
            assert!(!found.limited);
        }
    }

    #[test]
    fn a_device_faster_than_asked_is_tried_once() {
        let mut trials = 0;
        let found = highest(5e6, 1.0, |_| {
            trials += 1;
            Ok::<_, Infallible>(TrialVerdict::Passed)
        });
        assert_eq!((found, trials), (Ok(Found { value: 5e6, limited: false }), 1));
    }

    #[test]
    fn a_generator_slower_than_the_device_is_told() {
        let found = highest(1e7, 1e3, |rate| {
            Ok::<_, Infallible>(if rate <= 4e6 { TrialVerdict::Passed } else { TrialVerdict::Unfair })
        });
        let found = found.unwrap();
        assert!(found.limited && (0.0..=1e3).contains(&(4e6 - found.value)), "{found:?}");
        // When the device fails below what the generator can do, it is the device.
        let found = highest(1e7, 1e3, |rate| {
            Ok::<_, Infallible>(match rate {
                rate if rate <= 2e6 => TrialVerdict::Passed,
                rate if rate <= 4e6 => TrialVerdict::Failed,
                _ => TrialVerdict::Unfair,
            })
        });
        let found = found.unwrap();
        assert!(!found.limited && (0.0..=1e3).contains(&(2e6 - found.value)), "{found:?}");
    }

    #[test]
    fn the_curve_ends_after_two_rates_without_loss() {
        let rows = loss_curve(Ok::<_, Infallible>, |share| *share < 0.65);
        let shares: Vec<f64> = rows.unwrap().iter().map(|share| (share * 10.0).round()).collect();
        assert_eq!(shares, [10.0, 9.0, 8.0, 7.0, 6.0, 5.0]);
        let rows = loss_curve(Ok::<_, Infallible>, |lost| *lost == 0.0);
        assert_eq!(rows.unwrap().len(), 10);
    }
}
