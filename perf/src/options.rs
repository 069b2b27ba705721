//! What commands have in common on the command line: who is measured, on which core, and where the result goes.
//!
//! Each command is one struct that clap fills and the command runs on; ranges are checked while words are parsed.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::Result;
use crate::compare::cases::{Case, FlowCount, Job, Mix, Traffic};
use crate::compare::frames::INNER_BYTES;

/// Of every command that runs the switch.
#[derive(Debug, Clone, Default, Args)]
pub struct Common {
    /// The daemon [default: `vswitch` beside this program].
    #[arg(long)]
    pub vswitch: Option<PathBuf>,
    /// Write everything as JSON to this file.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Keep the private folder (configs, logs, frames) and say where it is.
    #[arg(long)]
    pub keep: bool,
}

impl Common {
    /// The daemon that was named, or the one beside this program.
    pub fn vswitch(&self) -> anyhow::Result<PathBuf> {
        self.vswitch.clone().map_or_else(sibling, Ok)
    }

    /// Writes a report where that is wanted.
    pub fn write(&self, report: &impl Serialize) -> anyhow::Result<()> {
        self.json.as_ref().map_or(Ok(()), |path| write_json(path, report))
    }
}

/// Of commands that measure on one core.
#[derive(Debug, Clone, Default, Args)]
pub struct OneCore {
    /// The core that forwards [default: the last one].
    #[arg(long)]
    pub core: Option<usize>,
}

/// What the switches of a comparison carry.
#[derive(Debug, Clone, Args)]
pub struct Carried {
    /// Length of the inner Ethernet frame, with its 4-byte frame check sequence (so 64 means 60 bytes in memory).
    #[arg(long, default_value_t = 64, value_parser = within::<usize>(*INNER_BYTES.start(), *INNER_BYTES.end()))]
    inner_bytes: usize,
    /// What the inner frames carry.
    #[arg(long, value_enum, default_value = "tcp")]
    traffic: Traffic,
    /// Give this switch rates for the link, the VPC, the vNIC and its classes, so high that each packet pays and none
    /// waits.
    #[arg(long)]
    pub qos: bool,
    /// Bytes that VPC, vNIC and classes may save up, instead of what comes with such rates, which is much. 131072 is what
    /// rates of up to 1 Gbit/s have by themselves: packets draw from the shared buckets as often as under the rates of tenants.
    #[arg(long, requires = "qos", value_parser = clap::value_parser!(u32).range(32_768..))]
    pub burst: Option<u32>,
    /// Put vNICs into security groups, with a thousand groups of ten rules. Compare with `--peers no-groups`, and `--traffic udp`:
    /// the frames of tcp have no handshake, without which the switch takes none for a connection.
    #[arg(long)]
    pub groups: bool,
    /// Give this switch so many taps beside, on the same worker, on which nothing comes. Compare with `--peers no-idle`, in a network
    /// namespace: the taps are interfaces of the machine.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=2000))]
    pub idle_ports: u16,
}

impl Carried {
    /// A job for each case, with its tenants, and number of flows.
    pub fn jobs(
        &self,
        works: impl IntoIterator<Item = (Case, Option<u32>)>,
        flows: &[FlowCount],
        mix: Mix,
    ) -> Vec<Job> {
        let Self { inner_bytes, traffic, qos, burst, groups, idle_ports } = *self;
        let job = |(case, tenants), flows: &FlowCount| Job {
            case,
            tenants,
            flows: flows.clone(),
            inner_bytes: if mix.imix { *INNER_BYTES.end() } else { inner_bytes },
            traffic,
            mix,
            qos,
            burst: burst.unwrap_or(0),
            groups,
            idle_ports,
        };
        works.into_iter().flat_map(|work| flows.iter().map(move |flows| job(work, flows))).collect()
    }
}

/// Of commands with a plot over time.
#[derive(Debug, Clone, Default, Args)]
pub struct Plot {
    /// Draw it over time, into this file name with .svg and .png.
    #[arg(long)]
    plot: Option<PathBuf>,
}

impl Plot {
    /// Draws where that is wanted.
    pub fn draw(&self, draw: impl FnOnce(&Path) -> Result<()>) -> anyhow::Result<()> {
        if let Some(stem) = &self.plot {
            draw(stem)?;
            println!("drawn: {} and .png", stem.with_extension("svg").display());
        }
        Ok(())
    }
}

/// Of commands with a page.
#[derive(Debug, Clone, Default, Args)]
pub struct Page {
    /// Write a page with tables and plots to this file; it needs nothing else.
    #[arg(long)]
    html: Option<PathBuf>,
}

impl Page {
    /// Writes the page where that is wanted.
    pub fn write(&self, page: impl FnOnce() -> Result<String>) -> anyhow::Result<()> {
        if let Some(path) = &self.html {
            std::fs::write(path, page()?).with_context(|| format!("write {}", path.display()))?;
            println!("page: {}", path.display());
        }
        Ok(())
    }
}

/// Reads a number from `first` to `last`.
pub fn within<T>(first: T, last: T) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |word| match word.parse() {
        Ok(value) if value >= first && value <= last => Ok(value),
        _ => Err(format!("{word} is not in {first} to {last}")),
    }
}

/// The word of a choice on the command line, which is its word in reports, too.
pub fn word(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Writes a value as JSON.
pub fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    std::fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))
}

/// `vswitch` in the folder of this program.
pub fn sibling() -> anyhow::Result<PathBuf> {
    let here = std::env::current_exe().context("find this program")?;
    let path = here.with_file_name("vswitch");
    anyhow::ensure!(
        path.is_file(),
        "there is no {}; build it (cargo build --release -p vswitch), name it with --vswitch, or measure --peers-alone",
        path.display()
    );
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn numbers_out_of_range_are_refused_with_the_range() {
        assert_eq!(within(1, 9)("9"), Ok(9));
        for word in ["0", "10", "x", "", "-1"] {
            assert_eq!(within(1, 9)(word), Err(format!("{word} is not in 1 to 9")));
        }
        assert!(within(0.1, 60.0)("nan").is_err());
    }
}
