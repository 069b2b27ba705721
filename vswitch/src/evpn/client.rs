//! The thread of EVPN: it takes in what gobgpd says, has control do what follows, and tells gobgpd what this host has.
//!
//! It looks at the switch as it is, each time that something of it has changed, and asks for the difference only: a location that
//! somebody removed by force comes back, and nothing depends on having seen every change.

mod applying;

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use vswitch_api::gobgp;
use wire::MacAddr;

use super::apply::Applier;
use super::book::{Book, Dirty};
use super::codec::{self, Targets};
use super::publish::{Limit, Local, News, Publisher, Speaker, Step};
use super::route::{Distinguisher, Route};
use super::speaker::{self, Answer, Client, Said};
use super::status::{Count, Peer, Shared};
use crate::api::Job;
use crate::config::EvpnConfig;
use crate::control::asking::{Asker, Unanswered};
use crate::controller::Controller;
use crate::switch::view::View;
use crate::topology::paths::tunnel_sources;

/// Between two turns: what comes within one is one change of the switch.
const TURN: Duration = Duration::from_millis(25);
/// Between two looks whether the switch has changed.
const LOOK: Duration = Duration::from_millis(200);
/// After something went wrong with a batch.
const AGAIN: Duration = Duration::from_secs(1);
/// When all peers are there, and said nothing for so long, what was not said again is forgotten.
const QUIET: Duration = Duration::from_secs(3);
/// What gobgpd is told of in a turn.
const STEPS: usize = 64;
/// Words of gobgpd that wait.
const WAITING: usize = 64;

/// Control has ended.
struct Ended;

/// The way to control.
struct Control(Asker);

impl Control {
    /// Has control do `work`. Nothing when that went wrong, which control tells.
    async fn ask<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&mut Controller) -> T + Send + 'static,
    ) -> Result<Option<T>, Ended> {
        match self.0.ask(what, work).await {
            Ok(answer) => Ok(Some(answer)),
            Err(Unanswered::Fault(_)) => Ok(None),
            Err(Unanswered::Ending) => Err(Ended),
        }
    }
}

/// gobgpd, while it answers.
struct Connected {
    client: Client,
    asn: u32,
    router_id: Ipv4Addr,
    /// What it had when it was reached, until it is known which of it is ours.
    first: Option<Vec<gobgp::Path>>,
}

struct Evpn {
    config: EvpnConfig,
    control: Control,
    status: Shared,
    book: Book,
    publisher: Publisher,
    applier: Applier,
    dirty: Dirty,
    connected: Option<Connected>,
    vtep: Option<IpAddr>,
    local: Local,
    /// The switch as it was last looked at.
    revision: Option<u64>,
    /// What was not heard again is forgotten at this time at the latest; nothing when all of it was.
    stale_until: Option<Instant>,
    /// When a path was last heard, or a peer was not there.
    unsettled: Instant,
    looked: Option<Instant>,
    /// Nothing is asked of control before.
    not_before: Option<Instant>,
    /// Nothing is asked of gobgpd before.
    announces_after: Option<Instant>,
    /// There is something to announce.
    announces: bool,
}

/// Runs until control ends.
pub async fn run(config: EvpnConfig, jobs: mpsc::Sender<Job>, status: Shared) {
    let (said, mut heard) = mpsc::channel(WAITING);
    let listening = tokio::spawn(speaker::listen(config.gobgpd.clone(), said));
    let mut evpn = Evpn::new(config, jobs, status);
    let mut clock = tokio::time::interval(TURN);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let result = tokio::select! {
            word = heard.recv() => match word {
                Some(word) => evpn.hear(word).await,
                None => Err(Ended),
            },
            _ = clock.tick() => match evpn.hear_waiting(&mut heard).await {
                Ok(()) => evpn.turn(Instant::now()).await,
                Err(ended) => Err(ended),
            },
        };
        if let Err(Ended) = result {
            listening.abort();
            return;
        }
    }
}

impl Evpn {
    fn new(config: EvpnConfig, jobs: mpsc::Sender<Job>, status: Shared) -> Self {
        let now = Instant::now();
        Self {
            control: Control(Asker::new(jobs)),
            status,
            book: Book::default(),
            publisher: Publisher::new(Limit { moves: config.duplicate_moves, within: config.duplicate_time }),
            applier: Applier::default(),
            dirty: Dirty::default(),
            connected: None,
            vtep: None,
            local: Local::default(),
            revision: None,
            // Of an earlier run of the switch.
            stale_until: Some(now + config.stale_time),
            unsettled: now,
            looked: None,
            not_before: None,
            announces_after: None,
            announces: false,
            config,
        }
    }

