//! Generates the bindings from the installed DPDK's headers, compiles the shim, probes features.
//!
//! bindgen takes many seconds and the shim changes more often than DPDK does: the generated file is kept under a
//! name that hashes everything it depends on (DPDK version, flags, wrapper, every header), so that a change to
//! `shim.c` or to this file's other steps compiles C only.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::exit;

/// The CPU baseline, the same as `target-cpu` in `.cargo/config.toml`.
const MARCH: &str = "-march=x86-64-v3";

/// Libraries whose functions the bindings name. Poll-mode drivers are not among them: EAL loads those from
/// DPDK's plugin folder.
const LIBRARIES: &[&str] = &[
    "rte_eal",
    "rte_ethdev",
    "rte_kvargs",
    "rte_log",
    "rte_mbuf",
    "rte_mempool",
    "rte_meter",
    "rte_net",
    "rte_net_bond",
    "rte_net_ring",
    "rte_ring",
    "rte_telemetry",
    "rte_vhost",
];

/// Features told apart by a name in the generated bindings: (cfg, name, meaning).
const FEATURES: &[(&str, &str, &str)] = &[
    (
        "has_item_ib_bth",
        "RTE_FLOW_ITEM_TYPE_IB_BTH",
        "rte_flow can match the InfiniBand base transport header.",
    ),
    ("has_action_meter_mark", "RTE_FLOW_ACTION_TYPE_METER_MARK", "rte_flow has METER_MARK."),
    ("has_item_meter_color", "RTE_FLOW_ITEM_TYPE_METER_COLOR", "rte_flow can match a meter's colour."),
    ("has_flow_templates", "rte_flow_pattern_template_create", "rte_flow has templates and queues."),
    (
        "has_flow_encap_hash",
        "rte_flow_calc_encap_hash",
        "rte_flow tells the outer UDP source port that a NIC chooses.",
    ),
];

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    exit(1)
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=csrc");
    println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());

    let dpdk = match pkg_config::Config::new().cargo_metadata(false).atleast_version("22.11").probe("libdpdk")
    {
        Ok(library) => library,
        Err(pkg_config::Error::Failure { .. } | pkg_config::Error::ProbeFailure { .. }) => {
            fail("libdpdk not found: run scripts/bootstrap")
        }
        Err(error) => fail(&format!("libdpdk not found: run scripts/bootstrap ({error})")),
    };
    let folders = library_folders(&dpdk);
    link(&folders);
    let flags = clang_flags(&dpdk.include_paths);
    let bindings = generate(&out, &dpdk.version, &dpdk.include_paths, &flags);
    let features = probe(&out, &bindings, &dpdk.version);
    compile_shim(&dpdk.include_paths, &features);
}

/// Where the linker and this file look for libraries.
fn library_folders(dpdk: &pkg_config::Library) -> Vec<PathBuf> {
    let mut folders = dpdk.link_paths.clone();
    if let Ok(folder) = pkg_config::get_variable("libdpdk", "libdir") {
        folders.push(folder.into());
    }
    folders
}

fn link(folders: &[PathBuf]) {
    for folder in folders {
        println!("cargo::rustc-link-search=native={}", folder.display());
    }
    for library in LIBRARIES {
        // librte_log is a library of its own since 23.11; a driver library may be packaged apart.
        if folders.iter().any(|folder| folder.join(format!("lib{library}.so")).exists()) {
            println!("cargo::rustc-link-lib=dylib={library}");
        }
    }
}

/// pkg-config's own `-include rte_config.h` and `-march` do not survive the parse: added here.
fn clang_flags(includes: &[PathBuf]) -> Vec<String> {
    let mut flags =
        vec!["-include".into(), "rte_config.h".into(), MARCH.into(), "-DALLOW_EXPERIMENTAL_API".into()];
    flags.extend(includes.iter().map(|path| format!("-isystem{}", path.display())));
    flags
}

/// Compiles the shim. What a release has is told to it as `DPDK_SYS_HAS_...`.
fn compile_shim(includes: &[PathBuf], features: &[&str]) {
    let mut build = cc::Build::new();
    build
        .file("csrc/shim.c")
        .file("csrc/bond.c")
        .file("csrc/pool.c")
        .file("csrc/moat.c")
        .file("csrc/nonblocking.c")
        .file("csrc/shadow.c")
        .include("csrc")
        .opt_level(3)
        .flag(MARCH);
    build.flag("-include").flag("rte_config.h").define("ALLOW_EXPERIMENTAL_API", None);
    for path in includes {
        build.flag(format!("-isystem{}", path.display()));
    }
    for feature in features {
        build.define(&format!("DPDK_SYS_{}", feature.to_uppercase()), None);
    }
    build.compile("dpdk_sys_shim");
}

