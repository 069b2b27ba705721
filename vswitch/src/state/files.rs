//! Files that are whole, whatever happens while they are written, and their owner's alone; and text files that are read within bounds.

/// Largest text file that is read, in MiB: a config of ten thousand vNICs has a few.
const MOST_MIB: u64 = 16;

/// Reads a text file that somebody named, if it is a regular one of bounded size.
///
/// # Errors
/// What is wrong, with the path and what to do.
pub(crate) fn read_text(path: &std::path::Path) -> Result<String, String> {
    let shown = path.display();
    let fault = |error: std::io::Error| format!("{shown}: {error}; check the path");
    let metadata = std::fs::metadata(path).map_err(fault)?;
    if !metadata.is_file() {
        return Err(format!("{shown} is not a regular file"));
    }
    if metadata.len() > MOST_MIB << 20 {
        return Err(format!("{shown} has more than {MOST_MIB} MiB"));
    }
    std::fs::read_to_string(path).map_err(fault)
}

/// A number that nobody can guess: the standard library's randomly keyed hasher.
pub(crate) fn unpredictable() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::Instant::now())
}

/// FNV-1a, 64 bits: finds accidents, which is all that is asked of it.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A new file beside another that it is to replace, which only its owner reads.
pub(crate) fn new_beside(path: &std::path::Path) -> std::io::Result<(std::fs::File, std::path::PathBuf)> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{:016x}.new", unpredictable()));
    let temporary = std::path::PathBuf::from(temporary);
    // Exclusively: neither a file nor a link that somebody put there is written through.
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    Ok((file, temporary))
}

/// Removes what processes that were killed left of new files that were to replace this one. Nobody may be writing one meanwhile.
pub(crate) fn remove_unfinished(path: &std::path::Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_hex =
        |text: &str| text.len() == 16 && text.bytes().all(|byte| b"0123456789abcdef".contains(&byte));
    let is_unfinished = |other: &str| {
        let number = other.strip_prefix(&*name).and_then(|rest| rest.strip_prefix('.'));
        number.and_then(|rest| rest.strip_suffix(".new")).is_some_and(is_hex)
    };
    let entries =
        std::fs::read_dir(folder.unwrap_or(std::path::Path::new("."))).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_unfinished(&entry.file_name().to_string_lossy())) {
        let _ = std::fs::remove_file(entry.path());
    }
}

/// Replaces a file by a new one that only its owner reads; after a crash it is either the old or the new one.
pub(crate) fn write_whole(path: &std::path::Path, text: &str) -> std::io::Result<()> {
    write_whole_as(path, text, |_| Ok(()))
}

/// Writes a file that somebody named: whoever could read one that was there can read the new one, and no other does. A symbolic link
/// leads to the file that is replaced.
///
/// # Errors
/// What is wrong, with the path. Nothing is replaced then; what is no regular file never is.
pub(crate) fn write_named(path: &std::path::Path, text: &str) -> Result<(), String> {
    use std::os::unix::fs::{MetadataExt, fchown};
    let shown = path.display();
    let fault = |error: std::io::Error| format!("{shown}: {error}");
    let path = match path.canonicalize() {
        Ok(path) => path,
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(fault(error)),
        Err(_) if path.is_symlink() => return Err(format!("{shown} is a symbolic link to no file")),
        Err(_) => return write_whole(path, text).map_err(fault),
    };
    let old = path.metadata().map_err(fault)?;
    if !old.is_file() {
        return Err(format!("{shown} is not a regular file; choose another path"));
    }
    let as_before = |file: &std::fs::File| {
        let new = file.metadata()?;
        let changed = |old: u32, new: u32| (old != new).then_some(old);
        let (user, group) = (changed(old.uid(), new.uid()), changed(old.gid(), new.gid()));
        if user.is_some() || group.is_some() {
            let text = |error| format!("cannot keep its owner {}:{}: {error}", old.uid(), old.gid());
            fchown(file, user, group).map_err(|error| std::io::Error::new(error.kind(), text(error)))?;
        }
        file.set_permissions(old.permissions())
    };
    write_whole_as(&path, text, as_before).map_err(fault)
}

