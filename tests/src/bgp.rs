//! BGP speakers of others: gobgpd, as it runs beside the switch, and zebra with bgpd of FRR, as Debian has them: private copies in
//! namespaces, with folders and sockets of their own. The machine's own services, if there are any, are never touched.

use crate::runtime::thread_ticks;
use crate::{Netns, Process, Workdir, frr, process, wait_for};
use prost::{Message, Name};
use prost_types::Any;
use serde_json::Value;
use std::time::Duration;
use tonic::transport::Endpoint;
use vswitch_api::gobgp;
pub use vswitch_api::gobgp::Path;
use vswitch_api::gobgp::gobgp_api_client::GobgpApiClient;

const START: Duration = Duration::from_secs(20);
/// The AS number of everybody.
pub const ASN: u32 = 65000;
/// Where gobgpd's gRPC interface is, in its namespace.
pub const GRPC: &str = "127.0.0.1:50051";

/// A running gobgpd.
#[derive(Debug)]
pub struct Gobgpd {
    process: Option<Process>,
    netns: String,
    dir: Workdir,
    config: String,
}

impl Gobgpd {
    /// Starts it with a router id and its peers.
    #[track_caller]
    pub fn start(netns: &Netns, router_id: &str, peers: &[&str]) -> Gobgpd {
        let mut config = format!("[global.config]\nas = {ASN}\nrouter-id = \"{router_id}\"\nport = 179\n");
        for peer in peers {
            config.push_str(&format!(
                "[[neighbors]]\n[neighbors.config]\nneighbor-address = \"{peer}\"\npeer-as = {ASN}\n\
                 [neighbors.timers.config]\nconnect-retry = 1\nidle-hold-time-after-reset = 1\n\
                 [[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = \"l2vpn-evpn\"\n"
            ));
        }
        let mut gobgpd =
            Gobgpd { process: None, netns: netns.name().to_owned(), dir: Workdir::new("gobgpd"), config };
        gobgpd.again(netns);
        gobgpd
    }

    /// Kills it.
    pub fn kill(&mut self) {
        drop(self.process.take());
    }

    /// Starts it again.
    #[track_caller]
    pub fn again(&mut self, netns: &Netns) {
        self.kill();
        let config = self.dir.write("gobgpd.toml", &self.config).display().to_string();
        // By a socket, too, for the test, which is not in the namespace.
        let hosts = format!("{GRPC},unix://{}", self.socket());
        // One that was killed left it there.
        let _ = std::fs::remove_file(self.socket());
        // As the switch's EVPN.md says how it is to run: it makes and forgets much for each route.
        let args = ["env", "GOGC=800", "gobgpd", "-f", &config, "--api-hosts", &hosts, "--pprof-disable"];
        self.process = Some(netns.spawn("gobgpd", &args, &self.dir));
        wait_for("gobgpd to answer", START, || {
            let process = self.process.as_mut()?;
            if let Some(status) = process.exited() {
                panic!("gobgpd ended at start ({status}):\n{}", process.output());
            }
            self.try_gobgp(&["global"])
        });
    }

    fn socket(&self) -> String {
        self.dir.path().join("grpc.sock").display().to_string()
    }

    /// Has it announce paths, one after another.
    #[track_caller]
    pub fn announce(&self, paths: impl Iterator<Item = gobgp::Path>) {
        self.tell(paths.map(|path| (path, true)));
    }

    /// Has it withdraw paths.
    #[track_caller]
    pub fn withdraw(&self, paths: impl Iterator<Item = gobgp::Path>) {
        self.tell(paths.map(|path| (path, false)));
    }

