//! What control asks of a worker, done between two bursts.

use std::sync::Arc;

use pipelines::hot::Hints;
use pipelines::snapshot::{PortIndex, Snapshot};
use pipelines::stage::service::deliver;
use pmd::{RxQueue, rdtsc};

use super::mailbox::{NftPage, PortBuffers, QpCounts, QpPage, RemovedPort, WorkerCommand};
use super::run::Worker;
use super::rx::RxPath;

impl Worker {
    /// Does what control asks. `false`: exit.
    #[cold]
    pub(super) fn obey(&mut self) -> bool {
        while let Some(command) = self.mailbox.next() {
            match command {
                WorkerCommand::Snapshot(snapshot) => self.adopt(snapshot),
                WorkerCommand::AddRx(port, queue, front) => {
                    let now = self.now(rdtsc());
                    self.rx.add(port, queue, front, now);
                }
                WorkerCommand::AddTx(port, own) => self.tx.own(port, own),
                WorkerCommand::AddHandOff(port, ring) => self.tx.hand_off(port, ring),
                WorkerCommand::AddRing(port, ring) => self.tx.add_ring(port, ring),
                WorkerCommand::Divert(port, to) => self.tx.divert(port, to),
                WorkerCommand::RemoveRx(port, reply) => {
                    self.repeats.forget_port(port);
                    let _ = reply.send(RemovedPort { rx: self.remove_rx(port), tx: Vec::new() });
                }
                WorkerCommand::RemovePort(port, reply) => {
                    let rx = self.remove_rx(port);
                    self.repeats.forget_port(port);
                    let tx = self.tx.remove(port).into_iter().collect();
                    let _ = reply.send(RemovedPort { rx, tx });
                }
                WorkerCommand::Forward(on) => self.forwarding = on,
                WorkerCommand::Mode(mode) => {
                    self.mode = mode;
                    self.repeats.clear();
                }
                WorkerCommand::Inject(port, packet) => {
                    self.stats.pipeline.originated.add(1);
                    self.tx.send_ahead(port, packet);
                }
                WorkerCommand::Bfd(packet) => {
                    let (now, port) = (self.now(rdtsc()), packet.port);
                    if let Some(packet) = self.repeats.take(packet, now) {
                        self.stats.pipeline.originated.add(1);
                        self.tx.send_ahead(port, packet);
                    }
                }
                WorkerCommand::EndBfdRepeat(slot) => self.repeats.forget(slot),
                WorkerCommand::Deliver(vnic, packet) => {
                    let counters = &self.stats.pipeline;
                    counters.originated.add(1);
                    deliver(&self.snapshot, counters, vnic, packet, &mut self.tx);
                }
                WorkerCommand::Nft(from, limit, reply) => {
                    let (entries, next) = self.overlay.nft().scan(from, limit);
                    let tick = self.now(rdtsc()).tick;
                    let _ = reply.send(NftPage { entries, next, tick });
                }
                WorkerCommand::Qps(way, from, limit, reply) => {
                    let (entries, next) = self.overlay.rcft().scan(way, from, limit);
                    let _ = reply.send(QpPage { entries, next });
                }
                WorkerCommand::QpsOf(way, keys, reply) => {
                    let rcft = self.overlay.rcft();
                    let entries = keys.iter().filter_map(|key| rcft.view(way, key)).collect();
                    let _ = reply.send(QpPage { entries, next: None });
                }
                WorkerCommand::QpCounts(reply) => {
                    let rcft = self.overlay.rcft();
                    let used = rcft.guests().iter().rposition(|n| *n > 0).map_or(0, |last| last + 1);
                    let guests = rcft.guests()[..used].to_vec();
                    let _ = reply.send(QpCounts { stats: rcft.stats(), guests });
                }
                WorkerCommand::QpTidy(from, budget, reply) => {
                    let _ = reply.send(self.overlay.rcft_mut().tidy(&self.snapshot, from, budget));
                }
                WorkerCommand::QpForget(keys) => {
                    keys.iter().for_each(|key| self.overlay.rcft_mut().forget(key))
                }
                WorkerCommand::Depths(leaves, reply) => {
                    let dhtb = self.overlay.dhtb();
                    let _ = reply.send(leaves.iter().map(|leaf| dhtb.depth(*leaf)).collect());
                }
                WorkerCommand::Buffers(reply) => {
                    let repeats = self.repeats.buffers();
                    let repeats =
                        repeats.map(|(port, waiting)| PortBuffers { waiting, ..PortBuffers::of(port) });
                    let _ = reply.send(self.tx.buffers().chain(self.rx.buffers()).chain(repeats).collect());
                }
                WorkerCommand::NftClear(from, budget, reply) => {
                    let _ = reply.send(self.overlay.nft_mut().clear_some(from, budget));
                }
                WorkerCommand::Hints(queue) => self.overlay.set_hints(queue.map(Hints::new)),
                WorkerCommand::Usage(selectors, reply) => {
                    let _ =
                        reply.send(selectors.iter().map(|selector| self.overlay.usage(selector)).collect());
                }
                WorkerCommand::Account(done, reply) => {
                    let now = self.now(rdtsc());
                    let unknown = done.iter().filter(|(selector, usage)| {
                        !self.overlay.account(&self.snapshot, selector, *usage, now)
                    });
                    let _ = reply.send(unknown.map(|(selector, _)| *selector).collect());
                }
                WorkerCommand::Watch(on) => {
                    self.watching = on;
                    if on {
                        self.stats.watch_anew();
                    }
                }
                WorkerCommand::Barrier(reply) => {
                    let _ = reply.send(());
                }
                WorkerCommand::Exit => return false,
            }
        }
        true
    }

    /// Control frees the old snapshot: freeing never falls on a worker.
    fn adopt(&mut self, snapshot: Arc<Snapshot>) {
        self.repeats.follow(&self.snapshot, &snapshot);
        let mut old = std::mem::replace(&mut self.snapshot, snapshot);
        while let Err(back) = self.mailbox.retired.push(old) {
            old = back;
            std::thread::yield_now();
        }
    }

    /// Takes the receive queues of a port away; what waits in front of them goes on its way first.
    fn remove_rx(&mut self, port: PortIndex) -> Vec<RxQueue> {
        let mut gone = self.rx.remove(port, self.now(rdtsc()));
        for path in &mut gone {
            let now = self.now(rdtsc());
            loop {
                let n = path.empty_front(&mut self.burst.packets[..self.burst_size]);
                if n == 0 {
                    break;
                }
                self.forward(now, port, n);
            }
        }
        gone.into_iter().map(RxPath::into_queue).collect()
    }
}
