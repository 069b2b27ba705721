//! What the container runtime says in environment variables, checked.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::args::PodArgs;
use crate::error::{Error, Result, quote};
use crate::names;

/// What the plugin is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

impl Command {
    /// The word of `CNI_COMMAND`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }

    const ALL: [Self; 6] = [Self::Add, Self::Del, Self::Check, Self::Gc, Self::Status, Self::Version];
}

/// One interface of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub container: String,
    pub interface: String,
    /// The network namespace of the container; `DEL` may come without one.
    pub netns: Option<PathBuf>,
    pub args: PodArgs,
}

/// A variable of the environment.
pub type Variable<'v> = &'v dyn Fn(&str) -> Option<OsString>;

/// A variable of this process.
pub fn variable(name: &str) -> Option<OsString> {
    env::var_os(name)
}

/// A variable as text; one that is empty is as if it were not there.
fn text(variable: Variable<'_>, name: &str) -> Result<Option<String>> {
    let text = variable(name).map(OsString::into_string).transpose();
    let text = text.map_err(|_| Error::environment(name, "it is not UTF-8", "give a text"))?;
    Ok(text.filter(|text| !text.is_empty()))
}

fn needed(variable: Variable<'_>, name: &str, command: Command) -> Result<String> {
    let missing = || {
        let wrong = format!("{} needs it", command.word());
        Error::environment(name, wrong, "this is a CNI plugin: a container runtime sets it")
    };
    text(variable, name)?.ok_or_else(missing)
}

pub fn command(variable: Variable<'_>) -> Result<Command> {
    let known = || Command::ALL.map(Command::word).join(", ");
    let told = text(variable, "CNI_COMMAND")?.unwrap_or_default();
    let command = Command::ALL.into_iter().find(|command| command.word() == told);
    command.ok_or_else(|| {
        let wrong = format!("{} is no command", quote(&told));
        Error::environment("CNI_COMMAND", wrong, format!("a container runtime sets it to one of {}", known()))
    })
}

/// The attachment that a command is about.
pub fn attachment(command: Command, variable: Variable<'_>) -> Result<Attachment> {
    let container = needed(variable, "CNI_CONTAINERID", command)?;
    names::check_id(&container, 255)
        .map_err(|wrong| Error::environment("CNI_CONTAINERID", wrong, "give the id of the container"))?;
    let interface = needed(variable, "CNI_IFNAME", command)?;
    names::check_interface(&interface)?;
    let netns = match command {
        Command::Del => text(variable, "CNI_NETNS")?,
        _ => Some(needed(variable, "CNI_NETNS", command)?),
    };
    let netns = netns.map(PathBuf::from);
    if let Some(netns) = netns.as_ref().filter(|netns| !netns.is_absolute()) {
        let wrong = format!("{netns:?} is no absolute path");
        return Err(Error::environment("CNI_NETNS", wrong, "give a path such as /run/netns/NAME"));
    }
    let args = PodArgs::read(&text(variable, "CNI_ARGS")?.unwrap_or_default())?;
    Ok(Attachment { container, interface, netns, args })
}

/// The folders in which other plugins are.
pub fn plugin_folders(variable: Variable<'_>) -> Vec<PathBuf> {
    let folders = variable("CNI_PATH").unwrap_or_default();
    env::split_paths(&folders).filter(|folder| folder.is_absolute()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: [(&str, &str); 5] = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_NETNS", "/run/netns/c1"),
        ("CNI_ARGS", "K8S_POD_NAME=web-1"),
    ];

    fn read(changes: &[(&str, &str)]) -> Result<(Command, Attachment)> {
        let variable = |name: &str| {
            let changed = changes.iter().chain(&WHOLE).find(|(known, _)| *known == name);
            changed.map(|(_, value)| OsString::from(value))
        };
        let command = command(&variable)?;
        Ok((command, attachment(command, &variable)?))
    }

    #[test]
    fn an_attachment_is_read() {
        let (command, attachment) = read(&[]).unwrap();
        assert_eq!((command, attachment.container.as_str()), (Command::Add, "c1"));
        assert_eq!(attachment.args.host_name.as_deref(), Some("web-1"));
        let (_, gone) = read(&[("CNI_COMMAND", "DEL"), ("CNI_NETNS", "")]).unwrap();
        assert_eq!(gone.netns, None);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_name() {
        for (name, value) in [
            ("CNI_COMMAND", "DELETE"),
            ("CNI_COMMAND", ""),
            ("CNI_CONTAINERID", ""),
            ("CNI_CONTAINERID", "a/b"),
            ("CNI_IFNAME", "much-too-long-a-name"),
            ("CNI_NETNS", ""),
            ("CNI_NETNS", "netns/c1"),
            ("CNI_ARGS", "COLOUR=red"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.code == 4 && error.msg.starts_with(name), "{name}={value}: {error}");
        }
    }
}
