//! Building the judge: `judge/*.c` with the private headers of the driver, linked with Debian's static library.
//!
//! The headers are in the cache, where scripts/bootstrap puts them. What is built lands in the target folder, by a hash of
//! all that it was built from.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::GateError;

/// Folders of the sources whose headers are used.
const HEADERS: [&str; 9] = [
    "drivers/net/mlx5",
    "drivers/net/mlx5/linux",
    "drivers/net/mlx5/hws",
    "drivers/common/mlx5",
    "drivers/common/mlx5/linux",
    "drivers/bus/pci",
    "drivers/bus/pci/linux",
    "drivers/bus/auxiliary",
    "lib/ethdev",
];
/// The same for headers that the package libdpdk-dev has most of: behind its own.
const MORE_HEADERS: [&str; 2] = ["lib/eal/include", "lib/eal/linux/include"];
/// Libraries, all static: the shared ones load every driver there is a second time.
const LIBRARIES: [&str; 15] = [
    "net_mlx5",
    "common_mlx5",
    "ethdev",
    "eal",
    "kvargs",
    "telemetry",
    "mempool",
    "mempool_ring",
    "ring",
    "mbuf",
    "net",
    "meter",
    "hash",
    "rcu",
    "pci",
];
const BUSES: [&str; 2] = ["bus_pci", "bus_auxiliary"];
/// Parts of others in older releases: linked where there is such a library.
const IF_THERE: [&str; 1] = ["log"];
const OTHERS: [&str; 7] = ["-lpthread", "-ldl", "-lnuma", "-lm", "-lbsd", "-latomic", "-lrt"];

/// The folder of the driver's sources.
pub(crate) fn sources() -> Result<PathBuf, GateError> {
    let version = pmd::flow::BUILD.version;
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home).unwrap_or_default();
    let path = cache.join("vswitch/dpdk-source").join(version);
    let complete = path.join("drivers/net/mlx5/mlx5_flow.h").is_file();
    if complete { Ok(path) } else { Err(GateError::NoSources { version, path }) }
}

/// The judge, built when it is not there.
pub(crate) fn path() -> Result<PathBuf, GateError> {
    let sources = sources()?;
    let mut files: Vec<_> = read_dir(&Path::new(env!("CARGO_MANIFEST_DIR")).join("judge"))?;
    files.sort();
    let mut hasher = DefaultHasher::new();
    (pmd::flow::BUILD.version, HEADERS, MORE_HEADERS, LIBRARIES, IF_THERE, OTHERS).hash(&mut hasher);
    for file in &files {
        read(file)?.hash(&mut hasher);
    }
    let all = target().join("mlx5-gate");
    let folder = all.join(format!("{:016x}", hasher.finish()));
    let program = folder.join("mlx5-judge");
    if program.is_file() {
        return Ok(program);
    }
    fs::create_dir_all(&folder).map_err(system(&folder))?;
    // One builder at a time; it goes with the process.
    let lock = all.join("lock");
    let held = File::create(&lock).map_err(system(&lock))?;
    held.lock().map_err(system(&lock))?;
    if !program.is_file() {
        build(&sources, &files, &folder, &program)?;
    }
    Ok(program)
}

fn build(sources: &Path, files: &[PathBuf], folder: &Path, program: &Path) -> Result<(), GateError> {
    let config = folder.join("mlx5_autoconf.h");
    fs::write(&config, autoconf(sources, folder)?).map_err(system(&config))?;
    let package =
        String::from_utf8_lossy(&run(Command::new("pkg-config").args(["--cflags", "libdpdk"]))?).into_owned();
    let libraries =
        String::from_utf8_lossy(&run(Command::new("pkg-config").args(["--variable=libdir", "libdpdk"]))?)
            .trim()
            .to_owned();
    let whole = folder.join("mlx5-judge.new");
    let mut compiler = Command::new("cc");
    compiler.args([
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-parameter",
        "-Wno-address-of-packed-member",
        "-std=gnu11",
    ]);
    compiler.args(["-DALLOW_INTERNAL_API", "-DALLOW_EXPERIMENTAL_API", "-isystem"]).arg(folder);
    for header in HEADERS {
        compiler.arg("-isystem").arg(sources.join(header));
    }
    // Warnings are about our files.
    compiler.args(package.split_whitespace().map(|flag| flag.replacen("-I", "-isystem", 1)));
    for header in MORE_HEADERS {
        compiler.arg("-idirafter").arg(sources.join(header));
    }
    compiler.args(files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "c")));
    compiler.arg("-o").arg(&whole).arg("-Wl,--start-group");
    let file = |library: &&str| PathBuf::from(format!("{libraries}/librte_{library}.a"));
    compiler.args(LIBRARIES.iter().chain(&BUSES).map(file));
    compiler.args(IF_THERE.iter().map(file).filter(|file| file.is_file()));
    compiler.arg("-Wl,--end-group").args(OTHERS);
    run(&mut compiler)?;
    fs::rename(&whole, program).map_err(system(program))
}

