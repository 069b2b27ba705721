//! Every transition of RFC 5880 section 6.8, timers and polls; and two sessions that talk to each other over a bad link.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use wire::bfd::{Control, Diagnostic, State};

use super::{Session, Timing};

const TURN: Duration = Duration::from_millis(20);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn timing(tx: u64, rx: u64, multiplier: u8) -> Timing {
    Timing { min_tx: ms(tx), min_rx: ms(rx), multiplier }
}

fn session() -> Session {
    Session::new(timing(100, 100, 3), 7, TURN)
}

/// What a peer says: 200 ms each way, three times.
fn said(state: State, flags: u8) -> Control {
    let mut control = Control::new(state, Diagnostic::NONE);
    control.state_flags |= flags;
    control.detect_multiplier = 3;
    control.my_discriminator.set(99);
    control.your_discriminator.set(7);
    control.desired_min_tx.set(200_000);
    control.required_min_rx.set(200_000);
    control
}

/// A session in a state, by the shortest way there.
fn session_in(state: State, now: Instant) -> Session {
    let mut session = session();
    let way: &[State] = match state {
        State::AdminDown | State::Down => &[],
        State::Init => &[State::Down],
        State::Up => &[State::Init],
    };
    way.iter().for_each(|&state| session.receive(&said(state, 0), now));
    if state == State::AdminDown {
        session.shut(now);
    }
    assert_eq!(session.state(), state);
    session
}

/// What others may say in its name while it is late is that it is up, and nothing else.
#[test]
fn bfd_only_a_sign_of_life_is_repeated() {
    let now = Instant::now();
    for state in [State::AdminDown, State::Down, State::Init] {
        let mut session = session_in(state, now);
        session.transmit(now);
        assert_eq!(session.repeat_after(), None, "{state:?}");
    }
    let up = || {
        let mut session = session_in(State::Up, now);
        session.receive(&said(State::Up, Control::FINAL), now);
        while session.transmit(now).is_some_and(|control| control.state_flags & Control::POLL != 0) {}
        session
    };
    assert_eq!(up().repeat_after(), Some(ms(200)));
    // It owes an answer; it asks; it has news.
    let mut session = up();
    session.receive(&said(State::Up, Control::POLL), now);
    assert_eq!(session.repeat_after(), None);
    assert!(session.transmit(now).is_some());
    assert_eq!(session.repeat_after(), Some(ms(200)));
    session.configure(timing(400, 100, 3), now);
    assert_eq!(session.repeat_after(), None);
    let mut session = up();
    session.shut(now);
    assert_eq!(session.repeat_after(), None);
    // Nobody wants any: the peer says that it takes none, or asks for them by itself.
    let mut quiet = said(State::Up, 0);
    quiet.required_min_rx.set(0);
    for unwanted in [quiet, said(State::Up, Control::DEMAND)] {
        let mut session = up();
        session.receive(&unwanted, now);
        assert_eq!(session.repeat_after(), None, "{unwanted:?}");
    }
    // One late packet is one too many.
    let mut session = up();
    session.configure(timing(100, 100, 1), now);
    assert_eq!(session.repeat_after(), Some(ms(180)));
}

const STATES: [State; 4] = [State::AdminDown, State::Down, State::Init, State::Up];

#[test]
fn bfd_every_transition_is_that_of_section_6_8_6() {
    use State::{AdminDown, Down, Init, Up};
    let now = Instant::now();
    // By own state, and by that of the packet in the order of STATES.
    let table = [
        (AdminDown, [AdminDown, AdminDown, AdminDown, AdminDown]),
        (Down, [Down, Init, Up, Down]),
        (Init, [Down, Init, Up, Up]),
        (Up, [Down, Down, Up, Up]),
    ];
    for (own, becomes) in table {
        for (heard, becomes) in STATES.into_iter().zip(becomes) {
            let mut session = session_in(own, now);
            session.receive(&said(heard, 0), now);
            assert_eq!(session.state(), becomes, "{own:?} hears {heard:?}");
            // Only what was up can fail, and not because somebody wants it so.
            assert_eq!(session.is_failed(), (own, heard) == (Up, Down), "{own:?} hears {heard:?}");
            let diagnostic = match (own, becomes) {
                (AdminDown, _) => Diagnostic::ADMINISTRATIVELY_DOWN,
                (Init | Up, Down) => Diagnostic::NEIGHBOUR_SIGNALED_DOWN,
                _ => Diagnostic::NONE,
            };
            assert_eq!(session.diagnostic(), diagnostic, "{own:?} hears {heard:?}");
            // What is new is said at once, with the peer's discriminator.
            let control = session.transmit(now).unwrap();
            assert_eq!((control.state(), control.diagnostic()), (becomes, diagnostic));
            assert_eq!((control.my_discriminator.get(), control.your_discriminator.get()), (7, 99));
        }
    }
}

