//! A flow as it is typed: `tcp 40000 5201` of a vNIC, or out of the tunnel.

use std::net::IpAddr;

use vswitch_api::v1;
use vswitch_api::v1::offload_selector::{Flow, Scope};

use super::super::rcft::read_qpn;
use crate::config::Name;
use crate::config::error::quote;
use crate::console::{Args, CommandError};

/// The flows that the arguments `name`, `source`, `destination` and `flow` describe.
pub(super) fn selector(args: &Args) -> Result<v1::OffloadSelector, CommandError> {
    let name = args.get::<Name>("name")?.to_string();
    let text: String = args.get("flow")?;
    let flow = flow(&text).ok_or_else(|| {
        let shown = quote(&text);
        let message =
            format!("{shown} is no flow; write `tcp 40000 5201`, `udp 1000 2000`, `qp 17`, `roce` or `any`");
        args.error("flow", message)
    })?;
    Ok(v1::OffloadSelector {
        scope: Some(if args.has("vnic") { Scope::Vnic(name) } else { Scope::Tunnel(name) }),
        source: args.get::<IpAddr>("source")?.to_string(),
        destination: args.get::<IpAddr>("destination")?.to_string(),
        flow: Some(flow),
    })
}

/// A refusal of a vNIC or a VPC is about the argument that names it.
pub(super) fn placed(error: CommandError) -> CommandError {
    match error.argument.as_deref() {
        Some("vnic" | "tunnel") => error.of_argument("name"),
        _ => error,
    }
}

fn flow(text: &str) -> Option<Flow> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let ports = |source: &str, destination: &str| {
        let port = |text: &str| text.parse::<u16>().ok().map(u32::from);
        Some(v1::OffloadPorts { source: port(source)?, destination: port(destination)? })
    };
    match words[..] {
        ["tcp", source, destination] => ports(source, destination).map(Flow::Tcp),
        ["udp", source, destination] => ports(source, destination).map(Flow::Udp),
        ["qp", number] => read_qpn(number).map(|qpn| Flow::Qp(qpn.get())),
        ["roce"] => Some(Flow::Roce(v1::OffloadAll {})),
        ["any"] => Some(Flow::Any(v1::OffloadAll {})),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_read_as_they_are_typed() {
        let ports = v1::OffloadPorts { source: 40_000, destination: 5201 };
        for (text, wanted) in [
            ("tcp 40000 5201", Flow::Tcp(ports)),
            (" udp  40000 5201 ", Flow::Udp(ports)),
            ("qp 17", Flow::Qp(17)),
            ("qp 0xffffff", Flow::Qp(0xff_ffff)),
            ("roce", Flow::Roce(v1::OffloadAll {})),
            ("any", Flow::Any(v1::OffloadAll {})),
        ] {
            assert_eq!(flow(text), Some(wanted), "{text}");
        }
        for text in ["", "tcp", "tcp 1", "tcp 1 65536", "tcp 1 2 3", "qp", "qp 16777216", "qp -1", "sctp 1 2"]
        {
            assert_eq!(flow(text), None, "{text}");
        }
    }
}
