//! Rust of `vswitch/proto`, by protoc.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new("../proto");
    println!("cargo::rerun-if-changed={}", root.display());
    let out = std::env::var_os("OUT_DIR").ok_or("no OUT_DIR")?;
    tonic_prost_build::configure()
        .file_descriptor_set_path(Path::new(&out).join("vswitch.bin"))
        .compile_well_known_types(false)
        .compile_protos(
            &[root.join("vswitch/v1/objects.proto"), root.join("vswitch/v1/switch.proto")],
            &[root.to_path_buf()],
        )?;
    Ok(())
}
