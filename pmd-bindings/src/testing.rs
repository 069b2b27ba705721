//! For this crate's own tests of what only it can reach: one EAL for the test process, ring ports by name.

use std::sync::OnceLock;

use crate::{
    Eal, EalConfig, Hugepages, Mempool, MempoolConfig, Port, PortConfig, RxQueue, StartedPort, TxQueue,
};

/// The process's EAL, without huge pages.
pub(crate) fn eal() -> Eal {
    // Kept to the end of the process: the EAL starts once, and a static is never dropped.
    static EAL: OnceLock<Eal> = OnceLock::new();
    EAL.get_or_init(|| {
        let file_prefix = format!("pmd-unit-{}", std::process::id());
        let config =
            EalConfig { file_prefix, memory_mb: 64, hugepages: Hugepages::Never, ..EalConfig::default() };
        Eal::init(&config).unwrap()
    })
    .clone()
}

/// A pool without caches.
pub(crate) fn pool(name: &str) -> Mempool {
    pool_with_long(name, 0)
}

/// The same with so many long buffers.
pub(crate) fn pool_with_long(name: &str, long: u32) -> Mempool {
    let config = MempoolConfig { name: name.into(), mbufs: 255, cache: 0, long, ..MempoolConfig::default() };
    Mempool::new(&eal(), &config).unwrap()
}

/// A started ring port of one queue each way.
pub(crate) fn ring(name: &str, pool: &Mempool) -> (StartedPort, RxQueue, TxQueue) {
    let port = Port::attach(&eal(), name, "").unwrap();
    let (port, mut rx, mut tx) =
        port.start(&PortConfig::default(), pool).map_err(|(_, error)| error).unwrap();
    (port, rx.remove(0), tx.remove(0))
}
