//! Which process runs DPDK on a device: none of ours, for a switch was asked before.
//!
//! A device that the kernel shares (mlx5) lets any number of processes in, and two of them in one e-switch would each
//! find the other's rules. RDMA applications open the same files and harm nobody, so a process counts when it has DPDK in its
//! memory, too; one that is linked with it statically is known by its packet memory on huge pages only. What vfio has is not
//! looked for: the kernel gives that to one process.

use std::collections::HashSet;

use crate::nic_check::HostView;

/// What is in the memory of a process that runs DPDK: its libraries, its packet memory.
const DPDK: [&str; 2] = ["librte_", "rtemap_"];

/// A process that runs DPDK on this device, in words; `None` also where this user may not see it.
pub(super) fn of(host: &HostView, pci: &str) -> Option<String> {
    let device = format!("sys/bus/pci/devices/{pci}");
    let files: HashSet<String> =
        ["infiniband_verbs", "uio"].iter().flat_map(|kind| host.names(format!("{device}/{kind}"))).collect();
    if files.is_empty() {
        return None;
    }
    let processes = host.names("proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    let holds = |process: &u32| {
        let folder = format!("proc/{process}/fd");
        let open = host.names(&folder).into_iter().filter_map(|file| host.link(format!("{folder}/{file}")));
        open.into_iter().any(|file| files.contains(&file))
    };
    let process = processes
        .filter(|process| *process != std::process::id())
        .find(|process| holds(process) && host.mentions(format!("proc/{process}/maps"), &DPDK))?;
    let name = host.read(format!("proc/{process}/comm")).unwrap_or_default();
    Some(if name.is_empty() { format!("process {process}") } else { format!("process {process} ({name})") })
}
