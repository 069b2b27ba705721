//! A notification point beside soft-RoCE, which has none: answers marked packets with congestion notifications (CNPs).
//!
//! tcpdump in the guest names the packets that arrive with a mark; for one of so many of them a ready frame goes out
//! of `eth0`. The frame is made by `peers/roce.py`, not by code of the switch. One of them a guest at a time.

use super::{Guest, Job, Site, base64};
use crate::{Workdir, script};
use std::time::Duration;

/// Where the frame lies in the guest.
const FRAME: &str = "/tmp/cnp";
/// Bytes of the frame: Ethernet, IPv4, UDP, BTH, 16 reserved bytes, ICRC.
pub const FRAME_LEN: i64 = 14 + 20 + 8 + 12 + 16 + 4;

/// What notifies the sender of a queue pair.
#[derive(Debug)]
#[must_use = "it goes on until it is stopped"]
pub struct Notifier<'a> {
    guest: &'a Guest,
    job: Job,
}

/// Puts a notification for the queue pair `qpn` of the guest `to` into the guest `from`, as [`send`] and
/// [`Notifier::start`] send it: over IPv4, with ECT(0), so that it could be marked.
#[track_caller]
pub fn prepare(site: &Site, from: &str, to: &str, qpn: u32) {
    let [source, target] = [from, to].map(|name| site.vm(name));
    let dir = Workdir::new("cnp");
    let file = dir.path().join("cnp");
    let [path, source_ip, target_ip, number] = [
        file.display().to_string(),
        source.ip(false).to_string(),
        target.ip(false).to_string(),
        qpn.to_string(),
    ];
    script::run("roce.py", &["cnp", &path, &source.mac, &target.mac, &source_ip, &target_ip, &number]);
    let frame = std::fs::read(&file).expect("roce.py wrote it");
    assert_eq!(frame.len() as i64, FRAME_LEN);
    site.guest(from).run(&format!("echo {} | base64 -d >{FRAME}", base64::encode(&frame)));
}

/// Sends the prepared notification `count` times, marks or not.
#[track_caller]
pub fn send(guest: &Guest, count: u32) {
    guest.run(&format!("for n in $(seq {count}); do cat {FRAME}; done | {}", socat()));
}

/// Reads frames of the one length from its input and puts them on the wire.
fn socat() -> String {
    format!("socat -u -b {FRAME_LEN} - INTERFACE:eth0")
}

impl<'a> Notifier<'a> {
    /// Starts answering every `nth` marked packet with the prepared notification. Goes before everything else of the
    /// guest: soft-RoCE that sends and receives all the time would leave it no processor.
    #[track_caller]
    pub fn start(guest: &'a Guest, nth: u32) -> Notifier<'a> {
        let job = guest.start(&format!(
            "chrt -f -p 10 $$; tcpdump -Z root -n -q -l -Q in -i eth0 'udp port 4791 and ip[1] & 3 == 3' 2>/tmp/notify.log \
             | awk 'NR % {nth} == 1 {{ print \"CE\"; fflush() }}' \
             | while read -r mark; do cat {FRAME}; done | {}",
            socat()
        ));
        guest.until("grep -q 'listening on' /tmp/notify.log", Duration::from_secs(30));
        Notifier { guest, job }
    }

    /// Stops it.
    #[track_caller]
    pub fn stop(self) {
        self.guest.stop(self.job);
    }
}
