//! Asks a switch that runs with the device, over its control socket.

use std::path::Path;

use serde_json::Value;

use super::{ProbeAnswer, Probed};
use crate::commands::{self, ConnectError};

/// Why no switch said anything.
#[derive(Debug)]
pub(in crate::nic_check) enum NotAsked {
    /// None answers there.
    NoSwitch(String),
    /// The switch has no port on the device.
    NotThere(String),
    /// There is one, and it has not told: it may have the device.
    Failed(String),
}

/// Asks the switch on this control socket about a device, by its full PCI address or the name of a virtual one.
pub(in crate::nic_check) fn ask(socket: &Path, device: &str) -> Result<Probed, NotAsked> {
    let (mut session, console) = commands::connect(socket).map_err(|error| match error {
        ConnectError::NotRunning(_) => NotAsked::NoSwitch(error.to_string()),
        error => NotAsked::Failed(error.to_string()),
    })?;
    ask_by(device, &mut |line| {
        console.execute(&mut session, line).map(|answer| answer.json()).map_err(|error| error.to_string())
    })
}

/// As [`ask`], with whoever answers commands of the console in JSON.
pub(in crate::nic_check) fn ask_by(
    device: &str,
    ask: &mut dyn FnMut(&str) -> Result<Value, String>,
) -> Result<Probed, NotAsked> {
    let ports = ask("show port info all").map_err(NotAsked::Failed)?;
    // A driver may add to the address what tells ports of one function apart; a virtual device has the name that it has.
    let here = |port: &&Value| {
        let name = port["device"].as_str().unwrap_or_default();
        match port["kind"].as_str() {
            Some("pci") => name.starts_with(device),
            Some("raw") => name == device,
            _ => false,
        }
    };
    let port = ports["ports"].as_array().into_iter().flatten().find(here);
    let Some((port, id)) = port.and_then(|port| Some((port, port["id"].as_u64()?))) else {
        let words =
            format!("the switch that runs has no port on {device}: give its config an uplink with it");
        return Err(NotAsked::NotThere(words));
    };
    let told = ask(&format!("show offload capabilities {id}")).map_err(NotAsked::Failed)?;
    let answers = |kind: &str| {
        let answers = told["ports"][0][kind].as_array().into_iter().flatten();
        answers.filter_map(answer).collect::<Vec<_>>()
    };
    let probed = Probed {
        by: "the switch that runs with it".into(),
        chains: answers("chains"),
        features: answers("features"),
        rss: rss(port),
    };
    if probed.chains.is_empty() {
        let words = "the switch that runs told of no chain: it is of another version than this check";
        return Err(NotAsked::Failed(words.into()));
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

/// Hash types that the device can, and levels that it can be told.
fn rss(port: &Value) -> Option<String> {
    let names = |key: &str| {
        let names: Vec<&str> = port[key].as_array()?.iter().filter_map(Value::as_str).collect();
        Some(names.join(" "))
    };
    let types = names("rss-types")?;
    Some(match names("rss-levels").unwrap_or_default() {
        _ if types.is_empty() => "nothing".into(),
        levels if levels.is_empty() => types,
        levels => format!("{types}; level {levels}"),
    })
}