/// Runs bindgen, or takes what an earlier run with the same inputs left. Returns the bindings' text.
fn generate(out: &Path, version: &str, includes: &[PathBuf], flags: &[String]) -> String {
    let mut hasher = DefaultHasher::new();
    (version, flags, BINDGEN_SETTINGS_VERSION).hash(&mut hasher);
    for file in ["csrc/wrapper.h", "csrc/shim.h"] {
        fs::read(file).unwrap_or_default().hash(&mut hasher);
    }
    for folder in includes.iter().filter(|folder| folder.to_string_lossy().contains("dpdk")) {
        hash_headers(folder, &mut hasher);
    }
    let kept = out.join(format!("bindings-{:016x}.rs", hasher.finish()));
    if !kept.exists() {
        let bindings = match builder(out, flags).generate() {
            Ok(bindings) => bindings,
            Err(error) => fail(&format!("bindgen over the headers of DPDK {version} failed: {error}")),
        };
        let fresh = out.join("bindings.tmp");
        if let Err(error) = bindings.write_to_file(&fresh).and_then(|()| fs::rename(&fresh, &kept)) {
            fail(&format!("cannot write {}: {error}", kept.display()));
        }
    }
    let text = fs::read_to_string(&kept).unwrap_or_default();
    if let Err(error) = fs::write(out.join("bindings.rs"), &text) {
        fail(&format!("cannot write the bindings: {error}"));
    }
    text
}

/// Raise when `builder` changes, so that kept bindings are made anew.
const BINDGEN_SETTINGS_VERSION: u32 = 3;

fn builder(out: &Path, flags: &[String]) -> bindgen::Builder {
    let target = match bindgen::RustTarget::stable(85, 0) {
        Ok(target) => target,
        Err(error) => fail(&format!("bindgen does not know Rust 1.85: {error}")),
    };
    bindgen::Builder::default()
        .header("csrc/wrapper.h")
        .clang_args(flags)
        .clang_arg("-Icsrc")
        .rust_target(target)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .wrap_unsafe_ops(true)
        .use_core()
        .allowlist_function("(rte|dpdk_sys)_.*")
        .allowlist_type("(rte|eth|dpdk_sys)_.*")
        .allowlist_var("(RTE|DPDK_SYS)_.*|rte_eth_fp_ops")
        // Thread-locals: bindgen would declare them as plain statics, which link and then crash.
        .blocklist_item("per_lcore_.*")
        // Vector types are not safe to pass by value, and nothing here needs them.
        .blocklist_item("rte_.mm.*|rte_xmm.*|__m[0-9]+.*|xmm_t|ymm_t|zmm_t|.*x4")
        // Since 23.11 packed structures around an aligned MAC address, which Rust does not allow.
        .opaque_type("rte_arp_(ipv4|hdr)")
        // Functions that take a va_list.
        .blocklist_function("rte_vlog|.*_vlog")
        // Offload and RSS flags are RTE_BIT64() expressions: clang evaluates them.
        .clang_macro_fallback()
        .clang_macro_fallback_build_dir(out)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_debug(false)
        .layout_tests(false)
        .generate_comments(false)
}

fn hash_headers(folder: &Path, hasher: &mut DefaultHasher) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            hash_headers(&path, hasher);
        } else if path.extension().is_some_and(|extension| extension == "h") {
            path.hash(hasher);
            fs::read(&path).unwrap_or_default().hash(hasher);
        }
    }
}

/// Writes `features.rs` and the `DEP_DPDK_*` variables that dependants' build scripts see. Returns the features that are
/// there.
fn probe(out: &Path, bindings: &str, version: &str) -> Vec<&'static str> {
    let mut text = String::new();
    let mut there = Vec::new();
    for (cfg, name, meaning) in FEATURES {
        let present = [": ", "("].iter().any(|end| bindings.contains(&format!(" {name}{end}")));
        println!("cargo::metadata={cfg}={present}");
        there.extend(present.then_some(*cfg));
        text += &format!("#[doc = {meaning:?}]\npub const {}: bool = {present};\n", cfg.to_uppercase());
    }
    let bth = if text.contains("HAS_ITEM_IB_BTH: bool = true") {
        "Some(RTE_FLOW_ITEM_TYPE_IB_BTH)"
    } else {
        "None"
    };
    text += &format!(
        "/// The number of the item that matches the InfiniBand base transport header, where there is one.\n\
         pub const ITEM_IB_BTH: Option<rte_flow_item_type> = {bth};\n"
    );
    text += &format!(
        "/// The version of libdpdk that the bindings were generated from.\npub const DPDK_VERSION: &str = {version:?};\n"
    );
    if let Err(error) = fs::write(out.join("features.rs"), text) {
        fail(&format!("cannot write features.rs: {error}"));
    }
    println!("cargo::metadata=version={version}");
    there
}
