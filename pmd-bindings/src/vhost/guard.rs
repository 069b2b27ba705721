//! What keeps a peer from ending the process by taking back memory that it shared.
//!
//! The library maps a peer's memory, and its log of dirty pages, from files that stay the peer's: it may truncate them at any
//! time, and whoever touches them then gets SIGBUS. The handler here puts empty memory of our own in the place of the whole
//! mapping, so that the access goes on, and marks it: the port is taken down when control looks next
//! ([`Shared::is_broken`]), and nobody else notices. Memory that the library unmaps while rings are in it raises SIGSEGV: it does so
//! before it knows that there will be other memory, and when there is none, against what `trial.rs` saw, leaves the rings where
//! they were. That is handled the same way, a page at a time. Whatever else raises these signals ends the process as before.
//!
//! Which mappings are meant, a table says, which is kept by the messages that change them. While such a message is handled the
//! library's own thread touches mappings that are in no table yet: there, and only there, the handler asks the kernel
//! (`/proc/self/maps`) which mapping it is.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use dpdk_sys as sys;

use super::setup::Region;

/// Mappings of all peers at most: as many as the library has regions for each of as many peers as it takes.
const MAPPINGS: usize = 16 * 1024;

/// A mapping of a peer's memory; free while its length is 0.
struct Mapping {
    start: AtomicUsize,
    length: AtomicUsize,
    /// The peer took it back.
    is_gone: AtomicBool,
}

static TABLE: [Mapping; MAPPINGS] = [const {
    Mapping { start: AtomicUsize::new(0), length: AtomicUsize::new(0), is_gone: AtomicBool::new(false) }
}; MAPPINGS];
/// Who changes the table.
static CHANGES: Mutex<()> = Mutex::new(());
/// An address in memory that was taken back while the library set it up; 0 for none.
static GONE_EARLY: AtomicUsize = AtomicUsize::new(0);
/// The actions of before, of each signal.
static BEFORE: [OnceLock<libc::sigaction>; 2] = [const { OnceLock::new() }; 2];
/// What a thread gets that touches memory behind the end of a file, and memory that is not mapped.
const SIGNALS: [libc::c_int; 2] = [libc::SIGBUS, libc::SIGSEGV];

thread_local! {
    /// This is a thread of the library's. Without a destructor, so that a signal handler may look.
    static IS_LIBRARY: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is the library's.
pub(super) fn on_library_thread() {
    IS_LIBRARY.set(true);
}

/// Installs the handler, once in a process.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: integers and pointers, for which zero is a value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void) = on_fault;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        for (signal, known) in SIGNALS.into_iter().zip(&BEFORE) {
            let mut before = MaybeUninit::<libc::sigaction>::uninit();
            // SAFETY: a whole action whose handler does nothing but what a handler may, and a place for the one before.
            if unsafe { libc::sigaction(signal, &raw const action, before.as_mut_ptr()) } == 0 {
                // SAFETY: the kernel has written it.
                let _ = known.set(unsafe { before.assume_init() });
            } else {
                tracing::warn!(
                    signal,
                    "a signal cannot be handled: a vhost-user peer that takes back memory ends the switch"
                );
            }
        }
    });
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel hands over a whole siginfo.
    let Some(info) = (unsafe { info.as_ref() }) else { return };
    // SAFETY: the signals are ones that have an address.
    let address = unsafe { info.si_addr() } as usize;
    // SAFETY: asks for the calling thread's own place.
    let place = unsafe { libc::__errno_location() };
    // A handler may not change what the code that it interrupted will look at.
    // SAFETY: a valid place of this thread's.
    let errno = unsafe { place.read() };
    let goes_on = match signal {
        libc::SIGBUS => takes_back(address),
        _ => info.si_code == SEGV_MAPERR && fills_in(address),
    };
    if !goes_on {
        // As if this handler had never been: the access is repeated, and meets whoever was here before.
        let before = SIGNALS.iter().zip(&BEFORE).find(|(known, _)| **known == signal);
        if let Some(before) = before.and_then(|(_, before)| before.get()) {
            // SAFETY: an action that was in force.
            unsafe { libc::sigaction(signal, std::ptr::from_ref(before), std::ptr::null_mut()) };
        }
    }
    // SAFETY: as above.
    unsafe { place.write(errno) };
}

