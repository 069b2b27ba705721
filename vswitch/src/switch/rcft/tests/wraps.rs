//! Control where ticks wrap, and after years in which nothing happened.

use super::*;

const TIMES: &str =
    "silent-after = \"10s\"\nidle-timeout = \"1min\"\ngrace = \"20s\"\nrestart-grace = \"2s\"\n";
/// 834 days, after which the finest of the switch's clocks wraps.
const DAYS_834: u32 = 834 * 86_400 * 10;

/// The starts from which a clock of sixteen, of thirty-one or of thirty-two bits wraps soon, and one of 834 days.
const STARTS: [u32; 6] = [0, 0xffff - 150, DAYS_834 - 150, (1 << 31) - 150, u32::MAX - 150, u32::MAX];

#[test]
fn repair_silence_and_idleness_are_told_where_ticks_wrap() {
    for start in STARTS {
        let mut world = World::new(TIMES, "qp-quota = 2");
        world.tick = start;
        world.opens("one", FAR, 10..12);
        world.pass(80);
        assert!(refused(world.send("one", FAR, 12)), "from {start}");
        world.pass(0);
        assert!(refused(world.send("one", FAR, 12)), "from {start}: nobody was silent for long enough");
        world.pass(40);
        assert!(refused(world.send("one", FAR, 12)), "from {start}");
        world.pass(0);
        assert_eq!(world.send("one", FAR, 12), QpOutcome::Opened, "from {start}: the silent one made room");
        // In use over the wrap, and idle after it.
        for _ in 0..20 {
            assert_eq!(world.send("one", FAR, 12), QpOutcome::Pass, "from {start}");
            world.pass(50);
        }
        assert_eq!(world.used("one"), 1, "from {start}: the idle one is gone");
        world.pass(700);
        assert_eq!(world.used("one"), 0, "from {start}");
    }
}

/// What was remembered years ago holds nobody up, however the clock stands to it.
#[test]
fn repair_years_of_silence_hold_nobody_up() {
    for start in STARTS {
        for years in [DAYS_834, 1 << 31, (1 << 31) + 1000, u32::MAX - 100, u32::MAX] {
            let mut world = World::new(TIMES, "qp-quota = 2");
            world.tick = start;
            world.opens("one", FAR, 10..12);
            // Refused: from now on it is known until when nobody can be silent for long enough.
            assert!(refused(world.send("one", FAR, 12)));
            world.pass(0);
            world.pass(800);
            assert_eq!(world.used("one"), 0);
            world.pass(years);
            world.opens("one", FAR, 20..22);
            world.pass(120);
            assert!(refused(world.send("one", FAR, 22)));
            world.pass(0);
            assert_eq!(world.send("one", FAR, 22), QpOutcome::Opened, "{years} ticks after {start}");
        }
    }
}
