//! RDMA applications between two guests of the larger image (`scripts/lab-guest.d/apps`): storage, message passing and
//! what measures them.
//!
//! Programs that serve are tools as in [`super::rdma`]. What a kernel serves (NVMe-oF, iSER, NFS) is a script that sets it up, and
//! scripts for the other guest that use it and verify what they read.

use super::rdma::{self, Listens, Path, Proof, Tool};
use super::{Guest, Job, Vm, site};
use crate::Daemon;
use std::net::IpAddr;
use std::time::Duration;

/// Memory of a guest with applications, in MiB.
pub const MEMORY: u32 = 1024;
/// How long a script of an application may take; an emulated guest on a busy machine takes its time.
pub const LIMIT: Duration = Duration::from_secs(300);

/// Sets up an NVMe-oF target with a disk of `mib` MiB, in memory.
pub fn nvme_target(ip: IpAddr, mib: u32) -> String {
    format!(
        "set -e\nmount -t configfs none /sys/kernel/config\ntruncate -s {mib}M /run/nvme.img\n\
         cd /sys/kernel/config/nvmet\nmkdir subsystems/lab\necho 1 >subsystems/lab/attr_allow_any_host\n\
         mkdir subsystems/lab/namespaces/1\ncd subsystems/lab/namespaces/1\nprintf /run/nvme.img >device_path\n\
         echo 1 >buffered_io\necho 1 >enable\ncd /sys/kernel/config/nvmet\nmkdir ports/1\necho rdma >ports/1/addr_trtype\n\
         echo ipv4 >ports/1/addr_adrfam\necho {ip} >ports/1/addr_traddr\necho 4420 >ports/1/addr_trsvcid\n\
         ln -s /sys/kernel/config/nvmet/subsystems/lab ports/1/subsystems/lab\n"
    )
}

/// Connects to it, makes a file system there and mounts it at /mnt/nvme.
pub fn nvme_mount(ip: IpAddr) -> String {
    format!(
        "set -e\nnvme connect -t rdma -a {ip} -s 4420 -n lab -q nqn.2014-08.org.nvmexpress:uuid:lab --keep-alive-tmo=60\n\
         until [ -b /dev/nvme0n1 ]; do usleep 100000; done\nmkfs.ext4 -q /dev/nvme0n1\nmkdir -p /mnt/nvme\n\
         mount -t ext4 /dev/nvme0n1 /mnt/nvme\n"
    )
}

/// fio writes `loops` times `mib` MiB in a folder, each block with a checksum, and reads all of it back from the disk.
pub fn fio_verify(folder: &str, mib: u32, loops: u32) -> String {
    format!(
        "set -e\nfio --name=lab --thread --directory={folder} --ioengine=psync --rw=randwrite --bsrange=4k-32k --size={mib}m \
         --loops={loops} --verify=crc32c --do_verify=1 --verify_fatal=1 --direct=1 --fallocate=none\n"
    )
}

/// What fio says when every block was right.
pub const FIO_RIGHT: &str = "err= 0";

/// Unmounts, checks the file system and disconnects.
pub const NVME_END: &str = "set -e\numount /mnt/nvme\ne2fsck -fn /dev/nvme0n1\nnvme disconnect -n lab\n";

/// Sets up an iSER target with a disk of `mib` MiB, in memory.
pub fn iser_target(ip: IpAddr, mib: u32) -> String {
    let bytes = u64::from(mib) << 20;
    format!(
        "set -e\nmount | grep -q configfs || mount -t configfs none /sys/kernel/config\ncd /sys/kernel/config/target\n\
         truncate -s {mib}M /run/iser.img\nmkdir -p core/fileio_0/disk\n\
         echo fd_dev_name=/run/iser.img,fd_dev_size={bytes},fd_buffered_io=1 >core/fileio_0/disk/control\n\
         echo 1 >core/fileio_0/disk/enable\nmkdir iscsi\nmkdir iscsi/{IQN}\nmkdir iscsi/{IQN}/tpgt_1\n\
         cd iscsi/{IQN}/tpgt_1\nmkdir np/{ip}:3260\n\
         echo 1 >np/{ip}:3260/iser\nmkdir lun/lun_0\nln -s /sys/kernel/config/target/core/fileio_0/disk lun/lun_0/port\n\
         echo 0 >attrib/authentication\necho 1 >attrib/generate_node_acls\necho 0 >attrib/demo_mode_write_protect\n\
         echo 1 >attrib/cache_dynamic_acls\necho 1 >enable\n"
    )
}

