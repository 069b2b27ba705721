//! Commands about what is in hardware, and why.

mod selector;
mod views;

use vswitch_api::v1;
use vswitch_api::v1::OffloadPlace;
use vswitch_api::v1::offloading_client::OffloadingClient;

use self::selector::{placed, selector};
use super::objects::update;
use super::ports::port;
use super::{Entry, Session, ask, shown, told};
use crate::console::{Args, CommandError, Output};

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "show offload",
            help: "What is in hardware: flows by state, rules, refusals",
            rpc: "Offloading.GetOffload",
            run: |session, _| shown(ask!(session, OffloadingClient.get_offload(v1::GetOffloadRequest {}))?),
        },
        Entry {
            syntax: "show offload flows [<count:uint>]",
            help: "Flows in hardware and busy ones that are not, with the reason, the first 20 or so many",
            rpc: "Offloading.ListOffloadFlows",
            run: |session, args| {
                let request = v1::ListOffloadFlowsRequest { count: args.maybe("count") };
                shown(ask!(session, OffloadingClient.list_offload_flows(request))?)
            },
        },
        Entry {
            syntax: "show offload capabilities [<port:port>]",
            help: "Which rules the driver of a port (of each port) takes, and its words for those that it refuses",
            rpc: "Offloading.GetOffloadCapabilities",
            run: |session, args| {
                let request = v1::GetOffloadCapabilitiesRequest { port: port(args) };
                shown(ask!(session, OffloadingClient.get_offload_capabilities(request))?)
            },
        },
        Entry {
            syntax: "offload on|off",
            help: "Let hot flows into hardware, or take all of them back",
            rpc: "Objects.Update",
            run: switch,
        },
        Entry {
            syntax: "offload why vnic|tunnel <name:name> <source:ip> <destination:ip> <flow:text>",
            help: "Where a flow is, and why: `tcp SPORT DPORT`, `udp SPORT DPORT`, `qp QPN`, `roce` or `any` of a vNIC, or out of the tunnel of a VPC",
            rpc: "Offloading.ExplainOffload",
            run: |session, args| {
                let request = v1::ExplainOffloadRequest { flow: Some(selector(args)?) };
                shown(ask!(session, OffloadingClient.explain_offload(request)).map_err(placed)?)
            },
        },
        Entry {
            syntax: "offload pin <place:software|hardware|auto> vnic|tunnel <name:name> <source:ip> <destination:ip> <flow:text>",
            help: "Say where a flow has to be; auto: where it belongs",
            rpc: "Offloading.PinOffload",
            run: pin,
        },
        Entry {
            syntax: "offload audit",
            help: "Compare the rules of the device with what should be there, and put back what is lost",
            rpc: "Offloading.AuditOffload",
            run: |session, _| {
                let answer = ask!(session, OffloadingClient.audit_offload(v1::AuditOffloadRequest {}))?;
                let rules = answer.rules;
                let text = match answer.repaired {
                    0 => format!("all {rules} rules are there"),
                    lost => format!("{lost} of {rules} rules were lost and put back"),
                };
                told(text, answer)
            },
        },
    ]
}

fn switch(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let on = args.has("on");
    let wanted = v1::Offload { enabled: Some(on), ..v1::Offload::default() };
    let entry = update(session, v1::object::Spec::Offload(wanted), &["enabled"])?;
    let device = ask!(session, OffloadingClient.get_offload(v1::GetOffloadRequest {}))?.device;
    let text = match (on, device) {
        (true, None) => {
            "offload is on, but no port is on a device: say offload = \"simulated\" or \"rte-flow\" at ports in the config"
        }
        (true, Some(_)) => "offload is on",
        (false, _) => "offload is off; flows in hardware come back within a turn",
    };
    told(text, entry)
}

fn pin(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let word: String = args.get("place")?;
    let place = match word.as_str() {
        "software" => OffloadPlace::Software,
        "hardware" => OffloadPlace::Hardware,
        _ => OffloadPlace::Auto,
    };
    let request = v1::PinOffloadRequest { place: place.into(), flow: Some(selector(args)?) };
    let answer = ask!(session, OffloadingClient.pin_offload(request)).map_err(placed)?;
    let count = if answer.flows == 1 { "1 flow".to_string() } else { format!("{} flows", answer.flows) };
    let text = match place {
        OffloadPlace::Auto => format!("{count}: where it belongs"),
        _ => format!("{count}: in {word} from the next turn on"),
    };
    told(text, answer)
}
