//! Path probes for those who ask for them: waited for without holding up control, and told in sentences.

use std::net::IpAddr;
use std::time::Duration;

use pipelines::stage::tunnel;
use tokio::sync::oneshot;
use tonic::Code;
use vswitch_api::v1;

use super::Control;
use super::refusal::Problem;
use crate::probe::{Found, SMALL};
use crate::switch::probing::{DEADLINE, PathReport, PathState, ProbeError};

/// Between two attempts where others are being answered.
const AGAIN: Duration = Duration::from_millis(100);

/// Probes all ways to some VTEPs. What was found, and the largest tunnel packet that vNICs of this host need on each.
pub(super) async fn probe(
    control: &Control,
    what: &'static str,
    vteps: Vec<IpAddr>,
) -> Result<Vec<(PathReport, u16)>, Problem> {
    let patience = tokio::time::Instant::now() + DEADLINE;
    loop {
        let (answer, answered) = oneshot::channel();
        let asked = vteps.clone();
        let begun = control
            .ask(what, move |controller| {
                let switch = &mut controller.switch;
                switch
                    .probe(&asked, answer)
                    .map(|()| [false, true].map(|v6| switch.largest_tunnel_packet(v6)))
            })
            .await?;
        let [needed_v4, needed_v6] = match begun {
            Ok(needed) => needed,
            Err(ProbeError::Busy) if tokio::time::Instant::now() < patience => {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            Err(error) => return Err(refused(&error, &vteps)),
        };
        // It answers in time; if control does not, that is told.
        let reports = tokio::time::timeout(2 * DEADLINE, answered).await.ok().and_then(Result::ok);
        let late = || Problem::new(Code::Unavailable, "", "the probes were given up; ask again".into());
        let of = |report: PathReport| {
            let needed = if report.vtep.is_ipv6() { needed_v6 } else { needed_v4 };
            (report, needed)
        };
        return Ok(reports.ok_or_else(late)?.into_iter().map(of).collect());
    }
}

/// The forwarding mode, and what others ask, are no fields of the request.
fn refused(error: &ProbeError, vteps: &[IpAddr]) -> Problem {
    let field = |vtep: &IpAddr| match vteps.iter().position(|asked| asked == vtep) {
        Some(at) => format!("vteps[{at}]"),
        None => "vteps".to_owned(),
    };
    let (code, field) = match error {
        ProbeError::Busy => (Code::Unavailable, String::new()),
        ProbeError::Mode => (Code::FailedPrecondition, String::new()),
        ProbeError::TooMany(_) => (Code::InvalidArgument, "vteps".to_owned()),
        ProbeError::NoRoute(vtep) | ProbeError::Own(vtep) => (Code::FailedPrecondition, field(vtep)),
    };
    Problem::new(code, &field, error.to_string())
}

/// What was found out about a way, for whoever asked.
pub(super) fn probed(report: &PathReport, needed: u16) -> v1::ProbedPath {
    let (state, passes) = match &report.state {
        PathState::Found(Found::All) => ("passes", report.mtu),
        PathState::Found(Found::Less { passes, .. }) => ("less", *passes),
        PathState::Found(Found::Nothing) => ("silent", 0),
        PathState::NoLink => ("no-link", 0),
        PathState::NoNextHop => ("no-next-hop", 0),
        PathState::Unknown => ("unknown", 0),
    };
    let named = match &report.state {
        PathState::Found(Found::Less { named, .. }) => *named,
        _ => None,
    };
    v1::ProbedPath {
        vtep: report.vtep.to_string(),
        source: report.source.to_string(),
        uplink: report.uplink.clone(),
        next_hop: report.hop.to_string(),
        preferred: report.preferred,
        mtu: report.mtu.into(),
        state: state.into(),
        passes: passes.into(),
        needed: needed.into(),
        named_mtu: named.map(|(mtu, _)| mtu),
        named_by: named.map(|(_, by)| by.to_string()),
        round_trip_ms: report.round_trip.map(|time| time.as_secs_f64() * 1e3),
        requests: report.requests,
        stray: report.stray,
        advice: advice(report, needed).unwrap_or_default(),
    }
}

/// What is wrong with a way, and what to do.
fn advice(report: &PathReport, needed: u16) -> Option<String> {
    let PathReport { vtep, uplink, hop, mtu, .. } = report;
    let way = match hop == vtep {
        true => format!("its VTEP {vtep} by uplink {uplink}"),
        false => format!("its VTEP {vtep} by uplink {uplink} and {hop}"),
    };
    Some(match &report.state {
        PathState::Found(Found::All) => return None,
        PathState::Found(Found::Less { passes, named }) => {
            let who = match named {
                Some((_, router)) => format!("{router} says so"),
                None => "larger ones are lost without a word, on the way there or back".into(),
            };
            let harm = match needed > *passes {
                true => format!("vNICs of this host need {needed}, and what is larger is lost"),
                false => format!("the {needed} that vNICs of this host need do pass"),
            };
            format!(
                "packets of at most {passes} bytes pass to {way}, which has an MTU of {mtu} ({who}); {harm}; raise the MTU of the links on the way \
                 to {mtu}, or write `mtu = {passes}` in the [[uplink]] of all hosts, and let vNICs have {} less",
                tunnel::overhead(vtep.is_ipv6(), false)
            )
        }
        PathState::Found(Found::Nothing) => format!(
            "no echo request comes back from {way}, not even of {SMALL} bytes; look whether that host runs, whether it has a way back, and whether \
             something on the way drops ICMP"
        ),
        PathState::NoLink => {
            format!("there is no way to {way}: the uplink has no link; look at its cable and its port")
        }
        PathState::NoNextHop => {
            format!(
                "there is no way to {way}: {hop} does not say where it is; look at the link, and at that machine"
            )
        }
        PathState::Unknown => {
            format!(
                "the way to {way} was not probed to its end within {} s; ask again, or for it alone by `ping vtep {vtep}`",
                DEADLINE.as_secs()
            )
        }
    })
}
