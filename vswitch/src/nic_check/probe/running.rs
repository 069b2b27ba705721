//! Asks a switch that runs with the device, by its API.

use std::path::Path;

use vswitch_api::v1;
use vswitch_api::v1::offloading_client::OffloadingClient;
use vswitch_api::v1::ports_client::PortsClient;

use super::{ProbeAnswer, Probed};
use crate::commands::{ConnectError, Session, ask};
use crate::console::CommandError;

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

/// Asks the switch on this socket about a device, by its full PCI address or the name of a virtual one.
pub(in crate::nic_check) fn ask(socket: &Path, device: &str) -> Result<Probed, NotAsked> {
    let session = Session::connect(socket).map_err(|error| match error {
        ConnectError::NotRunning(_) => NotAsked::NoSwitch(error.to_string()),
        error => NotAsked::Failed(error.to_string()),
    })?;
    let failed = |error: CommandError| NotAsked::Failed(error.to_string());
    let ports = ask!(session, PortsClient.get_port_info(v1::GetPortInfoRequest::default()));
    let ports = ports.map_err(failed)?.ports;
    let port = port_on(&ports, device)?;
    let request = v1::GetOffloadCapabilitiesRequest { port: port.id.to_string() };
    let told = ask!(session, OffloadingClient.get_offload_capabilities(request));
    probed(port, &told.map_err(failed)?)
}

/// The port of a switch that is on a device.
pub(in crate::nic_check) fn port_on<'a>(
    ports: &'a [v1::PortInfo],
    device: &str,
) -> Result<&'a v1::PortInfo, NotAsked> {
    // A driver may add to the address what tells ports of one function apart; a virtual device has the name that it has.
    let here = |port: &&v1::PortInfo| match port.kind.as_str() {
        "pci" => port.device.starts_with(device),
        "raw" => port.device == device,
        _ => false,
    };
    ports.iter().find(here).ok_or_else(|| {
        let words =
            format!("the switch that runs has no port on {device}: give its config an uplink with it");
        NotAsked::NotThere(words)
    })
}

/// What a switch said of a port.
pub(in crate::nic_check) fn probed(
    port: &v1::PortInfo,
    told: &v1::GetOffloadCapabilitiesResponse,
) -> Result<Probed, NotAsked> {
    let Some(answers) = told.ports.first().filter(|port| !port.chains.is_empty()) else {
        let words = "the switch that runs told of no chain: it is of another version than this check";
        return Err(NotAsked::Failed(words.into()));
    };
    Ok(Probed {
        by: "the switch that runs with it".into(),
        chains: answers.chains.iter().map(answer).collect(),
        features: answers.features.iter().map(answer).collect(),
        rss: Some(rss(port)),
    })
}

fn answer(told: &v1::CapabilityAnswer) -> ProbeAnswer {
    let words = || told.words.clone().unwrap_or_else(|| "no words".into());
    (told.name.clone(), if told.taken { Ok(()) } else { Err(words()) })
}

/// Hash types that the device can, and levels that it can be told.
fn rss(port: &v1::PortInfo) -> String {
    let (types, levels) = (port.rss_types.join(" "), port.rss_levels.join(" "));
    match (types.as_str(), levels.as_str()) {
        ("", _) => "nothing".into(),
        (_, "") => types,
        _ => format!("{types}; level {levels}"),
    }
}
