//! What `devlink` and `dcb` (iproute2) say, read from their JSON.

use std::fmt;

use serde_json::Value;

use super::host::{HostView, Unanswered};

/// The e-switch of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EswitchModes {
    /// `legacy`, `switchdev`, `switchdev_inactive`.
    pub mode: String,
    inline_mode: Option<String>,
    encap_mode: Option<String>,
}

impl fmt::Display for EswitchModes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.mode)?;
        let more = [("inline-mode", &self.inline_mode), ("encap-mode", &self.encap_mode)];
        more.iter()
            .filter_map(|(name, value)| Some((name, value.as_ref()?)))
            .try_for_each(|(name, value)| write!(f, ", {name} {value}"))
    }
}

fn ask(host: &HostView, tool: &str, args: &[&str]) -> Result<Value, Unanswered> {
    let answer = host.tools.run(tool, args)?;
    serde_json::from_str(&answer).map_err(|_| strange(tool, args, &answer))
}

fn strange(tool: &str, args: &[&str], answer: &str) -> Unanswered {
    let start: String = answer.trim().chars().take(40).collect();
    Unanswered::Refused(
        tool.into(),
        format!("the answer to `{tool} {}` is not understood: {start:?}", args.join(" ")),
    )
}

fn word(value: &Value) -> Option<String> {
    value.as_str().filter(|word| !word.is_empty()).map(str::to_owned)
}

/// The e-switch.
///
/// # Errors
/// When devlink does not say.
pub fn eswitch(host: &HostView, pci: &str) -> Result<EswitchModes, Unanswered> {
    let handle = format!("pci/{pci}");
    let args = ["-j", "dev", "eswitch", "show", &handle];
    let answer = ask(host, "devlink", &args)?;
    let told = &answer["dev"][&handle];
    let mode = word(&told["mode"]).ok_or_else(|| strange("devlink", &args, &answer.to_string()))?;
    Ok(EswitchModes { mode, inline_mode: word(&told["inline-mode"]), encap_mode: word(&told["encap-mode"]) })
}

/// The kernel's way to write rules: `dmfs`, `smfs`, `hmfs`.
///
/// # Errors
/// When devlink does not say.
pub fn steering(host: &HostView, pci: &str) -> Result<String, Unanswered> {
    let handle = format!("pci/{pci}");
    let args = ["-j", "dev", "param", "show", &handle, "name", "flow_steering_mode"];
    let answer = ask(host, "devlink", &args)?;
    let params = answer["param"][&handle].as_array().into_iter().flatten();
    let mut values = params
        .filter(|param| param["name"] == "flow_steering_mode")
        .flat_map(|param| param["values"].as_array().into_iter().flatten());
    let now = values.find(|value| value["cmode"] == "runtime").and_then(|value| word(&value["value"]));
    now.ok_or_else(|| strange("devlink", &args, &answer.to_string()))
}

/// The version of the firmware that runs.
///
/// # Errors
/// When devlink does not say.
pub fn firmware(host: &HostView, pci: &str) -> Result<String, Unanswered> {
    let handle = format!("pci/{pci}");
    let args = ["-j", "dev", "info", &handle];
    let answer = ask(host, "devlink", &args)?;
    let running = &answer["info"][&handle]["versions"]["running"];
    let version = word(&running["fw.version"]).or_else(|| word(&running["fw"]));
    version.ok_or_else(|| strange("devlink", &args, &answer.to_string()))
}

/// Priorities that PFC is on for.
///
/// # Errors
/// When dcb does not say.
pub fn pfc(host: &HostView, netdev: &str) -> Result<Vec<usize>, Unanswered> {
    let args = ["-j", "pfc", "show", "dev", netdev];
    let answer = ask(host, "dcb", &args)?;
    let told = answer.get("prio_pfc").or_else(|| answer.get("prio-pfc")).and_then(Value::as_array);
    let told = told.ok_or_else(|| strange("dcb", &args, &answer.to_string()))?;
    let on = |value: &Value| value.as_bool() == Some(true) || value.as_str() == Some("on");
    Ok(told.iter().enumerate().filter(|(_, value)| on(value)).map(|(priority, _)| priority).collect())
}

/// How many DSCPs lead to a priority.
///
/// # Errors
/// When dcb does not say.
pub fn dscps(host: &HostView, netdev: &str) -> Result<usize, Unanswered> {
    let args = ["-j", "app", "show", "dev", netdev];
    let answer = ask(host, "dcb", &args)?;
    let told = answer.get("dscp_prio").or_else(|| answer.get("dscp-prio"));
    match told {
        Some(told) => told.as_array().map(Vec::len).ok_or_else(|| strange("dcb", &args, &answer.to_string())),
        None if answer.is_object() => Ok(0),
        None => Err(strange("dcb", &args, &answer.to_string())),
    }
}
