//! What the check reads: files below a root, and what tools of the system answer. Both can be put in its place by a test.
//!
//! Nothing here is trusted: a file may be missing, a folder, endless or no text, and a tool may hang.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The most bytes of a file or an answer that are looked at.
const MOST: u64 = 256 << 10;
/// The same of files that are looked through for a word.
const MOST_LONG: u64 = 64 << 20;
/// How long a tool has to answer: devlink asks the firmware.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a file says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// There is no such file.
    #[error("the kernel does not say")]
    Absent,
    /// This user may not read it.
    #[error("no right to read {0}: run this as root")]
    Denied(PathBuf),
    /// It cannot be read.
    #[error("{0} cannot be read: {1}")]
    Failed(PathBuf, String),
    /// It is not what it should be.
    #[error("{0} holds {1:?}, which is not understood")]
    Garbage(PathBuf, String),
}

/// Why a tool gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// It is not installed.
    #[error("{0} is not installed")]
    Missing(String),
    /// This user may not ask.
    #[error("no right to ask {0}: run this as root")]
    Denied(String),
    /// It refused, in its words.
    #[error("{0}: {1}")]
    Refused(String, String),
    /// It did not answer in time.
    #[error("{0} has not answered within {seconds} s; the kernel log (dmesg) may say why", seconds = PATIENCE.as_secs())]
    Slow(String),
}

/// Tools of the system.
pub trait Tools {
    /// What `tool` says on standard output when it is run with these arguments.
    ///
    /// # Errors
    /// When it is not there, refuses or hangs.
    fn run(&self, tool: &str, args: &[&str]) -> Result<String, Unanswered>;
}

/// The tools that are installed.
pub struct Installed;

impl Tools for Installed {
    fn run(&self, tool: &str, args: &[&str]) -> Result<String, Unanswered> {
        let refused = |error: io::Error| Unanswered::Refused(tool.into(), error.to_string());
        let spawned = Command::new(tool)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Unanswered::Missing(tool.into()));
            }
            Err(error) => return Err(refused(error)),
        };
        let words = child.stdout.take().map(read_aside).transpose().map_err(refused)?;
        let complaints = child.stderr.take().map(read_aside).transpose().map_err(refused)?;
        let both = [words, complaints].map(|text| text.and_then(|text| text.recv_timeout(PATIENCE).ok()));
        let [Some(words), Some(complaints)] = both else {
            // It may have ended meanwhile, and then there is nothing to end.
            let _ = child.kill();
            let _ = child.wait();
            return Err(Unanswered::Slow(tool.into()));
        };
        if child.wait().map_err(refused)?.success() {
            return Ok(words);
        }
        let said = complaints.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>();
        if complaints.contains("Operation not permitted") || complaints.contains("Permission denied") {
            return Err(Unanswered::Denied(tool.into()));
        }
        let said = if said.is_empty() { "it failed without a word".into() } else { said.join("; ") };
        Err(Unanswered::Refused(tool.into(), said))
    }
}

/// Reads on a thread of its own, so that a tool that hangs holds up nobody.
fn read_aside(mut from: impl Read + Send + 'static) -> io::Result<mpsc::Receiver<String>> {
    let (read, text) = mpsc::channel();
    std::thread::Builder::new().name("tool".into()).spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is an answer, too; the rest goes where a tool can write it without waiting.
        let _ = from.by_ref().take(MOST).read_to_end(&mut bytes);
        let _ = io::copy(&mut from, &mut io::sink());
        // Nobody waits any more when it took too long.
        let _ = read.send(String::from_utf8_lossy(&bytes).into_owned());
    })?;
    Ok(text)
}

/// A host to look at.
pub struct HostView {
    /// Where its file system begins: `/`, or a made-up tree.
    pub root: PathBuf,
    /// Its tools.
    pub tools: Box<dyn Tools>,
}

impl HostView {
    /// The host that this process runs on.
    pub fn here() -> Self {
        Self { root: PathBuf::from("/"), tools: Box::new(Installed) }
    }

    /// What a file says, without blanks around it.
    ///
    /// # Errors
    /// When it is not there, cannot be read, or is no text.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<String, Unread> {
        let path = path.as_ref();
        let mut bytes = Vec::new();
        let whole = self.root.join(path);
        let read = File::open(whole).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
        read.map_err(|error| unread(path, &error))?;
        match String::from_utf8(bytes) {
            Ok(text) if !text.trim().chars().any(|c| c.is_control() && c != '\n') => Ok(text.trim().into()),
            Ok(text) => Err(garbage(path, &text)),
            Err(error) => Err(garbage(path, &String::from_utf8_lossy(error.as_bytes()))),
        }
    }

    /// The number in a file.
    ///
    /// # Errors
    /// As of [`HostView::read`], and when it is no number that fits.
    pub fn number<T: std::str::FromStr>(&self, path: impl AsRef<Path>) -> Result<T, Unread> {
        let text = self.read(&path)?;
        text.parse().map_err(|_| garbage(path.as_ref(), &text))
    }

    /// The last part of where a link leads; `None` where there is no link.
    pub fn link(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.root.join(path)).ok()?;
        target.file_name().map(|name| name.to_string_lossy().into_owned())
    }

    /// What is in a folder, in order; nothing where there is none.
    pub fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// True where a line of a file that may be long has one of these words.
    pub fn mentions(&self, path: impl AsRef<Path>, words: &[&str]) -> bool {
        let Ok(file) = File::open(self.root.join(path)) else { return false };
        let lines = BufReader::new(file.take(MOST_LONG)).lines().map_while(Result::ok);
        lines.into_iter().any(|line| words.iter().any(|word| line.contains(word)))
    }

    /// True where something is there.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.root.join(path).exists()
    }
}

fn unread(path: &Path, error: &io::Error) -> Unread {
    let path = Path::new("/").join(path);
    match error.kind() {
        ErrorKind::NotFound => Unread::Absent,
        ErrorKind::PermissionDenied => Unread::Denied(path),
        // So the kernel answers for what this device does not have.
        ErrorKind::Unsupported => Unread::Absent,
        _ => Unread::Failed(path, error.to_string()),
    }
}

fn garbage(path: &Path, text: &str) -> Unread {
    Unread::Garbage(Path::new("/").join(path), text.chars().take(40).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_do() {
        let denied = unread(Path::new("sys/x"), &ErrorKind::PermissionDenied.into());
        assert_eq!(denied.to_string(), "no right to read /sys/x: run this as root");
        assert_eq!(unread(Path::new("sys/x"), &ErrorKind::NotFound.into()), Unread::Absent);
    }

    #[test]
    fn tools_that_are_missing_or_refuse_are_told_apart() {
        assert_eq!(
            Installed.run("no-such-tool-here", &[]),
            Err(Unanswered::Missing("no-such-tool-here".into()))
        );
        assert_eq!(Installed.run("echo", &["a", "b"]).unwrap(), "a b\n");
        let error = Installed.run("sh", &["-c", "echo no way >&2; exit 3"]).unwrap_err();
        assert_eq!(error, Unanswered::Refused("sh".into(), "no way".into()));
        let error = Installed.run("sh", &["-c", "echo Operation not permitted >&2; exit 1"]).unwrap_err();
        assert_eq!(error, Unanswered::Denied("sh".into()));
        // More than is looked at does not make a tool wait for ever.
        assert_eq!(Installed.run("sh", &["-c", "head -c 1000000 /dev/zero"]).unwrap().len() as u64, MOST);
    }
}
