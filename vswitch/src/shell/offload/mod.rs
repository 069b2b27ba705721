//! Commands about what is in hardware, and why.

mod capabilities;
mod flow;
mod show;

use serde_json::json;

use super::{Entry, Shell};
use crate::console::{Args, CommandError, Output};

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "show offload",
            help: "What is in hardware: flows by state, rules, refusals",
            run: show::all,
        },
        Entry {
            syntax: "show offload flows [<count:uint>]",
            help: "Flows in hardware and busy ones that are not, with the reason, the first 20 or so many",
            run: show::flows,
        },
        Entry {
            syntax: "show offload capabilities [<id:port>]",
            help: "Which rules the driver of a port (of each port) takes, and its words for those that it refuses",
            run: capabilities::show,
        },
        Entry {
            syntax: "offload on|off",
            help: "Let hot flows into hardware, or take all of them back",
            run: switch,
        },
        Entry {
            syntax: "offload why vnic|tunnel <name:name> <source:ip> <destination:ip> <flow:text>",
            help: "Where a flow is, and why: `tcp SPORT DPORT`, `udp SPORT DPORT`, `qp QPN`, `roce` or `any` of a vNIC, or out of the tunnel of a VPC",
            run: flow::why,
        },
        Entry {
            syntax: "offload pin <place:software|hardware|auto> vnic|tunnel <name:name> <source:ip> <destination:ip> <flow:text>",
            help: "Say where a flow has to be; auto: where it belongs",
            run: flow::pin,
        },
        Entry {
            syntax: "offload audit",
            help: "Compare the rules of the device with what should be there, and put back what is lost",
            run: audit,
        },
    ]
}

fn switch(shell: &mut Shell, args: &Args) -> Result<Output, CommandError> {
    let on = args.has("on");
    shell.switch.edit(|config| {
        config.offload.enabled = on;
        Ok(())
    })?;
    let text = match (on, shell.switch.offload().device()) {
        (true, None) => {
            "offload is on, but no port is on a device: say offload = \"simulated\" or \"rte-flow\" at ports in the config"
        }
        (true, Some(_)) => "offload is on",
        (false, _) => "offload is off; flows in hardware come back within a turn",
    };
    Ok(Output::message(text))
}

fn audit(shell: &mut Shell, _: &Args) -> Result<Output, CommandError> {
    let offload = shell.switch.offload_mut();
    let lost = offload.audit().map_err(|error| {
        CommandError::new(format!(
            "a rule that was lost could not be put back: {error}; its flows go on in software"
        ))
    })?;
    let rules = offload.rules();
    let text = match lost {
        0 => format!("all {rules} rules are there"),
        lost => format!("{lost} of {rules} rules were lost and put back"),
    };
    Ok(Output::new(text.clone(), json!({ "message": text, "rules": rules, "repaired": lost })))
}
