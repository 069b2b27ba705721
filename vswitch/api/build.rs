//! Rust of `vswitch/proto`, by protoc.

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new("../proto");
    println!("cargo::rerun-if-changed={}", root.display());
    let out = std::env::var_os("OUT_DIR").ok_or("no OUT_DIR")?;
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(root.join("vswitch/v1"))? {
        files.push(entry?.path());
    }
    files.sort();
    let mut names = tonic_prost_build::Config::new();
    names.enable_type_names();
    tonic_prost_build::configure()
        .file_descriptor_set_path(Path::new(&out).join("vswitch.bin"))
        .compile_well_known_types(false)
        .compile_with_config(names, &files, &[root.to_path_buf()])?;
    let mut names = tonic_prost_build::Config::new();
    names.enable_type_names();
    names.type_name_domain(["."], "type.googleapis.com");
    tonic_prost_build::configure().build_server(false).compile_well_known_types(false).compile_with_config(
        names,
        &[root.join("gobgp/gobgp.proto")],
        &[root.to_path_buf()],
    )?;
    Ok(())
}
