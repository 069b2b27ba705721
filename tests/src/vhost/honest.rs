//! Two well-behaved peers whose traffic goes on while others do what they like: nothing of it may be lost.

use super::{FrontEnd, Station, datagram, number_of};
use crate::wait_for;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until each is heard by the next one: the switch notices a little later than the peer that it can be sent to. The datagrams
/// of this have a number that nothing else has.
#[track_caller]
pub fn heard(peers: &mut [FrontEnd], stations: &[Station]) {
    for at in 0..peers.len() {
        let next = (at + 1) % peers.len();
        wait_for("a peer to be heard", PATIENCE, || {
            peers[at].send(&datagram(stations[at], stations[next], 1 << 30)).ok()?;
            std::thread::sleep(Duration::from_millis(2));
            (!receive_some(&mut peers[next]).is_empty()).then_some(())
        });
    }
    std::thread::sleep(Duration::from_millis(100));
    peers.iter_mut().for_each(|peer| drop(receive_some(peer)));
}

/// The numbers of the datagrams that have come.
#[track_caller]
pub fn receive_some(peer: &mut FrontEnd) -> Vec<u32> {
    peer.receive().unwrap().iter().filter_map(|frame| number_of(frame)).collect()
}

/// Datagrams of each of two honest peers that mean something.
const ENOUGH: u32 = 100;

/// Two peers that send to each other all the time, far below what the switch can do, and count what does not come.
#[derive(Debug)]
pub struct Honest {
    over: Arc<AtomicBool>,
    thread: JoinHandle<[(u32, Vec<u32>); 2]>,
}

impl Honest {
    /// Waits until they hear each other, and begins.
    #[track_caller]
    pub fn start(mut peers: [FrontEnd; 2], stations: [Station; 2]) -> Honest {
        heard(&mut peers, &stations);
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let thread = std::thread::spawn(move || {
            let mut books = [(0u32, Vec::new()), (0, Vec::new())];
            let began = Instant::now();
            let mut last = began;
            loop {
                // However soon the enemy is through with it.
                let enough = books.iter().all(|(sent, _)| *sent > ENOUGH) || began.elapsed() > PATIENCE;
                let is_over = enough && ends.load(Ordering::Relaxed);
                if is_over && last.elapsed() > Duration::from_secs(2) {
                    return books;
                }
                for side in 0..2 {
                    if !is_over {
                        let frame = datagram(stations[side], stations[1 - side], books[side].0);
                        // A ring that is full is no loss: the switch has not taken it.
                        books[side].0 += u32::from(peers[side].send(&frame).is_ok());
                        last = Instant::now();
                    }
                    // The enemy's may come, too.
                    let came = receive_some(&mut peers[side]).into_iter().filter(|number| number >> 30 == 0);
                    books[1 - side].1.extend(came);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Honest { over, thread }
    }

    /// Everything that was sent has come, in order.
    #[track_caller]
    pub fn stop(self) {
        self.over.store(true, Ordering::Relaxed);
        for (sent, came) in self.thread.join().unwrap() {
            assert!(sent > ENOUGH, "only {sent} were sent");
            let expected: Vec<u32> = (0..sent).collect();
            let strays: Vec<_> =
                came.iter().zip(&expected).filter(|(came, expected)| came != expected).take(8).collect();
            assert!(came == expected, "{} of {sent} came; first that differ: {strays:?}", came.len());
        }
    }
}
