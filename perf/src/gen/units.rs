//! Words of a scenario file: counts, rates, ranges of numbers and of addresses.
//!
//! Each reads from a TOML string or number and says what it would have liked instead. Nothing here knows streams.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::de::{self, Deserialize, Deserializer, Visitor};
use wire::MacAddr;

/// Bytes of preamble, start of frame and the gap between frames, which a wire carries beside each frame.
pub const WIRE_OVERHEAD: usize = 20;

/// A number with `k`, `M` or `G` behind it, if it likes.
pub fn count(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no count; write a whole number, as in 1000, 64k or 1M");
    let units = [('k', 1_000), ('K', 1_000), ('M', 1_000_000), ('G', 1_000_000_000)];
    let with_unit = |(unit, factor): (char, u64)| Some((text.trim().strip_suffix(unit)?, factor));
    let (digits, factor) = units.into_iter().find_map(with_unit).unwrap_or((text.trim(), 1));
    let digits = digits.replace('_', "");
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => digits.parse::<u64>().ok(),
    };
    value.and_then(|value| value.checked_mul(factor)).ok_or_else(wrong)
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Rate {
    /// Frames per second.
    Packets(f64),
    /// Bits per second on the wire, preamble and gaps included.
    Bits(f64),
    /// A share of the port's line rate, 1.0 being all of it.
    Line(f64),
    /// As fast as the generator and the port go.
    #[default]
    Max,
}

impl Rate {
    /// Reads `10Mpps`, `800kpps`, `10Gbit`, `50%`, `line` or `max`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is no rate; write packets (800kpps, 1.5Mpps), bits on the wire (10Gbit), a share of the line \
                 (50%, line) or max"
            )
        };
        let number = |digits: &str, factor: f64| {
            let value = digits.trim().parse::<f64>().map_err(|_| wrong())? * factor;
            if value.is_finite() && value > 0.0 { Ok(value) } else { Err(wrong()) }
        };
        let text = text.trim();
        match text {
            "max" => return Ok(Self::Max),
            "line" => return Ok(Self::Line(1.0)),
            _ => {}
        }
        if let Some(share) = text.strip_suffix('%') {
            let share = number(share, 0.01)?;
            return if share <= 1.0 { Ok(Self::Line(share)) } else { Err(wrong()) };
        }
        let units = [("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("", 1.0)];
        for (prefix, factor) in units {
            if let Some(digits) = text.strip_suffix(&format!("{prefix}pps")) {
                return Ok(Self::Packets(number(digits, factor)?));
            }
            if let Some(digits) = text.strip_suffix(&format!("{prefix}bit")) {
                return Ok(Self::Bits(number(digits, factor)?));
            }
        }
        Err(wrong())
    }

    /// Frames per second for frames of `bytes` on average (frame check sequence included) on a link of so many
    /// bits per second. `None` for as fast as it goes, which is what the line means where nobody knows its speed.
    pub fn packets(self, bytes: f64, line: Option<f64>) -> Option<f64> {
        let bits = (bytes + WIRE_OVERHEAD as f64) * 8.0;
        match self {
            Self::Packets(packets) => Some(packets),
            Self::Bits(rate) => Some(rate / bits),
            Self::Line(share) => line.map(|line| line * share / bits),
            Self::Max => None,
        }
    }
}

/// Numbers or addresses in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub first: u128,
    pub count: u32,
}

impl Range {
    pub const fn one(value: u128) -> Self {
        Self { first: value, count: 1 }
    }

    /// The value at a place.
    #[inline]
    pub const fn at(self, index: u32) -> u128 {
        self.first.wrapping_add(index as u128)
    }

    pub const fn last(self) -> u128 {
        self.first + (self.count - 1) as u128
    }

    fn parse(text: &str, what: &str, value: impl Fn(&str) -> Option<u128>) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no {what}; write one, or a range as FIRST..LAST");
        let (first, last) = match text.split_once("..") {
            Some((first, last)) => (value(first.trim()), value(last.trim().trim_start_matches('='))),
            None => (value(text.trim()), value(text.trim())),
        };
        let (Some(first), Some(last)) = (first, last) else { return Err(wrong()) };
        let more = last
            .checked_sub(first)
            .ok_or_else(|| format!("`{text}` ends before it begins; write the lower {what} first"))?;
        let count = u32::try_from(more + 1)
            .map_err(|_| format!("`{text}` holds more than four billion values; write a shorter range"))?;
        Ok(Self { first, count })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers(pub Range);

/// A range of IP addresses, all of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    pub v6: bool,
    pub range: Range,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Macs(pub Range);

/// A count, as a number or as `64k`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count(pub u64);

impl Numbers {
    fn parse(text: &str) -> Result<Self, String> {
        Range::parse(text, "number", |word| count(word).ok().map(u128::from)).map(Self)
    }
}

impl Addresses {
    /// Reads an address or a range of them.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value = |word: &str| match word.parse::<IpAddr>().ok()? {
            IpAddr::V4(address) => Some(u128::from(address.to_bits())),
            IpAddr::V6(address) => Some(address.to_bits()),
        };
        let range = Range::parse(text, "IP address", value)?;
        let sixes = text.split("..").filter(|word| word.contains(':')).count();
        match (sixes, text.contains("..")) {
            (1, true) => Err(format!("`{text}` mixes IPv4 and IPv6; write both ends in one version")),
            _ => Ok(Self { v6: sixes > 0, range }),
        }
    }

    pub fn first(self) -> IpAddr {
        if self.v6 {
            IpAddr::V6(Ipv6Addr::from_bits(self.range.first))
        } else {
            IpAddr::V4(Ipv4Addr::from_bits(self.range.first as u32))
        }
    }
}

