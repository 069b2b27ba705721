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
