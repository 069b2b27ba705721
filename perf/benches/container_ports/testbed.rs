//! Two interfaces with a forwarder between them, who fills the one and who looks at what comes out of the other; and a sample.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use perf::host::cores::Cores;
use perf::host::netns::Netns;
use perf::live::ports::Runtime;

use crate::frames::{Arena, Message, ROOM, Traffic, is_same};
use crate::ports::Ports;
use crate::uring::On;
use crate::{calls, socket, uring};

/// How long frames that were sent may take to come.
const LATE: Duration = Duration::from_secs(5);

/// What is forwarded from.
pub trait Source {
    /// Takes a batch of what waits.
    fn receive(&mut self, arena: &mut Arena, messages: &mut Vec<Message>) -> io::Result<()>;

    /// So many slots are in use in all, and these are free again.
    fn give_back(&mut self, _arena: &mut Arena, _messages: &[Message], _slots: usize) {}
}

/// What is forwarded to.
pub trait Sink {
    /// Sends a batch, all of it.
    fn send(&mut self, arena: &mut Arena, messages: &[Message]) -> io::Result<()>;
}

/// What forwards.
pub trait Forwarder {
    /// Forwards what waits, a batch at most; how many frames that were.
    fn turn(&mut self) -> anyhow::Result<usize>;
}

/// A source and a sink. They go before the memory that the kernel knows.
struct Pipe {
    source: Box<dyn Source>,
    sink: Box<dyn Sink>,
    messages: Vec<Message>,
    arena: Arena,
    slots: usize,
}

impl Forwarder for Pipe {
    fn turn(&mut self) -> anyhow::Result<usize> {
        self.messages.clear();
        self.source.receive(&mut self.arena, &mut self.messages)?;
        if !self.messages.is_empty() {
            self.sink.send(&mut self.arena, &self.messages)?;
            self.source.give_back(&mut self.arena, &self.messages, self.slots);
        }
        Ok(self.messages.len())
    }
}

/// A way to forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Ports,
    Calls,
    Uring,
    Multishot,
    SentByUring,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ports => "ports of the switch",
            Self::Calls => "calls",
            Self::Uring => "io_uring",
            Self::Multishot => "io_uring, multishot",
            Self::SentByUring => "ring, sent by io_uring",
        }
    }

    pub fn needs_uring(self) -> bool {
        !matches!(self, Self::Ports | Self::Calls)
    }
}

/// What kind of interface the frames go over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Veth,
    Tap,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Veth => "veth",
            Self::Tap => "tap",
        }
    }

    pub fn ways(self) -> &'static [Way] {
        match self {
            Self::Veth => &[Way::Ports, Way::Calls, Way::Uring, Way::Multishot, Way::SentByUring],
            Self::Tap => &[Way::Ports, Way::Calls, Way::Uring],
        }
    }

    /// The interfaces that are forwarded between.
    fn ours(self) -> [&'static str; 2] {
        match self {
            Self::Veth => ["va", "vb"],
            Self::Tap => ["ta", "tb"],
        }
    }

    /// The interfaces by which somebody else sends to the first and hears of the second: a tap is its own other end.
    fn others(self) -> [&'static str; 2] {
        match self {
            Self::Veth => ["xa", "xb"],
            Self::Tap => self.ours(),
        }
    }
}

/// Interfaces, which go with the value.
struct Interfaces<'a> {
    netns: &'a Netns,
    kind: Kind,
}

impl<'a> Interfaces<'a> {
    /// Makes those that no forwarder makes. They are up at once: a socket that is bound before has an error to tell first.
    fn create(netns: &'a Netns, kind: Kind) -> anyhow::Result<Self> {
        let interfaces = Self { netns, kind };
        if kind == Kind::Veth {
            for (ours, other) in kind.ours().iter().zip(kind.others()) {
                netns.ip(&format!("link add {ours} type veth peer name {other}"))?;
            }
            interfaces.up()?;
        }
        Ok(interfaces)
    }

