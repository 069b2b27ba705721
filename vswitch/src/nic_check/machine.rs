//! The machine around the device: huge pages and cores of its NUMA node.

use super::DeviceLook;
use super::commands;
use super::finding::Finding;

/// The node of the device; `None` where the machine has but one, or does not say.
fn node(look: &DeviceLook<'_>) -> Option<u32> {
    look.host.number::<i64>(look.path.join("numa_node")).ok().and_then(|node| u32::try_from(node).ok())
}

pub(super) fn huge_pages(look: &DeviceLook<'_>) -> Finding {
    const NAME: &str = "huge pages";
    let Some(wanted) = look.wanted.huge_mib else {
        return Finding::noted(NAME, "not used: [eal] huge-pages = \"never\"", "");
    };
    let node = node(look).unwrap_or(0);
    let text = format!("{wanted} MiB free on node {node}");
    let folder = format!("sys/devices/system/node/node{node}/hugepages");
    let mut sizes: Vec<(u64, u64, u64)> = Vec::new();
    for name in look.host.names(&folder) {
        let size =
            name.strip_prefix("hugepages-").and_then(|size| size.strip_suffix("kB")?.parse::<u64>().ok());
        let Some(kib) = size.filter(|kib| *kib > 0) else { continue };
        let pages = |what: &str| look.host.number::<u64>(format!("{folder}/{name}/{what}_hugepages"));
        match (pages("nr"), pages("free")) {
            (Ok(all), Ok(free)) => sizes.push((kib, all, free)),
            (Err(why), _) | (_, Err(why)) => return Finding::unknown(NAME, why, text),
        }
    }
    let free_mib = |&(kib, _, free): &(u64, u64, u64)| free.saturating_mul(kib) >> 10;
    // The smallest size is the one that can be had while the machine runs.
    sizes.sort_unstable();
    let Some(&(kib, all, free)) = sizes.first() else {
        return Finding::unknown(NAME, format_args!("/{folder} shows none"), text);
    };
    let shown: Vec<String> =
        sizes.iter().map(|(kib, all, free)| format!("{free} of {all} x {} MiB free", kib >> 10)).collect();
    let shown = shown.join(", ");
    // DPDK takes all of its memory from pages of one size.
    if sizes.iter().map(free_mib).max().unwrap_or(0) >= wanted {
        return Finding::fine(NAME, shown, text);
    }
    let pages = all.saturating_add(wanted.saturating_mul(1024).div_ceil(kib).saturating_sub(free));
    let (pages, node, kib) = (pages.to_string(), node.to_string(), kib.to_string());
    let command = commands::HUGE_PAGES.with(&[("pages", &pages), ("node", &node), ("kib", &kib)]);
    Finding::change(NAME, shown, text).by(command)
}

pub(super) fn cores(look: &DeviceLook<'_>) -> Finding {
    const NAME: &str = "NUMA node";
    let by = |finding: Finding| finding.by(commands::LIST_CORES.with(&[]));
    let Some(node) = node(look) else {
        return Finding::noted(NAME, "the kernel names none", "cores of the workers on it");
    };
    let near = match look.text("local_cpulist") {
        Ok(near) => near,
        Err(why) => return by(Finding::noted(NAME, format!("{node}; its cores are not known: {why}"), "")),
    };
    let wanted = format!("[workers] cores from {near}");
    let value = format!("{node}, cores {near}");
    let (Some(cores), Some(local)) = (&look.wanted.cores, list(&near)) else {
        return by(Finding::noted(NAME, value, wanted));
    };
    let far: Vec<String> = cores
        .iter()
        .filter(|core| !local.iter().any(|(from, to)| (*from..=*to).contains(core)))
        .map(ToString::to_string)
        .collect();
    if far.is_empty() {
        return Finding::fine(NAME, value, wanted);
    }
    by(Finding::change(NAME, format!("{value}; workers on cores {} are far", far.join(", ")), wanted))
}

/// The ranges of a list such as `0-7,16-23`.
fn list(text: &str) -> Option<Vec<(usize, usize)>> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
    };
    text.split(',').map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::list;

    #[test]
    fn lists_of_cores() {
        assert_eq!(list("0-7,16-23,9"), Some(vec![(0, 7), (16, 23), (9, 9)]));
        assert_eq!((list(""), list("a-b"), list("1-")), (None, None, None));
    }
}
