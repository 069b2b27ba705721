//! What mlx5's own code makes of meters with hardware steering: which rate a meter gets, and when.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use mlx5_gate::{GateError, Nic, judge};

/// The driver's answers to steps; none where there is no judge.
fn answers(set_aside: u32, steps: &[String]) -> Option<Vec<String>> {
    match judge::meters(set_aside, steps, Nic::ConnectX7) {
        Ok(answers) => Some(answers),
        Err(error @ GateError::NoSources { .. }) => {
            println!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// As lines, each a step and what the driver answers to it.
#[track_caller]
fn goes(set_aside: u32, expected: &[(&str, &str)]) {
    let steps: Vec<String> = expected.iter().map(|(step, _)| (*step).to_owned()).collect();
    let Some(answers) = answers(set_aside, &steps) else { return };
    let told: Vec<(&str, &str)> =
        steps.iter().map(String::as_str).zip(answers.iter().map(String::as_str)).collect();
    assert_eq!(told, expected);
}

/// The handle that an answer tells.
fn handle(answer: &str) -> u64 {
    answer
        .strip_prefix("handle ")
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("{answer}"))
}

/// What pmd does for rates (its `flow/queue/mark.rs`): there is one profile, number 0, which is written anew before each
/// meter is made or changed. Meters keep what they were given, apart from each other.
#[test]
fn mlx5_reads_the_profile_when_a_meter_is_made_or_changed_and_never_again() {
    goes(
        64,
        &[
            ("profile 1 1000000000 4096 0 8192", "refused Meter profile id not valid."),
            ("profile 0 1000000000 4096 0 8192", "done"),
            ("profile 0 2000000000 65536 0 0", "refused Meter profile already exists."),
            ("make 7", "handle 2147483649"),
            ("forget 0", "done"),
            ("profile 0 2000000000 65536 0 0", "done"),
            ("ask 1", "rates 1000000000 4096 0 8192"),
            ("make 9", "handle 2147483650"),
            ("ask 1", "rates 1000000000 4096 0 8192"),
            ("ask 2", "rates 2000000000 65536 0 0"),
            ("forget 0", "done"),
            ("profile 0 3000000000 65536 4000000000 131072", "done"),
            ("change 7", "done"),
            ("ask 1", "rates 3000000000 65536 4000000000 131072"),
            ("ask 2", "rates 2000000000 65536 0 0"),
            ("remove 7", "done"),
            ("ask 1", "off"),
            ("ask 2", "rates 2000000000 65536 0 0"),
            // Free again, it is given out once.
            ("make 7", "handle 2147483649"),
            ("make 8", "handle 2147483651"),
            ("ask 1", "rates 3000000000 65536 4000000000 131072"),
            ("ask 2", "rates 2000000000 65536 0 0"),
        ],
    );
}

/// One that is forgotten takes nothing from meters.
#[test]
fn mlx5_keeps_the_rates_of_a_meter_whose_profile_is_gone() {
    goes(
        64,
        &[
            ("profile 0 1000000000 4096 0 8192", "done"),
            ("make 1", "handle 2147483649"),
            ("forget 0", "done"),
            ("ask 1", "rates 1000000000 4096 0 8192"),
            ("remove 1", "done"),
            ("ask 1", "off"),
        ],
    );
}

/// Rates that are refused take no place (pmd's `flow/meter.rs`): the next ones can be written, and meters keep theirs.
#[test]
fn mlx5_keeps_nothing_of_a_profile_that_it_refuses() {
    const NO: &str = "refused Profile values out of range.";
    goes(
        64,
        &[
            ("profile 0 1000000000 0 0 8192", NO),
            ("profile 0 1000000000 4096 0 8192", "done"),
            ("make 1", "handle 2147483649"),
            ("forget 0", "done"),
            ("profile 0 0 4096 0 8192", NO),
            ("profile 0 18446744073709551615 4096 0 0", NO),
            ("profile 0 1000000000 4096 0 18446744073709551615", NO),
            ("profile 0 1000000000 4096 18446744073709551615 4096", NO),
            ("ask 1", "rates 1000000000 4096 0 8192"),
            ("profile 0 2000000000 65536 0 0", "done"),
            ("change 1", "done"),
            ("ask 1", "rates 2000000000 65536 0 0"),
        ],
    );
}

/// As many meters as pmd sets aside at most: handles through the queue are all different, made, changed and made again.
#[test]
fn mlx5_gives_each_meter_out_once_through_the_queue() {
    const METERS: u32 = 65_536;
    let mut steps = vec!["profile 0 1000000000 4096 0 8192".to_owned()];
    steps.extend((0..500).map(|id| format!("make {id}")));
    steps.extend((0..500).step_by(2).map(|id| format!("remove {id}")));
    steps.extend((0..500).step_by(2).map(|id| format!("make {id}")));
    let Some(answers) = answers(METERS, &steps) else { return };
    let made: Vec<u64> = steps
        .iter()
        .zip(&answers)
        .filter(|(step, _)| step.starts_with("make"))
        .map(|(_, answer)| handle(answer))
        .collect();
    let kept = (0..500).filter(|id| id % 2 == 1).map(|id| made[id]);
    let mut held: Vec<u64> = kept.chain(made[500..].iter().copied()).collect();
    held.sort_unstable();
    held.dedup();
    assert_eq!((made.len(), held.len()), (750, 500));
}

/// Why pmd goes through the queue: given back by the synchronous call, a meter is free twice, and two meters of different
/// rates are one. A fault of 22.11; where it is mended, nothing is to be shown.
#[test]
fn mlx5_gives_a_meter_out_twice_without_the_queue() {
    let mut steps = vec!["profile 0 1000000000 4096 0 8192".to_owned()];
    steps.extend((0..8).map(|id| format!("make-sync {id}")));
    steps.push("remove-sync 0".to_owned());
    steps.extend((8..10).map(|id| format!("make-sync {id}")));
    let Some(answers) = answers(8192, &steps) else { return };
    let [.., second, third] = &answers[..] else { panic!("{answers:?}") };
    let twice = handle(second) == handle(third);
    assert_eq!(twice, pmd::flow::BUILD.version.starts_with("22.11."), "{answers:?}");
}

/// Why pmd rounds bursts (its `flow/meter.rs`): a mantissa that is rounded up to nine bits is cut off.
#[test]
fn mlx5_makes_nothing_of_some_bursts() {
    goes(
        64,
        &[
            ("profile 0 1000000000 65535 0 65535", "done"),
            ("make 1", "handle 2147483649"),
            ("ask 1", "rates 1000000000 0 0 0"),
            ("forget 0", "done"),
            ("profile 0 1000000000 65536 0 66048", "done"),
            ("change 1", "done"),
            ("ask 1", "rates 1000000000 65536 0 66048"),
        ],
    );
}

/// Rates have a mantissa of eight bits, too: the nearest one is taken.
#[test]
fn mlx5_meters_within_half_a_percent_of_the_rate() {
    let rates: Vec<u64> = (0..40).map(|n| 12_345_678_901u64 >> (n / 2) << (n % 2)).collect();
    let steps = rates.iter().flat_map(|rate| {
        [
            "forget 0".to_owned(),
            format!("profile 0 {rate} 4096 0 0"),
            "make 1".to_owned(),
            "ask 1".to_owned(),
            "remove 1".to_owned(),
        ]
    });
    let Some(answers) = answers(64, &steps.collect::<Vec<_>>()) else { return };
    for (rate, answer) in rates.iter().zip(answers.iter().skip(3).step_by(5)) {
        let got: u64 =
            answer.split(' ').nth(1).and_then(|cir| cir.parse().ok()).unwrap_or_else(|| panic!("{answer}"));
        assert!(got.abs_diff(*rate) * 200 <= *rate + 200, "{rate}: {answer}");
    }
}
