//! Admitted queue pairs beside the state file, so that a restart takes nobody's place away.
//!
//! ```text
//!   vswitch rcft 2
//!   vnic one 100        the vNIC of the lines below, and the VNI of its network
//!   10.0.0.2 0x11       peer and its queue pair
//!   end 1 90f64e2d...   entries, and a hash of all that is above
//! ```
//! Written whole, synced and renamed, on a thread of its own: control only collects the keys. A file that is damaged is
//! worth a warning, never a failed start: queue pairs then ask for their places again with their next packets.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use wire::Qpn;

use crate::state::files::{fnv, write_whole};

const HEADER: &str = "vswitch rcft 2";

/// Queue pairs of vNICs, by name and VNI (`kept.rs`).
pub type Saved = Vec<(String, Vec<(IpAddr, Qpn)>)>;

/// What is wrong with a file of queue pairs.
#[derive(Debug, thiserror::Error)]
pub enum Damaged {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// Not such a file, or of another version.
    #[error("does not begin with \"{HEADER}\"")]
    Header,
    /// Its end is missing, or says something else.
    #[error("is not whole: its last line does not match what is above")]
    End,
    #[error("line {0} is no queue pair")]
    Line(usize),
}

/// The file beside the state file.
pub fn path_beside(state: &Path) -> PathBuf {
    let mut path = state.as_os_str().to_owned();
    path.push(".rcft");
    path.into()
}

/// The queue pairs in a file; none when it does not exist.
///
/// # Errors
/// [`Damaged`].
pub fn read(path: &Path) -> Result<Saved, Damaged> {
    match std::fs::read(path) {
        Ok(bytes) => parse(&String::from_utf8(bytes).map_err(|_| Damaged::End)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Saved::new()),
        Err(error) => Err(error.into()),
    }
}

fn parse(text: &str) -> Result<Saved, Damaged> {
    let body = text.strip_prefix(HEADER).and_then(|rest| rest.strip_prefix('\n')).ok_or(Damaged::Header)?;
    let end = body.rfind("end ").filter(|at| *at == 0 || body[..*at].ends_with('\n')).ok_or(Damaged::End)?;
    let (lines, last) = body.split_at(end);
    let mut saved = Saved::new();
    let mut count = 0;
    for (number, line) in lines.lines().enumerate() {
        let wrong = || Damaged::Line(number + 2);
        if let Some(name) = line.strip_prefix("vnic ") {
            saved.push((name.to_owned(), Vec::new()));
            continue;
        }
        let (peer, qpn) = line.split_once(' ').ok_or_else(wrong)?;
        let qpn = qpn.strip_prefix("0x").and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let qpn = qpn.and_then(|qpn| Qpn::new(qpn).ok()).ok_or_else(wrong)?;
        let (_, entries) = saved.last_mut().ok_or_else(wrong)?;
        entries.push((peer.parse().map_err(|_| wrong())?, qpn));
        count += 1;
    }
    if last != last_line(count, &text[..text.len() - last.len()]) {
        return Err(Damaged::End);
    }
    Ok(saved)
}

fn last_line(count: usize, above: &str) -> String {
    format!("end {count} {:016x}\n", fnv(above.as_bytes()))
}

fn format(saved: &Saved) -> String {
    let mut text = format!("{HEADER}\n");
    let mut count = 0;
    for (name, entries) in saved {
        if entries.is_empty() {
            continue;
        }
        let _ = writeln!(text, "vnic {name}");
        for (peer, qpn) in entries {
            let _ = writeln!(text, "{peer} {:#x}", qpn.get());
        }
        count += entries.len();
    }
    let end = last_line(count, &text);
    text + &end
}

/// Writes queue pairs to a file.
///
/// # Errors
/// The system's.
pub fn write(path: &Path, saved: &Saved) -> std::io::Result<()> {
    write_whole(path, &format(saved))
}

/// Writing on a thread of its own.
#[derive(Debug)]
pub struct SavedWriter(JoinHandle<std::io::Result<()>>);

impl SavedWriter {
    /// Begins to write.
    ///
    /// # Errors
    /// No thread.
    pub fn start(path: PathBuf, saved: Saved) -> std::io::Result<Self> {
        let body = move || write(&path, &saved);
        std::thread::Builder::new().name("rcft-state".into()).spawn(body).map(Self)
    }

    /// True when the file is written, or will not be.
    pub fn is_done(&self) -> bool {
        self.0.is_finished()
    }

    /// How it went; waits for it.
    ///
    /// # Errors
    /// The system's.
    pub fn finish(self) -> std::io::Result<()> {
        self.0.join().unwrap_or_else(|_| Err(std::io::Error::other("the thread that writes it panicked")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some() -> Saved {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let one = vec![(ip("10.0.0.2"), Qpn::truncated(0x11)), (ip("fd00::2"), Qpn::truncated(0xff_ffff))];
        vec![("one 1".into(), one), ("end 2".into(), vec![(ip("10.0.0.9"), Qpn::truncated(2))])]
    }

    #[test]
    fn what_is_written_is_read() {
        for saved in [some(), Saved::new()] {
            assert_eq!(parse(&format(&saved)).unwrap(), saved);
        }
        let folder = std::env::temp_dir().join(format!("vswitch-rcft-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = path_beside(&folder.join("state"));
        assert!(path.ends_with("state.rcft"));
        assert_eq!(read(&path).unwrap(), Saved::new(), "no file, no queue pairs");
        SavedWriter::start(path.clone(), some()).unwrap().finish().unwrap();
        assert_eq!(read(&path).unwrap(), some());
        std::fs::write(&path, b"vswitch rcft 2\n\xff\n").unwrap();
        assert!(read(&path).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn every_damage_is_noticed() {
        let good = format(&some());
        for end in 0..good.len() {
            assert!(parse(&good[..end]).is_err(), "cut after {end} bytes");
        }
        for at in 0..good.len() {
            let mut bytes = good.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(parse(&String::from_utf8(bytes).unwrap()).is_err(), "byte {at}");
        }
        assert!(parse(&(good + "10.0.0.1 0x5\n")).is_err());
        for text in ["", "vswitch rcft 1\nend 0 0\n", "vswitch rcft 2\nnonsense\n"] {
            assert!(parse(text).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,80}") {
            let _ = parse(&text);
            let _ = parse(&format!("{HEADER}\n{text}"));
        }
    }
}
