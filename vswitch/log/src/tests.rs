//! Logs whose readers are slow, absent, or back.

use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// A log that a thread writes to `out`.
fn log(out: impl Write + Send + 'static) -> &'static Log {
    let log: &Log = Box::leak(Box::new(Log::new()));
    std::thread::spawn(move || log.write_out(out));
    log
}

#[test]
fn a_log_that_nobody_reads_holds_nobody_up_and_tells_what_is_missing() {
    const LINES: usize = 4 * ROOM / 1024;
    let (reader, writer) = io::pipe().unwrap();
    let log = log(writer);
    let began = Instant::now();
    for number in 0..LINES {
        log.add(format!("{number:<1023}\n").as_bytes());
    }
    assert!(log.lock().bytes <= ROOM);
    log.finish();
    assert!(began.elapsed() < LONGEST, "{:?}", began.elapsed());
    // What is known to stand still is not waited for again.
    let again = Instant::now();
    log.finish();
    assert!(again.elapsed() < PATIENCE / 2, "{:?}", again.elapsed());
    // Last words are taken all the same.
    log.lock().add_last(b"the end\n");

    let mut lines = BufReader::new(reader).lines().map(Result::unwrap);
    let mut read = 0;
    let end = loop {
        let line = lines.next().unwrap();
        if line.trim_end() != read.to_string() {
            break line;
        }
        read += 1;
    };
    assert_eq!(end, "the end");
    let told = lines.next().unwrap();
    assert!(told.contains("Z  WARN lines of the log were lost"), "{told}");
    let lost: usize = told.rsplit_once("lost=").unwrap().1.parse().unwrap();
    assert!(lost > 0);
    assert_eq!(read + lost, LINES);
    // Read again, it is as ever, and nothing is told twice.
    for line in ["one", "two"] {
        log.add(format!("{line}\n").as_bytes());
        log.finish();
        assert_eq!(lines.next().unwrap(), line);
    }
    let queue = log.lock();
    assert!(queue.lines.is_empty() && queue.bytes == 0 && queue.since.is_none());
}

/// A file on a disk that is full, or is not.
#[derive(Clone, Default)]
struct Disk {
    full: Arc<AtomicBool>,
    text: Arc<Mutex<String>>,
}

impl Write for Disk {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.full.load(Ordering::SeqCst) {
            return Err(ErrorKind::StorageFull.into());
        }
        self.text.lock().unwrap().push_str(str::from_utf8(line).unwrap());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_could_not_be_written_is_told_when_something_can_be() {
    let disk = Disk::default();
    disk.full.store(true, Ordering::SeqCst);
    let log = log(disk.clone());
    for line in ["one\n", "two\n", "three\n"] {
        log.add(line.as_bytes());
    }
    log.finish();
    disk.full.store(false, Ordering::SeqCst);
    log.add(b"four\n");
    log.finish();
    let text = disk.text.lock().unwrap().clone();
    assert!(text.starts_with("four\n") && text.ends_with(" lost=3\n"), "{text}");
    assert_eq!(text.lines().count(), 2);
}
