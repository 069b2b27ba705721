//! The rate of the time stamp counter, to express CPU time as cycles.
//!
//! Read from what the kernel calibrated, because `perf` itself has no reason to read the counter.

use crate::{Error, Result};

/// Ticks of the time stamp counter per second.
///
/// The kernel derives its `bogomips` from the counter's rate (twice the MHz) when the counter is invariant, which
/// unlike `cpu MHz` does not follow the core's momentary clock.
pub fn hertz() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/cpuinfo").map_err(Error::io("read /proc/cpuinfo"))?;
    let what = "/proc/cpuinfo shows no invariant time stamp counter (constant_tsc, bogomips)";
    from_cpuinfo(&text).ok_or_else(|| Error::missing(what, "run on an x86-64 machine with an invariant TSC"))
}

/// The processor, as it names itself.
pub fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    named.map_or("unknown", |(_, name)| name).to_owned()
}

fn from_cpuinfo(text: &str) -> Option<f64> {
    let field = |name: &str| {
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim())
        })
    };
    if !field("flags")?.split(' ').any(|flag| flag == "constant_tsc") {
        return None;
    }
    let mips: f64 = field("bogomips")?.parse().ok()?;
    Some(mips / 2.0 * 1e6)
}

#[cfg(test)]
mod tests {
    use super::from_cpuinfo;

    #[test]
    fn reads_half_the_bogomips() {
        let text = "processor\t: 0\nflags\t\t: fpu constant_tsc sse\nbogomips\t: 5192.24\n";
        assert_eq!(from_cpuinfo(text), Some(2_596_120_000.0));
    }

    #[test]
    fn refuses_a_counter_that_changes_its_rate() {
        assert_eq!(from_cpuinfo("flags\t\t: fpu sse\nbogomips\t: 5192.24\n"), None);
    }
}
