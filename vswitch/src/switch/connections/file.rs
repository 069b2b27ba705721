//! The connections of vNICs under rules, in a file beside the control socket: they outlive the process, however it ends.
//!
//! A page of header, then a row of 64 bytes for each place of the table, 64 rows a page. Control looks at the whole table once a second, at a
//! small one in every turn, and writes the pages that have changed. Nothing is synced to a disk: the file has to outlive the
//! process, not the machine, and one of an earlier boot is not read. Each row has a check of its own, so that what a dying process
//! left half written is left out, and nothing else. vNICs are told by a hash of their names and networks, for their numbers are
//! each process's own, and in another network their connections are none.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pipelines::connections::{ConnectionKeeper, ConnectionKey, ConnectionState};

use crate::state::files::{fnv, new_beside, remove_unfinished};

const MAGIC: &str = "vswitch connections 2";
const PAGE: usize = 4096;
/// Words of a row: five of the key, ports with the state, the vNIC, the check.
const WORDS: usize = 8;
const ROW: usize = WORDS * size_of::<u64>();
const ROWS: usize = PAGE / ROW;

/// A connection of the process before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptConnection {
    /// [`vnic_hash`] of its vNIC.
    pub vnic: u64,
    /// Its key, with no vNIC in it.
    pub key: ConnectionKey,
    /// How far it was.
    pub state: ConnectionState,
}

/// The [`vnic_hash`] of a vNIC, by its number; `None` when there is none.
pub type Names<'a> = &'a dyn Fn(u32) -> Option<u64>;

/// What stands in the file for a vNIC, which is told by its name and the VNI of its network (`kept.rs`).
pub fn vnic_hash(name: &str) -> u64 {
    fnv(name.as_bytes())
}

/// The file for a control socket.
pub fn path_beside(control: &Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(".connections");
    path.into()
}

impl KeptConnection {
    fn row(&self) -> [u8; ROW] {
        let [a, b, c, d, proto, ports] = *self.key.words();
        let state = u64::from(self.state.bits());
        let words = [a, b, c, d, proto, ports << 32 | state, self.vnic];
        let mut row = [0; ROW];
        for (place, word) in row.chunks_exact_mut(8).zip(words.into_iter().chain([check(&words)])) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        row
    }

    /// `None` for a place where there is nothing, and for a row that is not whole.
    fn from_row(row: &[u8; ROW]) -> Option<Self> {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(row.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let [a, b, c, d, proto, both, vnic, sum] = words;
        let is_whole = check(&[a, b, c, d, proto, both, vnic]) == sum;
        let key = ConnectionKey::from_words([a, b, c, d, proto, both >> 32]).renewed();
        let state = ConnectionState::from_bits(both as u32);
        (is_whole && !state.is_over()).then_some(Self { vnic, key, state })
    }
}

/// Finds accidents, which is all that is asked of it. Zeros do not pass for a row.
fn check(words: &[u64]) -> u64 {
    mixed(0x6a09_e667_f3bc_c908, words.iter().copied())
}

fn mixed(begin: u64, words: impl Iterator<Item = u64>) -> u64 {
    words.fold(begin, |sum, word| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
}

/// The header of this boot's files.
fn header() -> io::Result<[u8; PAGE]> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let text = format!("{MAGIC}\n{}\n", boot.trim());
    let mut page = [0; PAGE];
    page.iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte);
    Ok(page)
}

/// The connections in a file; none when there is no file, or one of another version or an earlier boot.
///
/// # Errors
/// The system's; also for a file that is another user's, or no regular one.
pub fn read(path: &Path) -> io::Result<Vec<KeptConnection>> {
    let opened =
        OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let about = file.metadata()?;
    if !about.is_file() || about.uid() != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::other("it is not a regular file of this user"));
    }
    let mut file = BufReader::new(file);
    let mut first = [0; PAGE];
    let mut kept = Vec::new();
    if file.read_exact(&mut first).is_err() || first != header()? {
        return Ok(kept);
    }
    let mut row = [0; ROW];
    while file.read_exact(&mut row).is_ok() {
        kept.extend(KeptConnection::from_row(&row));
    }
    Ok(kept)
}

