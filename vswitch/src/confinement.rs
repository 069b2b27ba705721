//! What system calls the daemon may make (seccomp(2)), once it runs: those that it and DPDK need, and no others.
//!
//! The filter is for whoever gets a thread of the daemon to do his bidding, through a fault in what parses a guest's packets or its
//! rings, say: he starts no program, loads nothing into the kernel, looks into no other process, mounts nothing. A call that is not
//! in the list fails with EPERM, as it does for somebody who lacks a right; it ends neither thread nor process, so that packets
//! go on whatever control meets. It holds for all threads there are, and for those that they start.

use std::collections::BTreeMap;
use std::io;

use libc as c;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use crate::config::Seccomp;

/// Files: configs, state and journal, sockets' folders, /sys and /proc of devices, hugepages, captures, dumps.
#[rustfmt::skip]
const FILES: &[c::c_long] = &[
    c::SYS_openat, c::SYS_openat2, c::SYS_close, c::SYS_close_range, c::SYS_read, c::SYS_readv, c::SYS_pread64,
    c::SYS_preadv, c::SYS_preadv2, c::SYS_write, c::SYS_writev, c::SYS_pwrite64, c::SYS_pwritev, c::SYS_pwritev2,
    c::SYS_lseek, c::SYS_fstat, c::SYS_statx, c::SYS_statfs, c::SYS_fstatfs, c::SYS_newfstatat, c::SYS_faccessat,
    c::SYS_faccessat2, c::SYS_readlinkat, c::SYS_getdents64, c::SYS_getcwd, c::SYS_chdir, c::SYS_fchdir,
    c::SYS_mkdirat, c::SYS_unlinkat, c::SYS_renameat, c::SYS_renameat2, c::SYS_linkat, c::SYS_symlinkat,
    c::SYS_ftruncate, c::SYS_truncate, c::SYS_fallocate, c::SYS_fsync, c::SYS_fdatasync, c::SYS_sync_file_range,
    c::SYS_flock, c::SYS_fcntl, c::SYS_dup, c::SYS_dup3, c::SYS_umask, c::SYS_utimensat, c::SYS_copy_file_range,
    c::SYS_sendfile, c::SYS_splice, c::SYS_fadvise64, c::SYS_inotify_init1, c::SYS_inotify_add_watch,
    c::SYS_inotify_rm_watch,
];
/// Owners and modes of sockets that the switch makes (`owner`, `mode` of vhost-user ports, `[api] group`). They change what
/// belongs to the switch's own user only, unless it has CAP_CHOWN.
const MODES: &[c::c_long] = &[c::SYS_fchmod, c::SYS_fchmodat, c::SYS_fchown, c::SYS_fchownat];
/// Memory: the heap, DPDK's pools, guests' memory that comes with a vhost-user connection, rings shared with the kernel.
#[rustfmt::skip]
const MEMORY: &[c::c_long] = &[
    c::SYS_brk, c::SYS_mmap, c::SYS_munmap, c::SYS_mremap, c::SYS_mprotect, c::SYS_madvise, c::SYS_msync,
    c::SYS_mincore, c::SYS_mlock, c::SYS_mlock2, c::SYS_munlock, c::SYS_mlockall, c::SYS_munlockall,
    c::SYS_memfd_create, c::SYS_membarrier, c::SYS_mbind, c::SYS_get_mempolicy, c::SYS_set_mempolicy,
    c::SYS_move_pages, c::SYS_pkey_alloc, c::SYS_pkey_mprotect, c::SYS_pkey_free,
];
/// Threads: workers, the helper that opens ports, the API, DPDK's interrupt and vhost threads. Not `execve`: they start no program.
#[rustfmt::skip]
const THREADS: &[c::c_long] = &[
    c::SYS_clone, c::SYS_clone3, c::SYS_exit, c::SYS_exit_group, c::SYS_set_tid_address, c::SYS_set_robust_list,
    c::SYS_get_robust_list, c::SYS_rseq, c::SYS_futex, c::SYS_gettid, c::SYS_getpid, c::SYS_getppid,
    c::SYS_sched_yield, c::SYS_sched_getaffinity, c::SYS_sched_setaffinity, c::SYS_sched_getscheduler,
    c::SYS_sched_getparam, c::SYS_sched_setscheduler, c::SYS_sched_getattr, c::SYS_sched_setattr, c::SYS_sched_get_priority_max,
    c::SYS_sched_get_priority_min, c::SYS_getpriority, c::SYS_setpriority, c::SYS_getcpu, c::SYS_prctl, c::SYS_wait4,
    c::SYS_restart_syscall, c::SYS_getrandom,
];
/// Signals: those that end the switch or have it reload, of its timers and packet sockets, and those of a fault on the way to its end.
#[rustfmt::skip]
const SIGNALS: &[c::c_long] = &[
    c::SYS_rt_sigaction, c::SYS_rt_sigprocmask, c::SYS_rt_sigreturn, c::SYS_rt_sigpending, c::SYS_rt_sigtimedwait,
    c::SYS_rt_sigsuspend, c::SYS_sigaltstack, c::SYS_signalfd4, c::SYS_tgkill, c::SYS_kill,
];
/// Time.
#[rustfmt::skip]
const TIME: &[c::c_long] = &[
    c::SYS_clock_gettime, c::SYS_clock_getres, c::SYS_clock_nanosleep, c::SYS_nanosleep, c::SYS_gettimeofday,
    c::SYS_times, c::SYS_timerfd_create, c::SYS_timerfd_settime, c::SYS_timerfd_gettime, c::SYS_timer_create,
    c::SYS_timer_settime, c::SYS_timer_gettime, c::SYS_timer_delete, c::SYS_setitimer, c::SYS_getitimer,
];
/// Waiting for several things: the runtimes of control and API, DPDK's interrupt thread, librte_vhost.
#[rustfmt::skip]
const EVENTS: &[c::c_long] = &[
    c::SYS_epoll_create1, c::SYS_epoll_ctl, c::SYS_epoll_pwait, c::SYS_epoll_pwait2, c::SYS_ppoll, c::SYS_pselect6,
    c::SYS_eventfd2, c::SYS_pipe2,
];
/// Sockets: the API's and consoles', packet sockets and AF_XDP, netlink, vhost-user, memif, TCP and UDP of the host.
#[rustfmt::skip]
const SOCKETS: &[c::c_long] = &[
    c::SYS_socket, c::SYS_socketpair, c::SYS_bind, c::SYS_listen, c::SYS_accept, c::SYS_accept4, c::SYS_connect,
    c::SYS_getsockname, c::SYS_getpeername, c::SYS_getsockopt, c::SYS_setsockopt, c::SYS_sendto, c::SYS_recvfrom,
    c::SYS_sendmsg, c::SYS_recvmsg, c::SYS_sendmmsg, c::SYS_recvmmsg, c::SYS_shutdown,
];
/// Devices: taps, VFIO, vhost, verbs and what ethtool asks are `ioctl`s; packet sockets get their filters, AF_XDP its program and taps
/// their hash by `bpf`; a tap in a container is made with `setns`, and there a namespace is looked at.
const DEVICES: &[c::c_long] = &[c::SYS_ioctl, c::SYS_bpf, c::SYS_setns];
/// Who the process is, and its limits: what it asks, and what it may set for itself without a right.
#[rustfmt::skip]
const PROCESS: &[c::c_long] = &[
    c::SYS_getuid, c::SYS_geteuid, c::SYS_getgid, c::SYS_getegid, c::SYS_getgroups, c::SYS_getresuid,
    c::SYS_getresgid, c::SYS_getpgid, c::SYS_getsid, c::SYS_capget, c::SYS_uname, c::SYS_sysinfo, c::SYS_getrusage, c::SYS_getrlimit,
    c::SYS_setrlimit, c::SYS_prlimit64, c::SYS_personality,
];
/// Older forms of the same, which the C library and DPDK still use on x86-64.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const OLDER: &[c::c_long] = &[
    c::SYS_open, c::SYS_creat, c::SYS_stat, c::SYS_lstat, c::SYS_access, c::SYS_readlink, c::SYS_getdents, c::SYS_mkdir,
    c::SYS_rmdir, c::SYS_unlink, c::SYS_rename, c::SYS_link, c::SYS_symlink, c::SYS_chmod, c::SYS_chown, c::SYS_lchown,
    c::SYS_dup2, c::SYS_pipe, c::SYS_poll, c::SYS_select, c::SYS_epoll_create, c::SYS_epoll_wait, c::SYS_eventfd,
    c::SYS_inotify_init, c::SYS_signalfd, c::SYS_alarm, c::SYS_pause, c::SYS_time, c::SYS_utime, c::SYS_arch_prctl,
    c::SYS_getpgrp,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c::c_long] = &[];
