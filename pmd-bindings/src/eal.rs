//! [`Eal`]: DPDK's runtime, started once per process from a typed configuration.
//!
//! Arguments are built from [`EalConfig`] and checked field by field; no text from outside becomes an argument
//! of its own. The EAL ends when the last of its users (the [`Eal`] handles, mempools, ports) is gone.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dpdk_sys as sys;

use crate::error::{EalError, Errno, cut};
use crate::run_dir::RunDir;
use crate::{hugepage, lcore, log};

/// The least packet memory that is accepted.
pub const MIN_MEMORY_MB: u32 = 16;

/// A PCI address that no device has: with it as the only allowed one, the PCI bus is scanned and usable for
/// later attachment, and nothing is taken at start.
const NO_PCI_DEVICE: &str = "ffff:1f:1f.7";

/// Whether packet memory comes from huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hugepages {
    /// From huge pages when enough are free, else from ordinary ones.
    #[default]
    Auto,
    /// Never.
    Never,
    /// Or the EAL does not start.
    Require,
}

/// Which PCI devices the EAL may touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PciAccess {
    /// None: the PCI bus is not even scanned.
    #[default]
    None,
    /// Those named by devargs (`0000:3b:00.0,representor=[0-3]`), and whatever is attached later.
    Allow(Vec<String>),
}

/// How much DPDK says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// Errors.
    Error,
    /// And warnings.
    Warning,
    /// And notices; DPDK's own default.
    #[default]
    Notice,
    /// And information.
    Info,
    /// Everything.
    Debug,
}

/// What the EAL is started with.
#[derive(Clone, Debug)]
pub struct EalConfig {
    /// Name of the run folder and of huge-page files; unique among the DPDK processes of a machine.
    pub file_prefix: String,
    /// Packet memory in megabytes.
    pub memory_mb: u32,
    /// Where packet memory comes from.
    pub hugepages: Hugepages,
    /// With huge pages: one file for all of it, which vhost-user, virtio-user and memif peers need.
    pub single_file_segments: bool,
    /// With huge pages: no files in a hugetlbfs mount, nothing to leave behind. Secondary processes (dpdk-pdump)
    /// cannot attach then.
    pub in_memory: bool,
    /// The PCI devices that may be used.
    pub pci: PciAccess,
    /// Poll-mode drivers beside those in DPDK's plugin folder: files or folders.
    pub plugins: Vec<PathBuf>,
    /// DPDK's telemetry socket in the run folder.
    pub telemetry: bool,
    /// The core that the calling thread and DPDK's own threads are pinned to; all cores when not given.
    pub main_core: Option<usize>,
    /// How much DPDK says.
    pub log_level: LogLevel,
}

impl Default for EalConfig {
    fn default() -> Self {
        Self {
            file_prefix: format!("vswitch-{}", std::process::id()),
            memory_mb: 512,
            hugepages: Hugepages::Auto,
            single_file_segments: true,
            in_memory: true,
            pci: PciAccess::None,
            plugins: Vec::new(),
            telemetry: false,
            main_core: None,
            log_level: LogLevel::Notice,
        }
    }
}

impl EalConfig {
    /// True when these settings lead to huge pages on this machine.
    fn decide_hugepages(&self, free_mb: u64) -> Result<bool, EalError> {
        let enough = free_mb >= u64::from(self.memory_mb);
        match self.hugepages {
            Hugepages::Never => Ok(false),
            Hugepages::Auto => Ok(enough),
            Hugepages::Require if enough => Ok(true),
            Hugepages::Require => Err(EalError::NoHugepages {
                wanted: self.memory_mb,
                free: free_mb,
                pages: self.memory_mb.div_ceil(2),
            }),
        }
    }

