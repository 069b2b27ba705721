//! `[rcft]`: how many queue pairs of reliable connections tenants may have in use, and what becomes of the rest.
//!
//! A quota is a number or a share of what an RDMA device offers. Here it is what the operator wrote; which number
//! a share comes to, only the machine can say (`crate::rdma`).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::quote;
use super::name::Name;
use super::opcodes::VendorOpcodes;
use super::{fields, units};

/// What becomes of a queue pair over quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refuse {
    /// Its packets are dropped.
    #[default]
    Drop,
    /// The same, and requests of the connection manager are answered with a REJ: applications fail at once.
    Reject,
}

impl fmt::Display for Refuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Drop => "drop",
            Self::Reject => "reject",
        })
    }
}

/// A share of a whole: more than nothing, at most all of it. Exact to a ten-thousandth of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u32);

impl Share {
    const WHOLE: u32 = 1_000_000;
    /// 1 %.
    pub const ONE_PERCENT: Self = Self(10_000);
    /// 2 %.
    pub const TWO_PERCENT: Self = Self(20_000);
    /// Decimals of a percentage.
    const DECIMALS: usize = 4;

    /// A share in parts per million; nothing unless it is in 1..=1000000.
    pub fn from_ppm(ppm: u32) -> Option<Self> {
        (1..=Self::WHOLE).contains(&ppm).then_some(Self(ppm))
    }

    /// Parts per million.
    pub const fn ppm(self) -> u32 {
        self.0
    }

    /// This share of `whole`, rounded down.
    pub const fn of(self, whole: u32) -> u32 {
        // Not more than `whole`, so it fits.
        (whole as u64 * self.0 as u64 / Self::WHOLE as u64) as u32
    }

    /// The share in a percentage without its sign: `"25"`, `"0.5"`.
    pub(super) fn from_percentage(text: &str) -> Option<Self> {
        let (whole, decimals) = match text.split_once('.') {
            Some((_, "")) => return None,
            Some(parts) => parts,
            None => (text, ""),
        };
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(decimals) || decimals.len() > Self::DECIMALS {
            return None;
        }
        let ppm: u32 = format!("{whole}{decimals:0<width$}", width = Self::DECIMALS).parse().ok()?;
        Self::from_ppm(ppm)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, decimals) = (self.0 / 10_000, self.0 % 10_000);
        match decimals {
            0 => write!(f, "{whole}%"),
            _ => write!(f, "{whole}.{}%", format!("{decimals:04}").trim_end_matches('0')),
        }
    }
}

/// How many queue pairs a vNIC may have in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaConfig {
    /// So many; 0 is none.
    Count(u32),
    /// A share of the most queue pairs that an RDMA device of the host offers (its `max_qp`).
    Share {
        /// How much of it.
        share: Share,
        /// The device, such as `mlx5_0`.
        device: Name,
    },
}

impl QuotaConfig {
    /// The device it is a share of.
    pub fn device(&self) -> Option<&Name> {
        match self {
            Self::Count(_) => None,
            Self::Share { device, .. } => Some(device),
        }
    }
}

impl From<u32> for QuotaConfig {
    fn from(count: u32) -> Self {
        Self::Count(count)
    }
}

impl fmt::Display for QuotaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Share { share, device } => write!(f, "{share} of {device}"),
        }
    }
}

/// A text that is no quota.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} is not a quota; write a number of queue pairs, or a share of an RDMA device's such as \"25% of mlx5_0\" \
     (above 0% to 100%, at most four decimals)"
)]
pub struct QuotaSyntax(String);

impl FromStr for QuotaConfig {
    type Err = QuotaSyntax;

    /// Reads a number as well as a share: what a console takes.
    fn from_str(text: &str) -> Result<Self, QuotaSyntax> {
        let share = || {
            let (percentage, rest) = text.trim().split_once('%')?;
            let device = rest.trim_start().strip_prefix("of")?.strip_prefix(char::is_whitespace)?;
            let device = Name::new(device.trim_start()).ok()?;
            Some(Self::Share { share: Share::from_percentage(percentage.trim_end())?, device })
        };
        match text.trim().parse() {
            Ok(count) => Ok(Self::Count(count)),
            Err(_) => share().ok_or_else(|| QuotaSyntax(quote(text))),
        }
    }
}

