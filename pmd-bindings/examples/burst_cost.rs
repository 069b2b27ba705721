//! What one packet costs from rx to tx on `net_null`, by this crate's queues and by DPDK's own C inlines.
//!
//! `cargo run --release -p pmd --example burst_cost [pairs]`. The two ways alternate, since the speed of a shared
//! machine drifts by more than they differ; the ratio of each pair is what counts.

#![allow(unsafe_code)]

use dpdk_sys as sys;
use pmd::{Burst, Eal, EalConfig, Mempool, MempoolConfig, Port, PortConfig, RxQueue, TxQueue, rdtsc};

const BURST: usize = 32;
const ROUNDS: usize = 200_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pairs: usize = std::env::args().nth(1).map_or(Ok(20), |text| text.parse())?;
    let core = pmd::lcore::available().last().copied();
    let eal = Eal::init(&EalConfig { main_core: core, ..EalConfig::default() })?;
    let pool = Mempool::new(&eal, &MempoolConfig::default())?;
    let port = Port::attach(&eal, "net_null0", "")?;
    let (port, mut rx, mut tx) = port.start(&PortConfig::default(), &pool).map_err(|(_, error)| error)?;
    let id = port.id().get();

    let mut ratios = Vec::new();
    let (mut best_rust, mut best_c) = (f64::MAX, f64::MAX);
    for _ in 0..pairs.max(1) {
        let c = by_c(id);
        let rust = by_queues(&mut rx[0], &mut tx[0]);
        (best_rust, best_c) = (best_rust.min(rust), best_c.min(c));
        ratios.push(c / rust);
    }
    ratios.sort_by(f64::total_cmp);
    let at = |part: usize| ratios[(ratios.len() - 1) * part / 4];
    println!("cycles per packet, best of {pairs}: queues {best_rust:.1}, C inlines {best_c:.1}");
    println!("speed of the queues against C: median {:.2} (quartiles {:.2} .. {:.2})", at(2), at(1), at(3));
    port.stop(rx, tx).map_err(|(_, _, _, error)| error)?.detach()?;
    Ok(())
}

fn by_queues(rx: &mut RxQueue, tx: &mut TxQueue) -> f64 {
    let mut burst = Burst::with_capacity(BURST);
    let mut packets = 0;
    let start = rdtsc();
    for _ in 0..ROUNDS {
        rx.receive(&mut burst);
        packets += tx.send(&mut burst);
    }
    (rdtsc() - start) as f64 / packets as f64
}

fn by_c(port: u16) -> f64 {
    let mut slots = [std::ptr::null_mut(); BURST];
    let mut packets = 0;
    let start = rdtsc();
    for _ in 0..ROUNDS {
        // SAFETY: a started port whose queues are idle meanwhile; room for a burst.
        let received = unsafe { sys::dpdk_sys_rx_burst(port, 0, slots.as_mut_ptr(), BURST as u16) };
        // SAFETY: the packets just received; this driver takes all.
        let sent = unsafe { sys::dpdk_sys_tx_burst(port, 0, slots.as_mut_ptr(), received) };
        packets += usize::from(sent);
    }
    (rdtsc() - start) as f64 / packets as f64
}