    async fn note(&self, kind: &'static str, text: String, facts: serde_json::Value) -> Result<(), Ended> {
        self.control
            .ask("an event of EVPN", move |controller| controller.switch.note(kind, text, facts))
            .await
            .map(drop)
    }

    /// Takes in what has come while something else was waited for: it counts before anything is given up for want of it.
    async fn hear_waiting(&mut self, heard: &mut mpsc::Receiver<Said>) -> Result<(), Ended> {
        for _ in 0..WAITING {
            let Ok(word) = heard.try_recv() else { break };
            self.hear(word).await?;
        }
        Ok(())
    }

    async fn hear(&mut self, word: Said) -> Result<(), Ended> {
        let now = Instant::now();
        match word {
            Said::Up { client, asn, router_id, paths } => {
                let router_id = router_id.parse().unwrap_or(Ipv4Addr::UNSPECIFIED);
                self.connected = Some(Connected { client, asn, router_id, first: Some(paths) });
                self.stale_until = Some(now + self.config.stale_time);
                (self.unsettled, self.looked, self.announces_after) = (now, None, None);
                {
                    let mut status = self.status.lock();
                    (status.connected, status.since) = (true, now);
                    (status.asn, status.router_id) = (asn, Some(router_id));
                    status.connections += 1;
                }
                let gobgpd = self.config.gobgpd.to_string();
                tracing::info!(%gobgpd, asn, "gobgpd answers");
                self.note("evpn-up", format!("gobgpd at {gobgpd} answers"), json!({ "gobgpd": gobgpd }))
                    .await?;
            }
            Said::Paths(paths) => {
                self.unsettled = now;
                match self.connected.as_mut().and_then(|connected| connected.first.as_mut()) {
                    // Nobody has looked at the first ones yet.
                    Some(first) => first.extend(paths),
                    None => paths.iter().for_each(|path| self.take(path)),
                }
            }
            Said::Peers(peers) => {
                if !settled(&peers) {
                    self.unsettled = now;
                }
                self.status.lock().peers = peers;
            }
            Said::Down(error) => self.lost(error).await?,
        }
        Ok(())
    }

    /// gobgpd is away: all that it said is kept.
    async fn lost(&mut self, error: String) -> Result<(), Ended> {
        let was = self.connected.take().is_some();
        let is_news = {
            let mut status = self.status.lock();
            if status.connected {
                (status.connected, status.since) = (false, Instant::now());
            }
            status.peers.clear();
            let is_news = status.last_error != error;
            status.last_error.clone_from(&error);
            is_news
        };
        if was || is_news {
            tracing::warn!(gobgpd = %self.config.gobgpd, error, "gobgpd does not answer; what it said is kept");
        }
        if was {
            let gobgpd = self.config.gobgpd.to_string();
            let text = format!("gobgpd at {gobgpd} does not answer, and what it said is kept: {error}");
            self.note("evpn-down", text, json!({ "gobgpd": gobgpd, "error": error })).await?;
        }
        Ok(())
    }

    /// Takes in a path.
    fn take(&mut self, path: &gobgp::Path) {
        if path.family != Some(codec::EVPN) {
            return;
        }
        if path.is_withdraw {
            if let Ok(key) = codec::key(path) {
                self.book.withdraw(&key);
            }
            return;
        }
        match codec::route(path) {
            // Ours, or what came back to us by others.
            Ok(route) if Some(route.vtep) == self.vtep || self.is_ours(path, &route) => {
                self.book.withdraw(&route.key);
            }
            Ok(route) => self.book.set(route),
            Err(why) => {
                if let Ok(key) = codec::key(path) {
                    self.book.withdraw(&key);
                }
                let mut status = self.status.lock();
                status.unusable += 1;
                status.last_unusable = why.to_string();
            }
        }
    }

    /// True for what this switch has told gobgpd, or an earlier run of it did, perhaps with another VTEP: route distinguishers of this router
    /// are this host's alone.
    fn is_ours(&self, path: &gobgp::Path, route: &Route) -> bool {
        let Some(Connected { router_id, .. }) = &self.connected else { return false };
        codec::is_local(path)
            && matches!(route.key.rd(), Distinguisher::Address(admin, _) if admin == *router_id)
    }