    /// Has it announce some paths and withdraw others, one after another.
    #[track_caller]
    pub fn tell(&self, paths: impl Iterator<Item = (gobgp::Path, bool)>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let endpoint = Endpoint::from_shared(format!("unix:{}", self.socket())).unwrap();
            let mut client = GobgpApiClient::new(endpoint.connect().await.unwrap());
            for (path, is_there) in paths {
                let (family, path) = (path.family, Some(path));
                let answer = match is_there {
                    true => client.add_path(gobgp::AddPathRequest { path }).await.map(drop),
                    false => client.delete_path(gobgp::DeletePathRequest { family, path }).await.map(drop),
                };
                answer.unwrap_or_else(|status| panic!("gobgpd refused: {status}"));
            }
        });
    }

    fn try_gobgp(&self, words: &[&str]) -> Option<String> {
        let mut args = vec!["ip", "netns", "exec", &self.netns, "gobgp"];
        args.extend(words);
        let output = process::try_run(&args);
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs its client.
    #[track_caller]
    pub fn gobgp(&self, words: &[&str]) -> String {
        self.try_gobgp(words).unwrap_or_else(|| panic!("gobgp refused {words:?}"))
    }

    /// Its routes of EVPN, one a line, as people read them.
    #[track_caller]
    pub fn routes(&self) -> String {
        self.gobgp(&["global", "rib", "-a", "evpn"])
    }

    /// How many destinations its table of EVPN has.
    #[track_caller]
    pub fn destinations(&self) -> u32 {
        let summary = self.gobgp(&["global", "rib", "summary", "-a", "evpn"]);
        let found = summary.split_once("Destination:").and_then(|(_, rest)| rest.split([',', '\n']).next());
        found
            .and_then(|word| word.trim().parse().ok())
            .unwrap_or_else(|| panic!("gobgp counted none: {summary}"))
    }

    /// Processor time that it has had, in clock ticks (a hundredth of a second).
    #[track_caller]
    pub fn ticks(&self) -> u64 {
        let process = self.process.as_ref().unwrap_or_else(|| panic!("gobgpd does not run"));
        thread_ticks(process.pid(), "")
    }

    /// Waits until its session with its peer is established.
    #[track_caller]
    pub fn await_session(&self, limit: Duration) {
        wait_for("the session", limit, || self.gobgp(&["neighbor"]).contains("Establ").then_some(()));
    }

    /// Waits until its routes of EVPN are as wanted.
    #[track_caller]
    pub fn await_routes(&self, what: &str, limit: Duration, are: impl Fn(&str) -> bool) {
        let mut last = String::new();
        let end = std::time::Instant::now() + limit;
        while std::time::Instant::now() < end {
            last = self.routes();
            if are(&last) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{what} in {limit:?}; gobgpd has:\n{last}");
    }
}

/// A message packed as its type.
fn pack<M: Message + Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: message.encode_to_vec() }
}

/// A path of type 2, as anybody may announce it by gobgpd's interface.
pub fn station(router_id: &str, vni: u32, mac: &str, ip: &str, vtep: &str) -> gobgp::Path {
    station_after(router_id, vni, mac, ip, vtep, None)
}

