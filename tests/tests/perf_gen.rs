//! `perf gen` at a real switch and at itself: what it counts is what the switch counts, and its page can be read by a browser.
//! Nothing is asserted on rates or delays.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "scenarios are tests throughout")]

use serde_json::Value;
use std::path::Path;
use tests::{Daemon, Netns, Workdir, binary, process};

/// The switch between a tenant's memif and an uplink's: both ends of them are the generator's.
fn switch(socket: &str) -> String {
    let memif = |id| {
        format!(
            "{{ kind = \"memif\", socket = \"{socket}\", id = {id}, role = \"server\", trusted-peer = true }}"
        )
    };
    let (tenant, uplink) = (memif(0), memif(1));
    format!(
        r#"
[nft]
miss-rate = 0

[[vpc]]
name = "tenant"
vni = 5001

[[subnet]]
vpc = "tenant"
prefix = "10.0.0.0/16"

[[vnic]]
name = "a"
vpc = "tenant"
mac = "02:00:00:00:01:01"
vips = ["10.0.0.1"]
mtu = 1450
qp-quota = 5000
port = {tenant}

[[uplink]]
name = "up"
addresses = ["172.16.0.1/24"]
mac = "02:00:00:00:10:01"
mtu = 1600
neighbours = [{{ ip = "172.16.0.2", mac = "02:00:00:00:10:02" }}]
port = {uplink}

[[location]]
vni = 5001
vip = "10.0.0.9"
mac = "02:00:00:00:01:09"
vtep = "172.16.0.2"
"#
    )
}

const STREAMS: &str = r#"
[generator]
window = 512
calibrate = 0.1

[run]
seconds = 1.5
warm-up = 0.0

[[stream]]
name = "tcp"
from = "tenant"
to = "wire"
protocol = "tcp"
rate = "10kpps"
size = [[74, 3], [1400, 1]]
flows = 200
distribution = "zipf"
src-mac = "02:00:00:00:01:01"
dst-mac = "02:00:00:00:01:09"
src-ip = "10.0.0.1"
dst-ip = "10.0.0.9"
src-port = "1024..65535"

[[stream]]
name = "rdma"
from = "tenant"
to = "wire"
protocol = "roce-rc"
opcodes = ["write-first", "write-middle", "write-last"]
size = 1098
rate = "5kpps"
flows = 20
churn = 1000
qp = "0x1000..0xffff"
src-mac = "02:00:00:00:01:01"
dst-mac = "02:00:00:00:01:09"
src-ip = "10.0.0.1"
dst-ip = "10.0.0.9"

[[stream]]
name = "back"
from = "wire"
to = "tenant"
protocol = "udp"
rate = "5kpps"
flows = 50
src-mac = "02:00:00:00:01:09"
dst-mac = "02:00:00:00:01:01"
src-ip = "10.0.0.9"
dst-ip = "10.0.0.1"
dst-port = "5000..5049"

[stream.vxlan]
vni = 5001
src-mac = "02:00:00:00:10:02"
dst-mac = "02:00:00:00:10:01"
src-ip = "172.16.0.2"
dst-ip = "172.16.0.1"
"#;

fn perf_gen(dir: &Workdir, scenario: &Path) -> (Value, String) {
    let json = dir.path().join("gen.json").display().to_string();
    let page = dir.path().join("gen.html").display().to_string();
    let perf = binary::release("perf").display().to_string();
    let scenario = scenario.display().to_string();
    let text = process::run(&[&perf, "gen", &scenario, "--json", &json, "--html", &page, "--quiet"]);
    (serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap(), text)
}

#[track_caller]
fn number(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or_else(|| panic!("no {name} in {row:#}"))
}

#[test]
fn gen_counts_what_the_switch_counts() {
    process::need_root();
    let dir = Workdir::new("gen");
    let socket = dir.path().join("lab.sock").display().to_string();
    let netns = Netns::new("gen");
    let daemon = Daemon::start(&netns, &switch(&socket));
    let port = |name: &str, id: u32| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"memif\"\nsocket = \"{socket}\"\nid = {id}\nrole = \"client\"\n"
        )
    };
    let scenario = dir.write("gen.toml", &[STREAMS, &port("tenant", 0), &port("wire", 1)].concat());
    let before = daemon.counters();
    let (report, text) = perf_gen(&dir, &scenario);
    let moved = daemon.counters().since(&before);

    let traffic = &report["traffic"];
    let rows = traffic["streams"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{text}");
    for row in rows {
        assert!(number(row, "sent") > 500, "{text}");
        assert_eq!(number(row, "frames"), number(row, "sent"), "{text}");
        for fault in ["lost", "duplicates", "reordered", "gaps", "psn_gaps", "psn_back"] {
            assert_eq!(number(row, fault), 0, "{fault} of {}\n{text}", row["name"]);
        }
    }
    for fault in ["foreign", "misplaced", "stale", "damaged"] {
        assert_eq!(number(traffic, fault), 0, "{fault}\n{text}");
    }
    assert!(number(traffic, "verified") > 50, "{text}");
    assert!(number(&rows[1], "new_flows") > 100, "{text}");
    assert!(report["ceilings"][0]["rate"].as_f64().unwrap() > 10_000.0, "{text}");

    // The tunnel's headers are 50 bytes a frame, put on one way and taken off the other.
    let sent = |index: usize, name: &str| number(&rows[index], name);
    for (index, grows) in [(0, true), (1, true), (2, false)] {
        let tunnel = 50 * sent(index, "sent");
        let (short, long) = match grows {
            true => (sent(index, "sent_bytes"), sent(index, "bytes")),
            false => (sent(index, "bytes"), sent(index, "sent_bytes")),
        };
        assert_eq!(long - short, tunnel, "{text}");
    }
    let expected = [
        ("port.a.rx-packets", sent(0, "sent") + sent(1, "sent")),
        ("port.up.tx-packets", sent(0, "sent") + sent(1, "sent")),
        ("port.up.rx-packets", sent(2, "sent")),
        ("port.a.tx-packets", sent(2, "sent")),
    ];
    for (counter, packets) in expected {
        assert_eq!(moved.get(counter).copied(), Some(packets as i64), "{counter} in {moved:#?}\n{text}");
    }
    let drops: Vec<_> = moved.iter().filter(|(name, _)| name.contains("drop")).collect();
    assert!(drops.is_empty(), "{drops:?}");
    daemon.stop();
}

