//! Every error of this crate, and the one place where an errno becomes words.
//!
//! An error names the thing that failed and what to do about it. DPDK's own words, where it logged any while it
//! failed, are part of the message: a poll-mode driver's refusal is often clear only there.

use std::fmt;
use std::path::PathBuf;

/// An errno as DPDK returns it (negative return values and `rte_errno` alike).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

impl Errno {
    /// The operation is not supported.
    pub const ENOTSUP: Self = Self(libc::ENOTSUP);
    /// The call is not implemented.
    pub const ENOSYS: Self = Self(libc::ENOSYS);
    /// No such device.
    pub const ENODEV: Self = Self(libc::ENODEV);
    /// Invalid argument.
    pub const EINVAL: Self = Self(libc::EINVAL);

    /// From a number of either sign.
    pub const fn new(code: i32) -> Self {
        Self(code.wrapping_abs())
    }

    /// The positive number.
    pub const fn code(self) -> i32 {
        self.0
    }

    /// True when the device or driver does not have the function at all.
    pub fn is_unsupported(self) -> bool {
        matches!(self, Self::ENOTSUP | Self::ENOSYS)
    }

    /// `Ok` for 0 and above, else the errno.
    pub(crate) fn check(ret: i32) -> Result<i32, Self> {
        if ret < 0 { Err(Self::new(ret)) } else { Ok(ret) }
    }

    /// The calling thread's `rte_errno`.
    pub(crate) fn last() -> Self {
        // SAFETY: reads a thread-local of the calling thread; there is nothing to uphold.
        Self::new(unsafe { dpdk_sys::dpdk_sys_errno() })
    }

    fn name(self) -> &'static str {
        match self.0 {
            libc::EPERM => "EPERM",
            libc::ENOENT => "ENOENT",
            libc::EIO => "EIO",
            libc::EAGAIN => "EAGAIN",
            libc::ENOMEM => "ENOMEM",
            libc::EACCES => "EACCES",
            libc::EBUSY => "EBUSY",
            libc::EEXIST => "EEXIST",
            libc::ENODEV => "ENODEV",
            libc::EINVAL => "EINVAL",
            libc::ENOSPC => "ENOSPC",
            libc::ERANGE => "ERANGE",
            libc::ENOSYS => "ENOSYS",
            libc::ENOTSUP => "ENOTSUP",
            libc::EALREADY => "EALREADY",
            libc::ETIMEDOUT => "ETIMEDOUT",
            libc::ECONNREFUSED => "ECONNREFUSED",
            libc::EADDRINUSE => "EADDRINUSE",
            libc::EPROTO => "EPROTO",
            1001 => "E_RTE_SECONDARY",
            1002 => "E_RTE_NO_CONFIG",
            _ => "errno",
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0 {
            1001 => "not allowed in a secondary process".into(),
            // Many drivers return a bare -1, which is the same number.
            libc::EPERM => "not permitted, or the driver gives no reason".into(),
            1002 => "no run-time configuration: is the EAL initialised?".into(),
            code => std::io::Error::from_raw_os_error(code).to_string(),
        };
        let words = words.split(" (os error").next().unwrap_or_default();
        write!(f, "{} ({}): {words}", self.name(), self.0)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Errno {}

/// What DPDK logged, at warning level or above, while an operation failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words(pub Vec<String>);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, line) in self.0.iter().enumerate() {
            write!(f, "{}{line}", if index == 0 { "; DPDK says: " } else { " / " })?;
        }
        Ok(())
    }
}

