//! Lab guests: small virtual machines with soft-RoCE, each behind a vhost-user port of the switch.
//!
//! ```text
//!  scenario ──agent.sock── virtio-serial ── agent (scripts/lab-guest.d/agent)
//!                            QEMU            │ eth0, rxe0
//!  vswitch ──vhost-user.sock── virtio-net ───┘
//! ```
//! QEMU emulates the processor (no KVM is asked for), so a guest boots in seconds and is slow: nothing may be asserted on
//! its times, its bandwidth or its retransmissions. QEMU dies with the test; the console of a guest in a failed test is
//! kept beside the packets of failed scenarios.

pub mod apps;
mod base64;
pub mod bridged;
mod channel;
pub mod datagrams;
pub mod debian;
mod image;
pub mod libvirt;
pub mod migration;
pub mod notify;
pub mod rdma;
pub mod site;
pub mod wire;

pub use channel::Ended;
pub use image::{Image, can_run, image, image_of_apps, image_of_debian, image_with, switch_parts};
pub use site::{Site, Vm};

use crate::{Netns, Process, Workdir, binary, process, wait_for};
use channel::Channel;
use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a boot may take, with three others at the same time on a busy machine.
const BOOT: Duration = Duration::from_secs(240);
/// How long a script may take that is not said to take longer.
pub const SCRIPT: Duration = Duration::from_secs(60);

/// What a guest is made of.
#[derive(Debug, Clone)]
pub struct Hardware<'a> {
    /// Its name.
    pub name: &'a str,
    /// The MAC address of its `eth0`.
    pub mac: &'a str,
    /// What its `eth0` is plugged into.
    pub cable: Cable<'a>,
    /// Memory in MiB.
    pub memory: u32,
    /// What it boots.
    pub image: &'a Image,
    /// Further properties of its `eth0`, each after a comma.
    pub more: &'a str,
}

/// What a guest's `eth0` is plugged into.
#[derive(Debug, Clone, Copy)]
pub enum Cable<'a> {
    /// Nothing: it has no `eth0`.
    None,
    /// The vhost-user socket of a switch.
    VhostUser(&'a Path),
    /// A tap interface in a namespace, in which its process then runs.
    Tap(&'a Netns, &'a str),
}

/// A running guest.
#[derive(Debug)]
pub struct Guest {
    name: String,
    machine: RefCell<Machine>,
    channel: RefCell<Channel>,
}

/// A process of QEMU, and what it was made of: the same is made where the guest migrates to.
#[derive(Debug)]
struct Machine {
    process: Process,
    mac: String,
    memory: u32,
    image: Image,
    more: String,
    /// Keeps the folder of sockets and console as long as the process.
    dir: Workdir,
}

impl Machine {
    /// Starts one. With `incoming` it waits there for a guest that comes from another one.
    #[track_caller]
    fn start(hardware: &Hardware<'_>, incoming: Option<&Path>) -> Machine {
        let dir = Workdir::new("guest");
        let line = command_line(hardware, dir.path(), incoming);
        let command = match hardware.cable {
            Cable::Tap(netns, _) => netns.command(&line.iter().map(String::as_str).collect::<Vec<_>>()),
            Cable::None | Cable::VhostUser(_) => process::bound_to_us(&line),
        };
        let process =
            Process::spawn(&format!("guest {}", hardware.name), command, dir.path().join("qemu.log"));
        let Hardware { mac, memory, image, more, .. } = *hardware;
        Machine { process, mac: mac.to_owned(), memory, image: image.clone(), more: more.to_owned(), dir }
    }

    /// The channel to the agent of the guest, or of the one that is to come.
    #[track_caller]
    fn channel(&mut self) -> Channel {
        let agent = self.dir.path().join(AGENT);
        wait_for("QEMU to open the agent's socket", Duration::from_secs(20), || {
            if let Some(status) = self.process.exited() {
                panic!("QEMU ended ({status}):\n{}", self.process.output());
            }
            Channel::connect(&agent)
        })
    }
}

/// Files in the folder of a machine: sockets of the agent and of QEMU's monitor (QMP), and what the guest writes to its console.
const AGENT: &str = "agent.sock";
const MONITOR: &str = "monitor.sock";
const CONSOLE: &str = "console.log";