/// Replaces a file by a new one that `protect` says the owner and the mode of, once it is written.
fn write_whole_as(
    path: &std::path::Path,
    text: &str,
    protect: impl FnOnce(&std::fs::File) -> std::io::Result<()>,
) -> std::io::Result<()> {
    use std::io::Write;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let (mut file, temporary) = new_beside(path)?;
    let result = (|| {
        file.write_all(text.as_bytes())?;
        protect(&file)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        std::fs::File::open(folder.unwrap_or(std::path::Path::new(".")))?.sync_all()
    })();
    if result.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    result
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn what_a_killed_process_left_half_written_is_removed_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("vswitch-unfinished-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("state");
        let (_, unfinished) = new_beside(&path).unwrap();
        let others = [
            "state",
            "state.0123456789abcdef",
            "state.0123456789abcde.new",
            "state.0123456789abcdeg.new",
            "state.new",
            "state.rcft.0123456789abcdef.new",
            "my-state.0123456789abcdef.new",
        ];
        others.iter().for_each(|name| std::fs::write(folder.join(name), "").unwrap());
        remove_unfinished(&path);
        assert!(!unfinished.exists());
        assert!(others.iter().all(|name| folder.join(name).exists()));
        remove_unfinished(&folder.join("no/such/folder"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_that_somebody_named_keeps_its_mode_and_owner() {
        use std::os::unix::fs::{MetadataExt, chown};
        let folder = std::env::temp_dir().join(format!("vswitch-named-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (path, link) = (folder.join("vswitch.toml"), folder.join("link"));
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        write_named(&path, "new").unwrap();
        assert_eq!(mode(), 0o600, "a new one is its owner's alone");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        // Whoever is not root can give no file away.
        let others = chown(&path, Some(12_345), Some(54_321)).is_ok();
        let before = std::fs::metadata(&path).unwrap();
        symlink(&path, &link).unwrap();
        for (through, text) in [(&path, "newer"), (&link, "newest")] {
            write_named(through, text).unwrap();
            let after = std::fs::metadata(&path).unwrap();
            assert_eq!((mode(), after.uid(), after.gid()), (0o640, before.uid(), before.gid()), "{others}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert!(link.is_symlink());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_no_regular_file_is_not_replaced() {
        use std::os::unix::fs::FileTypeExt;
        let folder = std::env::temp_dir().join(format!("vswitch-no-file-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("folder")).unwrap();
        let [pipe, dangling, to_device] = ["pipe", "dangling", "device"].map(|name| folder.join(name));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        symlink("/dev/null", &to_device).unwrap();
        symlink(folder.join("nothing"), &dangling).unwrap();
        for (path, fault) in [
            (&pipe, "is not a regular file"),
            (&to_device, "is not a regular file"),
            (&folder.join("folder"), "is not a regular file"),
            (&dangling, "is a symbolic link to no file"),
            (&folder.join("no/such/folder"), "No such file"),
        ] {
            let error = write_named(path, "x").unwrap_err();
            assert!(error.starts_with(&path.display().to_string()) && error.contains(fault), "{error}");
        }
        assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
        assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        assert!(dangling.is_symlink() && to_device.is_symlink());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 4, "nothing else is left");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn repair_files_are_their_owners_alone_and_follow_no_link() {
        let folder = std::env::temp_dir().join(format!("vswitch-whole-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (path, precious) = (folder.join("state"), folder.join("precious"));
        std::fs::write(&precious, "precious").unwrap();
        // A file that is there already, open to all; and the name that could be guessed before, as a link.
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        symlink(&precious, folder.join(format!("state.{}.new", std::process::id()))).unwrap();
        write_whole(&path, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        // A link in the file's own place is replaced, not followed.
        std::fs::remove_file(&path).unwrap();
        symlink(&precious, &path).unwrap();
        write_whole(&path, "newer").unwrap();
        assert!(!std::fs::symlink_metadata(&path).unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3, "nothing else is left");
        assert!(write_whole(&folder.join("no/such/folder"), "x").is_err());
        assert_ne!(unpredictable(), unpredictable());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
