//! The plugin driver `net_template`: building it, and the words that make a device of it.
//!
//! Its C is part of this program; DPDK's headers for drivers are fetched by the script that builds it.

use std::path::{Path, PathBuf};

use crate::host::{HostError, io, process};

const SOURCE: &str = include_str!("../../plugin/net_template.c");
const SCRIPT: &str = include_str!("../../plugin/build");

/// Builds the driver, if that was not done before, and returns where it is. `folder` is for its source.
pub fn build(folder: &Path) -> Result<PathBuf, HostError> {
    let source = folder.join("net_template.c");
    let script = folder.join("build");
    for (path, text) in [(&source, SOURCE), (&script, SCRIPT)] {
        std::fs::write(path, text).map_err(io(format!("write {}", path.display())))?;
    }
    let words = [script.display().to_string(), source.display().to_string()];
    let output = process::run("bash", &[&words[0], &words[1]], &[])?;
    Ok(PathBuf::from(output.trim()))
}

/// A device of the driver.
#[derive(Debug, Clone)]
pub struct Device {
    /// What it makes; nothing if not given.
    pub frames: Option<PathBuf>,
    /// Where it counts.
    pub board: PathBuf,
}

/// One in so many packets is kept as a sample. A prime, so that no burst size or flow count is in step with it.
const SAMPLE: u32 = 4099;

impl Device {
    /// Its name, with a number that no other one has, and arguments.
    pub fn text(&self, number: usize) -> String {
        let frames = self.frames.as_ref().map(|path| format!("frames={},", path.display()));
        let (frames, board) = (frames.unwrap_or_default(), self.board.display());
        format!("net_template{number},{frames}board={board},sample={SAMPLE}")
    }
}
