//! What the generator is told: a measurement as a scenario of `perf gen`.
//!
//! Addresses are those that all switches are set up for (`compare/frames.rs`); every frame is signed, so what comes out
//! can be told from what went in, whoever forwards.

use std::fmt::Write as _;

use super::file::Lab;
use super::{Measurement, MeasurementKind};
use crate::compare::cases::{Case, Peer, Traffic};
use crate::compare::frames::{FAR_VTEP, NEAR_VTEP, PEERS, SECOND_MAC, TENANT, VNI, peer_ip, peer_mac};
use crate::compare::peer::{Attached, Contender};

/// The shortest frame of RoCEv2 with a signature; longer ones come in steps of 4.
const ROCE: usize = 94;

// Writing into a String cannot fail; the results are dropped for that reason.

/// The scenario of a measurement of a forwarder; `loads` are rates at which delays are taken.
pub fn scenario(lab: &Lab, forwarder: Contender, measurement: &Measurement, loads: &[String]) -> String {
    let (run, generator) = (&lab.run, &lab.generator);
    let mut text = format!(
        "[generator]\ncore = {}\nwindow = {}\n\n[run]\ntests = [\"throughput\"]\ntrial = {:?}\nwarm-up = {:?}\n\
         loss = {:?}\nresolution = {:?}\nretries = {}\nloads = [{}]\n",
        generator.core,
        generator.window,
        run.trial,
        run.warm_up,
        run.loss,
        run.resolution,
        run.retries,
        loads.join(", ")
    );
    if let Some(rate) = &run.max_rate {
        let _ = writeln!(text, "max-rate = \"{rate}\"");
    }
    ports(&mut text, lab, queues(forwarder, measurement));
    streams(&mut text, measurement);
    text
}

/// A scenario that shows whether frames come through at all: a few of them, both ways, unchanged.
pub fn probe(lab: &Lab) -> String {
    let mut text = format!(
        "[generator]\ncore = {}\ncalibrate = 0.0\n\n[run]\nseconds = 0.5\nwarm-up = 0.0\n",
        lab.generator.core
    );
    ports(&mut text, lab, 1);
    for (name, from, to) in [("there", "near", "far"), ("back", "far", "near")] {
        let _ = write!(
            text,
            "\n[[stream]]\nname = \"{name}\"\nfrom = \"{from}\"\nto = \"{to}\"\nprotocol = \"udp\"\nrate = \"1kpps\"\n"
        );
    }
    text
}

/// Queues that a forwarder sends on: one for each worker, and in OVS one for its main thread too, the first. Over memif both
/// ends must have the same rings: what is sent on one that the other end has not is lost, and one too many is refused.
fn queues(forwarder: Contender, measurement: &Measurement) -> usize {
    match forwarder {
        Contender::Peer(Peer::OvsExact | Peer::OvsWildcard) => measurement.workers() + 1,
        _ => measurement.workers(),
    }
}

fn ports(text: &mut String, lab: &Lab, queues: usize) {
    for (name, port) in [("near", &lab.generator.near), ("far", &lab.generator.far)] {
        let device = match port {
            Attached::Virtual(device) => format!("kind = \"vdev\"\nvdev = \"{device}\""),
            Attached::Guest(path) => {
                format!("kind = \"virtio-user\"\npath = \"{path}\"\nserver = true")
            }
            Attached::Pci(device) => match device.split_once(',') {
                Some((address, more)) => {
                    format!("kind = \"pci\"\naddress = \"{address}\"\ndevargs = \"{more}\"")
                }
                None => format!("kind = \"pci\"\naddress = \"{device}\""),
            },
        };
        let _ = write!(text, "\n[[port]]\nname = \"{name}\"\n{device}\n");
        if matches!(port, Attached::Virtual(device) if device.starts_with("net_memif")) {
            let _ = writeln!(text, "queues = {queues}");
        }
    }
}

fn streams(text: &mut String, measurement: &Measurement) {
    let job = &measurement.job;
    let kinds: &[&str] = match job.traffic {
        Traffic::Tcp => &["tcp"],
        Traffic::Rocev2 => &["roce-rc"],
        Traffic::Mixed => &["tcp", "roce-rc"],
        Traffic::Udp | Traffic::UdpFew => &["udp"],
    };
    for &way in job.case.ways() {
        for &kind in kinds {
            stream(text, measurement, way, kind, job.flows.count.div_ceil(kinds.len()));
        }
    }
}

