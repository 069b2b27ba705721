//! The scenario file: ports, streams and what to do with them, as TOML.
//!
//! The shape is here, with the places of what can be wrong; whether it makes sense is in [`check`].

pub mod check;
mod ports;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::units::{Addresses, Count, Macs, Numbers, Rate};
use crate::{Error, Result};
pub use ports::{Attachment, PortSpec, Role, memif};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    #[serde(default)]
    pub generator: Generator,
    #[serde(default)]
    pub run: Run,
    #[serde(rename = "port")]
    pub ports: Vec<PortSpec>,
    #[serde(rename = "stream")]
    pub streams: Vec<StreamSpec>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Generator {
    /// Its core [default: the first].
    pub core: Option<usize>,
    pub mbufs: u32,
    pub seed: u64,
    /// Frames of a stream that are on their way at a time, at most; 0 for any number.
    pub window: u64,
    /// How many frames it catches up with after it was stopped.
    pub backlog: u64,
    /// Check the checksums of one received frame in so many; 0 for none.
    pub verify_every: u32,
    /// Seconds of calibration against a loopback before anything else; 0 for none.
    pub calibrate: f64,
}

impl Generator {
    pub const USUAL: Self = Self {
        core: None,
        mbufs: 32_767,
        seed: 1,
        window: 0,
        backlog: 256,
        verify_every: 64,
        calibrate: 0.5,
    };
}

impl Default for Generator {
    fn default() -> Self {
        Self::USUAL
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// The streams as they are, for `seconds`.
    Traffic,
    /// RFC 2544 section 26.1.
    Throughput,
    /// RFC 2544 section 26.2.
    Latency,
    /// RFC 2544 section 26.3.
    FrameLoss,
    /// RFC 2544 section 26.4.
    BackToBack,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Run {
    /// The tests, in order.
    pub tests: Vec<Test>,
    /// Length of `traffic`, in seconds.
    pub seconds: f64,
    /// Seconds of traffic before each test, which nobody counts.
    pub warm_up: f64,
    /// Frame sizes of the tests of RFC 2544, frame check sequence included [default: each stream's own].
    pub sizes: Vec<Spanned<u32>>,
    /// Length of a trial of RFC 2544, in seconds.
    pub trial: f64,
    /// Share of frames that may be lost at the throughput, in percent.
    pub loss: f64,
    /// How near the search comes to the throughput, in percent of the highest rate.
    pub resolution: f64,
    /// The highest rate, of all streams together [default: the line, or what calibration found].
    pub max_rate: Option<Rate>,
    /// How often a failed trial is tried again before its rate counts as too high.
    pub retries: u32,
    /// Delays at these loads after the test of the throughput, each for a trial [default: none].
    pub loads: Vec<Load>,
}

/// A load at which delays are measured.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(untagged, expecting = "percents of the throughput (50) or frames a second (\"800kpps\")")]
pub enum Load {
    /// Percent of the throughput.
    Share(f64),
    Rate(Rate),
}

impl Default for Run {
    fn default() -> Self {
        Self {
            tests: vec![Test::Traffic],
            seconds: 10.0,
            warm_up: 0.5,
            sizes: Vec::new(),
            trial: 2.0,
            loss: 0.0,
            resolution: 1.0,
            max_rate: None,
            retries: 0,
            loads: Vec::new(),
        }
    }
}

/// What the frames of a stream are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    Udp,
    Tcp,
    /// RoCEv2, reliable connections.
    RoceRc,
    /// RoCEv2, unreliable datagrams.
    RoceUd,
    /// Frames of a capture file, unchanged.
    Pcap,
}

impl Protocol {
    /// Whether its packets have an ICRC.
    pub const fn is_roce(self) -> bool {
        matches!(self, Self::RoceRc | Self::RoceUd)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    InTurn,
    /// Each as likely as any other.
    #[default]
    Uniform,
    /// The n-th with a likelihood of 1/n^s.
    Zipf,
    /// Every frame is of the next flow that the ranges hold; `flows` says only in how many rows they are counted.
    New,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a length in bytes, \"imix\", or a list of [bytes, weight]")]
pub enum Size {
    One(u32),
    Named(String),
    /// Lengths and their weights.
    Mixed(Vec<(u32, u32)>),
}

/// The tunnel a stream is sent in.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Tunnel {
    /// The tenant networks; flows spread over them.
    pub vni: Spanned<Numbers>,
    pub src_ip: Spanned<Addresses>,
    pub dst_ip: Spanned<Addresses>,
    pub src_mac: Macs,
    pub dst_mac: Macs,
}

