//! Compresses the files of the page.

use std::{
    env,
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};

fn main() -> io::Result<()> {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("src/http/page/assets");
    // The whole path: a clone that used this target folder before may be gone.
    println!("cargo:rerun-if-changed={}", root.display());
    let out = PathBuf::from(variable("OUT_DIR")?);
    let mut table = String::from("[\n");
    for (number, file) in files(&root)?.into_iter().enumerate() {
        let compressed = out.join(format!("page-{number}.gz"));
        let mut encoder = GzEncoder::new(fs::File::create(&compressed)?, Compression::best());
        encoder.write_all(&fs::read(&file)?)?;
        encoder.finish()?;
        let name = file.strip_prefix(&root).map_err(io::Error::other)?;
        writeln!(
            table,
            "Asset {{ name: {:?}, plain: include_bytes!({:?}), gzip: include_bytes!({:?}) }},",
            name.to_string_lossy().replace('\\', "/"),
            file.to_string_lossy(),
            compressed.to_string_lossy()
        )
        .map_err(io::Error::other)?;
    }
    table.push(']');
    fs::write(out.join("page_assets.rs"), table)
}

fn variable(name: &str) -> io::Result<String> {
    env::var(name).map_err(io::Error::other)
}

/// All files below a folder, by name.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
