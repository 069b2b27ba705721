//! Values with units: sizes, rates and times as people write them.
//!
//! `"64KiB"`, `"25Gbit"`, `"10ms"`. A bare number where a unit is due is an error that shows an example,
//! because nobody can tell bits from bytes or seconds from milliseconds by looking at one. What `Display`
//! prints reads back to the same value. Exact: all arithmetic is on integers.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::quote;

/// A text that is not a value with a unit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text} is not a {what}; write for example {example}")]
pub struct UnitSyntax {
    text: String,
    what: &'static str,
    example: &'static str,
}

/// A kind of quantity: its units, biggest first, with the factor of each.
struct Quantity {
    what: &'static str,
    example: &'static str,
    units: &'static [(&'static str, u64)],
}

const SIZE: Quantity = Quantity {
    what: "size",
    example: "\"64KiB\", \"512MiB\" or \"10MB\"",
    units: &[
        ("TiB", 1 << 40),
        ("TB", 1_000_000_000_000),
        ("GiB", 1 << 30),
        ("GB", 1_000_000_000),
        ("MiB", 1 << 20),
        ("MB", 1_000_000),
        ("KiB", 1 << 10),
        ("kB", 1_000),
        ("B", 1),
    ],
};

const RATE: Quantity = Quantity {
    what: "rate in bits per second",
    example: "\"25Gbit\" or \"100Mbit\"",
    units: &[
        ("Tbit", 1_000_000_000_000),
        ("Gbit", 1_000_000_000),
        ("Mbit", 1_000_000),
        ("kbit", 1_000),
        ("bit", 1),
    ],
};

const TIME: Quantity = Quantity {
    what: "time",
    example: "\"30s\" or \"10ms\"",
    units: &[
        ("h", 3_600_000_000_000),
        ("min", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
        ("ns", 1),
    ],
};

impl Quantity {
    fn error(&self, text: &str) -> UnitSyntax {
        UnitSyntax { text: quote(text), what: self.what, example: self.example }
    }

    fn parse(&self, text: &str) -> Result<u64, UnitSyntax> {
        self.exact(text.trim()).ok_or_else(|| self.error(text))
    }

    fn exact(&self, text: &str) -> Option<u64> {
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, unit) = text.split_at(split);
        let unit = unit.trim_start();
        let factor = self.units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?.1;
        let (whole, fraction) = match number.split_once('.') {
            Some((_, fraction)) if fraction.is_empty() || fraction.len() > 12 => return None,
            Some((whole, fraction)) => (whole, fraction),
            None => (number, ""),
        };
        let digits: u128 = format!("{whole}{fraction}").parse().ok().filter(|_| !whole.is_empty())?;
        let scaled = digits.checked_mul(u128::from(factor))?;
        let divisor = 10u128.pow(u32::try_from(fraction.len()).ok()?);
        // A fraction finer than the smallest unit cannot be meant.
        (scaled % divisor == 0).then_some(())?;
        u64::try_from(scaled / divisor).ok()
    }

    /// The biggest unit that gives a whole number.
    fn show(&self, value: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, factor): &&(&str, u64)| value.is_multiple_of(*factor);
        let (unit, factor) = match value {
            0 => self.units.last().copied().unwrap_or(("", 1)),
            _ => self.units.iter().find(fits).copied().unwrap_or(("", 1)),
        };
        f.pad(&format!("{}{unit}", value / factor))
    }
}

/// A size in bytes, written `"64KiB"`, `"512MiB"`, `"10MB"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// A rate in bits per second, written with SI units: `"25Gbit"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(pub u64);

impl ByteSize {
    /// `n` mebibytes.
    pub const fn mebibytes(n: u64) -> Self {
        Self(n << 20)
    }

    /// The bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl BitRate {
    /// The bits per second.
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }
}

/// The time in `text`, such as `"30s"`.
///
/// # Errors
/// [`UnitSyntax`] when there is no unit or no number.
pub fn parse_duration(text: &str) -> Result<Duration, UnitSyntax> {
    TIME.parse(text).map(Duration::from_nanos)
}

/// Shows a time so that [`parse_duration`] reads it back.
pub fn show_duration(time: Duration) -> String {
    struct Shown(u64);
    impl fmt::Display for Shown {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            TIME.show(self.0, f)
        }
    }
    Shown(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)).to_string()
}

