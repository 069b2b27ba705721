//! Finds the release binaries that scenarios run, and refuses a missing or stale one.
//!
//! Cargo leaves a list of every source file beside a binary (`vswitch.d`); a source newer than the binary means that the
//! test would judge code that is no longer there. It never builds anything: `scripts/test` does, before the tests.

use std::fs;
use std::path::{Path, PathBuf};

/// The path of a release binary, checked to be as new as its sources.
///
/// Fails the test, naming the remedy, when the binary is missing or older than a source file it was built from.
#[track_caller]
pub fn release(name: &str) -> PathBuf {
    let path = target_dir().join("release").join(name);
    assert!(
        path.is_file(),
        "{} is missing: build it with 'cargo build --release -p {name}', or run scripts/test, which does",
        path.display()
    );
    let list = path.with_extension("d");
    let sources = fs::read_to_string(&list).unwrap_or_else(|e| {
        panic!("{}: {e}: rebuild with 'cargo build --release -p {name}'", list.display())
    });
    if let Some(source) = newer_source(&path, &sources) {
        panic!(
            "{} is older than {source}: rebuild with 'cargo build --release -p {name}', or run scripts/test, which does",
            path.display()
        );
    }
    path
}

/// The target folder this very test was built into: `<target>/<profile>/deps/<test>`.
pub fn target_dir() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the running test");
    test.ancestors().nth(3).expect("a test binary sits three folders deep in the target folder").to_path_buf()
}

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate sits in the workspace").to_path_buf()
}

/// The first file of a dep-info text (`binary: source source ...`) that is newer than `binary`, or is gone.
fn newer_source(binary: &Path, dep_info: &str) -> Option<String> {
    let built = fs::metadata(binary).and_then(|m| m.modified()).ok()?;
    let line = dep_info.lines().next()?;
    let (_, list) = line.split_once(": ")?;
    // A blank inside a file name is written as "\ ".
    list.replace("\\ ", "\0").split_whitespace().map(|source| source.replace('\0', " ")).find(|source| {
        fs::metadata(source).and_then(|m| m.modified()).map_or(true, |changed| changed > built)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_source_newer_than_the_binary_is_found() {
        let dir = crate::Workdir::new("stale");
        let [binary, old, new] = ["binary", "old file.rs", "new.rs"].map(|n| dir.path().join(n));
        let now = SystemTime::now();
        for (path, age) in [(&binary, 50), (&old, 100), (&new, 0)] {
            let file = fs::File::create(path).unwrap();
            file.set_modified(now - Duration::from_secs(age)).unwrap();
        }
        let escaped = old.display().to_string().replace(' ', "\\ ");
        let fresh = format!("{}: {escaped}\n", binary.display());
        assert_eq!(newer_source(&binary, &fresh), None);
        let stale = format!("{}: {escaped} {}\n", binary.display(), new.display());
        assert_eq!(newer_source(&binary, &stale), Some(new.display().to_string()));
        let gone = format!("{}: {}\n", binary.display(), dir.path().join("gone.rs").display());
        assert!(newer_source(&binary, &gone).unwrap().ends_with("gone.rs"));
    }
}
