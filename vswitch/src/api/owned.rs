//! For tests: a switch with objects of several owners. DPDK runs once per process, so each test wants a process of its own.

use tonic::{Code, Status};

use super::refusal::Problems;
use crate::config::Source;
use crate::controller::Controller;
use crate::state::owners::{Owner, Owners};
use crate::switch::testing;

const FILE: &str = r#"
[[uplink]]
name = "up"
port = { kind = "ring" }
addresses = ["172.16.0.1/24"]
[[vpc]]
name = "red"
vni = 100
[[subnet]]
vpc = "red"
prefix = "10.0.0.0/24"
[[port]]
name = "of-file"
port = { kind = "null" }
"#;
const OTHERS: &str = r#"
[[port]]
name = "of-api"
port = { kind = "null" }
[[vnic]]
name = "pod"
vpc = "red"
mac = "02:00:00:00:00:01"
vips = ["10.0.0.1"]
port = { kind = "null" }
[[location]]
vni = 100
vip = "10.0.0.2"
mac = "02:00:00:00:00:02"
vtep = "172.16.0.2"
[[location]]
vni = 100
vip = "10.0.0.3"
mac = "02:00:00:00:00:03"
vtep = "172.16.0.2"
"#;

/// Port `of-file` is the file's, port `of-api` and the location of 10.0.0.3 the API's, vNIC `pod` the CNI plugin's, and the location of
/// 10.0.0.2 another host's, by etcd.
pub(super) fn controller() -> Controller {
    let mut switch = testing::start(&format!("{FILE}{OTHERS}"));
    let file = testing::process(4095) + FILE;
    switch.set_config_file(Some(Source::parse(&file, "f.toml").unwrap()));
    let mut owners = Owners::default();
    owners.set(("vnic".into(), "pod".into()), Owner::Cni);
    owners.set(("location".into(), "100 10.0.0.2".into()), Owner::Etcd);
    switch.set_owners(owners);
    Controller::new(switch, None)
}

#[track_caller]
pub(super) fn assert_refused<T: std::fmt::Debug>(result: Result<T, Problems>, code: Code, word: &str) {
    let status = Status::from(result.unwrap_err());
    assert_eq!(status.code(), code, "{status:?}");
    assert!(status.message().contains(word), "{word:?} is missing: {}", status.message());
}