/// Why DPDK's runtime did not start.
#[derive(Debug, thiserror::Error)]
pub enum EalError {
    /// A process gets one EAL, ever.
    #[error(
        "the EAL was already initialised in this process; DPDK allows it once: restart the process instead"
    )]
    AlreadyInitialised,
    /// The file prefix cannot be a folder name.
    #[error(
        "file prefix {0:?} is not usable; write 1 to 64 of the characters A-Z a-z 0-9 _ - . and begin with a letter or digit"
    )]
    FilePrefix(String),
    /// Another process runs under the same prefix.
    #[error(
        "another process already runs with file prefix {prefix:?} (it holds {path}); stop it or choose another file prefix"
    )]
    PrefixBusy {
        /// The prefix.
        prefix: String,
        /// The lock file.
        path: PathBuf,
    },
    /// The run folder could not be made or locked.
    #[error(
        "cannot use the run folder {path}: {source}; run as root, or set XDG_RUNTIME_DIR to a folder of your own"
    )]
    RunFolder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Too little memory asked for.
    #[error("{0} MB of packet memory is too little; give at least {min}", min = crate::eal::MIN_MEMORY_MB)]
    Memory(u32),
    /// Huge pages were required and are not there.
    #[error(
        "{wanted} MB of huge pages are required, {free} MB are free; reserve some (sysctl -w vm.nr_hugepages={pages}) or allow running without"
    )]
    NoHugepages {
        /// Megabytes asked for.
        wanted: u32,
        /// Megabytes free.
        free: u64,
        /// 2 MiB pages that would do.
        pages: u32,
    },
    /// A device argument that would not stay one argument.
    #[error("device arguments {text:?}: {why}")]
    Devargs {
        /// The text.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A driver plugin that is not there.
    #[error("driver plugin {0} does not exist; give the path of a librte_*.so file or of a folder of them")]
    Plugin(PathBuf),
    /// A core that this process may not run on.
    #[error("core {core} is not available; this process may run on {available:?}")]
    Core {
        /// The core asked for.
        core: usize,
        /// The cores there are.
        available: Vec<usize>,
    },
    /// `rte_eal_init` failed.
    #[error("DPDK's EAL did not start: {errno}{words}; mend what is named there, and start again")]
    Init {
        /// Its error.
        errno: Errno,
        /// What it logged.
        words: Words,
    },
    /// A text with a NUL byte.
    #[error("{0:?} holds a NUL byte; remove it")]
    Nul(String),
}

/// Why a mempool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MempoolError {
    /// The name is empty, too long, or has a NUL byte.
    #[error("mempool name {0:?} is not usable; write 1 to 24 printable ASCII characters")]
    Name(String),
    /// No mbufs asked for.
    #[error("mempool {0:?} is to have no mbuf; give it at least one")]
    Empty(String),
    /// The per-core cache is over DPDK's limits.
    #[error("mempool {name:?}: a cache of {cache} is too large; with {mbufs} mbufs give at most {max}")]
    Cache {
        /// The pool.
        name: String,
        /// The cache asked for.
        cache: u32,
        /// The mbufs asked for.
        mbufs: u32,
        /// The largest cache.
        max: u32,
    },
    /// The data room is not larger than the headroom.
    #[error(
        "mempool {name:?}: a data room of {data_room} bytes is too small; give {min}, for headroom and the shortest segment"
    )]
    DataRoom {
        /// The pool.
        name: String,
        /// The data room asked for.
        data_room: u16,
        /// The smallest.
        min: u16,
    },
    /// DPDK refused.
    #[error(
        "mempool {name:?} of {mbufs} mbufs ({megabytes} MB): {errno}{words}; give the EAL more memory or ask for fewer mbufs"
    )]
    Create {
        /// The pool.
        name: String,
        /// The mbufs asked for.
        mbufs: u32,
        /// Their size, rounded up.
        megabytes: u64,
        /// DPDK's error.
        errno: Errno,
        /// What it logged.
        words: Words,
    },
}