/// What the driver's build asks the headers of rdma-core and of the kernel, asked again: the library was built with the
/// same headers, and its structures depend on it.
fn autoconf(sources: &Path, folder: &Path) -> Result<String, GateError> {
    let asked = sources.join("drivers/common/mlx5/linux/meson.build");
    let questions = questions(&read(&asked)?);
    if questions.len() < 20 {
        return Err(GateError::Build(format!("{} asks {} questions only", asked.display(), questions.len())));
    }
    let mut program = String::from("#define _GNU_SOURCE\n#include <stddef.h>\n");
    let mut headers: Vec<&str> = questions.iter().map(|question| question.header.as_str()).collect();
    headers.sort_unstable();
    headers.dedup();
    for header in headers {
        program += &format!("#if __has_include(<{header}>)\n#include <{header}>\n#endif\n");
    }
    // Each question is a function at lines of its own; lines with errors are questions answered with no.
    for (number, Question { symbol, member, .. }) in questions.iter().enumerate() {
        let line = 1000 + 10 * number;
        program += &match member {
            Some(member) => format!(
                "#line {line} \"question\"\nsize_t q{number}(void) {{ return sizeof((({symbol} *)0)->{member}); }}\n"
            ),
            None => format!(
                "#line {line} \"question\"\nvoid q{number}(void) {{\n#ifndef {symbol}\n(void){symbol};\n#endif\n}}\n"
            ),
        };
    }
    let file = folder.join("questions.c");
    fs::write(&file, program).map_err(system(&file))?;
    let mut compiler = Command::new("cc");
    compiler.env("LC_ALL", "C").args(["-fsyntax-only", "-fmax-errors=0", "-w"]).arg(&file);
    let output = compiler.output().map_err(system(Path::new("cc")))?;
    let words = String::from_utf8_lossy(&output.stderr);
    let line = |line: &str| -> Option<usize> {
        let (number, rest) = line.strip_prefix("question:")?.split_once(':')?;
        rest.contains("error:").then(|| number.parse().ok())?
    };
    let no: Vec<usize> = words.lines().filter_map(line).map(|line| (line - 1000) / 10).collect();
    if no.len() * 2 > questions.len() {
        return Err(GateError::Build(words.into_owned()));
    }
    let yes = questions.iter().enumerate().filter(|(number, _)| !no.contains(number));
    Ok(yes.map(|(_, question)| format!("#define {} 1\n", question.name)).collect())
}

/// Something that a header may have.
#[derive(Debug, PartialEq, Eq)]
struct Question {
    name: String,
    header: String,
    symbol: String,
    member: Option<String>,
}

/// The lists `has_member_args` and `has_sym_args` of the driver's build.
fn questions(text: &str) -> Vec<Question> {
    let list = |name: &str| -> Vec<Question> {
        let begin = format!("{name} = [");
        let Some(list) = text.split_once(&begin).and_then(|(_, rest)| rest.split_once("\n]")) else {
            return Vec::new();
        };
        let entries =
            list.0.split('[').skip(1).filter_map(|entry| entry.split_once(']')).map(|(entry, _)| entry);
        entries
            .filter_map(|entry| {
                let mut words = entry.split('\'').skip(1).step_by(2).map(|word| word.trim().to_owned());
                let (name, header, symbol) = (words.next()?, words.next()?, words.next()?);
                Some(Question { name, header, symbol, member: words.next() })
            })
            .collect()
    };
    let mut all = list("has_member_args");
    all.extend(list("has_sym_args"));
    all
}

/// The target folder of this build: the program is in a profile's folder of it.
fn target() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let is_profile = |folder: &&Path| folder.ends_with("debug") || folder.ends_with("release");
    let profile = program.ancestors().find(is_profile).and_then(Path::parent);
    profile.map_or_else(std::env::temp_dir, Path::to_owned)
}

fn run(command: &mut Command) -> Result<Vec<u8>, GateError> {
    let output = command.output().map_err(system(Path::new(command.get_program())))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(GateError::Build(String::from_utf8_lossy(&output.stderr).into_owned()))
}

fn read(path: &Path) -> Result<String, GateError> {
    fs::read_to_string(path).map_err(system(path))
}

fn read_dir(path: &Path) -> Result<Vec<PathBuf>, GateError> {
    let entries = fs::read_dir(path).map_err(system(path))?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

fn system(what: &Path) -> impl FnOnce(std::io::Error) -> GateError + use<> {
    let what = what.display().to_string();
    move |error| GateError::System { what, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_of_mlx5_are_read() {
        let text = "has_member_args = [\n  [ 'A', 'a.h',\n  'struct a', 'b' ],\n]\nhas_sym_args = [\n [ 'C', 'c.h', 'c ' ],\n]\n";
        let question = |name: &str, header: &str, symbol: &str, member: Option<&str>| Question {
            name: name.into(),
            header: header.into(),
            symbol: symbol.into(),
            member: member.map(str::to_owned),
        };
        let wanted = [question("A", "a.h", "struct a", Some("b")), question("C", "c.h", "c", None)];
        assert_eq!(questions(text), wanted);
        assert_eq!(questions("has_sym_args = []"), []);
    }
}
