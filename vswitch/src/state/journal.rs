//! The state file and the journal of what changed since it was written.
//!
//! A change appends a line to the journal and waits until the disk has it; the state file itself, which is the whole config,
//! is written on a thread of its own: soon after a start that found one, and when the journal has grown long. A change that
//! comes before there is a journal to append to, such as the first ever, writes the whole itself.
//!
//! The state file names its journal, and every state file another one: whatever moment a crash comes at, the file that is
//! there and the journal that it names tell all that was acknowledged. While a new state file is under way, changes go to both
//! journals. A last line without its end is one whose change was never acknowledged.
//!
//! What nobody waits for, because other hosts say it again ([`Later`](super::later::Later)), is appended without waiting for the disk; the
//! next change that is waited for, or the end, takes it along. A crash of the machine may leave zeros in its place: nothing from the first
//! of them on was acknowledged.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use super::change::Change;
use super::files::{remove_unfinished, unpredictable, write_whole};

/// In front of the journal's name in the state file.
const NAMED: &str = "# What changed since is in: ";
/// Bytes of the line that names it at most: those of a file name, and of a little more.
const MOST_NAMED: u64 = 4096;
/// A journal is not worth a new state file before it has so many bytes.
const LEAST: u64 = 1 << 20;
/// Between two attempts to write the whole, after a fault.
const AGAIN: Duration = Duration::from_secs(5);

/// A journal that is written.
#[derive(Debug)]
struct Journal {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Journal {
    fn create(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path)?;
        sync_folder(&path).inspect_err(|_| drop(std::fs::remove_file(&path)))?;
        Ok(Self { path, file, bytes: 0 })
    }

    fn append(&mut self, lines: &str, wait: Wait) -> io::Result<()> {
        self.file.write_all(lines.as_bytes())?;
        if wait == Wait::Disk {
            self.file.sync_data()?;
        }
        self.bytes += lines.len() as u64;
        Ok(())
    }
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Disk,
    Nothing,
}

/// A new state file under way.
#[derive(Debug)]
struct Renewal {
    journal: Journal,
    written: Receiver<io::Result<u64>>,
    /// It has changes that nothing else has.
    is_needed: bool,
}

/// Where changes are saved.
#[derive(Debug)]
pub struct Saver {
    path: PathBuf,
    /// Of the state file that is there; none before the first change, and after a fault.
    journal: Option<Journal>,
    renewal: Option<Renewal>,
    /// New state files under way that lack a change: they are waited for and not used.
    outdated: Vec<Receiver<io::Result<u64>>>,
    /// Bytes of the state file.
    whole: u64,
    /// The state file is that of an earlier run.
    is_old: bool,
    /// When it was last tried in vain.
    fault: Option<Instant>,
    /// What there is may lack changes.
    is_behind: bool,
}

impl Saver {
    /// Saves to a state file and a journal beside it. Writes nothing yet; removes what a process that was killed left half-written.
    pub fn new(path: &Path) -> Self {
        remove_unfinished(path);
        Self {
            path: path.to_owned(),
            journal: None,
            renewal: None,
            outdated: Vec::new(),
            whole: 0,
            is_old: path.is_file(),
            fault: None,
            is_behind: false,
        }
    }

    /// The state file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True while what is saved may lack changes: writing one failed, and has not been made good since.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Something is in force that could not be handed in: the whole must be written.
    pub fn fall_behind(&mut self) {
        self.is_behind = true;
        self.doubt();
    }

    /// The whole must be written before anything can be appended.
    fn doubt(&mut self) {
        self.journal = None;
        self.give_up_renewal();
        self.fault = Some(Instant::now());
    }

    /// The whole was not written anew. What there was still has all changes, unless there were some that only the new one would have had.
    fn doubt_renewal(&mut self, is_needed: bool) {
        self.is_behind |= is_needed;
        self.doubt();
    }

    /// True when a change can be appended; otherwise the whole must be written.
    pub fn can_append(&self) -> bool {
        self.journal.is_some()
    }

    /// Writes the whole config. When this returns, it is there.
    ///
    /// # Errors
    /// Why it is not; then nothing can be appended.
    pub fn write(&mut self, config: &str) -> io::Result<()> {
        self.is_old = false;
        self.journal = None;
        // One that is under way would take this one's place when it is done.
        self.finish();
        let written = self.write_anew(config);
        if written.is_err() {
            self.fall_behind();
        }
        written
    }