fn stream(text: &mut String, measurement: &Measurement, way: Case, kind: &str, flows: usize) {
    let count = flows.min(PEERS);
    let far_mac = match way {
        Case::L2 => SECOND_MAC.to_string(),
        _ => format!("{}..{}", peer_mac(0), peer_mac(count - 1)),
    };
    let near = (TENANT.0.to_string(), TENANT.1.to_string());
    let far = (far_mac, format!("{}..{}", peer_ip(0), peer_ip(count - 1)));
    let ((from, src), (to, dst)) =
        if way == Case::Decap { (("far", far), ("near", near)) } else { (("near", near), ("far", far)) };
    let size = match measurement.job.inner_bytes {
        bytes if kind == "roce-rc" && bytes > ROCE => bytes - (bytes - ROCE) % 4,
        bytes => bytes,
    };
    let _ = write!(
        text,
        "\n[[stream]]\nname = \"{way} {kind}\"\nfrom = \"{from}\"\nto = \"{to}\"\nprotocol = \"{kind}\"\n\
         size = {size}\nsrc-mac = \"{}\"\nsrc-ip = \"{}\"\ndst-mac = \"{}\"\ndst-ip = \"{}\"\n",
        src.0, src.1, dst.0, dst.1
    );
    let _ = match (measurement.kind, kind) {
        (MeasurementKind::SetUp, _) => {
            write!(text, "distribution = \"new\"\nsrc-port = \"1024..61023\"\ndst-port = \"1024..61023\"\n")
        }
        (_, "roce-rc") => write!(text, "flows = {flows}\nqp = \"0x100..{}\"\n", 0x100 + flows),
        _ => write!(text, "flows = {flows}\nsrc-port = \"1024..33791\"\ndst-port = \"5001..5004\"\n"),
    };
    if way == Case::Decap {
        let ((src_mac, src), (dst_mac, dst)) = (FAR_VTEP, NEAR_VTEP);
        let _ = writeln!(
            text,
            "vxlan = {{ vni = {}, src-ip = \"{src}\", dst-ip = \"{dst}\", src-mac = \"{src_mac}\", dst-mac = \"{dst_mac}\" }}",
            VNI.get()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::tests::{TEXT, lab};
    use super::*;
    use crate::generator::scenario::Scenario;

    #[test]
    fn the_generator_takes_every_scenario() {
        let lab = lab(TEXT).unwrap();
        let mut measurements = super::super::measurements(&lab);
        assert!(measurements.len() > 48);
        for traffic in [Traffic::Udp, Traffic::Mixed] {
            for case in [Case::L2, Case::Both] {
                let mut more = measurements[0].clone();
                (more.job.traffic, more.job.case) = (traffic, case);
                measurements.push(more);
            }
        }
        let takes = |text: String| {
            let (scenario, source) =
                Scenario::parse("s".into(), text).unwrap_or_else(|error| panic!("{error}"));
            scenario.check(&source).unwrap_or_else(|error| panic!("{error}"))
        };
        let forwarders = [Contender::Ours, Contender::Peer(Peer::OvsExact)];
        for (measurement, forwarder) in
            measurements.iter().flat_map(|one| forwarders.map(|forwarder| (one, forwarder)))
        {
            let loads = ["10".into(), "\"5kpps\"".into()];
            let plan = takes(scenario(&lab, forwarder, measurement, &loads));
            let kinds = if measurement.job.traffic == Traffic::Mixed { 2 } else { 1 };
            assert_eq!(plan.streams.len(), measurement.job.case.ways().len() * kinds);
            let flows: u32 = plan.streams.iter().map(|stream| stream.flows).sum();
            if measurement.kind == MeasurementKind::Rate {
                assert_eq!(
                    flows as usize,
                    measurement.job.flows.count.max(kinds) * measurement.job.case.ways().len()
                );
            }
        }
        assert_eq!(takes(probe(&lab)).streams.len(), 2);
    }
}
