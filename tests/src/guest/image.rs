//! A guest's kernel and initramfs, made by `scripts/lab-guest` or `scripts/lab-debian`, and whether this machine can run guests
//! at all.
//!
//! It asks the scripts, which build what is not there, and never looks into an image itself.

use crate::{Workdir, binary, process};
use std::path::{Path, PathBuf};
use std::process::Output;

/// The emulator.
pub const QEMU: &str = "qemu-system-x86_64";
/// Its Debian package.
const PACKAGE: &str = "qemu-system-x86";
/// The script that makes the small guests.
const SMALL: &str = "lab-guest";

/// A kernel and what it boots into.
#[derive(Debug, Clone)]
pub struct Image {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initrd: PathBuf,
}

/// Whether guests can run here: true with QEMU installed, false (and said so) where no package of it exists.
///
/// Fails the test where QEMU could be installed and is not, because a scenario must not be skipped for that.
#[track_caller]
pub fn can_run() -> bool {
    if process::try_run(&["sh", "-c", &format!("command -v {QEMU}")]).status.success() {
        return true;
    }
    let policy = process::try_run(&["sh", "-c", &format!("apt-cache policy {PACKAGE}")]);
    let known = String::from_utf8_lossy(&policy.stdout)
        .lines()
        .any(|line| line.trim().strip_prefix("Candidate: ").is_some_and(|version| version != "(none)"));
    assert!(!known, "{QEMU} is missing: run scripts/bootstrap, which installs {PACKAGE}");
    eprintln!("SKIPPED: guests need {QEMU}, and this machine's package sources do not have {PACKAGE}");
    false
}

/// The image, built first when it is not in the cache.
#[track_caller]
pub fn image() -> Image {
    made_by(SMALL, &[])
}

/// The larger image, which has the RDMA applications of `scripts/lab-guest.d/apps`, built first when it is not in the cache.
#[track_caller]
pub fn image_of_apps() -> Image {
    made_by(SMALL, &["--apps"])
}

/// A whole Debian machine whose `eth0` a client of Debian brings up ("networkd", "ifupdown"), built first when it is not in the cache.
#[track_caller]
pub fn image_of_debian(client: &str) -> Image {
    made_by("lab-debian", &[client])
}

#[track_caller]
fn made_by(script: &str, args: &[&str]) -> Image {
    let output = ask(script, args);
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let image = Image { kernel: folder.join("vmlinux"), initrd: folder.join("initrd.cpio") };
    assert!(image.kernel.is_file() && image.initrd.is_file(), "no guest image in {}", folder.display());
    image
}

/// The image with programs of this machine, and the libraries they need, added; the initramfs is written to `initrd`.
#[track_caller]
pub fn image_with(programs: &[String], initrd: &Path) -> Image {
    let out = initrd.display().to_string();
    let mut args = vec!["--add", &out];
    args.extend(programs.iter().map(String::as_str));
    ask(SMALL, &args);
    Image { initrd: initrd.to_path_buf(), ..image() }
}

/// The switch's program and DPDK's drivers that it loads by name, as [`image_with`] takes them, and the drivers' paths in
/// the guest.
#[track_caller]
pub fn switch_parts(dir: &Workdir, drivers: &[&str]) -> (Vec<String>, Vec<String>) {
    let program = binary::release("vswitch").display().to_string();
    let stripped = dir.path().join("vswitch").display().to_string();
    process::run(&["strip", "-o", &stripped, &program]);
    let libraries = process::run(&["ldd", &program]);
    let eal = libraries
        .lines()
        .find_map(|line| line.trim().strip_prefix("librte_eal.so.")?.split_once(" => "))
        .expect("the switch is linked with DPDK");
    // The drivers lie beside the library, with the same version in their names.
    let folder = eal.1.split("/librte_eal").next().unwrap();
    let files: Vec<String> = drivers.iter().map(|driver| format!("{driver}.so.{}", eal.0)).collect();
    let inside: Vec<String> = files.iter().map(|file| format!("/lib/x86_64-linux-gnu/{file}")).collect();
    let drivers = files.iter().zip(&inside).map(|(file, to)| format!("{folder}/{file}={to}"));
    (std::iter::once(stripped).chain(drivers).collect(), inside)
}

/// Runs a script: seconds when the image is there, minutes when its packages have to be fetched first.
#[track_caller]
fn ask(script: &str, args: &[&str]) -> Output {
    let program = binary::workspace().join("scripts").join(script).display().to_string();
    let command: Vec<&str> =
        ["timeout", "--kill-after=2", "480", &program].into_iter().chain(args.iter().copied()).collect();
    let output = process::bound_to_us(&command).output().expect("setpriv, of util-linux, starts programs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/{script} failed ({}):\n{errors}", output.status);
    output
}
