//! The way in for the peers of queue pairs closes when the last of them has lost its place, and not before.

use pipelines::connections::{
    ConnectionKeeper, ConnectionKey, ConnectionState, ConnectionTimes, Connections, Made, Record,
};
use pipelines::ledger::LedgerParams;

use super::*;

/// A table of connections on which no worker stands.
pub fn ways() -> Arc<Connections> {
    let params = LedgerParams { entries: 256, vnics: 64, workers: 0, seed: 7 };
    Arc::new(Connections::new(&params, &|_, _| {}))
}

const CLOSED: &str = "security-groups = [\"closed\"]\n[[security-group]]\nname = \"closed\"\nvpc = \"red\"\n";
/// An hour of silence, which no test waits for.
const HOUR: ConnectionTimes = ConnectionTimes {
    tcp_opening: 36_000,
    tcp_established: 36_000,
    tcp_closing: 36_000,
    one_way: 36_000,
    both_ways: 36_000,
    icmp: 36_000,
    rdma: 36_000,
};

struct Ways {
    world: World,
    keeper: ConnectionKeeper,
}

impl Ways {
    fn new(rcft: &str) -> Self {
        let world = World::new(rcft, CLOSED);
        let keeper = ConnectionKeeper::new(world.control.held.connections.clone(), HOUR);
        Self { world, keeper }
    }

    /// vNIC one opens queue pairs, and with the first of them the way in.
    fn opens(&mut self, numbers: std::ops::Range<u32>) {
        self.world.opens("one", FAR, numbers);
        let (key, now) = (ConnectionKey::queue_pairs(self.world.index("one"), ip(FAR)), self.world.now());
        let record = Record { state: ConnectionState::opened(true, 0, false, 0), epoch: 0 };
        assert!(matches!(self.keeper.connections().make(&key, record, now), Made::In(_)));
    }

    /// Lets seconds pass; true when the way in is still open then.
    fn is_open_after(&mut self, seconds: u32) -> bool {
        for _ in 0..seconds {
            self.world.pass(SECOND);
            let now = self.world.now();
            self.keeper.set_held_since(self.world.control.held_since(now));
            self.keeper.sweep(u32::MAX, now.tick, |_| false);
            self.keeper.advance();
        }
        let key = ConnectionKey::queue_pairs(self.world.index("one"), ip(FAR));
        self.keeper.connections().find(&key).is_some()
    }
}

#[test]
fn security_the_last_queue_pair_that_leaves_closes_the_way_in() {
    let mut ways = Ways::new("restart-grace = \"0s\"");
    ways.opens(10..12);
    assert!(ways.is_open_after(60), "silent, but they have their places");
    let vnic = ways.world.index("one");
    assert!(ways.world.control.evict(vnic, ip(FAR), qp(10)));
    assert!(ways.is_open_after(60), "one is left");
    ways.world.observe(
        "one",
        FAR,
        true,
        CmMessage::Dreq { local_comm_id: 1, remote_comm_id: 2, remote_qpn: qp(11) },
    );
    assert_eq!(ways.world.used("one"), 0);
    assert!(!ways.is_open_after(5));
    // One that never had a queue pair behind it: open for a moment only.
    ways.opens(12..12);
    assert!(ways.is_open_after(1));
    assert!(!ways.is_open_after(5));
}

#[test]
fn security_queue_pairs_of_before_a_restart_have_time_to_come_back() {
    let mut ways = Ways::new("restart-grace = \"300s\"");
    ways.opens(10..10);
    assert!(ways.is_open_after(60));
    assert!(!ways.is_open_after(160));
}