    /// Takes in all that gobgpd knows when it is reached: what it has of others, and of ours.
    fn begin(&mut self, paths: &[gobgp::Path]) {
        let there = paths.iter().filter(|path| !path.is_withdraw);
        let read = there.filter_map(|path| Some((path, codec::route(path).ok()?)));
        let own = read.filter(|(path, route)| self.is_ours(path, route)).map(|(_, route)| route).collect();
        self.publisher.begin(own);
        self.book.begin();
        paths.iter().for_each(|path| self.take(path));
    }

    async fn turn(&mut self, now: Instant) -> Result<(), Ended> {
        if self.not_before.is_some_and(|time| now < time) {
            return Ok(());
        }
        let fresh = self.book.take_dirty();
        self.dirty.prefixes.extend(self.applier.take_put_off(now));
        self.announces |= !fresh.stations.is_empty() || self.publisher.is_due(now);
        merge(&mut self.dirty, fresh);
        let looks = self.looked.is_none_or(|looked| now.duration_since(looked) >= LOOK);
        if !looks && self.dirty.is_empty() && !(self.announces && self.may_announce(now)) {
            return Ok(());
        }
        let (known, waits) = (self.revision, self.applier.waits_for_room());
        let work = move |controller: &mut Controller| {
            let switch = &controller.switch;
            let is_news = Some(switch.changes().revision()) != known;
            (is_news.then(|| View::of(switch)), if waits { switch.topology().vlt_room() } else { 0 })
        };
        let Some((changed, room)) = self.control.ask("looking at the switch", work).await? else {
            return Ok(());
        };
        self.applier.ask_for_room(room, &mut self.dirty);
        if looks {
            self.looked = Some(now);
        }
        let is_news = changed.is_some();
        if let Some(view) = changed {
            self.look(&view);
        }
        if let Some(connected) = &mut self.connected
            && let Some(first) = connected.first.take()
        {
            self.begin(&first);
            self.announces = true;
            merge(&mut self.dirty, self.book.take_dirty());
        }
        if is_news && known.is_some() {
            merge(&mut self.dirty, self.book.everything());
        }
        if self.sweeps(now) {
            // And what an earlier run left that nobody says any more.
            let owned = |controller: &mut Controller| View::of(&controller.switch).owned();
            if let Some(owned) = self.control.ask("looking at the switch", owned).await? {
                merge(&mut self.dirty, owned);
            }
        }
        self.apply(now).await?;
        self.announce(now).await?;
        self.tell();
        Ok(())
    }

    /// Takes in what the switch is like.
    fn look(&mut self, view: &View) {
        self.vtep = self.config.vtep.or_else(|| tunnel_sources(&view.config.uplinks).first().copied());
        let local = Local::of(&view.config, self.config.prefixes);
        self.announces |= local != self.local;
        self.local = local;
        self.revision = Some(view.revision);
    }

    /// Forgets what was not heard again, when it is time; true when that was done.
    fn sweeps(&mut self, now: Instant) -> bool {
        let Some(until) = self.stale_until else { return false };
        let is_quiet = self.connected.is_some()
            && now.duration_since(self.unsettled) >= QUIET
            && settled(&self.status.lock().peers);
        // While gobgpd is away nothing is forgotten.
        if !(is_quiet || (self.connected.is_some() && now >= until)) {
            return false;
        }
        self.stale_until = None;
        let gone = self.book.sweep();
        if gone > 0 {
            tracing::info!(routes = gone, "routes that were not heard again are forgotten");
        }
        merge(&mut self.dirty, self.book.take_dirty());
        true
    }

    /// True while gobgpd would hear what is announced.
    fn may_announce(&self, now: Instant) -> bool {
        self.connected.is_some() && self.vtep.is_some() && self.announces_after.is_none_or(|time| now >= time)
    }

