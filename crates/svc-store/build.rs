//! Rebuilds when a migration is added: on stable Rust the migrator's macro notices only edits.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
