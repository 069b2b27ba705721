use super::*;

const FILE: &str = "[[vpc]]\nname = \"red\"\nvni = 1\n[[subnet]]\nvpc = \"red\"\nprefix = \"10.0.0.0/24\"\n";

fn source(text: &str) -> Source {
    Source::parse(text, "f.toml").unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn names(config: &Config) -> Vec<&str> {
    config.vpcs.iter().map(|vpc| vpc.name.as_str()).collect()
}

/// The running config after `more` was added at run time.
fn running(more: &str) -> Config {
    source(&format!("{FILE}{more}")).config
}

#[test]
fn repair_what_was_added_at_run_time_stays_and_what_the_file_drops_goes() {
    let green = "[[vpc]]\nname = \"green\"\nvni = 3\n";
    let before = source(&format!("{FILE}[[vpc]]\nname = \"old\"\nvni = 9\n"));
    let now = running(&format!("[[vpc]]\nname = \"old\"\nvni = 9\n{green}"));
    let file = source(&format!("{FILE}[[vpc]]\nname = \"new\"\nvni = 8\n"));
    let merged = merge(&now, Some(&before), &file, Occasion::Reload, &Overlap::default(), |_| ()).unwrap();
    assert_eq!(names(&merged), ["red", "new", "green"]);
    // Again, with the file that is now the one of before: nothing changes.
    assert_eq!(
        merge(&merged, Some(&file), &file, Occasion::Reload, &Overlap::default(), |_| ()).unwrap(),
        merged
    );
    assert_eq!(
        merge(&merged, Some(&file), &file, Occasion::Restart, &Overlap::default(), |_| ()).unwrap(),
        merged
    );
    // Nothing is known of before: nothing goes.
    let merged = merge(&now, None, &file, Occasion::Reload, &Overlap::default(), |_| ()).unwrap();
    assert_eq!(names(&merged), ["red", "new", "old", "green"]);
}

#[test]
fn repair_the_files_keys_win_and_others_stay() {
    let before = source(&format!("[offload]\nhot-packets = 10\n{FILE}"));
    let mut now = before.config.clone();
    now.offload.enabled = !now.offload.enabled;
    now.vpcs[0].flood = true;
    let file = source(&format!("[offload]\nhot-packets = 20\n{FILE}"));
    for occasion in [Occasion::Reload, Occasion::Restart] {
        let merged = merge(&now, Some(&before), &file, occasion, &Overlap::default(), |_| ()).unwrap();
        assert_eq!(merged.offload.hot_packets, file.config.offload.hot_packets);
        assert_eq!(merged.offload.enabled, now.offload.enabled, "the file does not name it");
        assert!(merged.vpcs[0].flood, "nor this");
    }
    // A state of nobody knows which file: the file wins all the same.
    let merged = merge(&now, None, &file, Occasion::Restart, &Overlap::default(), |_| ()).unwrap();
    assert_eq!(merged.offload.hot_packets, file.config.offload.hot_packets);
    // Named no more: the default again.
    let merged =
        merge(&now, Some(&before), &source(FILE), Occasion::Reload, &Overlap::default(), |_| ()).unwrap();
    assert_eq!(merged.offload.hot_packets, Config::default().offload.hot_packets);
}

#[test]
fn repair_a_removal_at_run_time_outlives_a_restart_but_not_a_reload() {
    let file = source(FILE);
    let now = Config::default();
    let back = merge(&now, Some(&file), &file, Occasion::Reload, &Overlap::default(), |_| ()).unwrap();
    assert_eq!(names(&back), ["red"]);
    let gone = merge(&now, Some(&file), &file, Occasion::Restart, &Overlap::default(), |_| ()).unwrap();
    assert_eq!(gone, now);
}

#[test]
fn repair_conflicts_name_both_places() {
    let before = source(FILE);
    let now = running("[[vpc]]\nname = \"green\"\nvni = 3\n");
    // The same name, otherwise.
    let file = source(&format!("{FILE}[[vpc]]\nname = \"green\"\nvni = 4\n"));
    let error = merge(&now, Some(&before), &file, Occasion::Reload, &Overlap::default(), |_| ())
        .unwrap_err()
        .to_string();
    for word in ["f.toml:7", "vpc green", "run time"] {
        assert!(error.contains(word), "'{word}' is missing: {error}");
    }
    // The same VNI under another name.
    let file = source(&format!("{FILE}[[vpc]]\nname = \"violet\"\nvni = 3\n"));
    let error = merge(&now, Some(&before), &file, Occasion::Reload, &Overlap::default(), |_| ())
        .unwrap_err()
        .to_string();
    for word in ["green", "violet", "line ", "run time"] {
        assert!(error.contains(word), "'{word}' is missing: {error}");
    }
    // The same in both: it is the file's from now on.
    let file = source(&format!("{FILE}[[vpc]]\nname = \"green\"\nvni = 3\n"));
    assert_eq!(
        merge(&now, Some(&before), &file, Occasion::Reload, &Overlap::default(), |_| ()).unwrap(),
        now
    );
}

#[test]
fn repair_a_state_keeps_the_file_it_was_made_with() {
    let file = source(&format!("# A word.\n\n{FILE}"));
    let state = format!("{}{}", file.config.to_toml().unwrap(), file.keep());
    assert_eq!(Config::parse(&state, "state").unwrap(), file.config);
    assert_eq!(Source::kept_in(&state).unwrap().config, file.config);
    assert_eq!(Source::kept_in(&source("").keep()).unwrap().config, Config::default());
    assert!(Source::kept_in(&file.config.to_toml().unwrap()).is_none());
}

/// What was removed at run time is in the file still, and has its number there.
#[test]
fn conflicts_name_the_lines_of_the_file_after_removals_at_run_time() {
    let vpc = |name: &str, vni: u8, more: &str| format!("[[vpc]]\nname = \"{name}\"\nvni = {vni}\n{more}");
    let subnet = |vpc: &str| format!("[[subnet]]\nvpc = \"{vpc}\"\nprefix = \"10.0.0.0/24\"\n");
    let before = source(&[vpc("old", 9, ""), vpc("red", 1, ""), subnet("old"), subnet("red")].concat());
    let now =
        source(&[vpc("red", 1, ""), vpc("green", 3, ""), subnet("red"), subnet("green")].concat()).config;
    let told = |now: &Config, before: &Source, more: &str| {
        let file = source(&format!("{}{more}", before.text));
        let merged = merge(now, Some(before), &file, Occasion::Restart, &Overlap::default(), |_| ());
        merged.unwrap_err().0
    };
    // Lines 1 and 7 of the file are of objects that are gone, and of the merged config green is the third VPC, too.
    let errors = told(&now, &before, &vpc("violet", 3, ""));
    let [ConfigError { place: None, path, message, .. }] = &errors[..] else { panic!("{errors:?}") };
    assert_eq!(path, "vpc[name=green].vni");
    for words in ["violet (line 15)", "(added at run time; "] {
        assert!(message.contains(words), "{message}");
    }
    // What the file says anew of what is gone is told with its own line.
    let errors = told(&now, &before, &subnet("old").replace("10.0.0", "10.0.9"));
    let [ConfigError { place, path, message, .. }] = &errors[..] else { panic!("{errors:?}") };
    assert_eq!(
        (path.as_str(), place.map(|(line, _)| line)),
        ("subnet[vpc=old,prefix=10.0.9.0/24].vpc", Some(14))
    );
    assert!(message.contains("(in the file; "), "{message}");
    // So is a route of which others are gone, and not one of the run time.
    let route = |to: u8, target: &str| format!("{{ to = \"10.{to}.0.0/16\", {target} }}");
    let routes = |routes: &[String]| format!("routes = [\n{}]\n", routes.join(",\n"));
    let (hole, lost) = ("blackhole = true", "vpc = \"blue\"");
    let blue = vpc("blue", 2, "");
    let text = |all: &[String]| source(&[vpc("red", 1, &routes(all)), blue.clone()].concat());
    let before = text(&[route(1, hole), route(2, hole), route(3, lost)]);
    let mut now = text(&[route(3, lost), route(4, lost)]).config;
    now.vpcs.truncate(1);
    let errors = told(&now, &before, &vpc("violet", 3, ""));
    let places: Vec<_> = errors.iter().map(|error| error.place.map(|(line, _)| line)).collect();
    assert_eq!(places, [None, Some(7)], "{errors:?}");
}
