//! Packages: the output of `packaging/release`, and the installation by `packaging/install.sh`,
//! with the tested program.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::daemon::{Home, svc};

#[path = "../../examples/package_files.rs"]
#[expect(dead_code, reason = "its main is for packaging/release")]
mod package_files;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let ran = command.output().expect("it can be run");
    assert!(ran.status.success(), "{command:?}: {ran:?}");
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

/// The packages of a release. A script stands for the program: packing a hundred megabytes takes a
/// minute.
#[track_caller]
fn packages(home: &Home) -> PathBuf {
    let (program, out) = (home.user().join("svc-program"), home.user().join("packages"));
    fs::write(&program, format!("#!/bin/sh\nexec '{BUILT}' \"$@\"\n")).expect("writes");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("ours");
    let files = home.user().join("files");
    package_files::write_package_files(&files).expect("pages and scripts");
    release(&program, &files, &out);
    out
}

const BUILT: &str = env!("CARGO_BIN_EXE_svc");

#[track_caller]
fn release(program: &Path, files: &Path, out: &Path) {
    let mut command = Command::new(root().join("packaging/release"));
    command.arg("--bin").arg(program).arg("--files").arg(files).arg("--out").arg(out);
    command.args(["--deb", "dpkg-deb"]);
    run(&mut command);
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();
    names.sort();
    names
}

fn install(from: &Path, to: &Path) -> Output {
    let mut command = Command::new("sh");
    command.arg(root().join("packaging/install.sh")).arg("--from").arg(from).arg("--to").arg(to);
    command.output().expect("a shell")
}

fn archive(out: &Path) -> PathBuf {
    let names = names(out);
    let name = names.iter().find(|name| name.ends_with(".tar.gz")).expect("an archive");
    out.join(name)
}

#[test]
fn release_is_installed_only_with_a_matching_checksum() {
    let home = Home::new();
    let (out, to) = (packages(&home), home.user().join("it's here"));
    let before = fs::read(archive(&out)).expect("an archive");
    assert_eq!(packages(&home), out);
    assert!(fs::read(archive(&out)).expect("an archive") == before, "the same bytes again");
    run(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&out));

    let ran = install(&out, &to);
    assert!(ran.status.success(), "{ran:?}");
    let printed = run(Command::new(to.join("bin/svc")).arg("--version"));
    assert_eq!(printed.trim(), svc(&home, &["--version"]).ok().trim());
    let mode = fs::metadata(to.join("bin/svc")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    for file in [
        "share/bash-completion/completions/svc",
        "share/zsh/site-functions/_svc",
        "share/fish/vendor_completions.d/svc.fish",
    ] {
        let text = fs::read_to_string(to.join(file)).expect("a script");
        assert!(text.contains("svc") && text.contains("peer"), "{file}");
    }
    // Every command has a manual page, and the program's page names them.
    let pages = names(&to.join("share/man/man1"));
    for page in ["svc.1", "svc-peer-list.1", "svc-install-status.1", "svc-task-run.1"] {
        assert!(pages.iter().any(|name| name == page), "{page}: {pages:?}");
    }
    let page = fs::read_to_string(to.join("share/man/man1/svc-peer-list.1")).expect("a page");
    assert!(page.contains(".TH svc-peer-list 1") && page.contains("SYNOPSIS"), "{page}");

    // A file that was changed in transit is not installed.
    for (file, change) in [("archive", true), ("SHA256SUMS", false)] {
        let broken = home.user().join(file);
        fs::create_dir_all(&broken).expect("a folder");
        for name in names(&out) {
            fs::copy(out.join(&name), broken.join(&name)).expect("copies");
        }
        if change {
            let path = archive(&broken);
            let mut bytes = fs::read(&path).expect("an archive");
            *bytes.last_mut().expect("a byte") ^= 1;
            fs::write(path, bytes).expect("writes");
        } else {
            let sums = fs::read_to_string(broken.join(file)).expect("sums");
            // Changes the first digit of each checksum.
            let other = |line: &str| {
                format!("{}{}\n", if line.starts_with('0') { '1' } else { '0' }, &line[1..])
            };
            let sums: String = sums.lines().map(other).collect();
            fs::write(broken.join(file), sums).expect("writes");
        }
        let elsewhere = home.user().join(format!("not {file}"));
        let ran = install(&broken, &elsewhere);
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(said.contains("nothing was installed"), "{said}");
        assert!(!elsewhere.exists(), "{file}");
    }
    let ran = install(&home.user().join("nowhere"), &to);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
}