macro_rules! quantity {
    ($name:ident, $quantity:ident) => {
        impl FromStr for $name {
            type Err = UnitSyntax;

            fn from_str(text: &str) -> Result<Self, UnitSyntax> {
                $quantity.parse(text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $quantity.show(self.0, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(WithUnit(&$quantity)).map(Self)
            }
        }
    };
}

quantity!(ByteSize, SIZE);
quantity!(BitRate, RATE);

/// `#[serde(with = "units::duration")]` for [`Duration`] fields.
pub mod duration {
    use super::{Deserializer, Duration, Serializer, TIME, WithUnit, show_duration};

    /// Writes the time with its unit.
    ///
    /// # Errors
    /// The serializer's own.
    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&show_duration(*time))
    }

    /// Reads a time with its unit.
    ///
    /// # Errors
    /// When it has none, or is no time.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        deserializer.deserialize_any(WithUnit(&TIME)).map(Duration::from_nanos)
    }
}

/// Reads a string with a unit and explains to a bare number what it lacks.
struct WithUnit(&'static Quantity);

impl WithUnit {
    fn bare<E: de::Error>(&self, number: impl fmt::Display) -> E {
        let Quantity { what, example, .. } = self.0;
        E::custom(format_args!("{number} has no unit; write the {what} as {example}"))
    }
}

impl Visitor<'_> for WithUnit {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a {} such as {}", self.0.what, self.0.example)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
        self.0.parse(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<u64, E> {
        Err(self.bare(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<u64, E> {
        Err(self.bare(number))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<u64, E> {
        Err(self.bare(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn written_values_mean_what_they_say() {
        assert_eq!("64KiB".parse(), Ok(ByteSize(65_536)));
        assert_eq!("512MiB".parse(), Ok(ByteSize::mebibytes(512)));
        assert_eq!("10MB".parse(), Ok(ByteSize(10_000_000)));
        assert_eq!("1.5KiB".parse(), Ok(ByteSize(1536)));
        // Every unit, by its definition rather than by the table above.
        for (power, decimal, binary) in
            [(1, "kB", "KiB"), (2, "MB", "MiB"), (3, "GB", "GiB"), (4, "TB", "TiB")]
        {
            assert_eq!(format!("1{decimal}").parse(), Ok(ByteSize(1000u64.pow(power))));
            assert_eq!(format!("1{binary}").parse(), Ok(ByteSize(1024u64.pow(power))));
        }
        for (power, rate) in [(0, "bit"), (1, "kbit"), (2, "Mbit"), (3, "Gbit"), (4, "Tbit")] {
            assert_eq!(format!("1{rate}").parse(), Ok(BitRate(1000u64.pow(power))));
        }
        for (seconds, time) in [(1, "s"), (60, "min"), (3600, "h")] {
            assert_eq!(parse_duration(&format!("1{time}")), Ok(Duration::from_secs(seconds)));
        }
        assert_eq!(parse_duration("1us"), Ok(Duration::from_micros(1)));
        assert_eq!(parse_duration("1ns"), Ok(Duration::from_nanos(1)));
        assert_eq!("25Gbit".parse(), Ok(BitRate(25_000_000_000)));
        assert_eq!("2.5 Gbit".parse(), Ok(BitRate(2_500_000_000)));
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("10ms"), Ok(Duration::from_millis(10)));
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for bad in ["", "64", "KiB", "-1KiB", "1.KiB", ".5KiB", "1..5KiB", "64Kbit", "0.3B", "99999999TiB"] {
            let error = bad.parse::<ByteSize>().unwrap_err().to_string();
            assert!(error.contains("64KiB"), "{bad}: {error}");
        }
        assert!("25".parse::<BitRate>().is_err());
        assert!("25GB".parse::<BitRate>().is_err());
        assert!(parse_duration("30").unwrap_err().to_string().contains("\"30s\""));
        let long = parse_duration(&"9".repeat(10_000)).unwrap_err().to_string();
        assert!(long.len() < 200, "{long}");
    }

    proptest! {
        #[test]
        fn shown_values_read_back(n in any::<u64>(), shift in 0u32..40) {
            let n = (n >> shift) << shift;
            prop_assert_eq!(ByteSize(n).to_string().parse(), Ok(ByteSize(n)));
            prop_assert_eq!(BitRate(n).to_string().parse(), Ok(BitRate(n)));
            let time = Duration::from_nanos(n);
            prop_assert_eq!(parse_duration(&show_duration(time)), Ok(time));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,24}") {
            let _ = text.parse::<ByteSize>();
            let _ = parse_duration(&text);
        }
    }
}
