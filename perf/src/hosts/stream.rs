//! One TCP stream of iperf3 between two namespaces.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::host::netns::Netns;
use crate::host::process::{Placement, Process};
use crate::live::testbed::station;
use crate::{Error, Result};

const REMEDY: &str = "install Debian's package iperf3";
/// How long iperf3 may take besides the stream.
const LIMIT: Duration = Duration::from_secs(20);

/// What iperf3 says of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TcpStream {
    /// Received bytes of data.
    pub bytes: u64,
    /// Gigabits (10^9) of data received a second.
    pub gbits: f64,
    /// Segments that the sender sent again.
    pub retransmissions: u64,
}

/// From the first container to the second one.
pub fn run([from, to]: &[Netns; 2], seconds: u32) -> Result<TcpStream> {
    let mut server = iperf3(to, &["--server", "--one-off", "--forceflush"])?;
    server.await_output("a server that listens", LIMIT, |lines| {
        lines.iter().any(|line| line.contains("Server listening")).then_some(())
    })?;
    let (address, length) = (station(2).1.to_string(), seconds.to_string());
    let mut client = iperf3(from, &["--client", &address, "--time", &length, "--interval", "0", "--json"])?;
    let limit = LIMIT + Duration::from_secs(seconds.into());
    let answer = client.await_last_output("iperf3's report", limit, whole)?;
    parse(&answer)
}

fn iperf3(netns: &Netns, arguments: &[&str]) -> Result<Process> {
    let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
    let placement = Placement { netns: Some(netns.name()), ..Placement::default() };
    Process::start("iperf3", &arguments, &[], placement, REMEDY)
}

/// The report once it has come to its end.
fn whole(lines: &VecDeque<String>) -> Option<Value> {
    let text: Vec<&str> = lines.iter().map(String::as_str).collect();
    serde_json::from_str(&text.join("\n")).ok()
}

fn parse(answer: &Value) -> Result<TcpStream> {
    if let Some(error) = answer["error"].as_str() {
        return Err(Error::Failed(format!("iperf3: {error}")));
    }
    let missing = |what: &str| Error::answer("iperf3 --json", what, &answer["end"]);
    let number = |path: &str| answer.pointer(path).and_then(Value::as_u64).ok_or_else(|| missing(path));
    let rate = "/end/sum_received/bits_per_second";
    let rate = answer.pointer(rate).and_then(Value::as_f64).ok_or_else(|| missing(rate))?;
    Ok(TcpStream {
        bytes: number("/end/sum_received/bytes")?,
        gbits: rate / 1e9,
        retransmissions: number("/end/sum_sent/retransmits")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_once_they_are_whole() {
        let text = "{\n \"end\": { \"sum_sent\": { \"retransmits\": 3 },\n\
                    \"sum_received\": { \"bytes\": 250000000, \"bits_per_second\": 2e9 } } }";
        let mut lines: VecDeque<String> = text.lines().map(str::to_owned).collect();
        let stream = parse(&whole(&lines).unwrap()).unwrap();
        assert_eq!(stream, TcpStream { bytes: 250_000_000, gbits: 2.0, retransmissions: 3 });
        lines.pop_back();
        assert_eq!(whole(&lines), None);
    }

    #[test]
    fn what_iperf3_says_of_a_failure_is_told() {
        let told = |text: &str| parse(&serde_json::from_str(text).unwrap()).unwrap_err().to_string();
        assert!(told("{ \"end\": {}, \"error\": \"unable to connect\" }").contains("unable to connect"));
        assert!(told("{ \"end\": {} }").contains("bits_per_second"));
    }
}
