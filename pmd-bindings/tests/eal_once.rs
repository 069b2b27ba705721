//! One EAL per process, started from checked fields, gone without a trace.

mod common;

use std::path::Path;
use std::process::Command;

use common::{eal_named, prefix};
use pmd::{Eal, EalConfig, EalError, Hugepages};

#[test]
fn a_second_start_is_a_typed_error_and_the_run_folder_goes() {
    let folder = ["/var/run".into(), std::env::var("XDG_RUNTIME_DIR").unwrap_or("/tmp".into())]
        .map(|base| Path::new(&base).join("dpdk").join(prefix("once")));
    let exists = || folder.iter().any(|path| path.exists());
    // A bad field does not use up the one start.
    let bad = EalConfig { file_prefix: "../x".into(), ..EalConfig::default() };
    assert!(matches!(Eal::init(&bad), Err(EalError::FilePrefix(_))));
    assert!(!exists());

    let eal = eal_named("once");
    assert!(exists());
    assert!(!eal.uses_hugepages());
    assert!(Eal::dpdk_version().starts_with(|c: char| c.is_ascii_digit()), "{}", Eal::dpdk_version());
    let again = Eal::init(&EalConfig { file_prefix: prefix("again"), ..EalConfig::default() });
    assert!(matches!(again, Err(EalError::AlreadyInitialised)));
    let clone = eal.clone();
    drop(eal);
    assert!(exists(), "a handle is left");
    drop(clone);
    assert!(!exists());
    let again = Eal::init(&EalConfig { file_prefix: prefix("again"), ..EalConfig::default() });
    assert!(matches!(again, Err(EalError::AlreadyInitialised)));
}

#[test]
fn a_prefix_in_use_elsewhere_is_named() {
    let name = prefix("shared");
    if std::env::var_os("PMD_TEST_SECOND").is_some() {
        let name = std::env::var("PMD_TEST_SECOND").unwrap();
        let config =
            EalConfig { file_prefix: name.clone(), hugepages: Hugepages::Never, ..EalConfig::default() };
        let error = Eal::init(&config).unwrap_err();
        assert!(matches!(&error, EalError::PrefixBusy { prefix, .. } if *prefix == name), "{error}");
        return;
    }
    let _eal = eal_named("shared");
    let second = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_prefix_in_use_elsewhere_is_named"])
        .env("PMD_TEST_SECOND", &name)
        .output()
        .unwrap();
    assert!(second.status.success(), "{}", String::from_utf8_lossy(&second.stdout));
}

#[test]
fn a_main_core_pins_this_thread_and_dpdks_own() {
    let core = *pmd::lcore::available().last().unwrap();
    let config = EalConfig {
        file_prefix: prefix("core"),
        memory_mb: 64,
        hugepages: Hugepages::Never,
        main_core: Some(core),
        ..EalConfig::default()
    };
    let _eal = Eal::init(&config).unwrap();
    assert_eq!(pmd::lcore::of_current_thread(), [core]);
    // The test harness's own main thread is the one that may roam.
    let me = std::process::id().to_string();
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap();
        let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
        assert!(task.file_name().to_string_lossy() == me || cores == core.to_string(), "{status}");
    }
}
