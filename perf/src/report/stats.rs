//! Figures of some samples.

use serde::Serialize;

use super::table::number;

/// The middle value, or the mean of the two middle ones.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(*sorted.get(sorted.len() / 2 - 1)?, upper))
}

/// Between which of the values the median of all that could be measured is, with 95 % confidence whatever their distribution (the
/// interval of the sign test: one value lies below the median with the same chance as above). `None` for fewer than six; of more than
/// a thousand, where the chances are too small for a number, a narrower one than it says.
pub fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    // The chance that exactly `below` of them are below the median, and that so many or fewer are.
    let mut chance = 0.5f64.powi(i32::try_from(n).ok()?);
    let (mut so_many, mut below) = (chance, 0);
    while so_many <= 0.025 && below < n / 2 {
        below += 1;
        chance *= (n + 1 - below) as f64 / below as f64;
        so_many += chance;
    }
    Some((*sorted.get(below.checked_sub(1)?)?, *sorted.get(n - below)?))
}

/// The smallest, the median and the largest of some values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Spread {
    /// The median, and in brackets the smallest and the largest.
    pub fn text(&self, digits: usize) -> String {
        let [median, min, max] = [self.median, self.min, self.max].map(|value| number(value, digits));
        format!("{median} ({min} to {max})")
    }

    /// The median, the smallest and the largest in percent.
    pub fn percent(&self) -> String {
        format!("{:.1} ({:.1}-{:.1})", self.median * 100.0, self.min * 100.0, self.max * 100.0)
    }

    pub fn of(values: &[f64]) -> Option<Self> {
        Some(Self {
            min: values.iter().copied().reduce(f64::min)?,
            median: median(values)?,
            max: values.iter().copied().reduce(f64::max)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks as tables of the sign test have them (for example of 20 values the sixth and the fifteenth).
    #[test]
    fn intervals_are_those_of_the_sign_test() {
        let of = |n: u32| {
            let mut values: Vec<f64> = (1..=n).map(f64::from).collect();
            values.reverse();
            median_interval(&values)
        };
        assert_eq!([0, 1, 5].map(of), [None; 3]);
        let ranks = [(6, 1.0, 6.0), (9, 2.0, 8.0), (10, 2.0, 9.0), (20, 6.0, 15.0), (40, 14.0, 27.0)];
        for (n, low, high) in ranks {
            assert_eq!(of(n), Some((low, high)), "{n}");
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
