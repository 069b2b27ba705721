//! Whatever moment the process ends at, what was acknowledged is there.

use super::*;
use crate::config::Config;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("vswitch-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
    fn state(&self) -> PathBuf {
        self.0.join("state")
    }
    fn read(&self) -> Config {
        let text = std::fs::read_to_string(self.state()).unwrap();
        let changes = changes(&self.state(), &text).unwrap();
        Config::parse(&crate::state::change::apply(&text, &changes).unwrap(), "state").unwrap()
    }
    fn names(&self) -> Vec<String> {
        self.read().vpcs.iter().map(|vpc| vpc.name.to_string()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn vpcs(count: u32) -> Config {
    let vpc = |n| format!("[[vpc]]\nname = \"v{n}\"\nvni = {n}\n");
    Config::parse(&(1..=count).map(vpc).collect::<String>(), "f").unwrap()
}

fn step(count: u32) -> Change {
    Change::between(&vpcs(count - 1), &vpcs(count)).unwrap()
}

#[test]
fn what_was_appended_is_there_and_half_a_line_is_not() {
    let folder = Folder::new("journal");
    let mut saver = Saver::new(&folder.state());
    assert!(!saver.can_append() && saver.append(None, &step(2)).is_err());
    saver.write(&vpcs(1).to_toml().unwrap()).unwrap();
    saver.append(None, &step(2)).unwrap();
    saver.append(None, &step(3)).unwrap();
    assert_eq!(folder.read(), vpcs(3));
    // Somebody else's file of that name is not read, and the process may end in the middle of a line.
    let journal = journals(&folder.state()).remove(0);
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, &text[..text.len() - 1]).unwrap();
    assert_eq!(folder.names(), ["v1", "v2"]);
    std::fs::write(&journal, format!("nonsense\n{text}")).unwrap();
    let state = std::fs::read_to_string(folder.state()).unwrap();
    let error = changes(&folder.state(), &state).unwrap_err().to_string();
    assert!(error.contains(":1:") && error.contains("journal-"), "{error}");
    // It may be gone altogether; a state file of somebody's own names none.
    assert_eq!((missing(&folder.state(), &state), missing(&folder.state(), "[[vpc]]\n")), (None, None));
    std::fs::remove_file(&journal).unwrap();
    assert_eq!(missing(&folder.state(), &state), Some(journal));
    assert_eq!(folder.names(), ["v1"]);
    // The whole again: the old journal counts no more.
    saver.write(&vpcs(1).to_toml().unwrap()).unwrap();
    assert_eq!((folder.names(), journals(&folder.state()).len()), (vec!["v1".to_owned()], 1));
}

/// A machine or a process may end in the middle of a character, too.
#[test]
fn a_journal_that_ends_at_any_byte_is_read_up_to_its_last_whole_line() {
    let folder = Folder::new("torn");
    let with = |count: u32| {
        let port = |n| {
            format!(
                "[[port]]\nname = \"p{n}\"\nport = {{ kind = \"vhost-user\", path = \"/run/größe/ポート-{n}\" }}\n"
            )
        };
        Config::parse(&(1..=count).map(port).collect::<String>(), "f").unwrap()
    };
    let mut saver = Saver::new(&folder.state());
    saver.write(&with(1).to_toml().unwrap()).unwrap();
    for count in [2, 3] {
        saver.append(None, &Change::between(&with(count - 1), &with(count)).unwrap()).unwrap();
    }
    let journal = journals(&folder.state()).remove(0);
    let bytes = std::fs::read(&journal).unwrap();
    assert!(!bytes.is_ascii());
    for end in 0..=bytes.len() {
        std::fs::write(&journal, &bytes[..end]).unwrap();
        let lines = bytes[..end].iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(folder.read(), with(1 + lines as u32), "after {end} bytes");
    }
    // What is no text in the middle is told.
    std::fs::write(&journal, [&b"\xff\n"[..], &bytes].concat()).unwrap();
    let state = std::fs::read_to_string(folder.state()).unwrap();
    let error = changes(&folder.state(), &state).unwrap_err().to_string();
    assert!(error.contains("journal-") && error.contains("utf-8"), "{error}");
}

#[test]
fn what_nobody_waits_for_is_appended_and_what_the_disk_lost_of_it_is_not_read() {
    let folder = Folder::new("unsynced");
    let mut saver = Saver::new(&folder.state());
    assert!(saver.append_unsynced(&step(2)).is_err());
    saver.write(&vpcs(1).to_toml().unwrap()).unwrap();
    saver.append_unsynced(&step(2)).unwrap();
    assert_eq!(folder.read(), vpcs(2));
    saver.append(Some(&step(3)), &step(4)).unwrap();
    assert_eq!(folder.read(), vpcs(4), "in their order");
    // The machine crashed before the disk had the start of the last line.
    let journal = journals(&folder.state()).remove(0);
    let mut text = std::fs::read_to_string(&journal).unwrap();
    text.push_str(&"\0".repeat(4096));
    text.push_str("\"]}}\n");
    std::fs::write(&journal, text).unwrap();
    assert_eq!(folder.read(), vpcs(4), "what was acknowledged is there");
}

#[test]
fn a_new_state_file_under_way_loses_nothing_whenever_the_process_ends() {
    let folder = Folder::new("renewal");
    let mut saver = Saver::new(&folder.state());
    saver.write(&vpcs(1).to_toml().unwrap()).unwrap();
    saver.append(None, &step(2)).unwrap();
    let (go, wait) = sync_channel::<()>(1);
    let text = vpcs(2).to_toml().unwrap();
    saver
        .renew(false, move || {
            let _ = wait.recv();
            Ok(text)
        })
        .unwrap();
    saver.append(None, &step(3)).unwrap();
    assert_eq!(folder.read(), vpcs(3), "before it is there");
    go.send(()).unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !std::fs::read_to_string(folder.state()).unwrap().contains("v2") {
        assert!(std::time::Instant::now() < until, "the state file was not written");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(folder.read(), vpcs(3), "as soon as it is there");
    saver.append(None, &step(4)).unwrap();
    assert_eq!(folder.read(), vpcs(4), "before that was taken in");
    while saver.renewal.is_some() {
        saver.tend().unwrap();
    }
    saver.append(None, &step(5)).unwrap();
    assert_eq!((folder.read(), journals(&folder.state()).len()), (vpcs(5), 1));
}

#[test]
fn a_start_that_finds_a_state_file_writes_it_once_and_changes_are_appended() {
    let folder = Folder::new("begun");
    let mut saver = Saver::new(&folder.state());
    assert!(!saver.is_due(Instant::now()) && !saver.can_append(), "nothing was changed yet");
    saver.write(&vpcs(1).to_toml().unwrap()).unwrap();
    let mut saver = Saver::new(&folder.state());
    assert!(saver.is_due(Instant::now()) && !saver.can_append());
    saver.renew(false, || Ok(vpcs(1).to_toml().unwrap())).unwrap();
    assert!(!saver.is_due(Instant::now()));
    while saver.renewal.is_some() {
        saver.tend().unwrap();
    }
    assert!(saver.can_append() && !saver.is_due(Instant::now()));
    saver.append(None, &step(2)).unwrap();
    assert_eq!(folder.read(), vpcs(2));
    // A change that comes before it is there writes the whole, and what was under way does not take its place.
    let mut saver = Saver::new(&folder.state());
    saver.renew(false, || Ok(vpcs(2).to_toml().unwrap())).unwrap();
    assert!(!saver.can_append());
    saver.write(&vpcs(3).to_toml().unwrap()).unwrap();
    saver.finish();
    assert_eq!((folder.read(), journals(&folder.state()).len()), (vpcs(3), 1));
}

#[test]
fn a_new_state_file_that_cannot_be_written_is_tried_again_after_a_while() {
    let folder = Folder::new("failed");
    let mut saver = Saver::new(&folder.state());
    saver.write(&vpcs(1).to_toml().unwrap()).unwrap();
    saver.renew(false, || Err(io::Error::other("no room"))).unwrap();
    saver.append(None, &step(2)).unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while saver.tend().is_ok() {
        assert!(std::time::Instant::now() < until, "nobody was told");
    }
    assert_eq!(folder.read(), vpcs(2), "what was acknowledged is there");
    assert_eq!(journals(&folder.state()).len(), 1, "what came to nothing leaves none");
    assert!(!saver.can_append() && !saver.is_due(Instant::now()));
    assert!(saver.is_due(Instant::now() + AGAIN), "after a while it is tried again");
    saver.write(&vpcs(3).to_toml().unwrap()).unwrap();
    assert!(!saver.is_behind() && !saver.is_due(Instant::now() + AGAIN));
    assert_eq!((folder.read(), journals(&folder.state()).len()), (vpcs(3), 1));
}

#[test]
fn what_comes_to_nothing_leaves_no_journal_however_often_it_is_tried() {
    let folder = Folder::new("discarded");
    let mut saver = Saver::new(&folder.state());
    saver.write(&vpcs(1).to_toml().unwrap()).unwrap();
    let named = journals(&folder.state());
    let until = Instant::now() + Duration::from_secs(20);
    for panics in [false, true, false] {
        saver
            .renew(false, move || match panics {
                true => panic!("a fault of the switch itself"),
                false => Err(io::Error::other("no room")),
            })
            .unwrap();
        while saver.tend().is_ok() {
            assert!(Instant::now() < until, "nobody was told");
        }
        assert_eq!(journals(&folder.state()), named);
        assert!(!saver.is_behind(), "nothing was changed that is not saved");
    }
    // Nothing can take the place of a folder.
    let other = folder.0.join("other");
    std::fs::create_dir(&other).unwrap();
    assert!(Saver::new(&other).write("").is_err());
    assert!(journals(&other).is_empty());
    // One that the state file names stays, whatever went wrong behind that.
    discard_unnamed(&folder.state(), &named[0]);
    assert_eq!(journals(&folder.state()), named);
    discard_unnamed(&folder.0.join("gone"), &named[0]);
    assert!(journals(&folder.state()).is_empty());
}

#[test]
fn what_cannot_be_written_anew_lacks_nothing_but_what_was_nowhere_else() {
    for (is_needed, folder) in [(false, Folder::new("unneeded")), (true, Folder::new("needed"))] {
        Saver::new(&folder.state()).write(&vpcs(1).to_toml().unwrap()).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        // At a start that finds a state file, which cannot be written any more.
        let mut saver = Saver::new(&folder.state());
        saver.renew(is_needed, || Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem))).unwrap();
        assert!(!saver.is_behind());
        while saver.tend().is_ok() {
            assert!(Instant::now() < until, "nobody was told");
        }
        assert_eq!(saver.is_behind(), is_needed);
        assert!(saver.is_due(Instant::now() + AGAIN));
        let moved = folder.0.join("moved");
        std::fs::create_dir(&moved).unwrap();
        let mut saver = Saver::new(&moved.join("state"));
        std::fs::remove_dir(&moved).unwrap();
        assert!(saver.renew(is_needed, || Ok(String::new())).is_err());
        assert_eq!(saver.is_behind(), is_needed);
        // A change that comes then is one that is lacking.
        assert!(saver.write(&vpcs(2).to_toml().unwrap()).is_err() && saver.is_behind());
        std::fs::create_dir(&moved).unwrap();
        saver.write(&vpcs(2).to_toml().unwrap()).unwrap();
        assert!(!saver.is_behind());
    }
}

#[test]
fn a_new_state_file_under_way_does_not_take_the_place_of_a_newer_one() {
    let folder = Folder::new("overtaken");
    let mut saver = Saver::new(&folder.state());
    saver.write(&vpcs(1).to_toml().unwrap()).unwrap();
    let (done, is_done) = sync_channel::<()>(1);
    let text = vpcs(1).to_toml().unwrap();
    saver
        .renew(false, move || {
            std::thread::sleep(std::time::Duration::from_millis(200));
            drop(done);
            Ok(text)
        })
        .unwrap();
    saver.write(&vpcs(2).to_toml().unwrap()).unwrap();
    assert_eq!(folder.read(), vpcs(2));
    let _ = is_done.recv();
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(folder.read(), vpcs(2), "after the older one is done");
    assert_eq!(journals(&folder.state()).len(), 1);
}

#[test]
fn a_new_state_file_that_is_given_up_takes_no_later_change_with_it() {
    let folder = Folder::new("given-up");
    let mut saver = Saver::new(&folder.state());
    saver.write(&vpcs(1).to_toml().unwrap()).unwrap();
    saver.renew(false, || Ok(vpcs(1).to_toml().unwrap())).unwrap();
    saver.append(None, &step(2)).unwrap();
    // An upgrade waits for it and comes to nothing; the switch goes on, and a change comes.
    saver.finish();
    assert_eq!(folder.read(), vpcs(2));
    match saver.can_append() {
        true => saver.append(None, &step(3)).unwrap(),
        false => saver.write(&vpcs(3).to_toml().unwrap()).unwrap(),
    }
    assert_eq!(folder.read(), vpcs(3), "what was acknowledged is there");
    // Where nothing was under way, changes are appended as before.
    saver.finish();
    assert!(saver.can_append());
}

#[test]
fn a_new_state_file_waits_for_an_outdated_one_that_is_still_written() {
    let folder = Folder::new("outdated");
    let mut saver = Saver::new(&folder.state());
    saver.write(&vpcs(1).to_toml().unwrap()).unwrap();
    let (go, wait) = sync_channel::<()>(1);
    saver
        .renew(false, move || {
            let _ = wait.recv();
            Ok(vpcs(1).to_toml().unwrap())
        })
        .unwrap();
    // The disk takes a change no more, for a moment.
    let journal = saver.journal.as_mut().unwrap();
    journal.file = File::open(&journal.path).unwrap();
    assert!(saver.append(None, &step(2)).is_err() && !saver.can_append());
    saver.renew(false, || Ok(vpcs(2).to_toml().unwrap())).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    saver.tend().unwrap();
    go.send(()).unwrap();
    while saver.renewal.is_some() {
        saver.tend().unwrap();
    }
    saver.append(None, &step(3)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!((folder.read(), journals(&folder.state()).len()), (vpcs(3), 1));
}