const IQN: &str = "iqn.2025-01.lab:disk";

/// Logs in to it, makes a file system there and mounts it at /mnt/iser.
pub fn iser_mount(ip: IpAddr) -> String {
    format!(
        "set -e\nmkdir -p /run/lock/iscsi /etc/iscsi/nodes /etc/iscsi/send_targets /etc/iscsi/ifaces /var/lib/iscsi\n\
         echo InitiatorName=iqn.2025-01.lab:initiator >/etc/iscsi/initiatorname.iscsi\niscsid\n\
         iscsiadm -m node -o new -T {IQN} -p {ip}:3260,1 -I iser\niscsiadm -m node -T {IQN} -p {ip}:3260 -I iser --login\n\
         until [ -b /dev/sda ]; do usleep 100000; done\nmkfs.ext4 -q /dev/sda\nmkdir -p /mnt/iser\n\
         mount -t ext4 /dev/sda /mnt/iser\n"
    )
}

/// Unmounts, checks the file system and logs out.
pub const ISER_END: &str = "set -e\numount /mnt/iser\ne2fsck -fn /dev/sda\niscsiadm -m node -u\n";

/// Exports a folder in memory by NFS 4.2 over RDMA, with a file of `mib` MiB in it.
pub fn nfs_server(mib: u32) -> String {
    format!(
        "set -e\nmkdir -p /export /var/lib/nfs/rpc_pipefs /var/lib/nfs/v4recovery /var/lib/nfs/sm\n\
         touch /var/lib/nfs/etab /var/lib/nfs/rmtab /etc/exports\nmount -t tmpfs export /export\n\
         head -c $(({mib} << 20)) /dev/urandom >/export/there\nmount -t nfsd nfsd /proc/fs/nfsd\n\
         exportfs -o rw,no_root_squash,insecure,no_subtree_check,fsid=0 '*:/export'\n\
         rpc.mountd --no-nfs-version 3\nrpc.nfsd --no-nfs-version 3 --no-udp --port 2049 --rdma=20049 2\necho Y >/proc/fs/nfsd/v4_end_grace\n\
         grep -q 'rdma 20049' /proc/fs/nfsd/portlist\n"
    )
}

/// Mounts that folder at /mnt/nfs, by RDMA and nothing else.
pub fn nfs_mount(ip: IpAddr) -> String {
    format!("set -e\nmkdir -p /mnt/nfs\nmount.nfs {ip}:/ /mnt/nfs -o vers=4.2,proto=rdma,port=20049,hard\n")
}

/// The checksum of a file as the disk has it, not as this guest remembers it.
pub fn sum_of(file: &str) -> String {
    format!("set -e\necho 3 >/proc/sys/vm/drop_caches\nsha256sum <{file}\n")
}

/// What UCX is told to use: soft-RoCE, by the GIDs of IPv6, since its datagrams fail with those of IPv4.
fn ucx(path: &Path<'_>, transports: &str) -> [String; 2] {
    path.gids.map(|gid| {
        format!("UCX_NET_DEVICES=rxe0:1 UCX_TLS={transports},self UCX_IB_GID_INDEX={gid} UCX_WARN_UNUSED_ENV_VARS=n")
    })
}

