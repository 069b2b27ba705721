//! RDMA between two guests: the usual tools, each a server in one guest and a client in another.
//!
//! A client starts when its server listens, and both must end with status 0 and with the proof that the work was done.
//! Nothing is read off but that: rates and times of an emulated processor say nothing.

use super::{Ended, Guest, Job, Site};
use serde_json::Value;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a server may take to listen, and to end after its client.
const SERVER: Duration = Duration::from_secs(30);
/// How long a client may take.
const CLIENT: Duration = Duration::from_secs(90);

/// Who talks to whom, over which addresses.
#[derive(Debug, Clone, Copy)]
pub struct Path<'a> {
    /// The guest that serves.
    pub server: &'a Guest,
    /// The guest that connects to it.
    pub client: &'a Guest,
    /// The server's address.
    pub to: IpAddr,
    /// Where tools that exchange their QPNs over TCP meet; some of them know IPv4 only.
    pub meet: IpAddr,
    /// The GID indices of server and client that hold their addresses of `to`'s family.
    pub gids: [u32; 2],
}

impl<'a> Path<'a> {
    /// From the guest `client` to the guest `server`, over IPv4 or IPv6.
    #[track_caller]
    pub fn new(site: &'a Site, client: &str, server: &str, v6: bool) -> Path<'a> {
        let addresses = [site.vm(server).ip(v6), site.vm(client).ip(v6)];
        let meet = site.vm(server).ip(false);
        Path::over(site.guest(client), site.guest(server), addresses, meet)
    }

    /// As `new`, between the addresses of the guests' VLAN devices.
    #[track_caller]
    pub fn on_vlan(site: &'a Site, client: &str, server: &str, v6: bool) -> Path<'a> {
        let addresses = [site.vm(server).vlan_ip(v6), site.vm(client).vlan_ip(v6)];
        Path::over(site.guest(client), site.guest(server), addresses, site.vm(server).vlan_ip(false))
    }

    /// Between two addresses, the server's and the client's, with QPNs exchanged over another one of the server's.
    #[track_caller]
    pub fn over(client: &'a Guest, server: &'a Guest, addresses: [IpAddr; 2], meet: IpAddr) -> Path<'a> {
        let gids = [gid_index(server, addresses[0]), gid_index(client, addresses[1])];
        Path { server, client, to: addresses[0], meet, gids }
    }
}

/// The index of an address in the GID table of the guest's `rxe0`; waits for the kernel to put it there.
#[track_caller]
pub fn gid_index(guest: &Guest, address: IpAddr) -> u32 {
    let v6 = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let gid: Vec<String> = v6.segments().iter().map(|s| format!("{s:04x}")).collect();
    let gid = gid.join(":");
    let find = format!("grep -lx {gid} /sys/class/infiniband/rxe0/ports/1/gids/* 2>/dev/null");
    guest.until(&format!("[ -n \"$({find})\" ]"), SERVER);
    let found = guest.run(&find);
    let index = found.lines().next().and_then(|path| path.rsplit('/').next()?.parse().ok());
    index.unwrap_or_else(|| panic!("no GID index in '{found}'"))
}

/// The peer's number of the one RC queue pair that is connected in a guest, as its kernel has it.
#[track_caller]
pub fn peer_qpn(guest: &Guest) -> u32 {
    let text = guest.run("rdma -j resource show qp link rxe0/1");
    let all: Value =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("rdma wrote no JSON ({e}): {text}"));
    let connected = |qp: &&Value| qp["type"] == "RC" && qp["state"] == "RTS";
    let mut found = all.as_array().into_iter().flatten().filter(connected);
    let (Some(qp), None) = (found.next(), found.next()) else { panic!("one connected queue pair: {text}") };
    qp["rqpn"].as_u64().and_then(|n| n.try_into().ok()).unwrap_or_else(|| panic!("no rqpn: {text}"))
}

