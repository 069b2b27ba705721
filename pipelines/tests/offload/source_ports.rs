//! RoCEv2 from several UDP source ports: where rules do not tell those apart, they are one flow, which goes in once and is
//! paid for once.

use std::collections::HashMap;

use pipelines::flow_key::FlowKey;
use pipelines::offload::arrival::{FlowOrigin, flow_of};
use pipelines::offload::manager::*;
use pipelines::offload::sim::{Eswitch, EswitchConfig, Fate};
use pipelines::offload::translate::FlowSelector;
use pipelines::snapshot::{Destination, PortIndex};
use pipelines::vlt::Place;
use rules::ArrivalCount;
use wire::build::Path;
use wire::roce::{Bth, opcode};
use wire::{HeapBuf, Psn, Qpn};

use crate::host::*;
use testkit::*;

const SYNC_NS: u64 = 100_000_000;
const PORTS: [u16; 2] = [50_000, 50_001];
const QPN: u32 = 17;

/// A flow whose packets come from both source ports.
struct Lab {
    host: Host,
    eswitch: Eswitch,
    manager: Manager,
    port: PortIndex,
    frames: [Vec<u8>; 2],
    key: FlowKey,
    now_ns: u64,
    debited: HashMap<FlowSelector, (u64, u64)>,
    by_hardware: u64,
}

impl Lab {
    /// Packets of a vNIC, or out of the tunnel.
    fn new(path: Path, code: u8, out_of_tunnel: bool) -> Self {
        let mut host = Host::new(plain());
        let frames = PORTS.map(|source_port| {
            let bth = Bth::new(code, Qpn::truncated(QPN), Psn::truncated(0));
            let inner = path.roce(source_port, bth, &[0; 64]);
            if out_of_tunnel { tunnelled(&inner) } else { inner }
        });
        let port = if out_of_tunnel { UPLINK } else { 1 };
        let key = host.flow(port, &frames[0]);
        let policy =
            Policy { packets: 1000, bytes: u64::MAX, rules_per_second: 1_000_000, ..Policy::default() };
        Self {
            host,
            eswitch: Eswitch::new(EswitchConfig { refresh_ns: 0, ..EswitchConfig::default() }),
            manager: Manager::new(policy),
            port,
            frames,
            key,
            now_ns: 1_000_000_000,
            debited: HashMap::new(),
            by_hardware: 0,
        }
    }

    /// As software names the packets of one source port.
    fn selector(&self, source_port: u16) -> FlowSelector {
        let qpn = (self.key.class() == 1).then(|| Qpn::truncated(QPN));
        FlowSelector { key: self.key, qpn, source_port: Some(source_port) }
    }

    fn debits(&self) -> (u64, u64) {
        self.debited.values().fold((0, 0), |sum, debit| (sum.0 + debit.0, sum.1 + debit.1))
    }

    /// Tenths of a second with so many packets from each source port. Of both the tables tell the same: what they have
    /// counted of the flow.
    fn run(&mut self, tenths: usize, packets: [u64; 2]) {
        for _ in 0..tenths {
            for (frame, n) in self.frames.clone().iter().zip(packets) {
                for _ in 0..n {
                    let mut packet = HeapBuf::new(frame);
                    match self.eswitch.run(&mut packet, dpdk(self.port)) {
                        Fate::Out { .. } => self.by_hardware += 1,
                        Fate::Software { .. } => drop(self.host.world.run(self.port, vec![packet])),
                        fate => panic!("{fate:?}"),
                    }
                }
            }
            self.now_ns += SYNC_NS;
            self.eswitch.advance(self.now_ns);
            let entry = *self.host.entries().iter().find(|entry| entry.key == self.key).unwrap();
            let (packets, bytes) = self.debits();
            let samples = PORTS.map(|source_port| FlowSample {
                selector: self.selector(source_port),
                packets: entry.packets + packets,
                bytes: entry.bytes + bytes,
            });
            let tables = self.host.tables();
            let arrivals = self.eswitch.all_arrivals();
            let quiet = |selector: &FlowSelector| {
                Some(ArrivalCount(arrivals.of(flow_of(selector, FlowOrigin::of(&tables, &selector.key)?))))
            };
            let debits = self.manager.reconcile(&mut self.eswitch, &tables, &samples, quiet, self.now_ns);
            for Debit { selector, packets, bytes, .. } in debits {
                let sum = self.debited.entry(selector).or_default();
                *sum = (sum.0 + packets, sum.1 + bytes);
            }
        }
    }

