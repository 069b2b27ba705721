//! Huge pages: how many are free, and the advice to use them for our own memory.
//!
//! Reads sysfs and calls `madvise`. It reserves nothing and changes no system setting.

use std::fs;
use std::io;
use std::path::Path;

/// Where the kernel has a folder for each size.
const SIZES: &str = "/sys/kernel/mm/hugepages";

/// Free reserved huge pages of all sizes, in megabytes.
pub fn free_mb() -> u64 {
    mb_under(Path::new(SIZES), "free_hugepages")
}

/// Reserved huge pages of all sizes, whoever has them, in megabytes.
pub fn reserved_mb() -> u64 {
    mb_under(Path::new(SIZES), "nr_hugepages")
}

fn mb_under(folder: &Path, count: &str) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().filter_map(|entry| {
        let name = entry.file_name();
        let kilobytes: u64 = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let pages: u64 = fs::read_to_string(entry.path().join(count)).ok()?.trim().parse().ok()?;
        Some(kilobytes * pages)
    });
    sizes.sum::<u64>() / 1024
}

/// Advises the kernel to back `memory` with transparent huge pages. Returns the bytes that the advice covers:
/// the whole 4 KiB pages inside the slice, 0 when there is none.
///
/// # Errors
/// What `madvise` says; `EINVAL` where the kernel has no transparent huge pages.
pub fn advise<T>(memory: &[T]) -> io::Result<usize> {
    let range = memory.as_ptr_range();
    advise_range(range.start as usize, range.end as usize - range.start as usize)
}

/// [`advise`] for `len` bytes at address `start`: for memory that must not be touched before. The advice never
/// changes what memory holds; a range that is not mapped is an error, not a fault.
///
/// # Errors
/// As [`advise`]; `ENOMEM` for a range that is not mapped.
pub fn advise_range(start: usize, len: usize) -> io::Result<usize> {
    const PAGE: usize = 4096;
    let end = start.saturating_add(len) / PAGE * PAGE;
    let start = start.next_multiple_of(PAGE);
    let Some(length) = end.checked_sub(start).filter(|length| *length > 0) else { return Ok(0) };
    // SAFETY: MADV_HUGEPAGE changes how memory is backed, never what it holds, and checks the range.
    let ret = unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_HUGEPAGE) };
    if ret == 0 { Ok(length) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_all_page_sizes() {
        let folder = std::env::temp_dir().join(format!("hugepages-test-{}", std::process::id()));
        for (size, free) in [("hugepages-2048kB", "5\n"), ("hugepages-1048576kB", "2\n"), ("other", "9\n")] {
            fs::create_dir_all(folder.join(size)).unwrap();
            fs::write(folder.join(size).join("free_hugepages"), free).unwrap();
            fs::write(folder.join(size).join("nr_hugepages"), "1").unwrap();
        }
        assert_eq!(mb_under(&folder, "free_hugepages"), 10 + 2048);
        assert_eq!(mb_under(&folder, "nr_hugepages"), 2 + 1024);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(mb_under(&folder, "free_hugepages"), 0);
    }

    #[test]
    fn advice_covers_whole_pages_only() {
        let memory = vec![7u8; 1 << 20];
        let covered = advise(&memory).unwrap();
        assert!(covered > (1 << 20) - 2 * 4096 && covered <= 1 << 20 && covered.is_multiple_of(4096));
        assert!(memory.iter().all(|byte| *byte == 7));
        assert_eq!(advise(&memory[..10]).unwrap(), 0);
    }
}
