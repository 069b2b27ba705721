//! 2 MiB huge pages, borrowed from the kernel for a run and given back at its end.
//!
//! Every switch measured gets its memory from them, so that none wins by its page size.

use std::path::{Path, PathBuf};

use super::scratch;
use crate::{Error, Result};

const COUNT: &str = "/proc/sys/vm/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Pages added for this run; dropping it gives them back.
#[derive(Debug)]
pub struct HugePages {
    added: u64,
    note: PathBuf,
}

impl HugePages {
    /// Sees to it that `mebibytes` of huge pages are free.
    pub fn reserve(mebibytes: u64, scratch: &scratch::Scratch) -> Result<Self> {
        let wanted = mebibytes.div_ceil(2);
        let mut pages = Self { added: 0, note: scratch.path().join(scratch::HUGEPAGE_NOTE) };
        let free = number(FREE)?;
        if free >= wanted {
            return Ok(pages);
        }
        let before = number(COUNT)?;
        let boot = std::fs::read_to_string(BOOT).unwrap_or_default();
        std::fs::write(&pages.note, format!("{} {boot}", wanted - free))
            .map_err(Error::io("note the huge pages"))?;
        std::fs::write(COUNT, (before + wanted - free).to_string()).map_err(Error::io(format!(
            "write {COUNT} (reserving huge pages needs root and a writable /proc/sys)"
        )))?;
        pages.added = number(COUNT)?.saturating_sub(before);
        let got = number(FREE)?;
        if got < wanted {
            return Err(Error::Failed(format!(
                "{wanted} huge pages of 2 MiB are needed and only {got} could be reserved; free memory, or reserve them at boot \
                 with hugepages={wanted} on the kernel command line, and run as root"
            )));
        }
        Ok(pages)
    }
}

/// The same where ordinary pages will do: says so when they have to.
pub fn reserve_or_say(mebibytes: u64, scratch: &scratch::Scratch) -> Option<HugePages> {
    match HugePages::reserve(mebibytes, scratch) {
        Ok(pages) => Some(pages),
        Err(error) => {
            eprintln!("going on with ordinary pages: {error}");
            None
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        give_back(self.added);
        let _ = std::fs::remove_file(&self.note);
    }
}

/// Puts large tables of this process on huge pages where the system gives some, as the daemon does. Without them figures
/// are worse, and true for such a machine.
pub fn advise(start: usize, len: usize) {
    let _ = pmd::hugepage::advise_range(start, len);
}

/// Gives back what a dead run of this boot noted.
pub(crate) fn give_back_noted(note: &Path) {
    let Ok(text) = std::fs::read_to_string(note) else { return };
    let Some((pages, boot)) = text.split_once(' ') else { return };
    if std::fs::read_to_string(BOOT).unwrap_or_default() == boot
        && let Ok(pages) = pages.parse()
    {
        give_back(pages);
    }
}

fn give_back(pages: u64) {
    if pages == 0 {
        return;
    }
    // Relative to the present count: somebody else may have reserved pages meanwhile.
    let result = number(COUNT).and_then(|now| {
        std::fs::write(COUNT, now.saturating_sub(pages).to_string()).map_err(Error::io(COUNT))
    });
    if let Err(error) = result {
        eprintln!("cannot give back {pages} huge pages: {error}");
    }
}

fn number(path: &str) -> Result<u64> {
    let text = std::fs::read_to_string(path).map_err(Error::io(format!("read {path}")))?;
    text.trim().parse().map_err(|_| {
        let remedy = "2 MiB huge pages are needed: use a kernel that has them";
        Error::missing(format!("{path} holds no number"), remedy)
    })
}