    fn flows_in_hardware(&self) -> usize {
        self.manager.flows().filter(|(_, status, _)| *status == Status::Hardware).count()
    }
}

#[test]
fn source_ports_are_paid_for_once() {
    for (path, code, out_of_tunnel, flows) in [
        (v4(R, A), 0x2a, true, 1),
        (v6(R, A), 0x2a, true, 1),
        (v4(R, A), 0x64, true, 1),
        (v4(R, A), opcode::RC_WRITE_ONLY, true, 1),
        (v4(A, B), 0x2a, false, 1),
        (v4(A, B), opcode::RC_WRITE_ONLY, false, 1),
        // Into a tunnel the outer source port follows the inner one: each has rules.
        (v4(A, R), 0x2a, false, 2),
        (v4(A, R), opcode::RC_WRITE_ONLY, false, 2),
    ] {
        let mut lab = Lab::new(path, code, out_of_tunnel);
        // The second joins when the first has been there for a while.
        lab.run(6, [200, 0]);
        lab.run(20, [200, 200]);
        assert_eq!(lab.flows_in_hardware(), flows, "{code:#x}");
        lab.run(30, [0, 0]);
        assert!(lab.by_hardware >= 20 * 400, "{}", lab.by_hardware);
        assert_eq!(lab.debits().0, lab.by_hardware, "{code:#x}, {out_of_tunnel}: what hardware did, once");
        assert!(lab.eswitch.is_empty());
    }
}

/// A flow is pinned as a whole.
#[test]
fn source_ports_follow_one_pin() {
    let mut lab = Lab::new(v4(A, B), 0x2a, false);
    lab.run(6, [200, 200]);
    let flows: Vec<FlowSelector> = lab.manager.flows().map(|(selector, ..)| *selector).collect();
    assert_eq!(flows, [whole(lab.key)]);
    lab.manager.pin(flows[0], Some(Pin::Software), lab.now_ns);
    lab.run(1, [200, 200]);
    let before = lab.by_hardware;
    lab.run(10, [200, 200]);
    assert_eq!((lab.by_hardware, lab.eswitch.len()), (before, 0));
}

/// A station comes to this host: rules do not tell its source ports apart any more, and the pin of one holds for all.
#[test]
fn source_ports_of_a_station_that_comes_here_become_one_flow() {
    let mut lab = Lab::new(v4(A, R), 0x2a, false);
    lab.run(6, [200, 200]);
    assert_eq!(lab.flows_in_hardware(), 2);
    lab.manager.pin(lab.selector(PORTS[1]), Some(Pin::Hardware), lab.now_ns);
    let slot = lab.host.world.snapshot.location(0, Destination::Mac(R.mac)).unwrap().slot;
    lab.host.world.writer.update(slot.slot, Place::Local { vnic: 1 });
    let tables = lab.host.tables();
    lab.manager.follow(&mut lab.eswitch, &tables);
    assert!(lab.eswitch.is_empty());
    lab.run(40, [10, 10]);
    assert_eq!((lab.manager.why(&lab.key), lab.flows_in_hardware()), (Status::Hardware, 1), "pinned");
    lab.manager.pin(whole(lab.key), None, lab.now_ns);
    lab.run(40, [0, 0]);
    assert_eq!(lab.debits().0, lab.by_hardware);
    assert!(lab.eswitch.is_empty());
}