    /// Tells gobgpd what is to be announced.
    async fn announce(&mut self, now: Instant) -> Result<(), Ended> {
        if !self.may_announce(now) {
            return Ok(());
        }
        let (Some(connected), Some(vtep)) = (&mut self.connected, self.vtep) else { return Ok(()) };
        if !std::mem::take(&mut self.announces) {
            return Ok(());
        }
        let speaker = Speaker { vtep, router_id: connected.router_id };
        let asn = self.config.asn.unwrap_or(connected.asn);
        let targets = Targets { asn, form: self.config.route_target };
        let mut news = Vec::new();
        let steps = self.publisher.steps(&self.local, &self.book, speaker, now, &mut news);
        self.announces = steps.len() > STEPS;
        let mut trouble = None;
        for step in steps.iter().take(STEPS) {
            let answer = match step {
                Step::Announce(route) => {
                    speaker::announce(&mut connected.client, codec::path(route, targets)).await
                }
                Step::Withdraw(route) => speaker::withdraw(&mut connected.client, codec::bare(route)).await,
            };
            match (answer, step) {
                (Answer::Done, step) => self.publisher.took(step),
                (Answer::Sequence, Step::Announce(route)) => {
                    self.publisher.refused(route);
                    self.announces = true;
                }
                (Answer::Sequence, Step::Withdraw(_)) => {}
                (Answer::Refused(error), step) => {
                    let (Step::Announce(route) | Step::Withdraw(route)) = step;
                    trouble = Some(format!("{}: {error}", route.key));
                }
                // The connection tells of it, too, unless only this was late.
                (Answer::Gone, _) => {
                    (self.announces, self.announces_after) = (true, Some(now + AGAIN));
                    break;
                }
            }
        }
        if let Some(error) = trouble {
            tracing::warn!(error, "gobgpd does not announce what it was told");
            self.status.lock().last_error = error;
            (self.announces, self.announces_after) = (true, Some(now + AGAIN));
        }
        for news in news {
            self.report(news).await?;
        }
        Ok(())
    }

    async fn report(&mut self, news: News) -> Result<(), Ended> {
        let (kind, text, facts) = match news {
            News::Came { vni, mac, from, sequence } => {
                self.status.lock().came += 1;
                let text =
                    format!("{mac} in VNI {vni} came here from {from}, with sequence number {sequence}");
                ("evpn-came", text, moved(vni, mac, from, sequence))
            }
            News::Left { vni, mac, to, sequence } => {
                self.status.lock().left += 1;
                let text = format!(
                    "{mac} in VNI {vni} is announced by {to} with sequence number {sequence}: it is announced from here no \
                     more, though its vNIC is still here; remove that if it has moved"
                );
                ("evpn-left", text, moved(vni, mac, to, sequence))
            }
            News::Held { vni, mac, duplicate } => {
                self.book.hold(vni, mac);
                let Limit { moves, within } = self.publisher.limit();
                let (other, seconds) = (duplicate.vtep, within.as_secs());
                let text = format!(
                    "{mac} in VNI {vni} moved {moves} times within {seconds} s between here and {other}: two hosts have it. For \
                     {seconds} s nothing new is announced of it and nothing taken in; give one of the two another MAC address, and \
                     take this vNIC out and in again to have it looked at at once"
                );
                let facts = json!({
                    "vni": vni, "mac": mac.to_string(), "vtep": other.to_string(), "moves": moves, "seconds": seconds
                });
                ("evpn-duplicate", text, facts)
            }
            News::Released { vni, mac } => {
                self.book.release(vni, mac);
                self.announces = true;
                let text =
                    format!("{mac} in VNI {vni} is looked at again: it is no duplicate any more so far");
                ("evpn-duplicate-over", text, json!({ "vni": vni, "mac": mac.to_string() }))
            }
        };
        tracing::info!("{text}");
        self.note(kind, text, facts).await
    }

    /// For who asks.
    fn tell(&self) {
        let mut status = self.status.lock();
        status.vtep = self.vtep;
        status.heard = Count::of(self.book.routes());
        status.announced = Count::of(self.publisher.announced());
        status.stale = self.book.stale() as u64;
        let refused = self.applier.refused();
        status.refused = refused.len() as u64;
        status.last_refused =
            refused.iter().next().map(|(item, why)| format!("{item}: {why}")).unwrap_or_default();
        status.others = self.applier.others() as u64;
        status.duplicates = self.publisher.duplicates().collect();
    }
}

fn moved(vni: u32, mac: MacAddr, vtep: IpAddr, sequence: u32) -> serde_json::Value {
    json!({ "vni": vni, "mac": mac.to_string(), "vtep": vtep.to_string(), "sequence": sequence })
}

/// True when all peers that should be there are.
fn settled(peers: &[Peer]) -> bool {
    let mut wanted = peers.iter().filter(|peer| peer.state != "admin-down").peekable();
    wanted.peek().is_some() && wanted.all(|peer| peer.state == "established")
}

fn merge(dirty: &mut Dirty, more: Dirty) {
    let Dirty { addresses, stations, prefixes, floods } = more;
    dirty.addresses.extend(addresses);
    dirty.stations.extend(stations);
    dirty.prefixes.extend(prefixes);
    dirty.floods.extend(floods);
}

#[cfg(test)]
mod tests;