    fn write_anew(&mut self, config: &str) -> io::Result<()> {
        let journal = self.new_journal()?;
        let written = write_state(&self.path, &journal.path, config);
        if written.is_err() {
            discard_unnamed(&self.path, &journal.path);
        }
        self.whole = written?;
        self.adopt(journal);
        Ok(())
    }

    /// Appends a change, with one before it that nobody waited for. When this returns, both are there.
    ///
    /// # Errors
    /// Why they are not; then the whole must be written.
    pub fn append(&mut self, before: Option<&Change>, change: &Change) -> io::Result<()> {
        let lines = before.map(Change::line).unwrap_or_default() + &change.line();
        self.put(&lines, Wait::Disk)
    }

    /// Appends a change that nobody waits for: the disk has it soon.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn append_unsynced(&mut self, change: &Change) -> io::Result<()> {
        self.put(&change.line(), Wait::Nothing)
    }

    fn put(&mut self, lines: &str, wait: Wait) -> io::Result<()> {
        let Some(journal) = &mut self.journal else {
            return Err(io::Error::other("there is no state file to append to"));
        };
        let mut result = journal.append(lines, wait);
        if let Some(renewal) = &mut self.renewal {
            // Before the answer: whichever of the two is named after a crash has it.
            result = result.and(renewal.journal.append(lines, wait));
        }
        if result.is_err() {
            self.fall_behind();
        }
        result
    }

    /// What is under way lacks a change, or will. It may still become the state file, which then names its journal: nothing is appended to the
    /// other one alone.
    fn give_up_renewal(&mut self) {
        if let Some(renewal) = self.renewal.take() {
            self.journal = None;
            self.outdated.push(renewal.written);
        }
    }

    /// True when the whole should be written on a thread: after a start that found a state file, so that the first change need
    /// not wait for it, when the journal has become longer than what it spares, and every few seconds after a fault.
    pub fn is_due(&self, now: Instant) -> bool {
        let journal = self.journal.as_ref().map_or(0, |journal| journal.bytes);
        let again = self.fault.is_some_and(|at| now.saturating_duration_since(at) >= AGAIN);
        self.is_old || self.renewal.is_none() && (again || journal > LEAST.max(self.whole))
    }

    /// True while a new state file is under way.
    pub fn is_renewing(&self) -> bool {
        self.renewal.is_some()
    }

    /// Waits for what is under way: nothing writes any more after it. Where something was, the next change writes the whole.
    pub fn finish(&mut self) {
        self.give_up_renewal();
        self.outdated.drain(..).for_each(|written| drop(written.recv()));
    }

    /// Begins to write the whole anew, on a thread of its own; `text` makes what is written, and is needed where it has changes that were not
    /// appended.
    ///
    /// # Errors
    /// Why it cannot; then the next change writes the whole, and whoever makes it hears of a fault that lasts. It is due again after a
    /// while.
    pub fn renew(
        &mut self,
        is_needed: bool,
        text: impl FnOnce() -> io::Result<String> + Send + 'static,
    ) -> io::Result<()> {
        self.is_old = false;
        let begun = self.begin(is_needed, text);
        if begun.is_err() {
            self.doubt_renewal(is_needed);
        }
        begun
    }

    fn begin(
        &mut self,
        is_needed: bool,
        text: impl FnOnce() -> io::Result<String> + Send + 'static,
    ) -> io::Result<()> {
        let journal = self.new_journal()?;
        let (tell, written) = sync_channel(1);
        let (hand, outdated) = sync_channel::<Vec<Receiver<io::Result<u64>>>>(1);
        let begun = Begun { state: self.path.clone(), journal: journal.path.clone() };
        let work = move || {
            // One that is outdated would take this one's place when it is done.
            outdated.recv().into_iter().flatten().for_each(|written| drop(written.recv()));
            let result = text().and_then(|text| write_state(&begun.state, &begun.journal, &text));
            drop(begun);
            // Nobody waits when the process ends.
            let _ = tell.send(result);
        };
        std::thread::Builder::new().name("state".into()).spawn(work)?;
        let _ = hand.send(std::mem::take(&mut self.outdated));
        self.renewal = Some(Renewal { journal, written, is_needed });
        Ok(())
    }

    /// Takes in that a new state file was written.
    ///
    /// # Errors
    /// Why it was not, or may not have been: which of the two files is there is not known, and the next change writes the
    /// whole. Until then both have all changes.
    pub fn tend(&mut self) -> io::Result<()> {
        let Some(renewal) = &self.renewal else { return Ok(()) };
        let result = match renewal.written.try_recv() {
            Err(TryRecvError::Empty) => return Ok(()),
            Err(TryRecvError::Disconnected) => Err(io::Error::other("the thread that writes it ended early")),
            Ok(result) => result,
        };
        let Some(renewal) = self.renewal.take() else { return Ok(()) };
        match result {
            Ok(bytes) => self.whole = bytes,
            Err(error) => {
                self.doubt_renewal(renewal.is_needed);
                return Err(error);
            }
        }
        self.adopt(renewal.journal);
        Ok(())
    }

    fn new_journal(&self) -> io::Result<Journal> {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".journal-{:016x}", unpredictable()));
        Journal::create(name.into())
    }

    /// Goes on with the journal that the state file names now; others beside it are of no use any more.
    fn adopt(&mut self, journal: Journal) {
        for other in journals(&self.path).into_iter().filter(|path| *path != journal.path) {
            let _ = std::fs::remove_file(other);
        }
        (self.journal, self.fault, self.is_behind) = (Some(journal), None, false);
    }
}