/// Looks at the page's plots as pixels: how many of each are of a line's colour.
const LOOK: &str = r"<script>
addEventListener('load', async () => {
  const found = [];
  for (const svg of document.querySelectorAll('svg')) {
    const image = new Image(), canvas = document.createElement('canvas');
    image.src = 'data:image/svg+xml;charset=utf-8,' + encodeURIComponent(new XMLSerializer().serializeToString(svg));
    await image.decode();
    [canvas.width, canvas.height] = [image.width, image.height];
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    const bytes = context.getImageData(0, 0, canvas.width, canvas.height).data;
    let pixels = 0;
    for (let at = 0; at < bytes.length; at += 4)
      if (bytes[at] < 60 && bytes[at + 1] < 130 && bytes[at + 2] > 150) pixels++;
    const box = svg.getBoundingClientRect();
    found.push(`${Math.round(box.width)}x${Math.round(box.height)}:${pixels}`);
  }
  document.title = 'plots ' + found.join(' ');
});
</script>";

/// The page as a browser has it in the end, and what it said on its console.
#[track_caller]
fn browse(page: &Path, dir: &Workdir) -> (String, Vec<String>) {
    let chromium = "/usr/bin/chromium";
    assert!(
        Path::new(chromium).exists(),
        "the page is looked at with {chromium}, which is not there: run scripts/bootstrap"
    );
    let url = format!("file://{}", page.display());
    let profile = format!("--user-data-dir={}", dir.path().join("profile").display());
    // Its crash reporter writes to the home folder whatever the profile is.
    let home = format!("HOME={}", dir.path().display());
    let output = process::try_run(&[
        "env",
        &home,
        chromium,
        "--headless",
        // Its sandbox does not work for root.
        "--no-sandbox",
        "--disable-gpu",
        // Small in containers.
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
        "--virtual-time-budget=10000",
        "--dump-dom",
        &profile,
        &url,
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stderr);
    let console = said.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
    (String::from_utf8_lossy(&output.stdout).into_owned(), console)
}

#[test]
fn gen_page_is_drawn_by_a_browser() {
    process::need_root();
    let dir = Workdir::new("genpage");
    let scenario = std::fs::read_to_string(binary::workspace().join("perf/scenarios/loopback.toml")).unwrap();
    // A rate that any generator can keep, and each test ends at whichever rate it does: a slow machine makes more
    // trials, a fast one fewer, and the page has them all.
    let tests = "tests = [\"traffic\", \"throughput\", \"frame-loss\"]\ntrial = 0.1\nmax-rate = \"20kpps\"";
    let scenario = scenario.replace("seconds = 2", "seconds = 0.5").replace("tests = [\"traffic\"]", tests);
    let (report, text) = perf_gen(&dir, &dir.write("loop.toml", &scenario));
    assert_eq!(number(&report["traffic"], "damaged"), 0, "{text}");
    let findings = &report["findings"][0];
    for trials in [&findings["throughput"]["trials"], &findings["frame_loss"]] {
        let trials = trials.as_array().unwrap();
        assert!(!trials.is_empty(), "{text}");
        let offered = |trial: &Value| trial["offered"].as_f64().unwrap() > 0.0;
        assert!(trials.iter().all(offered), "{findings:#}\n{text}");
    }

    let page = std::fs::read_to_string(dir.path().join("gen.html")).unwrap();
    assert!(
        !page.contains("http:") || page.matches("http:").count() == page.matches("xmlns=\"http:").count()
    );
    assert!(!page.contains("https:") && !page.contains("<script"), "the page loads or runs something");
    let (dom, console) = browse(&dir.path().join("gen.html"), &dir);
    assert_eq!(console, Vec::<String>::new());
    assert!(dom.contains("frames a second, millions"), "{dom}");

    let looked = dir.write("looked.html", &page.replace("</body>", &format!("{LOOK}</body>")));
    let (dom, console) = browse(&looked, &dir);
    assert_eq!(console, Vec::<String>::new());
    let title = dom.split("<title>").nth(1).and_then(|rest| rest.split('<').next()).unwrap();
    let plots: Vec<&str> = title.strip_prefix("plots ").expect(title).split(' ').collect();
    assert_eq!(plots.len(), 2, "{title}");
    for plot in plots {
        let (size, pixels) = plot.split_once(':').unwrap();
        let (width, height) = size.split_once('x').unwrap();
        assert!(width.parse::<u32>().unwrap() > 500 && height.parse::<u32>().unwrap() > 100, "{title}");
        // The legend has 32 of them; two marks on the axis, which is what a curve without loss is, as many again.
        assert!(pixels.parse::<u32>().unwrap() > 60, "{title}");
    }
}