    /// The argument vector, program name included.
    fn arguments(&self, huge: bool, cores: &[usize]) -> Result<Vec<String>, EalError> {
        check_prefix(&self.file_prefix)?;
        if self.memory_mb < MIN_MEMORY_MB {
            return Err(EalError::Memory(self.memory_mb));
        }
        let cores = match self.main_core {
            Some(core) if !cores.contains(&core) => {
                return Err(EalError::Core { core, available: cores.to_vec() });
            }
            Some(core) => vec![core],
            None => cores.to_vec(),
        };
        let cores: Vec<String> = cores.iter().map(usize::to_string).collect();

        // One logical core 0, mapped onto the allowed CPUs: no worker threads of DPDK's own.
        let mut args = vec!["vswitch".to_owned(), format!("--lcores=0@({})", cores.join(","))];
        args.push(format!("--file-prefix={}", self.file_prefix));
        args.extend(["-m".to_owned(), self.memory_mb.to_string()]);
        if !huge {
            args.extend(["--no-huge", "--no-shconf"].map(str::to_owned));
        } else {
            args.extend(self.in_memory.then(|| "--in-memory".to_owned()));
            args.extend(self.single_file_segments.then(|| "--single-file-segments".to_owned()));
        }
        match &self.pci {
            PciAccess::None => args.push("--no-pci".to_owned()),
            PciAccess::Allow(devices) if devices.is_empty() => args.push(format!("--allow={NO_PCI_DEVICE}")),
            PciAccess::Allow(devices) => {
                for device in devices {
                    check_devargs(device)?;
                    args.push(format!("--allow={device}"));
                }
            }
        }
        for plugin in &self.plugins {
            let path = plugin.to_str().filter(|_| plugin.exists());
            let path = path.ok_or_else(|| EalError::Plugin(plugin.clone()))?;
            args.extend(["-d".to_owned(), path.to_owned()]);
        }
        args.extend((!self.telemetry).then(|| "--no-telemetry".to_owned()));
        args.push(format!("--log-level={}", self.log_level.number()));
        if self.log_level == LogLevel::Debug {
            args.push("--log-level=*:debug".to_owned());
        }
        Ok(args)
    }
}

impl LogLevel {
    fn number(self) -> u32 {
        match self {
            Self::Error => sys::RTE_LOG_ERR,
            Self::Warning => sys::RTE_LOG_WARNING,
            Self::Notice => sys::RTE_LOG_NOTICE,
            Self::Info => sys::RTE_LOG_INFO,
            Self::Debug => sys::RTE_LOG_DEBUG,
        }
    }
}

fn check_prefix(prefix: &str) -> Result<(), EalError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let good = (1..=64).contains(&prefix.len())
        && prefix.chars().all(allowed)
        && prefix.starts_with(|c: char| c.is_ascii_alphanumeric());
    if good { Ok(()) } else { Err(EalError::FilePrefix(cut(prefix))) }
}

fn check_devargs(text: &str) -> Result<(), EalError> {
    let why = if text.is_empty() {
        "it is empty; write an address like 0000:3b:00.0"
    } else if text.len() > 1024 {
        "it is over 1024 bytes long"
    } else if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        "it holds spaces or control characters"
    } else if text.starts_with('-') {
        "it begins with a dash"
    } else {
        return Ok(());
    };
    Err(EalError::Devargs { text: cut(text), why })
}

/// The running EAL, shared by everything that needs it.
#[derive(Debug)]
pub(crate) struct EalInner {
    run_dir: Option<RunDir>,
    hugepages: bool,
    pci: bool,
}

impl Drop for EalInner {
    fn drop(&mut self) {
        // SAFETY: `rte_eal_init` succeeded, and nothing that uses the EAL is left: mempools and ports hold an
        // `Arc` of this value.
        let ret = unsafe { sys::rte_eal_cleanup() };
        if ret < 0 {
            tracing::warn!(error = %Errno::new(ret), "rte_eal_cleanup failed");
        }
        self.run_dir = None;
    }
}

/// A handle on DPDK's runtime. Clones are handles on the same one.
#[derive(Clone, Debug)]
pub struct Eal {
    pub(crate) inner: Arc<EalInner>,
}

impl Eal {
    /// Starts the EAL. With `main_core` given, the calling thread stays pinned to that core.
    ///
    /// # Errors
    /// [`EalError`]. After [`EalError::Init`] only a new process can try again; after any other error the
    /// same process can.
    pub fn init(config: &EalConfig) -> Result<Self, EalError> {
        static INITIALISED: AtomicBool = AtomicBool::new(false);
        if INITIALISED.load(Ordering::Acquire) {
            return Err(EalError::AlreadyInitialised);
        }
        let huge = config.decide_hugepages(hugepage::free_mb())?;
        let args = config.arguments(huge, &lcore::available())?;
        let args: Vec<CString> = args
            .into_iter()
            .map(|arg| {
                CString::new(arg)
                    .map_err(|error| EalError::Nul(cut(&String::from_utf8_lossy(&error.into_vec()))))
            })
            .collect::<Result<_, _>>()?;
        let run_dir = RunDir::claim(&config.file_prefix)?;
        if INITIALISED.swap(true, Ordering::AcqRel) {
            return Err(EalError::AlreadyInitialised);
        }

        // DPDK's own threads take their cores from this thread's affinity.
        if let Some(core) = config.main_core {
            let pinned = lcore::pin_current_thread(core);
            pinned.map_err(|_| EalError::Core { core, available: lcore::available() })?;
        }
        log::install();
        tracing::debug!(?args, "starting the EAL");
        let (ret, words) = log::captured(|| init_raw(args));
        if let Err(errno) = Errno::check(ret) {
            let errno = if errno.code() == 1 { Errno::last() } else { errno };
            return Err(EalError::Init { errno, words });
        }
        tracing::info!(
            hugepages = huge,
            memory_mb = config.memory_mb,
            run_folder = %run_dir.path().display(),
            "DPDK {} runs {}",
            Self::dpdk_version(),
            if huge { "on huge pages" } else { "without huge pages (--no-huge)" },
        );
        let pci = config.pci != PciAccess::None;
        Ok(Self { inner: Arc::new(EalInner { run_dir: Some(run_dir), hugepages: huge, pci }) })
    }

