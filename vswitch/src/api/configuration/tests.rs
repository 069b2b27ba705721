//! Control as it is asked for the whole config. DPDK runs once per process, so each test wants a process of its own.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::*;
use crate::api::Job;
use crate::switch::{Switch, testing};

const LOCATIONS: usize = 4000;

fn config() -> Config {
    let mut text = String::from(
        "[forward]\nauto-start = false\n[[vpc]]\nname = \"red\"\nvni = 100\n[[uplink]]\nname = \"up\"\n\
         port = { kind = \"ring\" }\naddresses = [\"172.16.0.1/24\"]\n",
    );
    for number in 0..LOCATIONS {
        let (high, low) = (number / 250, number % 250 + 1);
        let _ = write!(
            text,
            "[[location]]\nvni = 100\nvip = \"10.0.{high}.{low}\"\nmac = \"02:00:00:00:{high:02x}:{low:02x}\"\nvtep = \"172.16.0.2\"\n"
        );
    }
    testing::config(&text)
}

#[tokio::test]
async fn the_config_is_written_while_control_does_others_work() {
    let config = config();
    let (jobs, mut waiting) = mpsc::channel::<Job>(8);
    let thread = std::thread::spawn(move || {
        let mut controller = Controller::new(Switch::start(config).unwrap(), None);
        let (mut longest, mut count) = (Duration::ZERO, 0);
        while let Some(job) = waiting.blocking_recv() {
            let begun = Instant::now();
            job(&mut controller);
            longest = longest.max(begun.elapsed());
            count += 1;
        }
        let whole = controller.switch.config();
        controller.switch.stop();
        (longest, count, whole)
    });
    let control = Control::new(jobs);
    // The switch has started.
    control.ask("a look", |_| ()).await.unwrap();
    let begun = Instant::now();
    let got = get_config(&control, "reading the config", v1::GetConfigRequest {}).await.unwrap();
    let took = begun.elapsed();
    let exported = export_config(&control, "writing the config", v1::ExportConfigRequest {}).await.unwrap();
    // Many that ask at once are told one after the other, and control is there meanwhile.
    let turn = control.writing.clone().acquire_owned().await.unwrap();
    let waits = get_config(&control, "reading the config", v1::GetConfigRequest {});
    assert!(tokio::time::timeout(Duration::from_millis(50), waits).await.is_err());
    control.ask("a look", |_| ()).await.unwrap();
    drop((turn, control));
    let (longest, count, whole) = thread.join().unwrap();
    assert_eq!((count, whole.locations.len()), (4, LOCATIONS));
    assert_eq!(got.toml, whole.clone().without_secrets().to_toml().unwrap());
    assert_eq!((exported.toml, exported.left_out), (whole.to_toml().unwrap(), Vec::new()));
    assert!(longest * 4 < took, "control was at it for {longest:?} of {took:?}");
}
