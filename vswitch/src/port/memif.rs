//! `memif`: packets through memory shared with another process (VPP, another DPDK). For containers.

use super::claims;
use super::devargs::Devargs;
use super::{DevicePlan, OpenError, Opening, Traits, preflight};
use crate::config::port_spec::{MemifPort, MemifRole};

pub(super) fn plan(spec: &MemifPort, opening: &mut Opening<'_>) -> Result<DevicePlan, OpenError> {
    let args = args(spec)?;
    let served = format!("memif server {} ", spec.socket.display());
    match spec.role {
        MemifRole::Server => {
            // Several memifs of this process share one listener.
            let shared = claims::any_taken(&served);
            opening.take(format!("{served}{}", spec.id))?;
            if !shared {
                preflight::socket_to_serve(&spec.socket)?;
            }
        }
        MemifRole::Client => {
            opening.take(format!("memif client {} {}", spec.socket.display(), spec.id))?;
            preflight::socket_to_await(&spec.socket)?;
        }
    }
    let traits = Traits { tells_link: true, ..Traits::up_to(opening.request.queues) };
    Ok(DevicePlan::virtual_device("memif", args, traits))
}

fn args(spec: &MemifPort) -> Result<Devargs, OpenError> {
    let role = match spec.role {
        MemifRole::Server => "server",
        MemifRole::Client => "client",
    };
    let args = Devargs::default()
        .number("role", role)
        .number("id", spec.id)
        .path("socket", "socket", &spec.socket)?
        .number("socket-abstract", "no");
    match &spec.secret {
        Some(secret) => args.secret("secret", "secret", secret.reveal()),
        None => Ok(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let mut spec = MemifPort {
            socket: "/run/m.sock".into(),
            id: 7,
            role: MemifRole::Client,
            secret: None,
            trusted_peer: true,
        };
        assert_eq!(args(&spec).unwrap().finish(), "role=client,id=7,socket=/run/m.sock,socket-abstract=no");
        (spec.role, spec.secret) = (MemifRole::Server, Some("word".into()));
        let golden = "role=server,id=7,socket=/run/m.sock,socket-abstract=no,secret=word";
        assert_eq!(args(&spec).unwrap().finish(), golden);
    }
}