/// `ucx_perftest`: `count` tagged messages of `size` bytes over a transport ("rc", "ud"). The path is one of IPv6.
pub fn ucx_perftest(path: &Path<'_>, transport: &str, size: u32, count: u32) -> Tool {
    let [server, client] = ucx(path, transport);
    let test = format!("ucx_perftest -p 13337 -t tag_bw -s {size} -n {count} -w 10");
    Tool {
        name: format!("ucx_perftest over {transport} to {}", path.to),
        packets: i64::from(count),
        server: format!("{server} {test}"),
        client: format!("{client} {test} {}", path.meet),
        listens: Listens::Tcp(13337),
        proof: Proof::Says("Final:", 1),
    }
}

/// `qperf`, connected by the connection manager: bandwidth and latency of RC, for a second each.
pub fn qperf(path: &Path<'_>) -> Tool {
    Tool {
        name: format!("qperf to {}", path.to),
        packets: 10,
        server: "exec qperf".to_owned(),
        client: format!(
            "qperf {} -cm 1 -t 2 rc_bw rc_lat rc_rdma_write_bw; status=$?; qperf {} quit; exit $status",
            path.to, path.to
        ),
        listens: Listens::Tcp(19765),
        proof: Proof::Says("=", 3),
    }
}

/// fio's own RDMA engine: `mib` MiB by a verb ("write", "read", "send").
pub fn fio_rdma(path: &Path<'_>, verb: &str, mib: u32) -> Tool {
    let job = "fio --name=lab --thread --ioengine=rdma --port=9001 --bs=64k";
    Tool {
        name: format!("fio's rdma engine, {verb}, to {}", path.to),
        packets: i64::from(mib * 1024),
        server: format!("{job} --rw=read --iodepth=8 --size={mib}m"),
        client: format!("{job} --hostname={} --verb={verb} --rw=write --iodepth=4 --size={mib}m", path.to),
        listens: Listens::Cm(9001),
        proof: Proof::Says("err= 0", 1),
    }
}

/// The words of `mpirun` for a job of two ranks, one in each guest, over UCX. The path is one of IPv6, its client runs `mpirun`.
pub fn mpirun(path: &Path<'_>, client: IpAddr, program: &str) -> String {
    let [there, here] = ucx(path, "rc");
    assert_eq!(there, here, "the guests are set up alike, and so are their GID tables");
    let words: Vec<String> = here.split(' ').map(|word| format!("-x {word}")).collect();
    format!(
        "exec mpirun --allow-run-as-root -np 2 --host {client}:1,{}:1 --mca plm_rsh_agent rsh --mca pml ucx --mca osc ucx \
         --mca btl self --mca oob_tcp_if_include eth0 {} {program}",
        path.meet,
        words.join(" ")
    )
}

/// What `show rcft` says of a vNIC.
#[track_caller]
pub fn rcft(switch: &Daemon, vnic: &str, name: &str) -> i64 {
    let answer = switch.json("show rcft");
    let row = answer["vnics"].as_array().into_iter().flatten().find(|row| row["name"] == vnic);
    row.and_then(|row| row[name].as_i64()).unwrap_or_else(|| panic!("no {name} of {vnic}: {answer:#}"))
}

/// Has the guests of a path find each other: the kernel gives a neighbour one second to answer when UCX makes an address handle,
/// which an emulated guest may not manage.
#[track_caller]
pub fn meet(path: &Path<'_>) {
    path.client.until(&format!("ping -c 1 -W 5 {} >/dev/null", path.to), Duration::from_secs(60));
}

/// Starts what answers `rsh` in a guest, and waits until it listens.
#[track_caller]
pub fn start_rshd(guest: &Guest) -> Job {
    let job = guest.start("exec rshd");
    guest.until("ss -ltnH | grep -q ':514 '", Duration::from_secs(60));
    job
}

/// The guests a and b of one VPC, with the memory that the larger image takes.
pub fn two_guests() -> [Vm; 2] {
    let [mut a, mut b, _, _] = site::two_tenants();
    (a.memory, b.memory) = (MEMORY, MEMORY);
    [a, b]
}