/// A stream of frames from one port to another.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StreamSpec {
    pub name: Spanned<String>,
    pub from: Spanned<String>,
    /// The port at which it is awaited.
    pub to: Spanned<String>,
    pub protocol: Spanned<Protocol>,
    /// How fast [default: max]. The tests of RFC 2544 keep the ratio of the streams.
    #[serde(default)]
    pub rate: Rate,
    /// Frames on their way at a time, at most; 0 for any number [default: the generator's].
    pub window: Option<u64>,
    /// Lengths of its frames, frame check sequence included and without the tunnel [default: 64].
    pub size: Option<Spanned<Size>>,
    /// Flows (queue pairs) at a time [default: 1].
    pub flows: Option<Spanned<Count>>,
    /// New flows (queue pairs) per second, each in place of an older one [default: none].
    pub churn: Option<Spanned<Count>>,
    #[serde(default)]
    pub distribution: Distribution,
    /// The exponent of `zipf` [default: 1.0].
    pub zipf_exponent: Option<Spanned<f64>>,
    /// Source MAC addresses, one per source address.
    pub src_mac: Option<Macs>,
    /// Destination MAC addresses, one per destination address.
    pub dst_mac: Option<Macs>,
    pub src_ip: Option<Spanned<Addresses>>,
    pub dst_ip: Option<Spanned<Addresses>>,
    pub src_port: Option<Spanned<Numbers>>,
    pub dst_port: Option<Spanned<Numbers>>,
    pub qp: Option<Spanned<Numbers>>,
    /// What each queue pair sends, again and again [default: write-only].
    pub opcodes: Option<Spanned<Vec<String>>>,
    #[serde(default)]
    pub tos: u8,
    pub vlan: Option<Spanned<u16>>,
    /// TCP segments begin a connection (SYN), rather than carry data of one.
    #[serde(default)]
    pub syn: bool,
    pub file: Option<Spanned<PathBuf>>,
    pub vxlan: Option<Tunnel>,
}

/// Where things are in the text of a file, for errors.
#[derive(Debug, Clone)]
pub struct SourceText {
    path: String,
    text: String,
}

impl SourceText {
    pub fn new(path: String, text: String) -> Self {
        Self { path, text }
    }

    /// That of a file; `-` is the standard input.
    pub fn load(path: &Path) -> Result<Self> {
        let (name, text) = if path == Path::new("-") {
            ("standard input".to_owned(), std::io::read_to_string(std::io::stdin()))
        } else {
            (path.display().to_string(), std::fs::read_to_string(path))
        };
        Ok(Self { text: text.map_err(Error::io(name.as_str()))?, path: name })
    }

    /// What the text says, with the line of what is wrong in it.
    pub fn read<T: serde::de::DeserializeOwned>(self) -> Result<(T, Self)> {
        match toml::from_str(&self.text) {
            Ok(value) => Ok((value, self)),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                Err(self.error(at, error.message().replace('\n', " ")))
            }
        }
    }

    /// An error at a byte of the text.
    pub fn error(&self, at: usize, what: impl Display) -> Error {
        let at = at.min(self.text.len());
        let line = self.text[..at].matches('\n').count() + 1;
        let source_line = self.text.lines().nth(line - 1).unwrap_or("").trim();
        Error::Failed(format!("{}:{line}: {source_line}: {what}", self.path))
    }

    pub fn at<T>(&self, value: &Spanned<T>, what: impl Display) -> Error {
        self.error(value.span().start, what)
    }
}

impl Scenario {
    /// Reads a file; `-` is the standard input.
    pub fn load(path: &Path) -> Result<(Self, SourceText)> {
        SourceText::load(path)?.read()
    }

    pub fn parse(path: String, text: String) -> Result<(Self, SourceText)> {
        SourceText::new(path, text).read()
    }
}