/// Of SIGSEGV (sigaction(2)): nothing is mapped there.
const SEGV_MAPERR: libc::c_int = 1;
const PAGE: usize = 4096;

/// The mapping of the table that an address is in.
fn known_at(address: usize) -> Option<(&'static Mapping, usize, usize)> {
    TABLE.iter().find_map(|mapping| {
        let (start, length) = (mapping.start.load(Ordering::Acquire), mapping.length.load(Ordering::Acquire));
        (length > 0 && address.wrapping_sub(start) < length).then_some((mapping, start, length))
    })
}

/// Puts a page of ours where a peer's memory was that the library has unmapped while its rings were in it; `false` when it was
/// none, or somebody else's memory is there.
fn fills_in(address: usize) -> bool {
    let Some((mapping, ..)) = known_at(address) else { return false };
    mapping.is_gone.store(true, Ordering::Release);
    replace(address / PAGE * PAGE, PAGE, libc::MAP_FIXED_NOREPLACE)
}

/// Puts memory of ours where a peer's was; `false` when there was none.
fn takes_back(address: usize) -> bool {
    if let Some((mapping, start, length)) = known_at(address) {
        mapping.is_gone.store(true, Ordering::Release);
        return replace(start, length, libc::MAP_FIXED);
    }
    if !IS_LIBRARY.get() {
        return false;
    }
    let Some((start, length)) = mapping_at(address) else { return false };
    GONE_EARLY.store(address, Ordering::Release);
    replace(start, length, libc::MAP_FIXED)
}

