//! What control sends by a port: BFD, ARP, neighbour discovery. It leaves with the next burst, ahead of all else that waits, and where
//! no more may wait the last packets make room: a port that is saturated is no dead one, and neither end is to take it for one.

use pipelines::Sink as _;
use pipelines::drops::DropReason;
use pipelines::snapshot::PortIndex;
use pmd::Mbuf;
use wire::PacketBuf;

use super::own::{Own, buffers_of};
use super::{TxPath, TxPaths};

impl TxPaths {
    /// Sends a packet of control's, which goes behind those that it sent before and ahead of everybody else's.
    #[cold]
    pub(crate) fn send_ahead(&mut self, port: PortIndex, packet: Mbuf) {
        let (len, buffers) = (packet.len(), buffers_of(&packet));
        let fits = |own: &Own| !own.buffer.is_full() && own.has_room(buffers, own.room);
        match self.paths.get(usize::from(port)) {
            Some(TxPath::Own(own)) if len <= own.port.max_frame() as usize => {
                if !fits(own) {
                    self.flush_port(port);
                }
            }
            _ => return self.send(port, packet),
        }
        let mut lost = 0;
        while let Some(TxPath::Own(own)) = self.paths.get_mut(usize::from(port))
            && !fits(own)
            && own.buffer.len() > own.ahead
        {
            drop(own.buffer.pop());
            lost += 1;
            self.recount(port);
        }
        if lost > 0 {
            self.queued = self.queued.wrapping_sub(lost);
            self.count_drops(port, DropReason::TX_FULL, lost);
        }
        let Some(TxPath::Own(own)) = self.paths.get_mut(usize::from(port)).filter(|path| match path {
            TxPath::Own(own) => fits(own),
            _ => false,
        }) else {
            return self.refuse(port, packet, DropReason::TX_FULL);
        };
        if let Err(packet) = own.buffer.push(packet) {
            return self.refuse(port, packet, DropReason::TX_FULL);
        }
        own.buffer.as_mut_slice()[own.ahead..].rotate_right(1);
        own.ahead += 1;
        own.held.add(len, buffers);
        self.waiting += buffers;
        self.dirty.insert(port);
        self.queued = self.queued.wrapping_add(1);
    }
}