#[test]
fn bfd_silence_for_the_detection_time_takes_a_session_down() {
    let now = Instant::now();
    for own in STATES {
        let mut session = session_in(own, now);
        if matches!(own, State::AdminDown | State::Down) {
            session.receive(&said(State::AdminDown, 0), now);
        }
        // Three times the longer of what the peer sends and what is asked of it.
        assert_eq!(session.detection_time(), Some(ms(600)));
        session.expire(now + ms(599));
        assert_eq!((session.state(), session.remote_discriminator()), (own, 99));
        session.expire(now + ms(600));
        assert_eq!(session.remote_discriminator(), 0, "{own:?}");
        let (becomes, diagnostic) = match own {
            State::Init | State::Up => (State::Down, Diagnostic::DETECTION_TIME_EXPIRED),
            State::Down => (State::Down, Diagnostic::NONE),
            State::AdminDown => (State::AdminDown, Diagnostic::ADMINISTRATIVELY_DOWN),
        };
        assert_eq!((session.state(), session.diagnostic()), (becomes, diagnostic), "{own:?}");
        assert_eq!(session.is_failed(), own == State::Up, "{own:?}");
    }
    // Nobody was ever heard: nothing expires, and nothing has failed.
    let mut unheard = session();
    unheard.expire(now + Duration::from_secs(3600));
    assert_eq!((unheard.state(), unheard.is_failed(), unheard.detection_time()), (State::Down, false, None));
}

/// Who knows the addresses of both ends, and nothing that they say.
#[test]
fn bfd_a_stranger_is_doubted_while_the_peer_is_heard() {
    let now = Instant::now();
    let stranger = |state, number| {
        let mut control = said(state, 0);
        (control.detect_multiplier, control.desired_min_tx) = (255, u32::MAX.into());
        control.my_discriminator.set(number);
        control.your_discriminator.set(0);
        control
    };
    for state in [State::Down, State::AdminDown] {
        for own in [State::Init, State::Up] {
            let session = session_in(own, now);
            assert!(session.is_doubtful(&stranger(state, 98), now + ms(599)), "{own:?} {state:?}");
            // The peer itself, which hears nothing any more; and one that was started anew, when the old one is silent.
            assert!(!session.is_doubtful(&stranger(state, 99), now), "{own:?} {state:?}");
            assert!(!session.is_doubtful(&stranger(state, 98), now + ms(600)), "{own:?} {state:?}");
            // Who knows the number of this session hears it.
            let mut knows = stranger(state, 98);
            knows.your_discriminator.set(7);
            assert!(!session.is_doubtful(&knows, now), "{own:?} {state:?}");
        }
        for own in [State::Down, State::AdminDown] {
            assert!(!session_in(own, now).is_doubtful(&stranger(state, 98), now), "{own:?} {state:?}");
        }
    }
    let mut expired = session_in(State::Up, now);
    expired.expire(now + ms(600));
    assert!(!expired.is_doubtful(&stranger(State::Down, 98), now + ms(600)));
    // Nor does a stranger that comes first keep the peer out, for as long as it would like to.
    let mut session = session();
    session.receive(&stranger(State::Down, 98), now);
    assert_eq!(session.state(), State::Init);
    assert!(!session.is_doubtful(&stranger(State::Down, 99), now));
}

#[test]
fn bfd_a_path_comes_back_when_the_session_is_up_or_wanted_down() {
    let now = Instant::now();
    for (word, failed) in [(State::Down, true), (State::Init, false), (State::AdminDown, false)] {
        let mut session = session_in(State::Up, now);
        session.expire(now + ms(600));
        assert!(session.is_failed());
        session.receive(&said(word, 0), now + ms(700));
        assert_eq!(session.is_failed(), failed, "{word:?}");
    }
    let mut session = session_in(State::Up, now);
    session.receive(&said(State::AdminDown, 0), now);
    session.expire(now + ms(5000));
    assert_eq!(
        (session.state(), session.is_failed()),
        (State::Down, false),
        "silence after that is wanted, too"
    );
    let mut session = session_in(State::Up, now);
    session.expire(now + ms(600));
    session.shut(now + ms(600));
    assert!(!session.is_failed(), "nobody asks any more");
}

