//! `CNI_ARGS`: what a runtime says about a pod in `KEY=value;KEY=value`.

use std::net::IpAddr;

use wire::MacAddr;

use crate::error::{Error, Result, quote};

/// Keys that say nothing to this plugin, and that runtimes set.
const UNUSED: [&str; 3] = ["K8S_POD_NAMESPACE", "K8S_POD_INFRA_CONTAINER_ID", "K8S_POD_UID"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodArgs {
    /// The pod's name, where it is one that a host can have.
    pub host_name: Option<String>,
    pub ips: Vec<IpAddr>,
    pub mac: Option<MacAddr>,
}

impl PodArgs {
    pub fn read(text: &str) -> Result<Self> {
        let pairs = text.split(';').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| {
            let wrong = || format!("{} is no KEY=value", quote(pair));
            pair.split_once('=').ok_or_else(|| Self::refused(&wrong(), "separate pairs by ;"))
        });
        let pairs = pairs.collect::<Result<Vec<_>>>()?;
        let ignore = |(key, value): &(&str, &str)| {
            *key == "IgnoreUnknown" && (*value == "1" || value.eq_ignore_ascii_case("true"))
        };
        let ignore = pairs.iter().any(ignore);
        let mut args = Self::default();
        for (key, value) in pairs {
            match key {
                "K8S_POD_NAME" => args.host_name = host_name(value),
                "IP" => {
                    let ip = |text: &str| {
                        // A prefix length says nothing here: the subnet has one.
                        let ip = text.split('/').next().unwrap_or_default().parse();
                        ip.map_err(|_| {
                            Self::refused(
                                &format!("IP={} is no IP address", quote(text)),
                                "write one like IP=10.0.0.5",
                            )
                        })
                    };
                    args.ips = value.split(',').map(ip).collect::<Result<_>>()?;
                }
                "MAC" => {
                    let mac = value.parse();
                    args.mac =
                        Some(mac.map_err(|error| Self::refused(&format!("MAC: {error}"), "see there"))?);
                }
                "IgnoreUnknown" => {}
                _ if UNUSED.contains(&key) || ignore => {}
                _ => {
                    let wrong = format!("{} is no key that this plugin knows", quote(key));
                    return Err(Self::refused(&wrong, "leave it out, or set IgnoreUnknown=1"));
                }
            }
        }
        Ok(args)
    }

    fn refused(wrong: &str, remedy: &str) -> Error {
        Error::environment("CNI_ARGS", wrong, remedy)
    }
}

/// A pod's name, when it is a label of a domain name.
fn host_name(pod: &str) -> Option<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_label = (1..=63).contains(&pod.len())
        && pod.chars().all(good)
        && !pod.starts_with('-')
        && !pod.ends_with('-');
    is_label.then(|| pod.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pairs_are_read() {
        let args = PodArgs::read(
            "K8S_POD_NAMESPACE=n;K8S_POD_NAME=web-0;IP=10.0.0.5/24,fd00::5;MAC=02:00:00:00:00:01;",
        )
        .unwrap();
        assert_eq!(args.host_name.as_deref(), Some("web-0"));
        assert_eq!(args.ips, ["10.0.0.5".parse::<IpAddr>().unwrap(), "fd00::5".parse().unwrap()]);
        assert_eq!(args.mac, Some(MacAddr([2, 0, 0, 0, 0, 1])));
        assert_eq!(PodArgs::read("").unwrap(), PodArgs::default());
    }

    #[test]
    fn unknown_keys_are_refused_unless_the_runtime_says_otherwise() {
        assert!(PodArgs::read("COLOUR=red").is_err());
        for ignore in ["1", "true", "True"] {
            assert!(PodArgs::read(&format!("COLOUR=red;IgnoreUnknown={ignore}")).is_ok());
        }
        for bad in ["COLOUR=red;IgnoreUnknown=0", "IP=10.0.0", "IP=", "MAC=1:2", "nothing"] {
            assert_eq!(PodArgs::read(bad).unwrap_err().code, 4, "{bad}");
        }
    }

    #[test]
    fn a_pods_name_is_a_host_name_where_it_can_be() {
        for (pod, good) in
            [("web-0", true), ("web.0", false), ("", false), ("-a", false), (&*"a".repeat(64), false)]
        {
            assert_eq!(host_name(pod).is_some(), good, "{pod}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,80}", pairs in prop::collection::vec("(IP|MAC|K8S_POD_NAME|IgnoreUnknown|X)=.{0,20}", 0..4)) {
            let _ = PodArgs::read(&text);
            let _ = PodArgs::read(&pairs.join(";"));
        }
    }
}
