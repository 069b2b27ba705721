//! Commands about EVPN.

use std::fmt::Write as _;

use vswitch_api::v1;
use vswitch_api::v1::evpn_client::EvpnClient;

use super::{Entry, View, ask, shown};
use crate::console::Table;

pub(super) fn commands() -> Vec<Entry> {
    vec![Entry {
        syntax: "show evpn",
        help: "EVPN: gobgpd and its peers, routes heard and announced, what cannot be here and why",
        rpc: "Evpn.GetEvpn",
        run: |session, _| shown(ask!(session, EvpnClient.get_evpn(v1::GetEvpnRequest {}))?),
    }]
}

impl View for v1::EvpnState {
    fn text(&self) -> String {
        if !self.configured {
            return "no EVPN: the config has no `[control] evpn`\n".into();
        }
        let mut text = String::new();
        let mut line = |line: String| {
            // A string takes everything.
            let _ = writeln!(text, "{line}");
        };
        let state = if self.connected { "answers" } else { "does not answer; what it said is kept" };
        line(format!("gobgpd {} {state}, for {:.0} s", self.gobgpd, self.seconds));
        line(format!("AS {}, router id {}, tunnel end point {}", self.asn, self.router_id, self.vtep));
        for (word, routes) in [("heard", &self.heard), ("announced", &self.announced)] {
            let v1::EvpnRoutes { stations, floods, prefixes } = routes.unwrap_or_default();
            line(format!("{word}: {stations} of type 2, {floods} of type 3, {prefixes} of type 5"));
        }
        line(format!("stations that came here: {}, that left: {}", self.came, self.left));
        for (count, what, why) in [
            (self.stale, "not heard again yet", ""),
            (self.unusable, "of no use so far", self.last_unusable.as_str()),
            (self.refused, "cannot be here", self.last_refused.as_str()),
            (self.others, "said otherwise by somebody else here", ""),
        ] {
            if count > 0 {
                line(format!("{count} {what}{}{why}", if why.is_empty() { "" } else { ": " }));
            }
        }
        for v1::EvpnDuplicate { vni, mac, vtep, seconds } in &self.duplicates {
            line(format!(
                "{mac} in VNI {vni} is at {vtep}, too: a duplicate, of which nothing is announced or taken in for {seconds:.0} s"
            ));
        }
        if !self.last_error.is_empty() {
            line(format!("last error: {}", self.last_error));
        }
        let mut table = Table::new(["peer", "as", "state", "routes"]);
        for peer in &self.peers {
            table.row([
                peer.address.clone(),
                peer.asn.to_string(),
                peer.state.clone(),
                peer.routes.to_string(),
            ]);
        }
        format!("{text}{table}")
    }
}
