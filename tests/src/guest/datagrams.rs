//! Datagrams between two guests of the larger image that go another way than a queue pair to a queue pair: RDS, whose kernels
//! carry the messages of all sockets over one reliable connection, and UD multicast.

use super::apps;
use super::rdma::{Listens, Path, Proof, Tool};
use std::net::IpAddr;

/// The multicast group of `mckey`.
pub const GROUP: &str = "239.7.7.7";
/// What the guests need to send to a group: without a default route, the kernel does not know by which interface.
const TO_GROUPS: &str = "ip route replace 224.0.0.0/4 dev eth0";
/// Messages that are sent to the group, and their length, which is what one packet takes at the guests' MTU.
pub const TO_GROUP: (u32, u32) = (50, 1024);

/// `count` numbered messages of RDS in either direction, compared byte by byte (`scripts/lab-guest.d/apps/rds_exchange.c`).
/// `client` is the client's address of the path's family.
pub fn rds(path: &Path<'_>, client: IpAddr, count: u32) -> Tool {
    let (to, port) = (path.to, 4000);
    Tool {
        name: format!("{count} messages of RDS each way, to {to}"),
        packets: i64::from(2 * count),
        server: format!("exec rds_exchange {to} {client} {port} {count}"),
        client: format!("exec rds_exchange {client} {to} {port} {count} first"),
        listens: Listens::Says("bound"),
        proof: Proof::Says("RIGHT: ", 1),
    }
}

/// `mckey`: the path's server joins a group, its client sends to it. Both end when every message has come.
pub fn mckey(path: &Path<'_>, client: IpAddr) -> Tool {
    let (count, size) = TO_GROUP;
    let side = format!("exec mckey -m {GROUP} -C {count} -S {size}");
    Tool {
        name: format!("mckey to {GROUP}, from {client}"),
        packets: i64::from(count),
        server: format!("{side} -b {}", path.to),
        client: format!("{side} -b {client} -s"),
        // Soft-RoCE has its device hear the group once a queue pair is attached to it.
        listens: Listens::When("ip maddr show dev eth0 | grep -q 33:33:ef:07:07:07"),
        proof: Proof::Says("return status 0", 1),
    }
}

/// All of it; `done` hears of every step. `v4` and `v6` are paths between the same guests, and `clients` the client's addresses of
/// IPv4 and of IPv6.
#[track_caller]
pub fn run(v4: &Path<'_>, v6: &Path<'_>, clients: [IpAddr; 2], mut done: impl FnMut(&str)) {
    for guest in [v4.server, v4.client] {
        guest.run(TO_GROUPS);
    }
    for (path, client) in [v4, v6].into_iter().zip(clients) {
        apps::meet(path);
        let tool = rds(path, client, 200);
        apps::run_tool(path, &tool);
        done(&tool.name);
    }
    let tool = mckey(v4, clients[0]);
    apps::run_tool(v4, &tool);
    done(&tool.name);
}