impl Macs {
    /// Reads an address or a range of them.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value = |word: &str| word.parse::<MacAddr>().ok().map(|mac| u128::from(mac.to_u64()));
        Range::parse(text, "MAC address", value).map(Self)
    }

    pub fn one(mac: MacAddr) -> Self {
        Self(Range::one(u128::from(mac.to_u64())))
    }

    pub fn at(self, index: u32) -> MacAddr {
        let [_, _, bytes @ ..] = (self.0.at(index) as u64).to_be_bytes();
        MacAddr(bytes)
    }
}

/// A word of a file: a text, or a whole number where that says the same.
struct Word<F>(F, &'static str);

impl<T, F: Fn(&str) -> Result<T, String>> Visitor<'_> for Word<F> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.1)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        (self.0)(&number.to_string()).map_err(E::custom)
    }
}

macro_rules! reads {
    ($name:ty, $parse:expr, $expected:literal) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Word($parse, $expected))
            }
        }
    };
}

reads!(Rate, Rate::parse, "a rate, as in \"1.5Mpps\", \"10Gbit\", \"50%\", \"line\" or \"max\"");
reads!(Numbers, Numbers::parse, "a number, or a range as in \"1024..65535\"");
reads!(Addresses, Addresses::parse, "an IP address, or a range as in \"10.0.0.1..10.0.0.16\"");
reads!(Macs, Macs::parse, "a MAC address, or a range of them as FIRST..LAST");
reads!(Count, |text: &str| count(text).map(Count), "a whole number, or a text as in \"64k\"");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        assert_eq!(Rate::parse("1.5Mpps"), Ok(Rate::Packets(1.5e6)));
        assert_eq!(Rate::parse("20pps"), Ok(Rate::Packets(20.0)));
        assert_eq!(Rate::parse("10Gbit"), Ok(Rate::Bits(1e10)));
        assert_eq!(Rate::parse("50%"), Ok(Rate::Line(0.5)));
        assert_eq!(Rate::parse("line"), Ok(Rate::Line(1.0)));
        assert_eq!(Rate::parse("max"), Ok(Rate::Max));
        for wrong in ["", "fast", "10", "-1Mpps", "0pps", "101%", "nanpps", "1Mbps"] {
            assert!(Rate::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ten_gigabits_carry_14_88_million_of_the_shortest_frames() {
        let shortest = Rate::Bits(1e10).packets(64.0, None).unwrap();
        assert!((shortest - 14_880_952.0).abs() < 1.0, "{shortest}");
        assert_eq!(Rate::Line(0.5).packets(64.0, Some(1e10)), Some(shortest / 2.0));
        assert_eq!(Rate::Line(1.0).packets(64.0, None), None);
        assert_eq!(Rate::Max.packets(64.0, Some(1e10)), None);
    }

    #[test]
    fn ranges_have_both_ends() {
        assert_eq!(Numbers::parse("1024..65535"), Ok(Numbers(Range { first: 1024, count: 64_512 })));
        assert_eq!(Numbers::parse("0x10..=0x1f"), Ok(Numbers(Range { first: 16, count: 16 })));
        let four = Addresses::parse("10.0.0.250..10.0.1.5").unwrap();
        assert_eq!((four.v6, four.range.count, four.range.at(6)), (false, 12, 0x0a00_0100));
        assert_eq!(four.first(), IpAddr::from([10, 0, 0, 250]));
        let six = Addresses::parse("fd00::1..fd00::ff").unwrap();
        assert_eq!((six.v6, six.range.count), (true, 255));
        let macs = Macs::parse("02:00:00:00:00:ff..02:00:00:00:01:01").unwrap();
        assert_eq!((macs.0.count, macs.at(1)), (3, MacAddr([2, 0, 0, 0, 1, 0])));
        for wrong in ["10.0.0.1..fd00::1", "10.0.0.9..10.0.0.1", "10.0.0", "10.0.0.1/24"] {
            assert!(Addresses::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn counts() {
        for (text, value) in [("7", 7), ("64k", 64_000), ("1M", 1_000_000), ("1_000", 1000), ("0x10", 16)] {
            assert_eq!(count(text), Ok(value));
        }
        for wrong in ["", "k", "-1", "1.5", "99999999999G"] {
            assert!(count(wrong).is_err(), "{wrong}");
        }
    }
}
