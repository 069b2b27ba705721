//! `memif`: packets through memory shared with another process (VPP, another DPDK). For containers.

use super::claims;
use super::devargs::Devargs;
use super::{OpenError, Plan, Request, Traits, preflight};
use crate::config::port_spec::{MemifPort, MemifRole};

pub(super) fn plan(spec: &MemifPort, request: &Request<'_>) -> Result<Plan, OpenError> {
    let args = args(spec)?;
    let served = format!("memif server {} ", spec.socket.display());
    match spec.role {
        // Several memifs of this process share one listener.
        MemifRole::Server if claims::any_taken(&served) => {}
        MemifRole::Server => preflight::socket_to_serve(&spec.socket)?,
        MemifRole::Client => preflight::socket_to_await(&spec.socket)?,
    }
    let traits = Traits::up_to(request.queues);
    let plan = Plan::virtual_device("memif", args, traits);
    Ok(match spec.role {
        MemifRole::Server => plan.taking(format!("{served}{}", spec.id)),
        MemifRole::Client => plan.taking(format!("memif client {} {}", spec.socket.display(), spec.id)),
    })
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
        Some(secret) => args.text("secret", "secret", secret),
        None => Ok(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let mut spec =
            MemifPort { socket: "/run/m.sock".into(), id: 7, role: MemifRole::Client, secret: None };
        assert_eq!(args(&spec).unwrap().finish(), "role=client,id=7,socket=/run/m.sock,socket-abstract=no");
        (spec.role, spec.secret) = (MemifRole::Server, Some("word".into()));
        let golden = "role=server,id=7,socket=/run/m.sock,socket-abstract=no,secret=word";
        assert_eq!(args(&spec).unwrap().finish(), golden);
    }
}
