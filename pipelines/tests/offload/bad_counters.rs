//! Devices whose counters go back or leap ahead: nobody pays for what was not sent, nor twice.

use pipelines::Direction;
use pipelines::offload::manager::*;
use pipelines::offload::sim::EswitchConfig;
use pipelines::qos::Class;

use crate::bad_device::Lab;
use testkit::*;

#[test]
fn bad_counters_that_go_back_are_counted_and_debit_nothing() {
    let mut lab = Lab::new(EswitchConfig { refresh_ns: 0, ..EswitchConfig::default() });
    lab.run(20, &[1]);
    assert_eq!(lab.status(1), Status::Hardware);
    let debited = lab.debited();
    assert_eq!(debited, lab.by_hardware);
    // It stays there: one that has counted nothing, say.
    lab.device.less = lab.by_hardware + 100_000;
    lab.run(1, &[1]);
    assert_eq!(lab.manager.counters().backwards, 1);
    lab.device.less = lab.by_hardware;
    lab.run(10, &[1]);
    assert_eq!(lab.debited(), debited, "nothing until it is believed");
    lab.run(5, &[1]);
    assert_eq!(lab.status(1), Status::Hardware);
    // All but what came until the first of those readings.
    assert_eq!(lab.debited(), lab.by_hardware - 200);
    assert_eq!((lab.manager.counters().backwards, lab.manager.counters().ahead), (1, 0));
}

#[test]
fn bad_counters_that_dip_are_debited_once() {
    for refresh_ns in [0, 500_000_000] {
        for tenths in [1, 2, 5, 9] {
            let mut lab = Lab::new(EswitchConfig { refresh_ns, ..EswitchConfig::default() });
            lab.run(20, &[1]);
            assert_eq!(lab.status(1), Status::Hardware);
            let debited = lab.debited();
            assert!(debited > 500);
            lab.device.less = u64::MAX / 60;
            lab.run(tenths, &[1]);
            assert_eq!((lab.debited(), lab.manager.counters().backwards), (debited, 1));
            lab.device.less = 0;
            lab.run(20, &[1]);
            assert_eq!(lab.status(1), Status::Hardware);
            assert!(lab.debited() <= lab.by_hardware);
            lab.run(30, &[]);
            assert_eq!((lab.status(1), lab.debited()), (Status::Software(Why::Cold), lab.by_hardware));
            assert_eq!(lab.manager.counters().backwards, 1);
        }
    }
}

#[test]
fn bad_counters_that_leap_ahead_are_counted_and_debit_nothing() {
    for more in [1 << 63, u64::MAX, 1 << 40] {
        let mut lab = Lab::new(EswitchConfig { refresh_ns: 0, ..EswitchConfig::default() });
        lab.run(10, &[1]);
        assert_eq!(lab.status(1), Status::Hardware);
        lab.device.more = more;
        lab.run(2, &[1]);
        assert_eq!((lab.debited(), lab.manager.counters().ahead), (lab.by_hardware - 400, 1));
        lab.device.more = 0;
        lab.run(1, &[1]);
        assert_eq!((lab.status(1), lab.debited()), (Status::Hardware, lab.by_hardware));
        // For the last time that it is asked, too.
        lab.device.more = more;
        lab.host.world.forget(0, pipelines::snapshot::Destination::Mac(R.mac));
        let tables = lab.host.tables();
        lab.manager.follow(&mut lab.device, &tables);
        lab.run(1, &[]);
        assert_eq!(lab.debited(), lab.by_hardware);
        assert_eq!((lab.manager.counters().ahead, lab.manager.rules()), (2, 0));
    }
}

#[test]
fn bad_counters_of_red_packets_send_nobody_to_software() {
    for more in [1 << 63, 1 << 40] {
        let mut lab = Lab::new(EswitchConfig { refresh_ns: 0, ..EswitchConfig::default() });
        lab.host.limit(Direction::Out, 0, Class::Tcp, 8_000_000_000);
        lab.run(10, &[1]);
        assert_eq!(lab.status(1), Status::Hardware);
        lab.device.more = more;
        lab.run(2, &[1]);
        lab.device.more = 0;
        lab.run(5, &[1]);
        assert_eq!((lab.status(1), lab.manager.counters().over_rate), (Status::Hardware, 0));
        assert_eq!(lab.debited(), lab.by_hardware);
    }
}

/// Nobody pays for a flow of which nothing is known: it leaves, and what its rule tells in the end is debited.
#[test]
fn bad_counters_that_do_not_answer_send_their_flows_to_software() {
    let mut lab = Lab::new(EswitchConfig { refresh_ns: 0, ..EswitchConfig::default() });
    lab.run(10, &[1]);
    assert_eq!(lab.status(1), Status::Hardware);
    // For a while any device may have none.
    lab.device.is_silent = true;
    lab.run(39, &[1]);
    lab.device.is_silent = false;
    lab.run(1, &[1]);
    assert_eq!((lab.status(1), lab.debited()), (Status::Hardware, lab.by_hardware));
    lab.device.is_silent = true;
    lab.run(40, &[1]);
    assert_eq!(lab.status(1), Status::Hardware);
    lab.run(1, &[1]);
    let words = "the device does not tell what it did: no figures yet (rule)";
    assert_eq!(lab.status(1), Status::RefusedByDevice(words.into()));
    assert_eq!(lab.manager.refusals(), [(words.to_string(), 1)]);
    assert_eq!((lab.manager.rules(), lab.debited()), (0, lab.by_hardware));
    lab.device.is_silent = false;
    lab.run(30, &[1]);
    assert_eq!(lab.status(1), Status::Hardware, "after a while it is tried again");
}

/// A counter that is somewhere else each time tells nothing, either.
#[test]
fn bad_counters_that_go_back_and_forth_send_their_flows_to_software() {
    let mut lab = Lab::new(EswitchConfig { refresh_ns: 0, ..EswitchConfig::default() });
    lab.run(10, &[1]);
    let debited = lab.debited();
    for tenth in 0..41 {
        assert_eq!((lab.status(1), lab.debited()), (Status::Hardware, debited));
        lab.device.more = (1 << 50) << (tenth % 2);
        lab.run(1, &[1]);
    }
    let words = "refused: the device does not tell what it did: its counter goes back and forth";
    assert_eq!((lab.status(1).to_string().as_str(), lab.debited()), (words, debited));
}