/// Why something could not be done with a port.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// DPDK has no room for another port.
    #[error(
        "port {name:?}: this DPDK was built for {limit} ports (RTE_MAX_ETHPORTS) and all are in use; detach one, or put several vNICs on one trunk port"
    )]
    LimitReached {
        /// The port that was to be attached.
        name: String,
        /// The limit.
        limit: usize,
    },
    /// A name or argument that DPDK would take apart or cut.
    #[error("port {name:?}: {why}; choose another name or arguments")]
    Name {
        /// The text, cut.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A port of that name exists.
    #[error("a port named {0:?} exists already; detach it first or choose another name")]
    Exists(String),
    /// Someone else in this process has the port.
    #[error("port {0:?} is in use; detach it there first")]
    Busy(String),
    /// No such device.
    #[error(
        "no port or device {name:?}{words}; list the ports with `port list`, PCI devices with `dpdk-devbind.py --status`"
    )]
    NotFound {
        /// The name.
        name: String,
        /// What DPDK logged.
        words: Words,
    },
    /// The driver refused the device or its arguments.
    #[error(
        "port {name:?} with arguments {args:?} was refused: {errno}{words}; look at the device and at its arguments"
    )]
    Attach {
        /// The port.
        name: String,
        /// The driver's arguments.
        args: String,
        /// DPDK's error.
        errno: Errno,
        /// What it logged.
        words: Words,
    },
    /// More queues or descriptors, or another MTU, than the port takes.
    #[error("port {name:?}: {what} {value} is out of range; give {min} to {max}")]
    Range {
        /// The port.
        name: String,
        /// The setting.
        what: &'static str,
        /// The value asked for.
        value: u64,
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// Offloads that the port does not report.
    #[error(
        "port {name:?} does not have the {direction} offloads {missing:?}; it has {available:?}: take some of those"
    )]
    Offloads {
        /// The port.
        name: String,
        /// `rx` or `tx`.
        direction: &'static str,
        /// Those it lacks.
        missing: Vec<String>,
        /// Those it has.
        available: Vec<String>,
    },
    /// RSS hash fields that the port does not report.
    #[error(
        "port {name:?} cannot hash on {missing:?}; it can on {available:?}; take fewer, or let RSS adjust itself"
    )]
    Rss {
        /// The port.
        name: String,
        /// Those it lacks.
        missing: Vec<String>,
        /// Those it has.
        available: Vec<String>,
    },
    /// An RSS key of another length than the port's.
    #[error("port {name:?}: an RSS key of {given} bytes does not do; give one of {wanted}")]
    RssKey {
        /// The port.
        name: String,
        /// Bytes given.
        given: usize,
        /// Bytes wanted.
        wanted: usize,
    },
    /// Queues missing at stop.
    #[error(
        "port {name:?} cannot stop: its rx queues {rx:?} and tx queues {tx:?} are still out; take them back from their workers first"
    )]
    QueuesMissing {
        /// The port.
        name: String,
        /// Missing receive queues.
        rx: Vec<u16>,
        /// Missing transmit queues.
        tx: Vec<u16>,
    },
    /// Flow queues that are out at stop.
    #[error("port {name:?} cannot stop: its flow queues {queues:?} are still out; let them go first")]
    FlowQueuesOut {
        /// The port.
        name: String,
        /// The flow queues.
        queues: Vec<u16>,
    },
    /// Flow queues that the port does not take.
    #[error(
        "port {name:?} takes no such flow queues: {error}; start it without, rules then go the synchronous way"
    )]
    FlowQueues {
        /// The port.
        name: String,
        /// The driver's refusal.
        error: rules::FlowError,
    },
    /// A queue of another port was handed in at stop.
    #[error(
        "port {name:?} cannot stop: {count} of the queues handed in are not its own; give it those that are"
    )]
    ForeignQueues {
        /// The port.
        name: String,
        /// How many.
        count: usize,
    },
    /// An operation that the driver does not have.
    #[error("port {name:?}: its driver cannot {operation}; use a port of another kind for that")]
    Unsupported {
        /// The port.
        name: String,
        /// The operation.
        operation: &'static str,
    },
    /// An operation failed.
    #[error(
        "port {name:?}: {operation} failed: {errno}{words}; look at the device, and at the kernel's log for it"
    )]
    Operation {
        /// The port.
        name: String,
        /// The operation.
        operation: &'static str,
        /// DPDK's error.
        errno: Errno,
        /// What it logged.
        words: Words,
    },
}

/// The first characters of a text that came from outside, for an error message.
pub(crate) fn cut(text: &str) -> String {
    const SHOWN: usize = 80;
    let mut short: String = text.chars().take(SHOWN).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_says_its_name_and_meaning() {
        assert_eq!(Errno::new(-libc::EBUSY).to_string(), "EBUSY (16): Device or resource busy");
        assert_eq!(Errno::new(libc::EINVAL), Errno::EINVAL);
        assert!(Errno::ENOTSUP.is_unsupported() && !Errno::EINVAL.is_unsupported());
        assert_eq!(Errno::check(3), Ok(3));
        assert_eq!(Errno::check(-19), Err(Errno::ENODEV));
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(cut("short"), "short");
        assert!(cut(&"x".repeat(10_000)).len() < 100);
    }
}