/// How a client knows that its server listens.
#[derive(Debug, Clone, Copy)]
pub(super) enum Listens {
    /// On a TCP port.
    Tcp(u16),
    /// With the connection manager, on a port of its TCP space (RC) or UDP space (UD).
    Cm(u16),
    /// By a word of its own.
    Says(&'static str),
    /// By a shell command that succeeds in its guest.
    When(&'static str),
}

/// What the client must have written.
#[derive(Debug, Clone)]
pub(super) enum Proof {
    /// A text, so many times.
    Says(&'static str, usize),
    /// A result line of perftest: size and iterations.
    Row(u32, u32),
}

/// A tool ready to run over a path.
#[derive(Debug, Clone)]
pub struct Tool {
    /// What it is called in messages.
    pub name: String,
    /// At least so many RoCE packets go from client to server or back, in all.
    pub packets: i64,
    pub(super) server: String,
    pub(super) client: String,
    pub(super) listens: Listens,
    pub(super) proof: Proof,
}

/// The size of a RoCE packet's payload at the guests' MTU.
const ROCE_MTU: u32 = 1024;

/// `ibv_rc_pingpong`: SENDs both ways, QPNs exchanged over TCP.
pub fn rc_pingpong(path: &Path<'_>, port: u16, size: u32, rounds: u32) -> Tool {
    let side = |gid: u32| format!("ibv_rc_pingpong -d rxe0 -g {gid} -p {port} -s {size} -n {rounds}");
    Tool {
        name: format!("ibv_rc_pingpong of {size} bytes to {}", path.to),
        packets: i64::from(2 * rounds * size.div_ceil(ROCE_MTU)),
        server: side(path.gids[0]),
        client: format!("{} {}", side(path.gids[1]), path.meet),
        listens: Listens::Tcp(port),
        proof: Proof::Says("iters in", 1),
    }
}

/// `rping`: the connection manager, then SEND, RDMA READ and RDMA WRITE.
pub fn rping(path: &Path<'_>, port: u16, rounds: u32) -> Tool {
    let to = path.to;
    Tool {
        name: format!("rping to {to}"),
        packets: i64::from(6 * rounds),
        server: format!("rping -s -a {to} -p {port} -C {rounds} -v"),
        client: format!("rping -c -a {to} -p {port} -C {rounds} -v"),
        listens: Listens::Cm(port),
        proof: Proof::Says("ping data", rounds as usize),
    }
}

/// `ucmatose`: connections and messages of the connection manager's own test.
pub fn ucmatose(path: &Path<'_>, port: u16, connections: u32) -> Tool {
    let side = format!("ucmatose -p {port} -c {connections} -C 10");
    Tool {
        name: format!("ucmatose to {}", path.to),
        packets: i64::from(10 * connections),
        server: format!("{side} -b {}", path.to),
        client: format!("{side} -s {}", path.to),
        listens: Listens::Cm(port),
        proof: Proof::Says("test complete", 1),
    }
}

/// `udaddy`: datagrams whose QPN the connection manager asks for (SIDR). It always uses the same port.
pub fn udaddy(path: &Path<'_>) -> Tool {
    let (side, port) = ("udaddy -C 10", 7174);
    Tool {
        name: format!("udaddy to {}", path.to),
        packets: 10,
        server: format!("{side} -b {}", path.to),
        client: format!("{side} -s {}", path.to),
        listens: Listens::Cm(port),
        proof: Proof::Says("test complete", 1),
    }
}

/// A tool of perftest (`ib_send_bw`, `ib_read_lat` ...), QPNs exchanged over TCP.
pub fn perftest(path: &Path<'_>, program: &str, port: u16, size: u32, count: u32) -> Tool {
    // A retransmission timeout of a second: an emulated peer may be slow to answer, not gone.
    let family = if path.to.is_ipv6() { "--ipv6 " } else { "" };
    let side =
        |gid: u32| format!("{program} {family}-d rxe0 -x {gid} -p {port} -F -u 18 -s {size} -n {count}");
    Tool {
        name: format!("{program} to {}", path.to),
        packets: i64::from(count * size.div_ceil(ROCE_MTU)),
        server: side(path.gids[0]),
        client: format!("{} {}", side(path.gids[1]), path.meet),
        listens: Listens::Tcp(port),
        proof: Proof::Row(size, count),
    }
}

/// A tool of perftest that connects through the connection manager (`-R`), which it does over IPv4 only.
pub fn perftest_cm(path: &Path<'_>, program: &str, port: u16, size: u32, count: u32) -> Tool {
    let side = format!("{program} -R -p {port} -F -u 18 -s {size} -n {count}");
    Tool {
        name: format!("{program} -R to {}", path.meet),
        packets: i64::from(count * size.div_ceil(ROCE_MTU)),
        server: side.clone(),
        client: format!("{side} {}", path.meet),
        listens: Listens::Cm(port),
        proof: Proof::Row(size, count),
    }
}

/// `iperf3`: TCP beside RDMA, for `seconds`.
pub fn iperf3(path: &Path<'_>, port: u16, seconds: u32) -> Tool {
    Tool {
        name: format!("iperf3 to {}", path.to),
        packets: 0,
        server: format!("iperf3 -s -1 -p {port}"),
        client: format!("iperf3 -c {} -p {port} -t {seconds}", path.to),
        listens: Listens::Tcp(port),
        proof: Proof::Says("receiver", 1),
    }
}

/// A tool at work.
#[derive(Debug)]
#[must_use = "a running tool wants to be finished"]
pub struct Running<'a> {
    path: Path<'a>,
    tool: Tool,
    server: Job,
    client: Job,
}

/// How both sides of a tool ended.
#[derive(Debug)]
pub struct Outcome {
    /// The tool's name.
    pub name: String,
    /// The server's end.
    pub server: Ended,
    /// The client's end.
    pub client: Ended,
    /// Whether the client wrote what proves the work done.
    pub proven: bool,
}

impl Outcome {
    /// Both sides ended well and the work was done.
    pub fn ok(&self) -> bool {
        self.server.ok() && self.client.ok() && self.proven
    }

    /// Fails the test unless all went well.
    #[track_caller]
    pub fn assert_ok(&self) {
        assert!(
            self.ok(),
            "{} failed (proof of work: {})\nclient ({}):\n{}\nserver ({}):\n{}",
            self.name,
            self.proven,
            self.client.status,
            self.client.output,
            self.server.status,
            self.server.output
        );
    }
}

/// Starts the server, waits until it listens, and starts the client.
#[track_caller]
pub fn begin<'a>(path: &Path<'a>, tool: &Tool) -> Running<'a> {
    let server = path.server.start(&tool.server);
    let condition = match tool.listens {
        Listens::Tcp(port) => format!("ss -ltnH | grep -q ':{port} '"),
        Listens::Cm(port) => format!("rdma resource show cm_id | grep LISTEN | grep -q ':{port} '"),
        Listens::Says(word) => format!("grep -q '{word}' /run/jobs/{}.out", server.id()),
        Listens::When(command) => command.to_owned(),
    };
    if !path.server.until_or_end(&server, &condition, SERVER) {
        let ended = path.server.finish(server, SERVER);
        panic!("the server of {} ended ({}) before it listened:\n{}", tool.name, ended.status, ended.output);
    }
    let client = path.client.start(&tool.client);
    Running { path: *path, tool: tool.clone(), server, client }
}