/// A script that runs beside the scenario, in a guest.
#[derive(Debug)]
#[must_use = "a job goes on until somebody finishes or stops it"]
pub struct Job {
    id: u64,
    script: String,
}

impl Job {
    /// The number that the guest's agent knows it by.
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl Guest {
    /// Turns a guest on; [`Guest::wait_ready`] waits for it.
    #[track_caller]
    pub fn boot(hardware: &Hardware<'_>) -> Guest {
        let mut machine = Machine::start(hardware, None);
        let channel = RefCell::new(machine.channel());
        Guest { name: hardware.name.to_owned(), machine: RefCell::new(machine), channel }
    }

    /// Waits until the guest's agent answers.
    #[track_caller]
    pub fn wait_ready(&self) {
        self.wait_ready_within(BOOT);
    }

    /// As `wait_ready`, for a guest whose boot may take so long.
    #[track_caller]
    pub fn wait_ready_within(&self, limit: Duration) {
        let ready = self.channel.borrow_mut().wait_ready(Instant::now() + limit);
        match ready {
            Ok(true) => {}
            Ok(false) => panic!("guest {} did not boot in {limit:?}", self.name),
            Err(error) => self.gone(&error),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a script and returns what it wrote; fails the test when the script fails or takes longer than a minute.
    #[track_caller]
    pub fn run(&self, script: &str) -> String {
        let ended = self.try_run(script, SCRIPT);
        assert!(ended.ok(), "'{script}' failed in guest {} ({}):\n{}", self.name, ended.status, ended.output);
        ended.output
    }

    /// Runs a script, whatever comes of it; fails the test when it takes longer than `limit`.
    #[track_caller]
    pub fn try_run(&self, script: &str, limit: Duration) -> Ended {
        let job = self.start(script);
        self.finish(job, limit)
    }

    /// Starts a script beside the scenario.
    #[track_caller]
    pub fn start(&self, script: &str) -> Job {
        let started = self.channel.borrow_mut().start(script);
        let id = started.unwrap_or_else(|error| self.gone(&error));
        Job { id, script: script.to_owned() }
    }

    /// Waits for the end of a job; fails the test, and ends the script, when it takes longer than `limit`.
    #[track_caller]
    pub fn finish(&self, job: Job, limit: Duration) -> Ended {
        if let Some(ended) = self.ended(&job, limit) {
            return ended;
        }
        let wrote = self.stop(Job { id: job.id, script: job.script.clone() }).output;
        panic!("'{}' in guest {} did not end in {limit:?}; it wrote:\n{wrote}", job.script, self.name)
    }

    /// Ends a job and returns what it had written. A script that does not mind SIGTERM is killed.
    #[track_caller]
    pub fn stop(&self, job: Job) -> Ended {
        for (signal, patience) in [("TERM", 5), ("KILL", 20)] {
            let sent = self.channel.borrow_mut().kill(job.id, signal);
            sent.unwrap_or_else(|error| self.gone(&error));
            if let Some(ended) = self.ended(&job, Duration::from_secs(patience)) {
                return ended;
            }
        }
        panic!("'{}' in guest {} survived being killed", job.script, self.name)
    }

    /// The end of a job when it comes within `limit`.
    #[track_caller]
    pub fn ended(&self, job: &Job, limit: Duration) -> Option<Ended> {
        let ended = self.channel.borrow_mut().wait(job.id, Instant::now() + limit);
        ended.unwrap_or_else(|error| self.gone(&error))
    }

    /// Waits until a condition (a shell command) holds in the guest, which asks itself 30 times a second.
    #[track_caller]
    pub fn until(&self, condition: &str, limit: Duration) {
        if let Err(wrote) = self.until_or_late(condition, limit) {
            panic!("guest {}: '{condition}' did not come true in {limit:?}:\n{wrote}", self.name);
        }
    }

    /// As `until`; what the condition wrote when it did not come true in time.
    #[track_caller]
    pub fn until_or_late(&self, condition: &str, limit: Duration) -> Result<(), String> {
        let job = self.start(&format!("until {condition}; do usleep 30000; done"));
        if self.ended(&job, limit).is_some() { Ok(()) } else { Err(self.stop(job).output) }
    }

    /// As `until`, for something that `job` is to bring about: false as soon as the job has ended without doing so.
    #[track_caller]
    pub fn until_or_end(&self, job: &Job, condition: &str, limit: Duration) -> bool {
        let alive = format!("[ -e /run/jobs/{}.sh ]", job.id);
        let script = format!("until {condition}; do {alive} || exit 1; usleep 30000; done");
        self.try_run(&script, limit).ok()
    }

    /// Its process on this machine.
    pub fn pid(&self) -> u32 {
        self.machine.borrow().process.pid()
    }

    /// Turns it off, as pulling the plug does.
    pub fn off(self) {
        drop(self);
    }

    /// Fails the test: the channel broke.
    #[track_caller]
    fn gone(&self, error: &std::io::Error) -> ! {
        let process = &mut self.machine.borrow_mut().process;
        let status =
            process.exited().map_or_else(|| "QEMU still runs".to_owned(), |s| format!("QEMU ended: {s}"));
        panic!("guest {} does not talk any more: {error}. {status}\n{}", self.name, process.output())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let test = std::thread::current().name().unwrap_or("test").replace("::", "-");
        let folder = binary::target_dir().join("scenario-pcaps");
        let kept = folder.join(format!("{test}-{}.log", self.name));
        let _ = fs::create_dir_all(&folder);
        if fs::copy(self.machine.borrow().dir.path().join(CONSOLE), &kept).is_ok() {
            eprintln!("console of guest {}: {}", self.name, kept.display());
        }
    }
}

/// What the kernel of a guest is told.
fn kernel_options(name: &str) -> String {
    format!(
        "console=ttyS0 quiet nokaslr mitigations=off no_timer_check tsc=reliable random.trust_cpu=on panic=-1 net.ifnames=0 lab.name={name}"
    )
}

/// QEMU's command line.
fn command_line(hardware: &Hardware<'_>, dir: &Path, incoming: Option<&Path>) -> Vec<String> {
    let Hardware { name, mac, memory, image, cable, more } = hardware;
    let mut line: Vec<String> =
        [image::QEMU, "-name", name, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
            .map(str::to_owned)
            .to_vec();
    let mut add = |option: &str, value: String| line.extend([option.to_owned(), value]);
    add("-accel", "tcg,thread=multi,tb-size=128".to_owned());
    add("-cpu", "max".to_owned());
    add("-m", memory.to_string());
    // vhost-user shares the guest's memory with the switch.
    add("-object", format!("memory-backend-memfd,id=mem,size={memory}M,share=on"));
    add("-machine", "q35,memory-backend=mem".to_owned());
    add("-kernel", image.kernel.display().to_string());
    add("-initrd", image.initrd.display().to_string());
    add("-append", kernel_options(name));
    add("-serial", format!("file:{}", dir.join(CONSOLE).display()));
    add("-qmp", format!("unix:{},server=on,wait=off", dir.join(MONITOR).display()));
    add("-device", "virtio-rng-pci".to_owned());
    add("-device", "virtio-serial-pci".to_owned());
    add("-chardev", format!("socket,id=agent,path={},server=on,wait=off", dir.join(AGENT).display()));
    add("-device", "virtserialport,chardev=agent,name=agent".to_owned());
    if let Some(incoming) = incoming {
        add("-incoming", format!("unix:{}", incoming.display()));
    }
    match cable {
        Cable::None => return line,
        Cable::VhostUser(socket) => {
            add("-chardev", format!("socket,id=port,path={},reconnect=1", socket.display()));
            add("-netdev", "vhost-user,id=net,chardev=port".to_owned());
        }
        Cable::Tap(_, name) => add("-netdev", format!("tap,id=net,ifname={name},script=no,downscript=no")),
    }
    // Without message-signalled interrupts: emulated, they and vhost-user bring QEMU 7.2 down. A long ring, because
    // an emulated guest may be slow to empty it.
    add("-device", format!("virtio-net-pci,netdev=net,mac={mac},vectors=0,rx_queue_size=1024{more}"));
    line
}
