//! The plugin driver `net_template`: building it, and the words that make a device of it.
//!
//! Its C is part of this program; what builds it is the crate `testdev`.

use std::path::{Path, PathBuf};

use testdev::{BuildError, Driver, VDEV_H};

const DRIVER: Driver = Driver {
    name: "net_template",
    sources: &[VDEV_H, ("net_template.c", include_str!("../../plugin/net_template.c"))],
};

/// Builds the driver, if that was not done before, and returns where it is. `folder` is for its source.
pub fn build(folder: &Path) -> Result<PathBuf, BuildError> {
    DRIVER.build(folder)
}

#[derive(Debug, Clone)]
pub struct TemplateDevice {
    /// What it makes; nothing if not given.
    pub frames: Option<PathBuf>,
    pub board: PathBuf,
}

/// One in so many packets is kept as a sample. A prime, so that no burst size or flow count is in step with it.
const SAMPLE: u32 = 4099;

impl TemplateDevice {
    /// Its name, with a number that no other one has, and arguments.
    pub fn text(&self, number: usize) -> String {
        let frames = self.frames.as_ref().map(|path| format!("frames={},", path.display()));
        let (frames, board) = (frames.unwrap_or_default(), self.board.display());
        format!("net_template{number},{frames}board={board},sample={SAMPLE}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::compare::cases::{Case, Job, Mix, Traffic};
    use crate::compare::program::program;

    /// What `dpdk-testpmd` prints of the first packets that a device makes for a job, one line each.
    fn received(plugin: &Path, folder: &Path, job: &Job) -> Vec<String> {
        let frames = folder.join(format!("{}-{}.frames", job.label(), job.traffic));
        std::fs::write(&frames, program(job, job.case).text()).unwrap();
        let device = TemplateDevice { frames: Some(frames), board: folder.join("board") }.text(0);
        let words = format!(
            "--no-huge -m 128 --no-pci --no-telemetry --no-shconf --file-prefix perf-template-{} -d {} --vdev {device} \
             -- -i --forward-mode=rxonly --total-num-mbufs=4096 --nb-cores=1",
            std::process::id(),
            plugin.display()
        );
        // It waits for whoever reads, so that nothing is missed.
        let mut testpmd = Command::new("dpdk-testpmd")
            .args(words.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        testpmd.stdin.as_mut().unwrap().write_all(b"set verbose 1\nstart\n").unwrap();
        // A packet is told in several lines, the first with its addresses; the last of these is not whole.
        let mut text = String::new();
        for line in BufReader::new(testpmd.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            text = text + &line + " ";
            if line.contains("src=") && text.matches("src=").count() > 200 {
                break;
            }
        }
        testpmd.kill().unwrap();
        testpmd.wait().unwrap();
        let packets: Vec<String> = text.split("src=").skip(1).take(200).map(str::to_owned).collect();
        let is_whole = |packet: &String| packet.contains("hw ptype") && packet.contains("ol_flags");
        assert!(packets.len() == 200 && packets.iter().all(is_whole), "{text}");
        packets
    }

    /// A folder, and the driver; nothing where it cannot be built.
    fn built(name: &str) -> Option<(PathBuf, PathBuf)> {
        let folder = std::env::temp_dir().join(format!("perf-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let plugin =
            build(&folder).inspect_err(|error| eprintln!("the driver cannot be built here: {error}"));
        Some((folder, plugin.ok()?))
    }

    fn hash(packet: &str) -> &str {
        packet.split("RSS hash=").nth(1).unwrap().split([' ', '-']).next().unwrap()
    }

    /// How often each hash comes among packets.
    fn times(packets: &[String]) -> HashMap<&str, usize> {
        let mut times = HashMap::new();
        for packet in packets {
            *times.entry(hash(packet)).or_default() += 1;
        }
        times
    }

    /// Each round visits every flow once, and later ones go through a table that the first one filled in no order of its slots.
    fn check_rounds(packets: &[String], flows: usize) {
        let slots: HashMap<&str, usize> =
            packets[..flows].iter().map(|packet| hash(packet)).zip(0..).collect();
        for round in packets.chunks_exact(flows) {
            assert_eq!(times(round).len(), flows, "a flow comes twice in a round");
        }
        for round in packets.chunks_exact(flows).skip(1) {
            let steps = round.windows(2).map(|two| slots[hash(&two[0])].abs_diff(slots[hash(&two[1])]));
            // Chance has 2 of 63.
            let next = steps.filter(|step| *step == 1).count();
            assert!(next < flows / 4, "{next} of {flows} steps are to the slot beside");
        }
    }

    #[test]
    fn flows_come_by_zipfs_law_or_give_way_to_new_ones() {
        let Some((folder, plugin)) = built("template-mix") else { return };
        let job = |mix| Job { mix, ..Job::plain(Case::Encap, "16") };
        let packets = received(&plugin, &folder, &job(Mix { zipf: true, ..Mix::default() }));
        // Behind the two rounds in which each comes once. The first one's share is ln 2 / ln 17, a quarter; by turns it is a sixteenth.
        let drawn = times(&packets[40..]);
        let most = drawn.values().max().unwrap();
        assert!(most * 6 > packets.len() - 40 && drawn.len() > 6, "{drawn:?}");
        // Eight of sixteen are new in each of a dozen rounds.
        let packets = received(&plugin, &folder, &job(Mix { churn: 500, ..Mix::default() }));
        let different = times(&packets).len();
        assert!((80..130).contains(&different), "{different}");
        // Flows to many addresses, of one source port.
        let mix = Mix { vteps: 64, ..Mix::default() };
        let packets = received(&plugin, &folder, &Job { mix, ..Job::plain(Case::Decap, "64") });
        assert_eq!(times(&packets).len(), 64);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn received_packets_bear_what_a_nic_says_of_them() {
        let Some((folder, plugin)) = built("template") else { return };
        let job = |case, traffic, tenants| Job { traffic, tenants, ..Job::plain(case, "64") };
        // Numbers of 5-tuples: queue pairs of one UDP source port have one for each of 16 addresses.
        for (job, types, tuples) in [
            (job(Case::Encap, Traffic::Tcp, None), "L2_ETHER L3_IPV4 L4_TCP ", 64),
            (job(Case::Encap, Traffic::UdpFew, None), "L2_ETHER L3_IPV4 L4_UDP ", 16),
            (job(Case::Encap, Traffic::Tcp, Some(64)), "L2_ETHER_VLAN L3_IPV4 L4_TCP ", 64),
            (
                job(Case::Decap, Traffic::Rocev2, None),
                "L2_ETHER L3_IPV4 L4_UDP TUNNEL_VXLAN INNER_L2_ETHER INNER_L3_IPV4 INNER_L4_UDP ",
                64,
            ),
        ] {
            let packets = received(&plugin, &folder, &job);
            assert!(packets.len() > 100, "{packets:?}");
            for packet in &packets {
                assert!(packet.contains(&format!("hw ptype: {types}")), "{packet}");
                for flag in ["RSS_HASH", "IP_CKSUM_GOOD", "L4_CKSUM_GOOD"] {
                    assert!(packet.contains(&format!("RTE_MBUF_F_RX_{flag}")), "{packet}");
                }
            }
            let times = times(&packets);
            // Three rounds over all flows.
            assert_eq!(times.len(), tuples, "{}: {times:?}", job.label());
            if tuples == 64 {
                check_rounds(&packets, tuples);
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