    fn up(&self) -> anyhow::Result<()> {
        for interface in self.kind.ours().iter().chain(&self.kind.others()) {
            self.netns.ip(&format!("link set {interface} up"))?;
        }
        Ok(())
    }

    /// Frames that the kernel has received at the far end.
    fn received(&self) -> anyhow::Result<usize> {
        let [_, far] = self.kind.others();
        let text = self.netns.ip(&format!("-s -j link show dev {far}"))?;
        let links: serde_json::Value = serde_json::from_str(&text)?;
        let count = links.pointer("/0/stats64/rx/packets").and_then(serde_json::Value::as_u64);
        count.map(|count| count as usize).with_context(|| format!("ip tells no counters of {far}: {text}"))
    }
}

impl Drop for Interfaces<'_> {
    fn drop(&mut self) {
        if self.kind == Kind::Veth {
            for interface in self.kind.ours() {
                if let Err(error) = self.netns.ip(&format!("link del {interface}")) {
                    eprintln!("cannot remove {interface}: {error}");
                }
            }
        }
    }
}

fn forwarder(runtime: &Runtime, kind: Kind, way: Way, batch: usize) -> anyhow::Result<Box<dyn Forwarder>> {
    let [near, far] = kind.ours();
    // What goes on by itself may be a batch ahead.
    let slots = if way == Way::Multishot { 2 * batch } else { batch };
    let mut arena = Arena::new(slots);
    let hearing = || socket::packet().and_then(|fd| socket::bind(&fd, near, true).map(|()| fd));
    let (source, sink): (Box<dyn Source>, Box<dyn Sink>) = match (kind, way) {
        (_, Way::Ports) => return Ok(Box::new(Ports::open(runtime, kind, [near, far], batch)?)),
        (Kind::Tap, Way::Calls) => {
            let [source, sink] = [near, far].map(|name| socket::tap(name).map(|fd| calls::Tap { fd, batch }));
            (Box::new(source?), Box::new(sink?))
        }
        (Kind::Tap, _) => {
            let [source, sink] =
                [near, far].map(|name| uring::Batches::new(On::Tap, socket::tap(name)?, &mut arena, batch));
            (Box::new(source?), Box::new(sink?))
        }
        (Kind::Veth, _) => {
            let sender = calls::Batches::open(far)?;
            let source: Box<dyn Source> = match way {
                Way::Uring => Box::new(uring::Batches::new(On::Socket, hearing()?, &mut arena, batch)?),
                Way::Multishot => Box::new(uring::Multishot::new(hearing()?, &mut arena, slots)?),
                _ => Box::new(calls::Ring::open(near, batch)?),
            };
            let sink: Box<dyn Sink> = match way {
                Way::Calls => Box::new(sender),
                _ => Box::new(uring::Batches::new(On::Socket, sender.0, &mut arena, slots)?),
            };
            (source, sink)
        }
    };
    Ok(Box::new(Pipe { source, sink, messages: Vec::with_capacity(slots), arena, slots }))
}

/// Who sends, on a thread and a core of its own: so many frames whenever it is told to.
struct Sender {
    orders: Option<SyncSender<usize>>,
    done: Receiver<io::Result<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sender {
    fn start(interface: &str, traffic: Traffic, core: usize) -> anyhow::Result<Self> {
        let fd = socket::packet()?;
        socket::bind(&fd, interface, false)?;
        let (orders, ordered) = sync_channel::<usize>(1);
        let (tell, done) = sync_channel(1);
        let thread = std::thread::spawn(move || {
            let pinned = pmd::lcore::pin_current_thread(core).map_err(io::Error::other);
            let mut messages: Vec<_> = (0..traffic.burst()).map(|number| traffic.message(number)).collect();
            if tell.send(pinned).is_err() {
                return;
            }
            for count in ordered {
                if tell.send(fill(&fd, &mut messages, count)).is_err() {
                    return;
                }
            }
        });
        let sender = Self { orders: Some(orders), done, thread: Some(thread) };
        sender.done.recv()??;
        Ok(sender)
    }

    /// Has so many frames sent, whole batches; returns when they are.
    fn fill(&self, count: usize) -> anyhow::Result<()> {
        self.orders.as_ref().context("no sender")?.send(count)?;
        Ok(self.done.recv()??)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // It ends when nobody gives orders any more.
        self.orders = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            eprintln!("the sender has panicked");
        }
    }
}

