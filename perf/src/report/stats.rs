//! Figures of some samples.

use serde::Serialize;

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

/// The smallest, the median and the largest of some values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Spread {
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

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