    /// True when packet memory is on huge pages.
    pub fn uses_hugepages(&self) -> bool {
        self.inner.hugepages
    }

    /// True when the PCI bus was scanned, so that devices on it can be attached.
    pub fn uses_pci(&self) -> bool {
        self.inner.pci
    }

    /// The DPDK that runs, as in `DPDK 22.11.11`'s number.
    pub fn dpdk_version() -> String {
        // SAFETY: returns a static NUL-terminated string.
        let text = unsafe { sys::rte_version() };
        // SAFETY: as above; it lives as long as the process.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        text.trim_start_matches("DPDK ").to_owned()
    }
}

/// Calls `rte_eal_init`. The arguments are leaked: the EAL permutes and keeps pointers into them.
fn init_raw(args: Vec<CString>) -> c_int {
    let mut argv: Vec<*mut c_char> = args.into_iter().map(CString::into_raw).collect();
    let argc = c_int::try_from(argv.len()).unwrap_or(c_int::MAX);
    argv.push(std::ptr::null_mut());
    let argv: &'static mut [*mut c_char] = argv.leak();
    // SAFETY: argc and a NULL-terminated argv of writable strings that are never freed; called once per
    // process, which `INITIALISED` keeps.
    unsafe { sys::rte_eal_init(argc, argv.as_mut_ptr()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> EalConfig {
        EalConfig { file_prefix: "t".into(), memory_mb: 64, ..EalConfig::default() }
    }

    #[test]
    fn arguments_come_from_the_fields() {
        let args = config().arguments(false, &[0, 1]).unwrap();
        assert!(args.contains(&"--lcores=0@(0,1)".to_owned()) && args.contains(&"--no-huge".to_owned()));
        assert!(args.contains(&"--no-pci".to_owned()) && !args.contains(&"--in-memory".to_owned()));
        let huge = EalConfig { main_core: Some(1), telemetry: true, ..config() };
        let args = huge.arguments(true, &[0, 1]).unwrap();
        assert!(args.contains(&"--lcores=0@(1)".to_owned()) && args.contains(&"--in-memory".to_owned()));
        assert!(!args.contains(&"--no-telemetry".to_owned()) && !args.contains(&"--no-huge".to_owned()));
    }

    #[test]
    fn nothing_smuggles_an_argument() {
        for prefix in ["", "-x", "../x", "a b", &"x".repeat(65), ".hidden"] {
            let config = EalConfig { file_prefix: prefix.into(), ..config() };
            assert!(matches!(config.arguments(false, &[0]), Err(EalError::FilePrefix(_))), "{prefix:?}");
        }
        for device in ["", "-d x", "0000:01:00.0 --no-huge", "a\nb"] {
            let config = EalConfig { pci: PciAccess::Allow(vec![device.into()]), ..config() };
            assert!(matches!(config.arguments(false, &[0]), Err(EalError::Devargs { .. })), "{device:?}");
        }
        let config = EalConfig { plugins: vec!["/does/not/exist.so".into()], ..config() };
        assert!(matches!(config.arguments(false, &[0]), Err(EalError::Plugin(_))));
    }

    #[test]
    fn cores_and_memory_are_checked() {
        let config_with = |main_core, memory_mb| EalConfig { main_core, memory_mb, ..config() };
        assert!(matches!(
            config_with(Some(9), 64).arguments(false, &[0]),
            Err(EalError::Core { core: 9, .. })
        ));
        assert!(matches!(config_with(None, 1).arguments(false, &[0]), Err(EalError::Memory(1))));
    }

    #[test]
    fn hugepages_follow_what_is_free() {
        let decide = |hugepages, free| EalConfig { hugepages, ..config() }.decide_hugepages(free);
        assert!(decide(Hugepages::Auto, 64).unwrap() && !decide(Hugepages::Auto, 63).unwrap());
        assert!(!decide(Hugepages::Never, 1000).unwrap());
        assert!(matches!(decide(Hugepages::Require, 63), Err(EalError::NoHugepages { pages: 32, .. })));
    }
}