/// The same of a station that has moved, with its sequence number.
pub fn station_after(
    router_id: &str,
    vni: u32,
    mac: &str,
    ip: &str,
    vtep: &str,
    sequence: Option<u32>,
) -> gobgp::Path {
    let family = Some(gobgp::Family { afi: 25, safi: 70 });
    let rd = gobgp::RouteDistinguisherIpAddress { admin: router_id.into(), assigned: 7 };
    let nlri = pack(&gobgp::EvpnmacipAdvertisementRoute {
        rd: Some(pack(&rd)),
        esi: Some(gobgp::EthernetSegmentIdentifier { r#type: 0, value: vec![0; 9] }),
        ethernet_tag: 0,
        mac_address: mac.into(),
        ip_address: ip.into(),
        labels: vec![vni],
    });
    let target =
        gobgp::TwoOctetAsSpecificExtended { is_transitive: true, sub_type: 2, asn: ASN, local_admin: vni };
    let mut communities = vec![pack(&target), pack(&gobgp::EncapExtended { tunnel_type: 8 })];
    let mobility = sequence.map(|sequence_num| gobgp::MacMobilityExtended { is_sticky: false, sequence_num });
    communities.extend(mobility.iter().map(pack));
    let reach =
        gobgp::MpReachNlriAttribute { family, next_hops: vec![vtep.into()], nlris: vec![nlri.clone()] };
    gobgp::Path {
        nlri: Some(nlri),
        pattrs: vec![
            pack(&gobgp::OriginAttribute { origin: 0 }),
            pack(&reach),
            pack(&gobgp::ExtendedCommunitiesAttribute { communities }),
        ],
        family,
        ..gobgp::Path::default()
    }
}

/// zebra and bgpd of FRR, as they run on a host with vxlan devices.
#[derive(Debug)]
pub struct Frr {
    zebra: Process,
    bgpd: Option<Process>,
    dir: Workdir,
}

impl Frr {
    /// Starts both; `peer` is the other end of the session, `zebra` and `evpn` are further lines of their configs, the latter below
    /// `address-family l2vpn evpn`, and `more` lines below `router bgp`.
    #[track_caller]
    pub fn start(netns: &Netns, router_id: &str, peer: &str, zebra: &str, evpn: &str, more: &str) -> Frr {
        let dir = Workdir::new("frr");
        let bgp = format!(
            "router bgp {ASN}\n bgp router-id {router_id}\n no bgp default ipv4-unicast\n\
             \x20neighbor {peer} remote-as {ASN}\n neighbor {peer} timers connect 1\n{more}\
             \x20address-family l2vpn evpn\n  neighbor {peer} activate\n  advertise-all-vni\n{evpn} exit-address-family\n"
        );
        dir.write("zebra.conf", zebra);
        dir.write("bgpd.conf", &bgp);
        frr::give_away(&dir);
        let zebra = frr::launch(netns, &dir, "zebra", &[]);
        let mut started = Frr { zebra, bgpd: None, dir };
        wait_for("zebra to answer", START, || {
            if let Some(status) = started.zebra.exited() {
                panic!("zebra ended at start ({status}):\n{}", started.zebra.output());
            }
            started.try_vtysh("zebra", &["show version"])
        });
        started.again(netns);
        started
    }

    /// Kills bgpd, which says nothing to anybody.
    pub fn kill_bgpd(&mut self) {
        drop(self.bgpd.take());
    }

    /// Starts bgpd again.
    #[track_caller]
    pub fn again(&mut self, netns: &Netns) {
        self.kill_bgpd();
        self.bgpd = Some(frr::launch(netns, &self.dir, "bgpd", &[]));
        wait_for("bgpd to answer", START, || {
            let bgpd = self.bgpd.as_mut()?;
            if let Some(status) = bgpd.exited() {
                panic!("bgpd ended at start ({status}):\n{}", bgpd.output());
            }
            self.try_vtysh("bgpd", &["show bgp summary"])
        });
    }

    fn try_vtysh(&self, daemon: &str, commands: &[&str]) -> Option<String> {
        frr::try_vtysh(&self.dir, daemon, commands)
    }

    /// Runs commands of a daemon's console, one after another.
    #[track_caller]
    pub fn vtysh(&self, daemon: &str, commands: &[&str]) -> String {
        self.try_vtysh(daemon, commands).unwrap_or_else(|| panic!("vtysh refused {commands:?}"))
    }

    /// What bgpd has of EVPN.
    #[track_caller]
    pub fn routes(&self) -> Value {
        let text = self.vtysh("bgpd", &["show bgp l2vpn evpn route json"]);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("bgpd spoke no JSON ({error}): {text}"))
    }
}

/// The entries of a device in the kernel's forwarding database, one a line.
#[track_caller]
pub fn fdb(netns: &Netns, device: &str) -> String {
    process::run(&["bridge", "-n", netns.name(), "fdb", "show", "dev", device])
}
