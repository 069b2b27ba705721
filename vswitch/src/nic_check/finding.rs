//! [`Finding`]: one thing that was looked at, and [`NicReport`]: all of them, as a table, as JSON and as an exit status.

use serde::Serialize;

use crate::console::Table;

/// What is to be made of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingState {
    /// As wanted.
    Fine,
    /// Told; whether it is right depends on the network, or nobody asked for it.
    Noted,
    /// To be changed.
    Change,
    /// It could not be looked at, and matters.
    Unknown,
}

impl FindingState {
    const fn mark(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Noted => "-",
            Self::Change => "CHANGE",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Finding {
    /// What it is about.
    #[serde(rename = "finding")]
    pub name: String,
    /// What there is.
    pub value: String,
    /// What there should be.
    pub wanted: String,
    pub state: FindingState,
    /// What changes or shows it.
    pub command: Option<String>,
}

impl Finding {
    fn new(name: &str, state: FindingState, value: impl ToString, wanted: impl ToString) -> Self {
        let (value, wanted) = (value.to_string(), wanted.to_string());
        Self { name: name.into(), value, wanted, state, command: None }
    }

    /// All is well.
    pub fn fine(name: &str, value: impl ToString, wanted: impl ToString) -> Self {
        Self::new(name, FindingState::Fine, value, wanted)
    }

    /// Told, without a judgement.
    pub fn noted(name: &str, value: impl ToString, wanted: impl ToString) -> Self {
        Self::new(name, FindingState::Noted, value, wanted)
    }

    /// Something to change; [`Finding::by`] says how.
    pub fn change(name: &str, value: impl ToString, wanted: impl ToString) -> Self {
        Self::new(name, FindingState::Change, value, wanted)
    }

    /// Something that matters could not be looked at.
    pub fn unknown(name: &str, why: impl std::fmt::Display, wanted: impl ToString) -> Self {
        Self::new(name, FindingState::Unknown, format!("not known: {why}"), wanted)
    }

    /// The command that changes or shows it.
    #[must_use]
    pub fn by(mut self, command: String) -> Self {
        self.command = Some(command);
        self
    }
}

/// What was found on a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NicReport {
    /// Its PCI address.
    pub device: String,
    /// In the order of BRINGUP.md.
    pub findings: Vec<Finding>,
}

impl NicReport {
    /// 0: all is fine; 1: there is something to change; 2: something that matters could not be looked at.
    pub fn status(&self) -> u8 {
        let any = |state| self.findings.iter().any(|finding| finding.state == state);
        match (any(FindingState::Change), any(FindingState::Unknown)) {
            (true, _) => 1,
            (false, true) => 2,
            (false, false) => 0,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut table = Table::new(["finding", "", "value", "wanted", "command"]);
        for finding in &self.findings {
            let command = finding.command.clone().unwrap_or_default();
            let (name, mark) = (finding.name.clone(), finding.state.mark().to_owned());
            table.row([name, mark, finding.value.clone(), finding.wanted.clone(), command]);
        }
        let count = |state| self.findings.iter().filter(|finding| finding.state == state).count();
        let (change, unknown) = (count(FindingState::Change), count(FindingState::Unknown));
        let verdict = match (change, unknown) {
            (0, 0) => "nothing to change".into(),
            (change, 0) => format!("{change} to change, from top to bottom"),
            (0, unknown) => format!("{unknown} could not be looked at"),
            (change, unknown) => {
                format!("{change} to change, from top to bottom; {unknown} could not be looked at")
            }
        };
        format!("{}:\n{table}{verdict}\n", self.device)
    }

    /// For programs.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({ "device": self.device, "status": self.status(), "findings": self.findings })
    }
}
