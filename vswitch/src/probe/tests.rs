use super::*;

const ROUTER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

/// What a way does with a request of some size: it comes back, is lost, or somebody says what passes.
enum Way {
    Passes,
    Lost,
    TooBig(u32),
}

/// Searches on a way; what was found, after how long and how many requests.
fn search(wanted: u16, way: impl Fn(u16, u64) -> Way) -> (Found, Duration, u64) {
    let start = Instant::now();
    let (mut now, mut sequence, mut search) = (start, 0u16, Search::new(wanted, start));
    loop {
        while let Some(size) = search.due(now) {
            sequence += 1;
            search.sent(sequence, size, now);
            match way(size, search.requests) {
                Way::Passes => search.replied(sequence, size, now),
                Way::Lost => {}
                Way::TooBig(mtu) => search.too_big(sequence, mtu, ROUTER),
            }
        }
        if let Some(found) = search.found() {
            return (found.clone(), now - start, search.requests);
        }
        now += Duration::from_millis(20);
        assert!(now - start < Duration::from_secs(60), "it has no end");
    }
}

#[test]
fn mtu_a_way_on_which_all_passes_takes_two_requests() {
    let (found, time, requests) = search(1500, |_, _| Way::Passes);
    assert_eq!((found, requests), (Found::All, 2));
    assert!(time < WAIT);
    assert_eq!(search(SMALL, |_, _| Way::Passes).0, Found::All);
}

#[test]
fn mtu_of_a_black_hole_is_found_to_the_byte() {
    for (wanted, mtu) in
        [(1500, 1499), (1500, 1400), (1500, 1280), (1500, 129), (9000, 1500), (65535, 40000), (1500, 128)]
    {
        let (found, time, requests) =
            search(wanted, |size, _| if size <= mtu { Way::Passes } else { Way::Lost });
        assert_eq!(found, Found::Less { passes: mtu, named: None }, "{wanted} {mtu}");
        assert!(time < Duration::from_secs(8) && requests < 200, "{wanted} {mtu}: {time:?}, {requests}");
    }
}

#[test]
fn mtu_that_routers_name_is_tried_and_told() {
    let routers = |size: u16, _| match size {
        1451.. => Way::TooBig(1450),
        1401.. => Way::TooBig(1400),
        _ => Way::Passes,
    };
    let (found, time, _) = search(9000, routers);
    assert_eq!(found, Found::Less { passes: 1400, named: Some((1400, ROUTER)) });
    assert!(time < WAIT);
    // One that says nothing of its MTU, and one that lies: it is searched all the same.
    for lie in [0, 700, 1499] {
        let (found, ..) = search(1500, |size, _| if size > 1400 { Way::TooBig(lie) } else { Way::Passes });
        let Found::Less { passes, named } = found else { panic!("{found:?}") };
        match lie {
            700 => assert_eq!((passes, named), (700, Some((700, ROUTER)))),
            _ => assert_eq!((passes, named), (1400, None), "{lie}"),
        }
    }
    // Behind a router that says what it takes there is a black hole.
    let (found, ..) = search(9000, |size, _| match size {
        1501.. => Way::TooBig(1500),
        1301.. => Way::Lost,
        _ => Way::Passes,
    });
    assert_eq!(found, Found::Less { passes: 1300, named: None });
}

#[test]
fn mtu_of_a_host_that_says_nothing_is_not_known() {
    let (found, time, requests) = search(1500, |_, _| Way::Lost);
    assert_eq!((found, requests), (Found::Nothing, u64::from(4 * TRIES)));
    assert!(time < Duration::from_secs(2));
}

#[test]
fn mtu_is_found_though_every_other_packet_is_lost_by_chance() {
    let (found, ..) = search(1500, |_, n| if n % 2 == 0 { Way::Passes } else { Way::Lost });
    assert_eq!(found, Found::All);
}

#[test]
fn mtu_is_found_though_a_whole_round_is_lost_by_chance() {
    for lost in [0..6, 1..7, 8..32, 9..12] {
        let (found, ..) = search(1500, |size, n| match size {
            1401.. => Way::Lost,
            _ if lost.contains(&n) => Way::Lost,
            _ => Way::Passes,
        });
        assert_eq!(found, Found::Less { passes: 1400, named: None }, "{lost:?}");
    }
}

#[test]
fn mtu_answers_that_nobody_asked_for_are_counted_and_change_nothing() {
    let now = Instant::now();
    let mut search = Search::new(1500, now);
    let mut sizes = Vec::new();
    while let Some(size) = search.due(now) {
        sizes.push(size);
        search.sent(sizes.len() as u16, size, now);
    }
    assert_eq!(sizes, [SMALL, 1500]);
    search.replied(7, 1500, now);
    search.replied(2, 1499, now);
    search.replied(2, 28, now);
    search.too_big(2, 1500, ROUTER);
    search.too_big(2, u32::MAX, ROUTER);
    search.too_big(9, 576, ROUTER);
    search.too_big(2, 68, ROUTER);
    assert_eq!((search.stray, search.found()), (7, None));
    // Nobody can say that the small one is too large, and what comes back was not too large.
    search.too_big(1, 0, ROUTER);
    search.too_big(2, 1400, ROUTER);
    search.replied(1, SMALL, now);
    search.replied(1, SMALL, now);
    search.replied(2, 1500, now);
    search.too_big(2, 600, ROUTER);
    assert_eq!(search.due(now), None);
    assert_eq!((search.stray, search.found()), (9, Some(&Found::All)));
}
