//! The CNI plugin of the switch: the interface of a pod is a vNIC of a VPC.
//!
//! It is asked by a container runtime as the CNI specification says (environment, network config on standard input, result on
//! standard output), asks the switch by gRPC, and keeps nothing itself: the names of what it makes follow from what it is asked.

mod args;
mod command;
mod config;
mod delegate;
#[cfg(test)]
mod deploy_tests;
mod environment;
mod error;
#[cfg(test)]
mod fake;
mod host_end;
mod ipam;
mod names;
mod netlink;
mod netns;
mod parameters;
mod pod;
mod result;
mod switch;
mod turn;

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use serde_json::json;

use crate::command::{Call, add, check, del, gc, status};
use crate::config::{NetworkConfig, VERSIONS, version_of};
use crate::environment::{Command, attachment, plugin_folders, variable};
use crate::error::{Error, IO_FAILURE, Result};

/// The longest network config.
const LONGEST: u64 = 1 << 20;

fn main() -> ExitCode {
    let mut text = Vec::new();
    let read = read_config(&mut text);
    // Answers are in the version of the config, where that can be told.
    let newest = VERSIONS[VERSIONS.len() - 1].to_owned();
    let version = version_of(&text).unwrap_or(newest);
    let (told, code) = match read.and_then(|()| run(text, &version)) {
        Ok(told) => (told, ExitCode::SUCCESS),
        Err(error) => (error.told(&version), ExitCode::FAILURE),
    };
    match io::stdout().write_all(told.as_bytes()) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

fn read_config(text: &mut Vec<u8>) -> Result<()> {
    let read = io::stdin().take(LONGEST + 1).read_to_end(text);
    read.map_err(|error| {
        Error::new(IO_FAILURE, format!("standard input: {error}"), "write the network config there")
    })?;
    if text.len() as u64 > LONGEST {
        let msg = format!("standard input: the network config is longer than {LONGEST} bytes");
        text.clear();
        return Err(Error::new(IO_FAILURE, msg, "write a shorter one"));
    }
    Ok(())
}

/// Carries the command out; what is told on standard output.
fn run(text: Vec<u8>, version: &str) -> Result<String> {
    let command = environment::command(&variable)?;
    if command == Command::Version {
        version_of(&text)?;
        return Ok(json!({ "cniVersion": version, "supportedVersions": VERSIONS }).to_string());
    }
    let call = Call { config: NetworkConfig::read(&text)?, text, folders: plugin_folders(&variable) };
    let attachment = || attachment(command, &variable);
    match command {
        Command::Add => {
            let made = add::run(&call, &attachment()?)?;
            return Ok(made.behind(call.config.prev_result).told(version));
        }
        Command::Del => del::run(&call, &attachment()?)?,
        Command::Check => {
            call.config.since("0.4.0", "CHECK")?;
            check::run(&call, &attachment()?)?;
        }
        Command::Gc => {
            call.config.since("1.1.0", "GC")?;
            gc::run(&call)?;
        }
        Command::Status => {
            call.config.since("1.1.0", "STATUS")?;
            status::run(&call)?;
        }
        Command::Version => {}
    }
    Ok(String::new())
}
