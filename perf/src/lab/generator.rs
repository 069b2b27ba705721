//! `perf gen` as a child, here or behind words like `ssh generator`: a scenario in, a line of JSON out.

use std::time::Duration;

use serde::Deserialize;

use super::file::LabGenerator;
use crate::compare::cases::Peer;
use crate::compare::peer::Contender;
use crate::generator::frame::TUNNEL;
use crate::generator::outcome::{Outcome, StreamOutcome};
use crate::generator::rfc2544::Findings;
use crate::host::process::{Placement, Process};
use crate::{Error, Result};

const REMEDY: &str = "see that [generator] via and perf name programs that are there";

/// What is read of the generator's report.
#[derive(Debug, Clone, Deserialize)]
pub struct Answer {
    pub traffic: Option<Outcome>,
    /// RFC 2544.
    pub findings: Vec<Findings>,
}

/// Bytes that a frame has more at its arrival than when it was sent.
pub fn growth(stream: &StreamOutcome) -> Option<f64> {
    let mean = |bytes: u64, frames: u64| (frames > 0).then(|| bytes as f64 / frames as f64);
    Some(mean(stream.received.bytes, stream.received.frames)? - mean(stream.sent_bytes, stream.sent)?)
}

/// What is wrong with the lengths of what came, if anything is: a tunnel's headers are put on, or taken off.
pub fn wrong_length(stream: &StreamOutcome, forwarder: Contender) -> Option<String> {
    let expected = match stream.name.split(' ').next() {
        _ if forwarder == Contender::Peer(Peer::Testpmd) => 0.0,
        Some("encap") => TUNNEL as f64,
        Some("decap") => -(TUNNEL as f64),
        _ => 0.0,
    };
    let growth = growth(stream)?;
    ((growth - expected).abs() > 0.01)
        .then(|| format!("frames of `{}` grow by {growth:.1} bytes and not by {expected:.0}", stream.name))
}

#[derive(Debug)]
pub struct Running(Process);

impl Running {
    pub fn start(generator: &LabGenerator, scenario: &str) -> Result<Self> {
        let words =
            [&command(generator)?[..], &["gen", "-", "--json", "-", "--quiet"].map(str::to_owned)].concat();
        let mut process = Process::start(&words[0], &words[1..], &[], Placement::default(), REMEDY)?;
        process.type_line(scenario)?;
        process.end_input();
        Ok(Self(process))
    }

    pub fn answer(&mut self, limit: Duration) -> Result<Answer> {
        let line = self.0.await_last_output("the generator's report", limit, |lines| {
            lines.iter().find(|line| line.starts_with("{\"scenario\"")).cloned()
        })?;
        serde_json::from_str(&line).map_err(not_understood)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // So that it gives back its huge pages.
        self.0.terminate(Duration::from_secs(5));
    }
}

/// The generator answered something that is not understood.
pub(super) fn not_understood(reason: impl std::fmt::Display) -> Error {
    Error::missing(
        format!("the generator's report is not understood ({reason})"),
        "is its `perf` of this version?",
    )
}

/// The words that run the generator's `perf`.
pub(crate) fn command(generator: &LabGenerator) -> Result<Vec<String>> {
    let here = || -> Result<String> {
        Ok(std::env::current_exe().map_err(Error::io("find this program"))?.display().to_string())
    };
    let perf = match (&generator.perf, generator.via.is_empty()) {
        (Some(perf), _) => perf.clone(),
        (None, true) => here()?,
        (None, false) => "vswitch-perf".into(),
    };
    Ok([&generator.via[..], &[perf]].concat())
}

#[cfg(test)]
mod tests {
    use super::super::file::tests::{TEXT, lab};
    use super::*;
    use crate::generator::ledger::Received;

    fn stream(name: &str, sent: [u64; 2], came: [u64; 2]) -> StreamOutcome {
        let [frames, bytes] = came;
        let received = Received { frames, bytes, ..Received::default() };
        let [sent, sent_bytes] = sent;
        StreamOutcome { name: name.into(), sent, sent_bytes, received, ..StreamOutcome::default() }
    }

    #[test]
    fn lengths_show_whether_the_work_was_done() {
        let (testpmd, ours) = (Contender::Peer(Peer::Testpmd), Contender::Ours);
        // Of ten frames of 60 bytes nine came.
        let encap = stream("encap tcp", [10, 600], [9, 990]);
        assert_eq!(wrong_length(&encap, ours), None);
        assert!(wrong_length(&encap, testpmd).unwrap().contains("grow by 50.0"));
        let decap = stream("decap roce-rc", [10, 1100], [10, 600]);
        assert_eq!((wrong_length(&decap, ours), wrong_length(&decap, testpmd).is_some()), (None, true));
        assert!(wrong_length(&stream("encap tcp", [10, 600], [10, 600]), ours).is_some());
        assert_eq!(wrong_length(&stream("l2 tcp", [10, 600], [10, 600]), ours), None);
        // Nothing came: that is loss, not a wrong length.
        assert_eq!(wrong_length(&stream("encap tcp", [10, 600], [0, 0]), ours), None);
    }

    #[test]
    fn the_generator_is_this_program_or_the_one_over_there() {
        let lab = lab(TEXT).unwrap();
        assert_eq!(command(&lab.generator).unwrap(), ["ssh", "root@generator", "vswitch-perf"]);
        let here = LabGenerator { via: Vec::new(), perf: None, ..lab.generator };
        assert_eq!(command(&here).unwrap().len(), 1);
    }
}
