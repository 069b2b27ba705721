//! A machine that libvirt starts from the domain of its how-to (`vswitch/libvirt/vm1.xml`): by a libvirtd of its own, of a user
//! without rights, in a namespace of processes that ends with the test.

use super::{AGENT, CONSOLE, Guest, Image, Machine, image};
use crate::{Process, Workdir, binary, process, wait_for};
use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Who runs libvirtd and QEMU.
pub const USER: &str = "nobody";
const GROUP: &str = "nogroup";
/// Memory of a machine, in MiB.
const MEMORY: u32 = 384;
const PATIENCE: Duration = Duration::from_secs(30);

/// A machine and its libvirtd.
#[derive(Debug)]
pub struct Libvirt {
    /// The machine.
    pub guest: Guest,
    folder: PathBuf,
}

impl Libvirt {
    /// Starts one behind a vhost-user socket.
    #[track_caller]
    pub fn boot(name: &str, mac: &str, socket: &Path) -> Libvirt {
        let dir = Workdir::new("libvirt");
        let folder = dir.path().to_owned();
        for name in ["run", "config/libvirt", "cache", "data"] {
            fs::create_dir_all(folder.join(name)).expect("a folder in a folder of our own");
        }
        fs::set_permissions(folder.join("run"), fs::Permissions::from_mode(0o700)).expect("our own folder");
        // Without another daemon for the console.
        dir.write("config/libvirt/qemu.conf", "stdio_handler = \"file\"\n");
        let image = copied(&image(), &folder);
        let xml = dir.write("vm1.xml", &domain(name, mac, socket, &image, &folder));
        process::run(&["chown", "-R", &format!("{USER}:{GROUP}"), &folder.display().to_string()]);
        let mut line: Vec<String> =
            ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"].map(str::to_owned).to_vec();
        // The first process of a namespace has to see to the end of others, which a shell does. libvirt closes all descriptors that it
        // might have.
        line.extend(as_user(&folder, &["sh", "-c", "ulimit -n 1024; libvirtd; exit $?"]));
        let mut process =
            Process::spawn("libvirtd", process::bound_to_us(&line), folder.join("libvirtd.log"));
        wait_for("libvirtd to answer", PATIENCE, || {
            if let Some(status) = process.exited() {
                panic!("libvirtd ended ({status}):\n{}", process.output());
            }
            daemon_socket(&folder).exists().then_some(())
        });
        virsh(&folder, &["define", "--validate", &xml.display().to_string()]);
        virsh(&folder, &["start", name]);
        let (mac, more) = (mac.to_owned(), String::new());
        let mut machine = Machine { process, mac, memory: MEMORY, image, more, dir };
        let channel = RefCell::new(machine.channel());
        let guest = Guest { name: name.to_owned(), machine: RefCell::new(machine), channel };
        guest.wait_ready();
        Libvirt { guest, folder }
    }

    /// What `virsh` says; fails the test when that is not in order.
    #[track_caller]
    pub fn virsh(&self, args: &[&str]) -> String {
        virsh(&self.folder, args)
    }
}

fn daemon_socket(folder: &Path) -> PathBuf {
    folder.join("run/libvirt/libvirt-sock")
}

#[track_caller]
fn virsh(folder: &Path, args: &[&str]) -> String {
    let uri = format!("qemu+unix:///session?socket={}", daemon_socket(folder).display());
    process::run(&as_user(folder, &[&["virsh", "--quiet", "--connect", &uri], args].concat()))
}

/// A command line as that user, with libvirt's folders in ours.
fn as_user(folder: &Path, args: &[&str]) -> Vec<String> {
    let user =
        ["setpriv", "--reuid", USER, "--regid", GROUP, "--clear-groups", "--pdeathsig", "KILL", "--", "env"];
    let folders = [
        ("HOME", "."),
        ("XDG_RUNTIME_DIR", "run"),
        ("XDG_CONFIG_HOME", "config"),
        ("XDG_CACHE_HOME", "cache"),
        ("XDG_DATA_HOME", "data"),
    ];
    let folders = folders.map(|(variable, name)| format!("{variable}={}", folder.join(name).display()));
    let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    [own(&user), folders.to_vec(), own(args)].concat()
}

/// The image where that user may read it.
#[track_caller]
fn copied(image: &Image, folder: &Path) -> Image {
    let copy = |from: &Path, name: &str| {
        let to = folder.join(name);
        fs::copy(from, &to).unwrap_or_else(|e| panic!("cannot copy {}: {e}", from.display()));
        to
    };
    Image { kernel: copy(&image.kernel, "vmlinux"), initrd: copy(&image.initrd, "initrd.cpio") }
}

/// The domain of the how-to as this machine can run it: emulated, without a disk, with the agent of the lab. Its interface and its
/// memory stay as they are there.
#[track_caller]
fn domain(name: &str, mac: &str, socket: &Path, image: &Image, folder: &Path) -> String {
    let path = binary::workspace().join("vswitch/libvirt/vm1.xml");
    let mut text =
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
    let mut put = |from: &str, to: &str| {
        assert_eq!(text.matches(from).count(), 1, "'{from}' stands once in {}", path.display());
        text = text.replace(from, to);
    };
    let console = folder.join(CONSOLE).display().to_string();
    put("<domain type='kvm'", "<domain type='qemu'");
    put("<name>vm1</name>", &format!("<name>{name}</name>"));
    put("<memory unit='MiB'>4096</memory>", &format!("<memory unit='MiB'>{MEMORY}</memory>"));
    let options = super::kernel_options(name);
    let boot = format!(
        "<kernel>{}</kernel><initrd>{}</initrd><cmdline>{options}</cmdline>",
        image.kernel.display(),
        image.initrd.display()
    );
    put("<boot dev='hd'/>", &boot);
    put("<cpu mode='host-passthrough'/>", "<cpu mode='maximum'/>");
    put("02:00:00:00:00:02", mac);
    put("/run/vswitch/vm1.sock", &socket.display().to_string());
    put("<serial type='pty'/>", &format!("<serial type='file'><source path='{console}'/></serial>"));
    put("<console type='pty'>", &format!("<console type='file'><source path='{console}'/>"));
    let agent = folder.join(AGENT).display().to_string();
    put(
        "</devices>",
        &format!(
            "<channel type='unix'><source mode='bind' path='{agent}'/><target type='virtio' name='agent'/></channel></devices>"
        ),
    );
    // Emulated machines: see `command_line`.
    let vectors = "<qemu:property name='vectors' type='unsigned' value='0'/>";
    put("</qemu:frontend>", &format!("{vectors}</qemu:frontend>"));
    let [before, after] = ["<disk", "</disk>"].map(|tag| text.find(tag).expect("the domain has a disk"));
    text.replace_range(before..after + "</disk>".len(), "");
    text
}
