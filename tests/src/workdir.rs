//! A scratch folder of one test, short enough for Unix socket paths, removed when the test is done with it.
//!
//! Its name carries the process id, and leftovers of dead processes are removed on the way. It never leaves anything
//! behind but what `capture` saves of a failed test.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const STEM: &str = "vswitch-scenario-";

/// A scratch folder that lives as long as this value.
#[derive(Debug)]
pub struct Workdir {
    path: PathBuf,
}

impl Workdir {
    /// Makes a new folder; `label` only helps a reader.
    pub fn new(label: &str) -> Workdir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let path = std::env::temp_dir().join(format!("{STEM}{pid}-{number}-{label}"));
        fs::create_dir(&path).unwrap_or_else(|e| panic!("cannot make {}: {e}", path.display()));
        Workdir { path }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file into it and returns the path.
    #[track_caller]
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path.join(name);
        fs::write(&path, text).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
        path
    }

    /// Removes the folders that dead processes left behind.
    pub fn reap() {
        let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(rest) = name.to_str().and_then(|n| n.strip_prefix(STEM)) else { continue };
            if owner_is_dead(rest) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

impl Drop for Workdir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Whether a name that begins with a process id and a dash belongs to a process that is gone.
pub fn owner_is_dead(rest: &str) -> bool {
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    !digits.is_empty() && rest[digits.len()..].starts_with('-') && !Path::new("/proc").join(digits).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_dead_processes_are_reaped() {
        assert!(!owner_is_dead(&format!("{}-x", std::process::id())));
        assert!(!owner_is_dead("x-1"));
        assert!(!owner_is_dead("1"), "no dash: not one of ours");
        assert!(owner_is_dead("4194999-host"), "no process id is that high");
    }
}
