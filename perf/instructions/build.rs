//! Tells the program by which compiler it was made, and for which instructions: counts hang on both.

use std::env;
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let output = Command::new(env::var("RUSTC")?).arg("--version").output()?;
    println!("cargo::rustc-env=RUSTC_VERSION={}", String::from_utf8(output.stdout)?.trim());
    println!("cargo::rustc-env=TARGET_FEATURES={}", env::var("CARGO_CFG_TARGET_FEATURE")?);
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