/// Runs a script of an application; fails the test unless it ends well and in time, and returns what it wrote.
#[track_caller]
pub fn run(guest: &Guest, script: &str) -> String {
    let job = guest.start(script);
    let ended = guest.ended(&job, LIMIT);
    if let Some(ended) = &ended
        && ended.ok()
    {
        return ended.output.clone();
    }
    let kernel = guest
        .try_run("dmesg | tail -n 30; rdma resource show qp; ip -s link show eth0", super::SCRIPT)
        .output;
    let (status, wrote) = match ended {
        Some(ended) => (format!("ended with {}", ended.status), ended.output),
        None => (format!("did not end in {LIMIT:?}"), guest.stop(job).output),
    };
    panic!("in guest {}:\n{script}\n{status}, wrote:\n{wrote}\nkernel:\n{kernel}", guest.name());
}

/// Runs a tool to its end; fails the test unless both sides ended well.
#[track_caller]
pub fn run_tool(path: &Path<'_>, tool: &Tool) {
    rdma::begin(path, tool).finish_within(LIMIT).assert_ok();
}

/// All of storage, each step verified; `done` hears of every step.
#[track_caller]
pub fn storage(server: &Guest, client: &Guest, ip: IpAddr, mut done: impl FnMut(&str)) {
    run(server, &nvme_target(ip, 64));
    run(client, &nvme_mount(ip));
    done("NVMe-oF: connected, ext4 made and mounted");
    assert!(run(client, &fio_verify("/mnt/nvme", 4, 1)).contains(FIO_RIGHT));
    done("NVMe-oF: fio verified 4 MiB");
    run(client, NVME_END);
    done("NVMe-oF: e2fsck found nothing, disconnected");

    run(server, &iser_target(ip, 32));
    run(client, &iser_mount(ip));
    done("iSER: logged in, ext4 made and mounted");
    assert!(run(client, &fio_verify("/mnt/iser", 4, 1)).contains(FIO_RIGHT));
    done("iSER: fio verified 4 MiB");
    run(client, ISER_END);
    done("iSER: e2fsck found nothing, logged out");

    run(server, &nfs_server(4));
    run(client, &nfs_mount(ip));
    let there = run(server, &sum_of("/export/there"));
    assert_eq!(run(client, &sum_of("/mnt/nfs/there")), there, "read over NFS");
    run(client, "set -e\nhead -c 4194304 /dev/urandom >/mnt/nfs/here\nsync\n");
    let here = run(client, &sum_of("/mnt/nfs/here"));
    assert_eq!(run(server, &sum_of("/export/here")), here, "written over NFS");
    run(client, "umount /mnt/nfs");
    done("NFS: 4 MiB each way, the same checksums on either side");
}

/// All of message passing and what measures it; `done` hears of every step. `v4` and `v6` are paths between the same guests, and
/// `client` is the client's address of IPv4.
#[track_caller]
pub fn messages(v4: &Path<'_>, v6: &Path<'_>, client: IpAddr, mut done: impl FnMut(&str)) {
    meet(v6);
    for transport in ["rc", "ud"] {
        let tool = ucx_perftest(v6, transport, 4096, 200);
        run_tool(v6, &tool);
        done(&tool.name);
    }
    let rshd = start_rshd(v6.server);
    let said = run(v6.client, &mpirun(v6, client, "allreduce 100 2000"));
    assert!(said.contains("RIGHT: 100 rounds of 2000 numbers over 2 ranks"), "{said}");
    done("OpenMPI: 100 allreduces and messages of 2000 numbers were right");
    let said = run(v6.client, &mpirun(v6, client, "NPopenmpi -i -u 16384 -o /tmp/np"));
    assert!(said.matches("Integrity check passed").count() >= 20, "{said}");
    done("NetPIPE: its own check of integrity passed, up to 16 KiB");
    v6.server.stop(rshd);
    for tool in [qperf(v4), fio_rdma(v4, "write", 4), fio_rdma(v4, "read", 4), fio_rdma(v4, "send", 4)] {
        run_tool(v4, &tool);
        done(&tool.name);
    }
}