impl Serialize for QuotaConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(count) => serializer.serialize_u32(*count),
            Self::Share { .. } => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for QuotaConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = QuotaConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of queue pairs, or a share such as \"25% of mlx5_0\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<QuotaConfig, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<QuotaConfig, E> {
                u32::try_from(number).map(QuotaConfig::Count).map_err(|_| {
                    let most = RcftConfig::MAX_ENTRIES;
                    E::custom(format_args!("{number} is not a number of queue pairs; give 0 to {most}"))
                })
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<QuotaConfig, E> {
                self.visit_i64(i64::try_from(number).unwrap_or(i64::MAX))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

/// `[rcft]`: the RC flow table, which admits queue pairs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RcftConfig {
    /// Queue pairs of the whole host that can be admitted at once.
    pub entries: u32,
    /// Queue pairs a vNIC may have in use unless it says otherwise; absent: an equal part of what the quotas of
    /// others leave.
    pub quota: Option<QuotaConfig>,
    /// New queue pairs per second and vNIC; 0 is no limit.
    pub new_rate: u32,
    /// What becomes of queue pairs over quota.
    pub refuse: Refuse,
    /// Opcodes of vendors that count as reliable connection.
    #[serde(deserialize_with = "fields::one", serialize_with = "fields::show")]
    pub count_opcodes: VendorOpcodes,
    /// A queue pair without packets for so long gives its place back.
    #[serde(with = "units::duration")]
    pub idle_timeout: Duration,
    /// When a vNIC has all the queue pairs that it may have and wants another, the one that was silent for longest,
    /// and for longer than this, gives its place up. Longer than the idle timeout: none does.
    #[serde(with = "units::duration")]
    pub silent_after: Duration,
    /// The idle timeout of queue pairs that only the far side has spoken of.
    #[serde(with = "units::duration")]
    pub half_open_timeout: Duration,
    /// A queue pair that went idle and returns within this time is admitted before new ones.
    #[serde(with = "units::duration")]
    pub grace: Duration,
    /// After a start, saved queue pairs keep their places for so long without a packet.
    #[serde(with = "units::duration")]
    pub restart_grace: Duration,
}

impl RcftConfig {
    /// The fewest entries.
    pub const MIN_ENTRIES: u32 = 1024;
    /// The most entries: 2 GB of table.
    pub const MAX_ENTRIES: u32 = 8_000_000;
    /// The shortest silence after which a queue pair gives way.
    pub const MIN_SILENT_AFTER: Duration = Duration::from_secs(1);
}

impl Default for RcftConfig {
    fn default() -> Self {
        Self {
            entries: 1_000_000,
            quota: None,
            new_rate: 0,
            refuse: Refuse::Drop,
            count_opcodes: VendorOpcodes::default(),
            idle_timeout: Duration::from_secs(600),
            silent_after: Duration::from_secs(30),
            half_open_timeout: Duration::from_secs(5),
            grace: Duration::from_secs(60),
            restart_grace: Duration::from_secs(30),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn share(ppm: u32) -> QuotaConfig {
        QuotaConfig::Share { share: Share::from_ppm(ppm).unwrap(), device: Name::new("mlx5_0").unwrap() }
    }

    #[test]
    fn quotas_are_numbers_or_shares() {
        assert_eq!("1000".parse(), Ok(QuotaConfig::Count(1000)));
        assert_eq!("0".parse(), Ok(QuotaConfig::Count(0)));
        for text in ["25% of mlx5_0", " 25 %  of  mlx5_0", "25.0%of mlx5_0", "025% of mlx5_0"] {
            assert_eq!(text.parse(), Ok(share(250_000)), "{text}");
        }
        assert_eq!("0.0001% of mlx5_0".parse(), Ok(share(1)));
        assert_eq!("100% of mlx5_0".parse(), Ok(share(1_000_000)));
    }

    #[test]
    fn other_texts_are_refused_with_an_example() {
        for bad in [
            "",
            "-1",
            "many",
            "4294967296",
            "25%",
            "25% of",
            "25% of ",
            "25% mlx5_0",
            "25% ofmlx5_0",
            "25 of mlx5_0",
            "0% of mlx5_0",
            "0.00001% of mlx5_0",
            "100.0001% of mlx5_0",
            "1e1% of mlx5_0",
            "+5% of mlx5_0",
            ".5% of mlx5_0",
            "5.% of mlx5_0",
            "-5% of mlx5_0",
            "25% of a b",
            "25% of ../x",
            "99999999999% of x",
        ] {
            let error = bad.parse::<QuotaConfig>().unwrap_err().to_string();
            assert!(error.contains("\"25% of mlx5_0\"") && error.len() < 300, "{bad}: {error}");
        }
    }

    #[test]
    fn shares_are_exact_and_never_more_than_the_whole() {
        let of = |ppm, whole| Share::from_ppm(ppm).unwrap().of(whole);
        assert_eq!(of(250_000, 131_072), 32_768);
        assert_eq!(of(50_000, 262_143), 13_107);
        assert_eq!(of(1_000_000, u32::MAX), u32::MAX);
        assert_eq!(of(1, 999_999), 0);
        assert_eq!(of(1, 1_000_000), 1);
        assert_eq!(Share::from_ppm(0), None);
        assert_eq!(Share::from_ppm(1_000_001), None);
    }

    proptest! {
        #[test]
        fn shown_quotas_read_back(ppm in 1u32..=1_000_000, count in any::<u32>()) {
            prop_assert_eq!(share(ppm).to_string().parse(), Ok(share(ppm)));
            prop_assert_eq!(count.to_string().parse(), Ok(QuotaConfig::Count(count)));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,24}") {
            let _ = text.parse::<QuotaConfig>();
        }
    }
}
