//! Open vSwitch with DPDK as the other VTEP: a private database and daemon in the peer's namespace.
//!
//! It needs hugepages: they are reserved for the time it runs and given back. The machine's own Open vSwitch service, if
//! there is one, is never touched: every path and socket here is the scenario's own.

use crate::{Netns, Process, Workdir, process, wait_for};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const DAEMON: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";

/// Hugepages reserved on top of what was there, given back when this value goes.
#[derive(Debug)]
pub struct Hugepages {
    added: u64,
}

impl Hugepages {
    /// Reserves `pages` more; fails the test when the machine has no room for them.
    #[track_caller]
    pub fn reserve(pages: u64) -> Hugepages {
        let locked = lock();
        let before = read_pages();
        let held = Hugepages { added: pages };
        let written = fs::write(NR_HUGEPAGES, (before + pages).to_string());
        let now = read_pages();
        // Before `held` may go, which locks as well.
        drop(locked);
        written.unwrap_or_else(|e| panic!("cannot reserve hugepages in {NR_HUGEPAGES}: {e}"));
        assert!(
            now >= before + pages,
            "only {now} of {} hugepages could be reserved: free some memory",
            before + pages
        );
        held
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        let _locked = lock();
        let _ = fs::write(NR_HUGEPAGES, read_pages().saturating_sub(self.added).to_string());
    }
}

/// Scenarios that run at the same time change the machine's number one after the other, or one's pages were another's.
fn lock() -> Option<fs::File> {
    let file = fs::File::open(NR_HUGEPAGES).ok()?;
    file.lock().ok()?;
    Some(file)
}

fn read_pages() -> u64 {
    fs::read_to_string(NR_HUGEPAGES).ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
}

/// DPDK's run folder of our OVS, which OVS itself leaves behind.
#[derive(Debug)]
struct RunFolder(PathBuf);

impl Drop for RunFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running Open vSwitch.
#[derive(Debug)]
pub struct Ovs {
    // Fields drop in this order: the daemon, its database, then the memory and the folder it used.
    _daemon: Process,
    _database: Process,
    dir: Workdir,
    _hugepages: Hugepages,
    _run_folder: RunFolder,
}

impl Ovs {
    /// Starts it in a namespace, with DPDK and no bridge.
    #[track_caller]
    pub fn start(netns: &Netns) -> Ovs {
        let hugepages = Hugepages::reserve(160);
        let dir = Workdir::new("ovs");
        let at = |name: &str| dir.path().join(name).display().to_string();
        process::run(&["ovsdb-tool", "create", &at("conf.db"), SCHEMA]);
        let remote = format!("--remote=punix:{}", at("db.sock"));
        let (database_ctl, daemon_ctl) =
            (format!("--unixctl={}", at("db.ctl")), format!("--unixctl={}", at("vs.ctl")));
        let folders = ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"]
            .map(|v| format!("{v}={}", dir.path().display()));
        let with_folders = |args: &[&str]| -> Vec<String> {
            std::iter::once("env")
                .chain(folders.iter().map(String::as_str))
                .chain(args.iter().copied())
                .map(str::to_owned)
                .collect()
        };
        let spawn = |name: &str, args: &[&str]| {
            let line = with_folders(args);
            netns.spawn(name, &line.iter().map(String::as_str).collect::<Vec<_>>(), &dir)
        };
        let database = spawn("ovsdb", &["ovsdb-server", &at("conf.db"), &remote, &database_ctl]);
        wait_for("the OVS database", Duration::from_secs(10), || {
            dir.path().join("db.sock").exists().then_some(())
        });
        let socket = format!("unix:{}", at("db.sock"));
        let vsctl = |args: &[&str]| {
            let db = format!("--db={socket}");
            let mut line = vec!["ovs-vsctl", "--timeout=30", "--retry", &db, "--no-wait"];
            line.extend(args);
            process::run(&line)
        };
        vsctl(&["init"]);
        let prefix = format!("vs{}-ovs", std::process::id());
        let extra = format!("other_config:dpdk-extra=--no-pci --in-memory --file-prefix {prefix}");
        vsctl(&[
            "set",
            "Open_vSwitch",
            ".",
            "other_config:dpdk-init=true",
            "other_config:dpdk-socket-mem=192",
            "other_config:pmd-cpu-mask=0x1",
            "other_config:pmd-maxsleep=200",
            &extra,
        ]);
        let daemon = spawn("ovs-vswitchd", &[DAEMON, &socket, &daemon_ctl]);
        let run_folder = RunFolder(Path::new("/var/run/dpdk").join(&prefix));
        let ovs =
            Ovs { _daemon: daemon, _database: database, dir, _hugepages: hugepages, _run_folder: run_folder };
        wait_for("OVS to start DPDK", Duration::from_secs(30), || {
            let state = ovs.vsctl("get Open_vSwitch . dpdk_initialized");
            state.contains("true").then_some(())
        });
        ovs
    }

    /// Runs `ovs-vsctl` on it; words are split at blanks.
    #[track_caller]
    pub fn vsctl(&self, line: &str) -> String {
        let db = format!("--db=unix:{}", self.dir.path().join("db.sock").display());
        let mut args = vec!["ovs-vsctl", "--timeout=30", "--retry", &db];
        args.extend(line.split_whitespace());
        process::run(&args)
    }

    /// Runs `ovs-appctl` on its daemon; words are split at blanks.
    #[track_caller]
    pub fn appctl(&self, line: &str) -> String {
        let target = self.dir.path().join("vs.ctl").display().to_string();
        let mut args = vec!["ovs-appctl", "-t", &target];
        args.extend(line.split_whitespace());
        process::run(&args)
    }

    /// Waits until it takes the tunnel packets that come to `address`.
    ///
    /// It hears of an address of a bridge from the kernel, in its own time: until then the kernel has the packets, and
    /// answers that nobody listens on the port.
    #[track_caller]
    pub fn wait_for_tunnels_of(&self, address: &str) {
        let listens = format!("dst={address},");
        wait_for("OVS to take tunnel packets", Duration::from_secs(30), || {
            self.appctl("tnl/ports/show -v").contains(&listens).then_some(())
        });
    }
}
