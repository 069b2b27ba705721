//! What is written is read, whatever of the table has changed; what is damaged is left out, and nothing else.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;

use pipelines::Now;
use pipelines::connections::{ConnectionTimes, Connections, Made, Record};
use pipelines::ledger::LedgerParams;
use proptest::prelude::*;
use wire::tcp::flags::SYN;

use super::*;

const TIMES: ConnectionTimes = ConnectionTimes {
    tcp_opening: 100,
    tcp_established: 100,
    tcp_closing: 100,
    one_way: 100,
    both_ways: 100,
    icmp: 100,
    rdma: 100,
};
const NAMES: [&str; 3] = ["one", "two", "three"];

fn names(vnic: u32) -> Option<u64> {
    NAMES.get(vnic as usize).map(|name| vnic_hash(name))
}

/// A folder that goes with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("vswitch-connections-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        path_beside(&self.0.join("vswitch.sock"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn table(entries: u32) -> ConnectionKeeper {
    let params = LedgerParams { entries, vnics: 4, workers: 1, seed: 0 };
    let keeper = ConnectionKeeper::new(Arc::new(Connections::new(&params, &|_, _| {})), TIMES);
    (0..4).for_each(|vnic| keeper.set_limits(vnic, entries, 0));
    keeper
}

fn key(vnic: u32, port: u16) -> ConnectionKey {
    let ports = u64::from(port) << 16 | 80;
    ConnectionKey::from_words([0, 0xffff_0a00_0001, 0, 0xffff_0a00_0002, 6, u64::from(vnic) << 32 | ports])
}

/// Enters a connection.
fn enter(keeper: &ConnectionKeeper, vnic: u32, port: u16) -> KeptConnection {
    let state = ConnectionState::opened(vnic == 0, SYN, true, port);
    let record = Record { state, epoch: 0 };
    assert!(matches!(keeper.connections().make(&key(vnic, port), record, Now::default()), Made::In(_)));
    KeptConnection { vnic: names(vnic).unwrap_or_default(), key: key(0, port), state }
}

fn sorted(mut kept: Vec<KeptConnection>) -> Vec<KeptConnection> {
    kept.sort_by_key(|kept| (kept.vnic, *kept.key.words()));
    kept
}

#[test]
fn restart_what_a_process_leaves_of_connections_is_what_the_next_one_reads() {
    let folder = Folder::new("leaves");
    let path = folder.file();
    assert_eq!(read(&path).unwrap(), [], "no file");
    let keeper = table(1024);
    let mut there: Vec<_> = (0..100).map(|port| enter(&keeper, u32::from(port) % 3, port)).collect();
    let mut file = ConnectionFile::create(&path, &keeper, &names).unwrap();
    assert_eq!(sorted(read(&path).unwrap()), sorted(there.clone()));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    // In the middle of its life, and one that is over.
    there.extend((200..260).map(|port| enter(&keeper, 1, port)));
    let connections = keeper.connections();
    let found = connections.find(&key(0, 3)).unwrap();
    assert!(connections.change(found.slot, found.record, Record { state: ConnectionState::NONE, epoch: 0 }));
    there.retain(|kept| *kept != KeptConnection { vnic: names(0).unwrap(), key: key(0, 3), ..*kept });
    file.turn(1024, &keeper, &names);
    assert_eq!(sorted(read(&path).unwrap()), sorted(there));
    // vNICs that are gone leave nothing there; without any the file goes.
    file.write_all(&keeper, &|_| None).unwrap();
    assert_eq!(read(&path).unwrap(), []);
    file.remove_if_empty();
    assert!(!path.exists());
}

#[test]
fn restart_files_of_connections_that_are_none_are_not_believed() {
    let folder = Folder::new("none");
    let path = folder.file();
    let keeper = table(256);
    enter(&keeper, 0, 1);
    ConnectionFile::create(&path, &keeper, &names).unwrap();
    let good = fs::read(&path).unwrap();
    assert_eq!(read(&path).unwrap().len(), 1);
    for at in [0, MAGIC.len() - 1, MAGIC.len() + 5, PAGE - 1] {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(read(&path).unwrap(), [], "another version, another boot: byte {at}");
    }
    // Another user's.
    fs::write(&path, &good).unwrap();
    nix::unistd::chown(&path, Some(65_534.into()), None).unwrap();
    assert!(read(&path).is_err());
    // A link, a folder, a pipe that nobody writes to.
    fs::remove_file(&path).unwrap();
    fs::write(folder.0.join("other"), &good).unwrap();
    symlink(folder.0.join("other"), &path).unwrap();
    assert!(read(&path).is_err());
    ConnectionFile::create(&path, &keeper, &names).unwrap();
    assert!(!fs::symlink_metadata(&path).unwrap().is_symlink() && read(&path).unwrap().len() == 1);
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRUSR).unwrap();
    assert!(read(&path).is_err());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(read(&path).is_err() && ConnectionFile::create(&path, &keeper, &names).is_err());
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 2, "what could not be put in its place is gone");
}

#[test]
fn restart_every_damage_to_a_file_of_connections_costs_the_connection_alone() {
    let folder = Folder::new("damage");
    let path = folder.file();
    let keeper = table(256);
    let there = sorted((0..4).map(|port| enter(&keeper, 0, port)).collect());
    ConnectionFile::create(&path, &keeper, &names).unwrap();
    let good = fs::read(&path).unwrap();
    for at in PAGE..PAGE + 4 * ROW {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        let kept = read(&path).unwrap();
        assert!(kept.len() == 3 && kept.iter().all(|kept| there.contains(kept)), "byte {at}");
        fs::write(&path, &good[..at]).unwrap();
        assert_eq!(read(&path).unwrap().len(), (at - PAGE) / ROW, "cut at {at}");
    }
}

proptest! {
    /// Whatever comes and goes between turns: after a whole turn the file has what the table has.
    #[test]
    fn restart_files_of_connections_follow_the_table(
        steps in prop::collection::vec((0u32..4, 0u16..300, any::<bool>()), 1..400),
        budget in 1u32..400,
    ) {
        let folder = Folder::new("follow");
        let path = folder.file();
        let mut keeper = table(512);
        let mut file = ConnectionFile::create(&path, &keeper, &names).unwrap();
        let mut there = BTreeMap::new();
        let mut gone = [false; 4];
        for (vnic, port, comes) in steps {
            if comes {
                there.insert((vnic, port), enter(&keeper, vnic, port));
                gone[vnic as usize] = false;
            } else {
                gone[vnic as usize] = true;
                keeper.sweep(512, 0, |vnic| gone[vnic as usize]);
                while keeper.is_busy() {
                    keeper.connections().ledger().retire(0);
                    keeper.advance();
                }
                there.retain(|(of, _), _| *of != vnic);
                gone[vnic as usize] = false;
            }
            file.turn(budget, &keeper, &names);
        }
        for _ in 0..512u32.div_ceil(budget) + 1 {
            file.turn(budget, &keeper, &names);
        }
        let want = there.into_iter().filter(|((vnic, _), _)| names(*vnic).is_some()).map(|(_, kept)| kept);
        prop_assert_eq!(sorted(read(&path).unwrap()), sorted(want.collect()));
    }
}
