//! The flows of the NFT, and a flow's key in words.

use pipelines::flow_key::{FlowKey, FlowPorts, Scope};
use pipelines::nft::NftEntry;
use pipelines::snapshot::Snapshot;
use pipelines::stage::key::CLASS_NAMES;
use worker::WorkerCommand;
use worker::mailbox::WorkerError;

use crate::switch::Switch;

/// Entries of an NFT read at a time.
const PAGE: usize = 64;

/// Goes through the NFTs of all workers: the worker's number, an entry, and the worker's time in ticks. Control does what cannot wait
/// between two pages.
///
/// # Errors
/// [`WorkerError`].
pub fn each(switch: &mut Switch, mut visit: impl FnMut(usize, &NftEntry, u32)) -> Result<(), WorkerError> {
    for number in 0..switch.pool().workers.len() {
        let mut from = Some(0);
        while let Some(start) = from {
            let mailbox = switch.pool().workers[number].mailbox();
            let page = mailbox.ask(|reply| WorkerCommand::Nft(start, PAGE, reply))?;
            page.entries.iter().for_each(|entry| visit(number, entry, page.tick));
            from = page.next;
            switch.tend_if_due();
        }
    }
    Ok(())
}

/// Where a flow comes from and goes to, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ends {
    /// `vnic NAME`, or `tunnel VPC`.
    pub from: String,
    pub source: String,
    pub destination: String,
    /// IP protocol.
    pub proto: u8,
    /// Source and destination port, and the VLAN.
    pub ports: String,
    /// RoCEv2 class, or `-`.
    pub class: &'static str,
}

impl Ends {
    /// The ends of a flow, with the names of a snapshot.
    pub fn of(key: &FlowKey, snapshot: &Snapshot) -> Self {
        let from = match key.scope() {
            Scope::Vnic(index) => {
                snapshot.vnic(index).map_or("vnic (gone)".into(), |vnic| format!("vnic {}", vnic.name))
            }
            Scope::Vpc(index) => {
                snapshot.vpc(index).map_or("tunnel (gone)".into(), |vpc| format!("tunnel {}", vpc.name))
            }
        };
        let (source, destination) = match key.addresses() {
            Some(ip) => (ip.source.to_string(), ip.destination.to_string()),
            None => (format!("ethertype {:#06x}", key.ethertype()), key.dst_mac().to_string()),
        };
        let FlowPorts { source: sport, destination: dport } = key.ports();
        let vlan = key.vlan().map(|vlan| format!(" vlan {vlan}")).unwrap_or_default();
        Self {
            from,
            source,
            destination,
            proto: key.proto(),
            ports: format!("{sport} {dport}{vlan}"),
            class: CLASS_NAMES.get(usize::from(key.class())).copied().unwrap_or("-"),
        }
    }
}