#[test]
fn bfd_not_up_a_session_sends_once_a_second_and_is_quiet_when_told() {
    let now = Instant::now();
    let mut session = session();
    let first = session.transmit(now).unwrap();
    assert_eq!((first.state(), first.desired_min_tx.get()), (State::Down, 1_000_000));
    assert_eq!((first.required_min_rx.get(), first.required_min_echo_rx.get()), (100_000, 0));
    assert!(session.transmit(now + ms(700)).is_none());
    assert!(session.transmit(now + ms(1000)).is_some());
    // "Do not send me any" (section 6.8.7): not even news.
    let mut quiet = said(State::Down, 0);
    quiet.required_min_rx.set(0);
    session.receive(&quiet, now);
    assert_eq!(session.state(), State::Init);
    assert!(session.transmit(now + ms(5000)).is_none());
    // But a poll is answered always.
    quiet.state_flags |= Control::POLL;
    session.receive(&quiet, now);
    let answer = session.transmit(now).unwrap();
    assert!(answer.has(Control::FINAL) && !answer.has(Control::POLL));
    assert!(session.transmit(now).is_none());
}

#[test]
fn bfd_a_peer_in_demand_mode_hears_polls_only() {
    let now = Instant::now();
    let mut session = session_in(State::Up, now);
    session.receive(&said(State::Up, Control::DEMAND), now);
    let poll = session.transmit(now).unwrap();
    assert!(poll.has(Control::POLL), "it is up: there are new intervals");
    session.receive(&said(State::Up, Control::DEMAND | Control::FINAL), now);
    assert!(session.transmit(now + ms(5000)).is_none());
    session.receive(&said(State::Up, 0), now);
    assert!(session.transmit(now + ms(5000)).is_some());
}

#[test]
fn bfd_new_intervals_hold_when_the_peer_knows_of_them() {
    let now = Instant::now();
    let mut session = session_in(State::Up, now);
    // Faster at once (section 6.8.3), as fast as the peer would have it.
    assert_eq!(session.interval(), ms(200));
    let poll = session.transmit(now).unwrap();
    assert!(poll.has(Control::POLL) && poll.desired_min_tx.get() == 100_000);
    session.receive(&said(State::Up, Control::FINAL), now);
    assert!(!session.transmit(now + ms(200)).unwrap().has(Control::POLL));
    // Slower, and asking for faster: both after the poll.
    session.configure(timing(500, 50, 3), now);
    let mut answer = said(State::Up, 0);
    answer.desired_min_tx.set(10_000);
    session.receive(&answer, now);
    assert_eq!((session.interval(), session.detection_time()), (ms(200), Some(ms(300))));
    let poll = session.transmit(now).unwrap();
    assert!(poll.has(Control::POLL));
    assert_eq!((poll.desired_min_tx.get(), poll.required_min_rx.get()), (500_000, 50_000));
    // Another change meanwhile: what answers this poll does not speak of it.
    session.configure(timing(700, 40, 3), now);
    answer.state_flags |= Control::FINAL;
    session.receive(&answer, now);
    assert_eq!((session.interval(), session.detection_time()), (ms(200), Some(ms(300))));
    assert!(session.transmit(now + ms(200)).unwrap().has(Control::POLL));
    session.receive(&answer, now);
    assert_eq!((session.interval(), session.detection_time()), (ms(700), Some(ms(120))));
    // Faster, and asking for slower: at once.
    session.configure(timing(300, 900, 3), now);
    assert_eq!((session.interval(), session.detection_time()), (ms(300), Some(ms(2700))));
    // Down it is slow whatever was agreed.
    session.receive(&said(State::Down, 0), now);
    assert_eq!(session.interval(), ms(1000));
}

#[test]
fn bfd_a_peer_that_asks_for_more_is_not_kept_waiting() {
    let now = Instant::now();
    let mut session = session_in(State::Up, now);
    let mut slow = said(State::Up, Control::FINAL);
    slow.required_min_rx.set(10_000_000);
    session.receive(&slow, now);
    session.transmit(now).unwrap();
    assert!(session.transmit(now + ms(7000)).is_none());
    session.receive(&said(State::Up, 0), now + ms(7000));
    assert!(session.transmit(now + ms(7200)).is_some(), "its detection time is 600 ms now");
}

