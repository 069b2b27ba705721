//! `--probe`: which chains of rules the device takes, by the word of a switch that runs with it.
//!
//! Asking a driver takes a started port, and starting one takes packets from the kernel. So the check starts none: it asks
//! a switch that has started it anyway, over its control socket. That one makes each rule aside of all traffic and takes
//! it away (`capabilities`).

use std::path::Path;

use serde_json::Value;

use crate::control::client::Client;

/// An item, action or chain, and the device's words when it refused.
pub type ProbeAnswer = (String, Result<(), String>);

/// What a switch says of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// Whole chains, by the flow that they are for.
    pub chains: Vec<ProbeAnswer>,
    /// Single items and actions.
    pub features: Vec<ProbeAnswer>,
    /// Hash types of RSS that the device can.
    pub rss: Option<String>,
}

/// Asks the switch on this control socket about the device at a full PCI address.
///
/// # Errors
/// In words, when there is no switch, or it has not got the device.
pub fn probe(socket: &Path, pci: &str) -> Result<Probed, String> {
    let mut client = Client::connect(socket).map_err(|error| error.to_string())?;
    probe_by(pci, &mut |line| {
        let reply = client.command(line, true).map_err(|error| error.to_string())?;
        reply.error.map_or(Ok(reply.json), Err)
    })
}

/// As [`probe`], with whoever answers commands of the console in JSON.
pub(super) fn probe_by(
    pci: &str,
    ask: &mut dyn FnMut(&str) -> Result<Value, String>,
) -> Result<Probed, String> {
    let ports = ask("show port info all")?;
    // A driver may add to the address what tells ports of one function apart.
    let device = |port: &Value| port["device"].as_str().is_some_and(|device| device.starts_with(pci));
    let here = |port: &&Value| port["kind"] == "pci" && device(port);
    let port = ports.as_array().into_iter().flatten().find(here);
    let Some((port, id)) = port.and_then(|port| Some((port, port["id"].as_u64()?))) else {
        return Err(format!("the switch that runs has no port on {pci}: give its config an uplink with it"));
    };
    let told = ask(&format!("show offload capabilities {id}"))?;
    let answers = |kind: &str| {
        let answers = told["ports"][0][kind].as_array().into_iter().flatten();
        answers.filter_map(answer).collect::<Vec<_>>()
    };
    let probed = Probed { chains: answers("chains"), features: answers("features"), rss: rss(port) };
    if probed.chains.is_empty() {
        return Err("the switch that runs told of no chain: it is of another version than this check".into());
    }
    Ok(probed)
}

fn answer(told: &Value) -> Option<ProbeAnswer> {
    let taken = match told["taken"].as_bool()? {
        true => Ok(()),
        false => Err(told["words"].as_str().unwrap_or("no words").to_owned()),
    };
    Some((told["name"].as_str()?.to_owned(), taken))
}

/// Hash types that the device can.
fn rss(port: &Value) -> Option<String> {
    let names: Vec<&str> = port["rss-types"].as_array()?.iter().filter_map(Value::as_str).collect();
    Some(if names.is_empty() { "nothing".into() } else { names.join(" ") })
}
