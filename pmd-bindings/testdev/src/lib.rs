//! DPDK drivers of our own, in C, that are loaded as plugins: building them, and the words that make devices of them.
//!
//! ```text
//!   csrc/vdev.h       what they have in common
//!   csrc/net_eswitch* ports of a NIC with an embedded switch, as far as rules go: ESWITCH
//!   perf/plugin       frames made and swallowed, for measuring: net_template, built by `perf`
//! ```
//! Sources are part of whoever is linked with this, so that they need no checkout. The headers for drivers, which Debian
//! does not package, are fetched by the script `build` from its source package. Nothing here is ever part of the switch.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A driver.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    /// Its name, as DPDK knows it.
    pub name: &'static str,
    /// Its source files: name and text of each.
    pub sources: &'static [(&'static str, &'static str)],
}

/// What drivers have in common; a source file of each.
pub const VDEV_H: (&str, &str) = ("vdev.h", include_str!("../csrc/vdev.h"));

/// Ports of an e-switch that takes rules; what it can be told is at the top of `csrc/net_eswitch.c`.
pub const ESWITCH: Driver = Driver {
    name: "net_eswitch",
    sources: &[
        VDEV_H,
        ("net_eswitch.h", include_str!("../csrc/net_eswitch.h")),
        ("net_eswitch.c", include_str!("../csrc/net_eswitch.c")),
        ("net_eswitch_flows.c", include_str!("../csrc/net_eswitch_flows.c")),
        ("net_eswitch_hash.c", include_str!("../csrc/net_eswitch_hash.c")),
        ("net_eswitch_meters.c", include_str!("../csrc/net_eswitch_meters.c")),
        ("net_eswitch_packets.c", include_str!("../csrc/net_eswitch_packets.c")),
        ("net_eswitch_queues.c", include_str!("../csrc/net_eswitch_queues.c")),
        ("net_eswitch_rules.c", include_str!("../csrc/net_eswitch_rules.c")),
        ("net_eswitch_tso.c", include_str!("../csrc/net_eswitch_tso.c")),
    ],
};

const SCRIPT: &str = include_str!("../build");

/// Why a driver was not built: what failed, and the last words of whoever refused.
#[derive(Debug)]
pub struct BuildError {
    driver: &'static str,
    words: String,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the driver {} cannot be built here: {}", self.driver, self.words)
    }
}

impl std::error::Error for BuildError {}

impl Driver {
    /// Builds the driver, if that was not done before, and returns where its shared object is. `folder` is for its
    /// sources.
    ///
    /// # Errors
    /// [`BuildError`]: no headers (no network at the first time), no compiler, no room.
    pub fn build(&self, folder: &Path) -> Result<PathBuf, BuildError> {
        let error = |words: String| BuildError { driver: self.name, words };
        let sources = folder.join(self.name);
        std::fs::create_dir_all(&sources).map_err(|no| error(format!("{}: {no}", sources.display())))?;
        let script = folder.join("build");
        let files = self.sources.iter().map(|(name, text)| (sources.join(name), *text));
        for (path, text) in files.chain([(script.clone(), SCRIPT)]) {
            std::fs::write(&path, text).map_err(|no| error(format!("{}: {no}", path.display())))?;
        }
        let output = Command::new("bash")
            .args([&script, &sources])
            .output()
            .map_err(|no| error(format!("bash does not start: {no}")))?;
        if !output.status.success() {
            return Err(error(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
    }
}