/// A journal that was made for a new state file: it goes with what came to nothing, whatever that was.
struct Begun {
    state: PathBuf,
    journal: PathBuf,
}

impl Drop for Begun {
    fn drop(&mut self) {
        discard_unnamed(&self.state, &self.journal);
    }
}

/// Removes a journal that the state file does not name. It may do so after a fault, too: one that came when the file was in its place.
fn discard_unnamed(state: &Path, journal: &Path) {
    let named = || -> io::Result<bool> {
        let mut line = String::new();
        BufReader::new(File::open(state)?.take(MOST_NAMED)).read_line(&mut line)?;
        Ok(named_in(&line) == Some(&*name_of(journal)))
    };
    let is_of_use = match named() {
        Ok(is_named) => is_named,
        Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::IsADirectory),
    };
    if !is_of_use {
        let _ = std::fs::remove_file(journal);
    }
}

fn name_of(journal: &Path) -> Cow<'_, str> {
    journal.file_name().unwrap_or_default().to_string_lossy()
}

/// Writes a state file that names its journal. How many bytes it has.
fn write_state(path: &Path, journal: &Path, config: &str) -> io::Result<u64> {
    let text = format!("{NAMED}{}\n{config}", name_of(journal));
    write_whole(path, &text)?;
    Ok(text.len() as u64)
}

/// The journals beside a state file.
fn journals(state: &Path) -> Vec<PathBuf> {
    let folder = state.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let prefix = format!("{}.journal-", state.file_name().unwrap_or_default().to_string_lossy());
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    ours.map(|entry| folder.join(entry.file_name())).collect()
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// The name of the journal that a state file names, if it names one.
pub fn named_in(state: &str) -> Option<&str> {
    state.lines().next().and_then(|line| line.strip_prefix(NAMED))
}

/// The journal that a state file names and that is not there.
pub fn missing(path: &Path, state: &str) -> Option<PathBuf> {
    named_in(state).map(|name| path.with_file_name(name)).filter(|journal| !journal.exists())
}

/// The changes since a state file was written, oldest first; none when it names no journal, or one that is not there.
///
/// # Errors
/// A journal that cannot be read, or has a line that is no change.
pub fn changes(path: &Path, state: &str) -> io::Result<Vec<Change>> {
    let Some(name) = named_in(state) else {
        return Ok(Vec::new());
    };
    let journal = path.with_file_name(name);
    if Path::new(name).components().count() != 1 {
        return Err(io::Error::other(format!("{name:?} is not the name of a journal beside it")));
    }
    let bytes = match std::fs::read(&journal) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    // The end may be in the middle of a character: it is text up to there alone.
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let end = bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or_default();
    let whole = std::str::from_utf8(&bytes[..end])
        .map_err(|error| io::Error::other(format!("{}: {error}", journal.display())))?;
    let read = |(at, line): (usize, &str)| {
        Change::read(line)
            .map_err(|error| io::Error::other(format!("{}:{}: {error}", journal.display(), at + 1)))
    };
    whole.lines().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests;