fn replace(start: usize, length: usize, how: libc::c_int) -> bool {
    let flags = how | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a mapping of a peer's memory, which the library reads and writes as bytes that anybody may change; or of nobody.
    let got =
        unsafe { libc::mmap(start as *mut c_void, length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    // Another page may have been put there by another thread that met the same.
    got != libc::MAP_FAILED || how == libc::MAP_FIXED_NOREPLACE && is_mapped(start)
}

fn is_mapped(page: usize) -> bool {
    let mut resident = 0u8;
    // SAFETY: a page's address, and a place for one page. It fails where nothing is mapped.
    unsafe { libc::mincore(page as *mut c_void, PAGE, &raw mut resident) == 0 }
}

/// The shared mapping of a file around an address, as the kernel tells it. Called from a signal handler: no memory is asked
/// for, and no lock.
fn mapping_at(address: usize) -> Option<(usize, usize)> {
    // SAFETY: a C string; the result is checked.
    let file = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    let mut lines = Lines::default();
    let mut found = None;
    let mut bytes = [0u8; 1024];
    'all: loop {
        // SAFETY: an open file and a place of this size.
        let got = unsafe { libc::read(file, bytes.as_mut_ptr().cast(), bytes.len()) };
        let Some(got) = usize::try_from(got).ok().filter(|&got| got > 0) else { break };
        for &byte in &bytes[..got] {
            if let Some((start, end)) = lines.feed(byte)
                && (start..end).contains(&address)
            {
                found = Some((start, end - start));
                break 'all;
            }
        }
    }
    // SAFETY: the file that was opened above.
    unsafe { libc::close(file) };
    found
}

/// Reads `start-end rwxs ...` of each line, a byte at a time.
#[derive(Default)]
struct Lines {
    /// Of the line: which word it is, and what it came to so far.
    word: usize,
    start: usize,
    end: usize,
    letters: usize,
}

impl Lines {
    /// The bounds of a shared mapping, when its flags have been read.
    fn feed(&mut self, byte: u8) -> Option<(usize, usize)> {
        let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as usize;
        match (byte, self.word) {
            (b'\n', _) => *self = Self::default(),
            (b'-', 0) => self.word = 1,
            (b' ', 1) => self.word = 2,
            (_, 0) => self.start = self.start << 4 | digit(byte),
            (_, 1) => self.end = self.end << 4 | digit(byte),
            (_, 2) => {
                self.letters += 1;
                if self.letters == 4 {
                    self.word = 3;
                    return (byte == b's').then_some((self.start, self.end));
                }
            }
            _ => {}
        }
        None
    }
}

/// The mappings of one peer, in the table until this goes.
#[derive(Debug, Default)]
pub(super) struct Shared {
    memory: Vec<usize>,
    log: Vec<usize>,
    is_broken: bool,
}

impl Shared {
    /// The guest's memory is mapped anew, as returned: of a message that did so, on the library's thread.
    pub fn memory_changed(&mut self, vid: i32) -> Vec<Region> {
        let regions = regions_of(vid);
        let bounds = regions.iter().map(|region| (region.mmap_addr as usize, region.mmap_size as usize));
        let wanted: Vec<_> = bounds.filter(|&(start, length)| start != 0 && length != 0).collect();
        let early = GONE_EARLY.swap(0, Ordering::AcqRel);
        let is_inside = |(start, length): &(usize, usize)| early.wrapping_sub(*start) < *length;
        self.is_broken |= self.is_broken() || wanted.iter().any(is_inside);
        enter(&mut self.memory, &wanted);
        let region = |region: &sys::rte_vhost_mem_region| Region {
            guest: region.guest_phys_addr,
            monitor: region.guest_user_addr,
            here: region.host_user_addr,
            size: region.size,
        };
        regions.iter().map(region).collect()
    }

    /// Memory that the rings are in is mapped no more.
    pub fn lose(&mut self) {
        self.is_broken = true;
    }

    /// The log of dirty pages is.
    pub fn log_changed(&mut self, vid: i32) {
        self.is_broken |= self.is_broken();
        enter(&mut self.log, log_of(vid).as_slice());
    }

    /// Nothing is mapped any more.
    pub fn forget(&mut self) {
        self.is_broken |= self.is_broken();
        enter(&mut self.memory, &[]);
        enter(&mut self.log, &[]);
    }

    /// Whether the peer has taken back what it shared.
    pub fn is_broken(&self) -> bool {
        let is_gone = |slot: &usize| TABLE[*slot].is_gone.load(Ordering::Acquire);
        self.is_broken || self.memory.iter().chain(&self.log).any(is_gone)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.forget();
    }
}

/// Has these mappings in the table, in place of those of `slots`.
fn enter(slots: &mut Vec<usize>, wanted: &[(usize, usize)]) {
    let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
    for slot in slots.drain(..) {
        TABLE[slot].length.store(0, Ordering::Release);
    }
    for &(start, length) in wanted {
        let Some(slot) = TABLE.iter().position(|slot| slot.length.load(Ordering::Relaxed) == 0) else {
            tracing::warn!(
                "too many mappings of vhost-user peers: one is not guarded against being taken back"
            );
            return;
        };
        TABLE[slot].is_gone.store(false, Ordering::Relaxed);
        TABLE[slot].start.store(start, Ordering::Release);
        TABLE[slot].length.store(length, Ordering::Release);
        slots.push(slot);
    }
}

/// A guest's memory as the library has it, of a peer that does not go meanwhile. Only to be asked when it has mapped some.
fn regions_of(vid: i32) -> Vec<sys::rte_vhost_mem_region> {
    let mut memory: *mut sys::rte_vhost_memory = std::ptr::null_mut();
    // SAFETY: a valid place; the library checks the number of the peer.
    let ret = unsafe { sys::rte_vhost_get_mem_table(vid, &raw mut memory) };
    // SAFETY: the library allocated and filled it, where it says so.
    let Some(table) = unsafe { memory.as_ref() }.filter(|_| ret == 0) else { return Vec::new() };
    // SAFETY: so many regions follow the count.
    let regions = unsafe { table.regions.as_slice(table.nregions as usize) }.to_vec();
    // SAFETY: allocated with malloc for the caller, who has done with it.
    unsafe { libc::free(memory.cast()) };
    regions
}

/// What the library has mapped of the log of dirty pages: where, and how many bytes.
fn log_of(vid: i32) -> Option<(usize, usize)> {
    let (mut base, mut size) = (0u64, 0u64);
    // SAFETY: two valid places.
    let ret = unsafe { sys::rte_vhost_get_log_base(vid, &raw mut base, &raw mut size) };
    let (base, size) = (base as usize, size as usize);
    let start = base / PAGE * PAGE;
    (ret == 0 && base != 0 && size != 0).then(|| (start, (base + size).next_multiple_of(PAGE) - start))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// A shared mapping of a fresh file of so many bytes, and the file.
    fn shared(length: usize) -> (usize, std::fs::File) {
        use std::os::fd::{AsRawFd, FromRawFd};
        // SAFETY: a C string; the result is checked.
        let file = unsafe { libc::memfd_create(c"guard".as_ptr(), 0) };
        assert!(file >= 0);
        // SAFETY: a fresh descriptor.
        let file = unsafe { std::fs::File::from_raw_fd(file) };
        file.set_len(length as u64).unwrap();
        // SAFETY: a fresh mapping of that file.
        let start = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        (start as usize, file)
    }

    fn write(address: usize) {
        // SAFETY: inside a mapping of the test's.
        unsafe { (address as *mut u8).write_volatile(7) };
    }

    #[test]
    fn hostile_memory_that_is_taken_back_is_replaced_and_told() {
        install();
        let (start, file) = shared(16 << 12);
        let mut known = Shared::default();
        known.memory.push(3);
        TABLE[3].start.store(start, Ordering::Release);
        TABLE[3].length.store(16 << 12, Ordering::Release);
        write(start + (9 << 12));
        assert!(!known.is_broken());
        file.set_len(0).unwrap();
        write(start + (9 << 12) + 8);
        assert!(known.is_broken(), "the access went on, and is told");
        write(start);
        drop(known);
        assert_eq!(TABLE[3].length.load(Ordering::Relaxed), 0);
        // In no table, on a thread of the library's.
        let (start, file) = shared(4 << 12);
        on_library_thread();
        file.set_len(0).unwrap();
        write(start + 5000);
        assert_eq!(GONE_EARLY.load(Ordering::Relaxed), start + 5000);
    }

    #[test]
    fn hostile_memory_that_is_unmapped_is_replaced_and_told() {
        install();
        let (start, _file) = shared(4 << 12);
        let mut known = Shared::default();
        known.memory.push(5);
        TABLE[5].start.store(start, Ordering::Release);
        TABLE[5].length.store(4 << 12, Ordering::Release);
        // The threads are there before: what the system maps for a new one might take the place of what goes.
        let (ready, gone) = (Barrier::new(5), Barrier::new(5));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (ready, gone) = (&ready, &gone);
                scope.spawn(move || {
                    ready.wait();
                    gone.wait();
                    write(start + (2 << 12) + thread);
                });
            }
            ready.wait();
            // SAFETY: the mapping of above, all of it.
            let unmapped = unsafe { libc::munmap(start as *mut c_void, 4 << 12) };
            let is_broken = known.is_broken();
            gone.wait();
            assert_eq!((unmapped, is_broken), (0, false));
        });
        write(start);
        assert!(known.is_broken(), "the access went on, and is told");
    }

    #[test]
    fn hostile_any_other_fault_ends_the_process_as_before() {
        install();
        let (start, file) = shared(4 << 12);
        for is_unmapped in [false, true] {
            // SAFETY: the child does nothing but change and write memory and end.
            let child = unsafe { libc::fork() };
            if child == 0 {
                file.set_len(0).unwrap();
                if is_unmapped {
                    // SAFETY: the mapping of above, all of it.
                    unsafe { libc::munmap(start as *mut c_void, 4 << 12) };
                }
                write(start);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: the child of above, and a valid place.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFSIGNALED(status), "status {status}");
        }
    }

    #[test]
    fn lines_of_maps_are_read() {
        let text = "55d0a000-55d0b000 r--p 00000000 00:1f 123 /bin/x\n7f00a0000000-7f00a0010000 rw-s 0 00:01 5 /memfd:a b-c\n";
        let mut lines = Lines::default();
        let found: Vec<_> = text.bytes().filter_map(|byte| lines.feed(byte)).collect();
        assert_eq!(found, [(0x7f00_a000_0000, 0x7f00_a001_0000)]);
    }
}