/// Milliseconds between the packets of a session that is up, asked every 20 ms.
fn gaps(timing: Timing, discriminator: u32) -> Vec<u64> {
    let start = Instant::now();
    let mut session = Session::new(timing, discriminator, TURN);
    let mut fast = said(State::Init, 0);
    fast.required_min_rx.set(1);
    session.receive(&fast, start);
    session.receive(&said_fast(State::Up, Control::FINAL), start);
    let sent: Vec<u64> =
        (0..4000u64).map(|turn| turn * 20).filter(|&at| session.transmit(start + ms(at)).is_some()).collect();
    sent.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

fn said_fast(state: State, flags: u8) -> Control {
    let mut control = said(state, flags);
    control.required_min_rx.set(1);
    control
}

proptest! {
    /// Section 6.8.7: from three quarters of the interval to all of it, nine tenths for a multiplier of 1.
    #[test]
    fn bfd_packets_are_sent_within_the_jitter_that_the_rfc_asks_for(
        interval in 80u64..2000, discriminator in 1u32.., multiplier in 1u8..10
    ) {
        prop_assume!(multiplier > 1 || interval >= 140);
        let gaps = gaps(timing(interval, 100, multiplier), discriminator);
        let longest = if multiplier == 1 { interval * 9 / 10 } else { interval };
        prop_assert!(gaps.len() > 30);
        prop_assert!(gaps.iter().all(|&gap| 4 * gap >= 3 * interval && gap <= longest), "{gaps:?}");
        // They do vary, where there is room for it.
        prop_assert!(interval < 400 || gaps.iter().any(|gap| *gap != gaps[0]), "{gaps:?}");
    }

    /// Whatever is heard whenever: nothing panics, a packet is what every receiver lets pass, and only what was up has failed.
    #[test]
    fn bfd_whatever_is_heard_the_session_stays_sound(
        heard in prop::collection::vec((any::<[u8; 22]>(), 0u64..3000, any::<bool>()), 1..60)
    ) {
        let mut now = Instant::now();
        let mut session = session();
        let mut was_up = false;
        for (rest, wait, expire) in heard {
            let bytes = [&[0x20 | rest[0] & 0x1f, rest[1]][..], &rest[..1], &[24], &rest[2..]].concat();
            if let Ok(control) = Control::parse(&bytes) {
                session.receive(control, now);
            }
            was_up |= session.state() == State::Up;
            now += ms(wait);
            if expire {
                session.expire(now);
            }
            if let Some(sent) = session.transmit(now) {
                prop_assert_eq!(Control::parse(wire::View::bytes(&sent)), Ok(&sent));
            }
            prop_assert!(session.transmit(now).is_none_or(|sent| !sent.has(Control::FINAL)), "one answer a turn");
            prop_assert!(was_up || !session.is_failed());
            prop_assert!(session.state() != State::Up || !session.is_failed());
            prop_assert!(session.state() == State::Up || session.interval() >= ms(1000));
        }
    }

    /// Two ends over a link that loses packets and changes its mind; then it is good, then dead.
    #[test]
    fn bfd_two_sessions_agree_when_the_link_is_good_and_go_down_when_it_is_dead(
        losses in prop::collection::vec((0u8..4, any::<bool>(), 80u64..400, 80u64..400, 2u8..5), 0..30),
        (tx, rx) in (80u64..300, 80u64..300),
    ) {
        let mut world = World::new(timing(tx, rx, 3));
        for (way, changes, tx, rx, multiplier) in losses {
            if changes {
                let now = world.now;
                world.ends[usize::from(way % 2)].configure(timing(tx, rx, multiplier), now);
            }
            world.run(25, [way & 1 != 0, way & 2 != 0]);
        }
        world.run(400, [true, true]);
        for (end, other) in [(0, 1), (1, 0)] {
            let (own, peer) = (&world.ends[end], &world.ends[other]);
            prop_assert_eq!((own.state(), own.remote_state().0), (State::Up, State::Up));
            prop_assert!(!own.is_failed() && own.diagnostic() == Diagnostic::NONE);
            prop_assert_eq!(own.remote_discriminator(), other as u32 + 1);
            // Both count with the same interval, that of the end that sends.
            let theirs = peer.detection_time().unwrap();
            prop_assert!(theirs >= own.interval() * 2, "{:?} {:?}", theirs, own.interval());
        }
        let longest = world.ends.iter().filter_map(Session::detection_time).max().unwrap();
        let turns = longest.as_millis() as usize / 20 + 1;
        world.run(turns, [false, false]);
        for end in &world.ends {
            prop_assert!(end.state() == State::Down && end.is_failed());
        }
    }
}

/// Two sessions and the link between them, in turns of 20 ms.
struct World {
    ends: [Session; 2],
    now: Instant,
}

impl World {
    fn new(timing: Timing) -> Self {
        Self { ends: [1, 2].map(|number| Session::new(timing, number, TURN)), now: Instant::now() }
    }

    /// `passes`: what the first sends arrives, what the second sends does.
    fn run(&mut self, turns: usize, passes: [bool; 2]) {
        for _ in 0..turns {
            self.now += TURN;
            let sent: Vec<Option<Control>> = self.ends.iter_mut().map(|end| end.transmit(self.now)).collect();
            for (end, control) in sent.into_iter().enumerate() {
                if let Some(control) = control.filter(|_| passes[end]) {
                    self.ends[1 - end].receive(&control, self.now);
                }
            }
            self.ends.iter_mut().for_each(|end| end.expire(self.now));
        }
    }
}
