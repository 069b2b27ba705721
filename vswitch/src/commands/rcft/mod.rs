//! Commands about queue pairs: what is in use, what each of them does, quotas, eviction.

mod text;

use std::net::IpAddr;

use vswitch_api::v1;
use vswitch_api::v1::object::Spec;
use vswitch_api::v1::queue_pairs_client::QueuePairsClient;
use wire::Qpn;

use super::objects::update;
use super::{Entry, Session, ask, optional, shown, told};
use crate::config::{Name, QuotaConfig};
use crate::console::{Args, CommandError, Output};

pub(super) fn commands() -> Vec<Entry> {
    vec![
        Entry {
            syntax: "show rcft",
            help: "RC queue pairs in use, quotas and refusals of all vNICs",
            rpc: "QueuePairs.GetQueuePairUsage",
            run: |session, _| {
                let request = v1::GetQueuePairUsageRequest {};
                shown(ask!(session, QueuePairsClient.get_queue_pair_usage(request))?)
            },
        },
        Entry {
            syntax: "show rcft <vnic:name>",
            help: "The queue pairs of a vNIC",
            rpc: "QueuePairs.ListQueuePairs",
            run: |session, args| {
                let request = v1::ListQueuePairsRequest { vnic: optional(args, "vnic") };
                shown(ask!(session, QueuePairsClient.list_queue_pairs(request))?)
            },
        },
        Entry {
            syntax: "show rcft [<vnic:name>] top <count:uint> by <order:bytes|packets|cnp|nak|retrans|gaps>",
            help: "The queue pairs with the most of something, of all vNICs or of one",
            rpc: "QueuePairs.ListTopQueuePairs",
            run: |session, args| {
                let (count, order) = (args.get("count")?, args.get("order")?);
                let request = v1::ListTopQueuePairsRequest { vnic: optional(args, "vnic"), count, order };
                shown(ask!(session, QueuePairsClient.list_top_queue_pairs(request))?)
            },
        },
        Entry {
            syntax: "show qp <vnic:name> <qpn:word>",
            help: "A queue pair by the peer's number or the vNIC's own (17 or 0x11): both directions where they are paired",
            rpc: "QueuePairs.GetQueuePair",
            run: |session, args| {
                let request = v1::GetQueuePairRequest { vnic: optional(args, "vnic"), qpn: qpn(args)?.get() };
                shown(ask!(session, QueuePairsClient.get_queue_pair(request))?)
            },
        },
        Entry {
            syntax: "rcft set <vnic:name> quota <quota:text>",
            help: "Queue pairs a vNIC may have in use: a number, a share such as 25% of mlx5_0, or none of its own",
            rpc: "Objects.Update",
            run: set_quota,
        },
        Entry {
            syntax: "rcft evict <vnic:name> all",
            help: "Take the places of all queue pairs of a vNIC back; their next packets must find new ones",
            rpc: "QueuePairs.EvictQueuePairs",
            run: evict_all,
        },
        Entry {
            syntax: "rcft evict <vnic:name> <peer:ip> <qpn:word>",
            help: "Take the place of a queue pair back, by the peer's address and number",
            rpc: "QueuePairs.EvictQueuePair",
            run: evict,
        },
    ]
}

/// The number of a queue pair, as 17 or 0x11.
pub(super) fn read_qpn(text: &str) -> Option<Qpn> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    Qpn::new(number?).ok()
}

/// The number of a queue pair, by the argument `qpn`.
fn qpn(args: &Args) -> Result<Qpn, CommandError> {
    let text: String = args.get("qpn")?;
    read_qpn(&text).ok_or_else(|| {
        let shown = crate::config::error::quote(&text);
        args.error("qpn", format!("{shown} is no number of a queue pair; give 0 to 16777215, as 17 or 0x11"))
    })
}

fn set_quota(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let (name, text): (Name, String) = (args.get("vnic")?, args.get("quota")?);
    let quota: Option<QuotaConfig> = match text.trim() {
        "none" => None,
        text => {
            let quota = text.parse().map_err(|error| args.error("quota", format!("{error}; or say none")))?;
            Some(quota)
        }
    };
    let qp_quota = quota.as_ref().map(ToString::to_string);
    let vnic = v1::Vnic { name: name.to_string(), qp_quota, ..v1::Vnic::default() };
    let entry = update(session, Spec::Vnic(vnic), &["qp_quota"])?;
    let request = v1::GetQueuePairQuotaRequest { vnic: name.to_string() };
    let now = ask!(session, QueuePairsClient.get_queue_pair_quota(request))?;
    told(text::quota(&now, quota.as_ref()), entry)
}

fn evict(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let (name, peer, qpn): (Name, IpAddr, Qpn) = (args.get("vnic")?, args.get("peer")?, qpn(args)?);
    let request =
        v1::EvictQueuePairRequest { vnic: name.to_string(), peer: peer.to_string(), qpn: qpn.get() };
    let answer = ask!(session, QueuePairsClient.evict_queue_pair(request))?;
    told(format!("the queue pair of {name} to {peer} qp {:#x} lost its place", qpn.get()), answer)
}

fn evict_all(session: &mut Session, args: &Args) -> Result<Output, CommandError> {
    let name: Name = args.get("vnic")?;
    let request = v1::EvictQueuePairsRequest { vnic: name.to_string() };
    let answer = ask!(session, QueuePairsClient.evict_queue_pairs(request))?;
    let text = match answer.evicted {
        0 => format!("{name} has no queue pairs in use"),
        count => format!("{count} queue pairs of {name} lose their places"),
    };
    told(text, answer)
}