fn fill(fd: &OwnedFd, messages: &mut [Vec<u8>], count: usize) -> io::Result<()> {
    let piece =
        |message: &mut Vec<u8>| libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: message.len() };
    let mut pieces: Vec<libc::iovec> = messages.iter_mut().map(piece).collect();
    for _ in 0..count / pieces.len() {
        // SAFETY: each is a message.
        unsafe { socket::send_all(fd, &mut pieces) }?;
    }
    Ok(())
}

/// Frames of a sample, and the CPU time that they took.
pub struct Sample {
    frames: usize,
    cpu: Duration,
}

impl Sample {
    /// Frames a CPU-second.
    pub fn rate(&self) -> f64 {
        self.frames as f64 / self.cpu.as_secs_f64()
    }
}

/// Makes everything, looks whether what comes out is right, and forwards for so much CPU time.
pub fn sample(
    netns: &Netns,
    runtime: &Runtime,
    cores: Cores,
    (kind, way, traffic): (Kind, Way, Traffic),
    length: Duration,
) -> anyhow::Result<Sample> {
    let interfaces = Interfaces::create(netns, kind)?;
    let mut forwarder = forwarder(runtime, kind, way, traffic.batch())?;
    if kind == Kind::Tap {
        interfaces.up()?;
    }
    let [near, _] = kind.others();
    let sender = Sender::start(near, traffic, cores.housekeeping)?;
    check(kind, traffic, &sender, &mut *forwarder)?;
    let before = interfaces.received()?;
    let mut sample = Sample { frames: 0, cpu: Duration::ZERO };
    while sample.cpu < length {
        sender.fill(traffic.waiting())?;
        sample.cpu += drain(&mut *forwarder, traffic.waiting())?;
        sample.frames += traffic.waiting();
    }
    let received = interfaces.received()? - before;
    ensure!(received == sample.frames, "{received} of {} frames came out", sample.frames);
    Ok(sample)
}

/// Forwards so many frames; the CPU time of this thread for that.
fn drain(forwarder: &mut dyn Forwarder, count: usize) -> anyhow::Result<Duration> {
    let (start, end) = (cpu_time()?, Instant::now() + LATE);
    let mut forwarded = 0;
    while forwarded < count {
        let frames = forwarder.turn()?;
        forwarded += frames;
        ensure!(frames > 0 || Instant::now() < end, "{forwarded} of {count} frames were forwarded");
    }
    ensure!(forwarded == count, "{forwarded} frames were forwarded, {count} were sent");
    Ok(cpu_time()?.saturating_sub(start))
}

/// Of a burst every frame comes out once, in order, with what its header asked for.
fn check(kind: Kind, traffic: Traffic, sender: &Sender, forwarder: &mut dyn Forwarder) -> anyhow::Result<()> {
    let [_, far] = kind.others();
    let capture = socket::packet()?;
    socket::bind(&capture, far, true)?;
    sender.fill(traffic.burst())?;
    drain(forwarder, traffic.burst())?;
    let (mut space, end) = (vec![0u8; ROOM], Instant::now() + LATE);
    for number in 0..traffic.burst() {
        let len = loop {
            // SAFETY: so much room.
            match unsafe { socket::read(&capture, space.as_mut_ptr(), ROOM) }? {
                Some(len) => break len,
                None => ensure!(Instant::now() < end, "frame {number} did not come out"),
            }
        };
        if !is_same(&space[..len], &traffic.message(number)) {
            return Err(anyhow!("frame {number} came out as another one"));
        }
    }
    Ok(())
}

/// CPU time that this thread has had.
fn cpu_time() -> io::Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place that may be written.
    let ret = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    socket::checked(ret.into())?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}