/// The file of this process.
pub struct ConnectionFile {
    file: File,
    path: PathBuf,
    /// The [`print`] of each page as it was written last.
    pages: Vec<u64>,
    /// The page to look at next.
    next: usize,
    /// It was said that it cannot be written.
    failed: bool,
}

/// What tells a page's content from another, from the checks of its rows.
fn print(page: &[u8; PAGE]) -> u64 {
    let checks = page.as_chunks::<ROW>().0.iter().filter_map(|row| row.last_chunk());
    mixed(0, checks.map(|check| u64::from_ne_bytes(*check)))
}

impl ConnectionFile {
    /// A file with all connections that there are, in place of what another process has left.
    ///
    /// # Errors
    /// The system's; what was there is there still.
    pub fn create(path: &Path, keeper: &ConnectionKeeper, names: Names<'_>) -> io::Result<Self> {
        remove_unfinished(path);
        let (file, temporary) = new_beside(path)?;
        let mut new = Self { file, path: path.to_owned(), pages: Vec::new(), next: 0, failed: false };
        let result = header()
            .and_then(|header| new.file.write_all_at(&header, 0))
            .and_then(|()| new.write_all(keeper, names))
            .and_then(|()| fs::rename(&temporary, path));
        if result.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        result.map(|()| new)
    }

    /// Looks at so many places of the table, rounded up to pages, and writes what has changed.
    pub fn turn(&mut self, budget: u32, keeper: &ConnectionKeeper, names: Names<'_>) {
        let result = self.write(budget.div_ceil(ROWS as u32), keeper, names);
        if let (Err(error), false) = (&result, self.failed) {
            let path = self.path.display();
            tracing::warn!(
                "connections cannot be saved to {path}: {error}; a restart would end some of them"
            );
        }
        self.failed = result.is_err();
    }

    /// Writes everything that has changed.
    ///
    /// # Errors
    /// The system's.
    pub fn write_all(&mut self, keeper: &ConnectionKeeper, names: Names<'_>) -> io::Result<()> {
        self.next = 0;
        self.write(u32::MAX, keeper, names)
    }

    /// Where it is.
    pub fn into_path(self) -> PathBuf {
        self.path
    }

    /// Removes the file if there is no connection in it; the switch ends.
    pub fn remove_if_empty(&self) {
        let empty = print(&[0; PAGE]);
        if self.pages.iter().all(|page| *page == empty) {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Goes through so many pages, to the end of the table at most.
    fn write(&mut self, pages: u32, keeper: &ConnectionKeeper, names: Names<'_>) -> io::Result<()> {
        let mut name = (u32::MAX, None);
        for _ in 0..pages {
            let first = (self.next * ROWS) as u32;
            let mut page = [0; PAGE];
            let more = keeper.visit(first, ROWS as u32, |slot, key, state| {
                let vnic = key.vnic();
                if name.0 != vnic {
                    name = (vnic, names(vnic));
                }
                let (rows, _) = page.as_chunks_mut::<ROW>();
                let row = rows.get_mut((slot - first) as usize).filter(|_| !state.is_over());
                if let (Some(row), Some(vnic)) = (row, name.1) {
                    *row = KeptConnection { vnic, key: key.of_vnic(0), state }.row();
                }
            });
            let print = print(&page);
            if self.pages.len() <= self.next {
                self.pages.resize(self.next + 1, self::print(&[0; PAGE]));
            }
            if let Some(known) = self.pages.get_mut(self.next).filter(|known| **known != print) {
                self.file.write_all_at(&page, (PAGE * (1 + self.next)) as u64)?;
                *known = print;
            }
            self.next = if more { self.next + 1 } else { 0 };
            if !more {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
