//! `perf gen` as a child, here or behind words like `ssh generator`: a scenario in, a line of JSON out.

use std::time::Duration;

use serde::Deserialize;

use super::LabError;
use super::file::{Arm, Generator};
use crate::compare::cases::Peer;
use crate::host::process::{Placement, Process};
use crate::host::{HostError, io};
use crate::live::delay::Quantiles;

const REMEDY: &str = "see that [generator] via and perf name programs that are there";
/// Bytes of a tunnel's headers.
const TUNNEL: f64 = 50.0;

/// What is read of the generator's report.
#[derive(Debug, Clone, Deserialize)]
pub struct Answer {
    pub traffic: Option<Outcome>,
    /// RFC 2544.
    pub findings: Vec<Found>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Found {
    /// RFC 2544 section 26.1.
    pub throughput: Option<Throughput>,
    pub loads: Vec<Loaded>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Throughput {
    /// Frames per second.
    pub rate: f64,
    pub generator_is_the_limit: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Loaded {
    /// Frames per second.
    pub rate: f64,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Outcome {
    pub streams: Vec<Stream>,
    /// Frames with a wrong checksum or ICRC, of those that were looked at.
    pub damaged: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Stream {
    pub name: String,
    pub sent: u64,
    /// Bytes of them.
    pub sent_bytes: u64,
    /// Frames that never came.
    pub lost: u64,
    pub frames: u64,
    /// Bytes of them.
    pub bytes: u64,
    pub delay: Option<Quantiles>,
}

impl Stream {
    /// Bytes that a frame has more at its arrival than when it was sent.
    pub fn growth(&self) -> Option<f64> {
        let mean = |bytes: u64, frames: u64| (frames > 0).then(|| bytes as f64 / frames as f64);
        Some(mean(self.bytes, self.frames)? - mean(self.sent_bytes, self.sent)?)
    }

    /// What is wrong with the lengths of what came, if anything is: a tunnel's headers are put on, or taken off.
    pub fn wrong_length(&self, arm: Arm) -> Option<String> {
        let expected = match self.name.split(' ').next() {
            _ if arm == Arm::Peer(Peer::Testpmd) => 0.0,
            Some("encap") => TUNNEL,
            Some("decap") => -TUNNEL,
            _ => 0.0,
        };
        let growth = self.growth()?;
        ((growth - expected).abs() > 0.01)
            .then(|| format!("frames of `{}` grow by {growth:.1} bytes and not by {expected:.0}", self.name))
    }
}

#[derive(Debug)]
pub struct Running(Process);

impl Running {
    pub fn start(generator: &Generator, scenario: &str) -> Result<Self, LabError> {
        let words =
            [&command(generator)?[..], &["gen", "-", "--json", "-", "--quiet"].map(str::to_owned)].concat();
        let mut process = Process::start(&words[0], &words[1..], &[], Placement::default(), REMEDY)?;
        process.type_line(scenario)?;
        process.end_input();
        Ok(Self(process))
    }

    pub fn answer(&mut self, limit: Duration) -> Result<Answer, LabError> {
        let mut line = self.line(limit);
        if matches!(line, Err(HostError::Ended { .. })) {
            // It ends as soon as it has said everything.
            line = self.line(Duration::ZERO);
        }
        serde_json::from_str(&line?).map_err(|error| LabError::Answer { reason: error.to_string() })
    }

    fn line(&mut self, limit: Duration) -> Result<String, HostError> {
        self.0.await_output("the generator's report", limit, |lines| {
            lines.iter().find(|line| line.starts_with("{\"scenario\"")).cloned()
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // So that it gives back its huge pages.
        self.0.terminate(Duration::from_secs(5));
    }
}

/// The words that run the generator's `perf`.
pub(crate) fn command(generator: &Generator) -> Result<Vec<String>, HostError> {
    let here = || Ok(std::env::current_exe().map_err(io("find this program"))?.display().to_string());
    let perf = match (&generator.perf, generator.via.is_empty()) {
        (Some(perf), _) => perf.clone(),
        (None, true) => here()?,
        (None, false) => "vswitch-perf".into(),
    };
    Ok([&generator.via[..], &[perf]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(name: &str, sent: (u64, u64), came: (u64, u64)) -> Stream {
        Stream {
            name: name.into(),
            sent: sent.0,
            sent_bytes: sent.1,
            lost: 0,
            frames: came.0,
            bytes: came.1,
            delay: None,
        }
    }

    #[test]
    fn lengths_show_whether_the_work_was_done() {
        let (testpmd, ours) = (Arm::Peer(Peer::Testpmd), Arm::Ours);
        // Of ten frames of 60 bytes nine came.
        let encap = stream("encap tcp", (10, 600), (9, 990));
        assert_eq!(encap.wrong_length(ours), None);
        assert!(encap.wrong_length(testpmd).unwrap().contains("grow by 50.0"));
        let decap = stream("decap roce-rc", (10, 1100), (10, 600));
        assert_eq!((decap.wrong_length(ours), decap.wrong_length(testpmd).is_some()), (None, true));
        assert!(stream("encap tcp", (10, 600), (10, 600)).wrong_length(ours).is_some());
        assert_eq!(stream("l2 tcp", (10, 600), (10, 600)).wrong_length(ours), None);
        // Nothing came: that is loss, not a wrong length.
        assert_eq!(stream("encap tcp", (10, 600), (0, 0)).wrong_length(ours), None);
    }

    #[test]
    fn the_generator_is_this_program_or_the_one_over_there() {
        let lab = super::super::file::Lab::parse("lab.toml".into(), super::super::file::tests::TEXT.into())
            .unwrap();
        assert_eq!(command(&lab.generator).unwrap(), ["ssh", "root@generator", "vswitch-perf"]);
        let here = Generator { via: Vec::new(), perf: None, ..lab.generator };
        assert_eq!(command(&here).unwrap().len(), 1);
    }
}