/// All of them. I/O ports of x86-64 (`iopl`, for virtio devices of old) are not among them: DPDK asks for them at its start, before
/// there is a filter.
const GROUPS: &[&[c::c_long]] =
    &[FILES, MODES, MEMORY, THREADS, SIGNALS, TIME, EVENTS, SOCKETS, DEVICES, PROCESS, OLDER];

/// Confines all threads of this process, and takes from it every way to more rights (`PR_SET_NO_NEW_PRIVS`). It cannot be undone.
///
/// # Errors
/// Why the kernel does not.
pub fn confine(how: Seccomp) -> io::Result<()> {
    let Some(program) = program(how)? else { return Ok(()) };
    seccompiler::apply_filter_all_threads(&program).map_err(io::Error::other)
}

/// The filter; `None` when there is to be none.
fn program(how: Seccomp) -> io::Result<Option<BpfProgram>> {
    let otherwise = match how {
        Seccomp::On => SeccompAction::Errno(c::EPERM.cast_unsigned()),
        Seccomp::Log => SeccompAction::Log,
        Seccomp::Off => return Ok(None),
    };
    let rules: BTreeMap<i64, _> =
        GROUPS.iter().flat_map(|group| *group).map(|number| (*number, Vec::new())).collect();
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let filter =
        SeccompFilter::new(rules, otherwise, SeccompAction::Allow, arch).map_err(io::Error::other)?;
    BpfProgram::try_from(filter).map(Some).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privilege_the_filter_is_one_for_the_kernel_and_lacks_what_gives_power() {
        let program = program(Seccomp::On).unwrap().unwrap();
        // BPF_MAXINSNS of linux/bpf_common.h.
        assert!(program.len() < 4096, "{}", program.len());
        for number in [
            c::SYS_execve,
            c::SYS_execveat,
            c::SYS_ptrace,
            c::SYS_process_vm_readv,
            c::SYS_process_vm_writev,
            c::SYS_mount,
            c::SYS_umount2,
            c::SYS_unshare,
            c::SYS_pivot_root,
            c::SYS_chroot,
            c::SYS_init_module,
            c::SYS_finit_module,
            c::SYS_kexec_load,
            c::SYS_reboot,
            c::SYS_setuid,
            c::SYS_setgid,
            c::SYS_setgroups,
            c::SYS_capset,
            c::SYS_keyctl,
            c::SYS_add_key,
            c::SYS_perf_event_open,
            // Its holder may keep whoever touches memory waiting.
            c::SYS_userfaultfd,
            c::SYS_io_uring_setup,
            c::SYS_settimeofday,
            c::SYS_sethostname,
            c::SYS_swapon,
        ] {
            assert!(!GROUPS.iter().any(|group| group.contains(&number)), "{number}");
        }
        assert!(super::program(Seccomp::Off).unwrap().is_none());
    }
}