/// `cargo binstall` looks for the archive by a template in `Cargo.toml`, and for the program in it.
#[test]
fn cargo_binstall_finds_the_archive_and_the_program_in_it() {
    let home = Home::new();
    let out = packages(&home);
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    let manifest: toml::Value = toml::from_str(&manifest).expect("TOML");
    let binstall = &manifest["package"]["metadata"]["binstall"];
    let version = manifest["workspace"]["package"]["version"].as_str().expect("a version");
    let host = run(Command::new("rustc").arg("-vV"));
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host");
    let filled = |key: &str| {
        let template = binstall[key].as_str().expect("a template");
        [
            ("name", "svc"),
            ("version", version),
            ("target", host),
            ("bin", "svc"),
            ("binary-ext", ""),
        ]
        .into_iter()
        .fold(template.to_owned(), |text, (name, value)| {
            text.replace(&format!("{{ {name} }}"), value)
        })
    };
    let url = filled("pkg-url");
    let (folder, name) = url.rsplit_once('/').expect("a name");
    assert_eq!(folder, format!("{{ repo }}/releases/download/v{version}"));
    let held = run(Command::new("tar").arg("-tzf").arg(out.join(name)));
    assert!(held.lines().any(|line| line == filled("bin-dir")), "{held}");
    assert_eq!(binstall["pkg-fmt"].as_str(), Some("tgz"));
}

#[test]
fn debian_package_has_program_manual_pages_and_completions() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        println!("skipped: no Debian package was made (dpkg-deb is not installed)");
        return;
    }
    let home = Home::new();
    let out = packages(&home);
    let package = names(&out)
        .into_iter()
        .find(|name| Path::new(name).extension().is_some_and(|extension| extension == "deb"));
    let package = out.join(package.expect("a package"));
    let held = run(Command::new("dpkg-deb").arg("--contents").arg(&package));
    for file in [
        "./usr/bin/svc",
        "./usr/share/man/man1/svc.1.gz",
        "./usr/share/man/man1/svc-peer-list.1.gz",
        "./usr/share/bash-completion/completions/svc",
        "./usr/share/zsh/vendor-completions/_svc",
        "./usr/share/fish/vendor_completions.d/svc.fish",
        "./usr/share/doc/svc/copyright",
    ] {
        let line = held.lines().find(|line| line.ends_with(file));
        let line = line.unwrap_or_else(|| panic!("{file}: {held}"));
        assert!(line.contains("root/root"), "{line}");
        assert!(line.starts_with(if file == "./usr/bin/svc" {
            "-rwxr-xr-x"
        } else {
            "-rw-r--r--"
        }));
    }
    let control = run(Command::new("dpkg-deb").arg("--field").arg(&package));
    for field in ["Package: svc", "Architecture: ", "Maintainer: ", "Description: Team daemon"] {
        assert!(control.contains(field), "{control}");
    }
    // This package has the files of the one by `cargo deb`.
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    let manifest: toml::Value = toml::from_str(&manifest).expect("TOML");
    let assets = manifest["package"]["metadata"]["deb"]["assets"].as_array().expect("a list");
    for asset in assets {
        let place = asset[1].as_str().expect("a place");
        assert!(held.contains(place), "{place}: {held}");
    }
}