impl Running<'_> {
    /// Whether the client is still at it.
    #[track_caller]
    pub fn goes_on(&self) -> bool {
        self.path
            .client
            .run(&format!("[ -e /run/jobs/{}.sh ] && echo yes || echo no", self.client.id()))
            .contains("yes")
    }

    /// Waits for both ends.
    #[track_caller]
    pub fn finish(self) -> Outcome {
        self.finish_within(CLIENT)
    }

    /// As `finish`, for a client that may take so long.
    #[track_caller]
    pub fn finish_within(self, limit: Duration) -> Outcome {
        let client = self.path.client.finish(self.client, limit);
        // A server whose client failed may wait for ever.
        let server =
            match self.path.server.ended(&self.server, if client.ok() { SERVER } else { Duration::ZERO }) {
                Some(ended) => ended,
                None => self.path.server.stop(self.server),
            };
        let proven = self.tool.proof.holds(&client.output);
        Outcome { name: self.tool.name, server, client, proven }
    }
}

impl Proof {
    fn holds(&self, output: &str) -> bool {
        match self {
            Proof::Says(text, times) => output.matches(text).count() >= *times,
            Proof::Row(size, count) => output.lines().any(|line| {
                let mut words = line.split_whitespace();
                words.next() == Some(&size.to_string()) && words.next() == Some(&count.to_string())
            }),
        }
    }
}

/// Ends a tool, however far it came.
#[track_caller]
pub fn give_up(running: Running<'_>) {
    running.path.client.stop(running.client);
    running.path.server.stop(running.server);
}

/// Every tool over a path; `scale` multiplies the work.
pub fn all(path: &Path<'_>, scale: u32) -> Vec<Tool> {
    let mut tools = vec![
        rc_pingpong(path, 18515, 4096, 100 * scale),
        rping(path, 7174, 5 * scale),
        perftest(path, "ib_send_bw", 18515, 4096, 100 * scale),
        perftest(path, "ib_write_bw", 18515, 65536, 20 * scale),
        perftest(path, "ib_read_bw", 18515, 16384, 50 * scale),
        perftest(path, "ib_write_lat", 18515, 64, 50 * scale),
        perftest(path, "ib_atomic_lat", 18515, 8, 50 * scale),
        perftest(path, "ib_send_bw -c UD", 18515, 1024, 100 * scale),
        ucmatose(path, 7471, 2 * scale),
        udaddy(path),
    ];
    if !path.to.is_ipv6() {
        tools.push(perftest_cm(path, "ib_send_bw", 18515, 4096, 100 * scale));
        tools.push(perftest_cm(path, "ib_write_bw", 18515, 65536, 20 * scale));
    }
    tools
}

/// Runs a tool to its end; fails the test unless both sides ended well.
#[track_caller]
pub fn run(path: &Path<'_>, tool: &Tool) {
    let began = Instant::now();
    for attempt in 1.. {
        let outcome = begin(path, tool).finish();
        // perftest with -R may be refused: it listens a second time, and its client may come before that.
        if attempt <= 3 && tool.client.contains(" -R ") && outcome.client.output.contains("REJECTED") {
            continue;
        }
        outcome.assert_ok();
        eprintln!("{:6.1} s  {}", began.elapsed().as_secs_f32(), tool.name);
        return;
    }
}
