use std::fs;
use std::os::unix::fs::symlink;

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("exists").mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("is ours");
}

#[test]
fn replaced_file_is_private() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    fs::write(&path, "old").expect("writes");
    replace(&path, b"new").expect("replaces");
    assert_eq!((fs::read(&path).expect("reads"), mode(&path)), (b"new".to_vec(), 0o600));
    let exists = create_new(&path, b"x").expect_err("exists");
    assert_eq!(exists.kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read_dir(folder.path()).expect("lists").count(), 1);
}

/// Readers take over an unlocked spool.
#[test]
fn held_file_is_never_seen_unlocked() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |number: u32| folder.path().join(number.to_string());
    let mut held = Vec::new();
    std::thread::scope(|scope| {
        let finder = scope.spawn(|| {
            (0..200)
                .filter(|number| {
                    let file = loop {
                        if let Ok(file) = File::open(path(*number)) {
                            break file;
                        }
                        std::thread::yield_now();
                    };
                    file.try_lock_shared().is_ok()
                })
                .count()
        });
        held.extend((0..200).map(|number| create_new_held(&path(number), b"x").expect("is new")));
        assert_eq!(finder.join().expect("it finds them all"), 0);
    });
    create_new_held(&path(0), b"x").expect_err("exists");
}

#[test]
fn link_is_replaced_or_refused_and_its_target_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let (link, target) = (folder.path().join("link"), folder.path().join("target"));
    // The target must not be created through the link.
    symlink(&target, &link).expect("links");
    let exists = create_new(&link, b"x").expect_err("the name is taken");
    assert_eq!(exists.kind(), ErrorKind::AlreadyExists);
    append(&link).expect_err("is a link");
    assert!(!target.exists());
    fs::write(&target, "theirs").expect("writes");
    set_mode(&target, 0o600);
    for refused in [append(&link).map(drop), open(&link).map(drop), read_secret(&link).map(drop)] {
        let error = refused.expect_err("is a link").to_string();
        assert!(error.contains("symbolic link"), "{error}");
    }
    replace_fleeting(&link, b"ours").expect("replaces");
    assert!(!fs::symlink_metadata(&link).expect("exists").is_symlink());
    assert_eq!(fs::read(&target).expect("reads"), b"theirs");
}

#[test]
fn temporary_names_are_unpredictable() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    let names: Vec<_> = (0..2)
        .map(|_| {
            let file = temporary_beside(&path).expect("creates");
            assert_eq!(mode(file.path()), 0o600);
            file.path().to_path_buf()
        })
        .collect();
    assert_ne!(names[0], names[1]);
    assert!(names.iter().all(|name| name.parent() == Some(folder.path()) && !name.exists()));
}

#[test]
fn secret_that_others_can_read_or_write_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    assert_eq!(read_secret(&path).expect("is not there"), None);
    fs::write(&path, "secret").expect("writes");
    for (mode, fault) in [
        (0o600, None),
        (0o400, None),
        (0o640, Some("read by others (mode 640)")),
        (0o604, Some("read by others")),
        (0o620, Some("written by others")),
        (0o602, Some("written by others")),
    ] {
        set_mode(&path, mode);
        let read = read_secret(&path);
        let Some(fault) = fault else {
            assert_eq!(read.expect("is private"), Some("secret".to_owned()));
            continue;
        };
        let error = read.expect_err("is open").to_string();
        let remedy = format!("chmod 600 {}", path.display());
        assert!(error.contains(fault) && error.ends_with(&remedy), "{error}");
    }
    set_mode(&path, 0o600);
    read_secret(folder.path()).expect_err("is a folder");
    fs::hard_link(&path, folder.path().join("second")).expect("links");
    let error = read_secret(&path).expect_err("has a second name").to_string();
    assert!(error.contains("has 2 names (hard links): remove the others"), "{error}");
    fs::remove_file(folder.path().join("second")).expect("is there");
    read_secret(&path).expect("has one name again");
    fs::write(&path, "x".repeat(5000)).expect("writes");
    read_secret(&path).expect_err("is too large");
}

#[test]
fn pipe_or_device_is_refused_without_waiting() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RWXU).expect("is made");
    symlink("/dev/zero", at("zero")).expect("links");
    symlink("pipe", at("link")).expect("links");
    for name in ["pipe", "zero", "link", "."] {
        let refused = [
            read_settings(&at(name)).map(drop),
            read_secret(&at(name)).map(drop),
            open(&at(name)).map(drop),
            append(&at(name)).map(drop),
        ];
        for refused in refused {
            refused.expect_err(name);
        }
    }
    let error = read_settings(&at("pipe")).expect_err("is a pipe").to_string();
    assert_eq!(error, "is no regular file");
    fs::write(at("large"), vec![b'#'; (4 << 20) + 1]).expect("is written");
    set_mode(&at("large"), 0o600);
    let error = read_settings(&at("large")).expect_err("is too large").to_string();
    assert_eq!(error, "is larger than 4096 KiB");
}

#[test]
fn folder_that_others_can_write_or_replace_is_refused() {
    let outer = tempfile::tempdir().expect("a folder");
    let home = outer.path().join("home");
    check_folder(&home).expect("is not there");
    prepare_home(&home).expect("creates");
    assert_eq!(mode(&home), 0o700);
    let link = outer.path().join("link");
    symlink(&home, &link).expect("links");
    for (above, own, passes) in [
        (0o700, 0o700, true),
        (0o700, 0o755, true),
        (0o700, 0o775, false),
        (0o700, 0o757, false),
        (0o1777, 0o700, true),
        (0o777, 0o700, false),
    ] {
        set_mode(&home, own);
        set_mode(outer.path(), above);
        for path in [&home, &link] {
            let judged = prepare_home(path);
            assert_eq!(judged.is_ok(), passes, "{above:o} {own:o} {path:?} {judged:?}");
        }
    }
    set_mode(outer.path(), 0o700);
    fs::write(outer.path().join("file"), "").expect("writes");
    check_folder(&outer.path().join("file")).expect_err("is no folder");
}

#[test]
fn folder_of_another_user_is_refused() {
    let me = rustix::process::geteuid();
    let folder = tempfile::tempdir().expect("a folder");
    // A folder of root, or, for root, of `nobody`.
    let theirs = if me.is_root() {
        std::os::unix::fs::chown(folder.path(), Some(65534), None).expect("root may");
        folder.path()
    } else {
        Path::new("/usr")
    };
    let error = check_folder(theirs).expect_err("belongs to somebody else").to_string();
    let remedy = format!("`chown {} {}`", me.as_raw(), theirs.display());
    assert!(error.contains("belongs to user") && error.ends_with(&remedy), "{error}");
}

#[test]
fn public_file_replaces_a_link() {
    let folder = tempfile::tempdir().expect("a folder");
    let (link, target) = (folder.path().join("link"), folder.path().join("target"));
    fs::write(&target, "theirs").expect("writes");
    symlink(&target, &link).expect("links");
    replace_public(&link, b"ours").expect("replaces");
    assert_eq!((fs::read(&link).expect("reads"), mode(&link)), (b"ours".to_vec(), 0o644));
    assert_eq!(fs::read(&target).expect("reads"), b"theirs");
}

#[test]
fn appended_file_loses_write_permission_of_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    append(&path).expect("creates");
    assert_eq!(mode(&path), 0o600);
    set_mode(&path, 0o666);
    append(&path).expect("opens");
    assert_eq!(mode(&path), 0o644);
}

#[test]
fn links_to_what_is_ours_are_followed_and_no_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for name in ["real", "real/deep", "open"] {
        fs::create_dir(at(name)).expect("a folder");
        set_mode(&at(name), 0o700);
    }
    fs::write(at("real/deep/file"), "{}").expect("writes");
    set_mode(&at("real/deep/file"), 0o600);
    let real = fs::canonicalize(at("real/deep/file")).expect("exists");
    symlink("real/deep", at("folder")).expect("links");
    symlink("../real/../folder/file", at("open/link")).expect("links");
    for path in ["real/deep/file", "folder/file", "open/link"] {
        assert_eq!(resolve_own(&at(path)).expect(path), real);
        assert_eq!(read_own(&at(path), 2).expect(path), "{}");
    }
    assert!(read_own(&at("folder/file"), 1).is_err(), "it is longer");
    assert!(resolve_own(Path::new("real")).is_err() && resolve_own(&at("none")).is_err());
    // Others could turn the link, put a file in its place, or write it.
    for (path, mode) in [("open", 0o777), ("real/deep", 0o770), ("real/deep/file", 0o620)] {
        let before = self::mode(&at(path));
        set_mode(&at(path), mode);
        assert!(read_own(&at("open/link"), 2).is_err(), "{path} {mode:o}");
        set_mode(&at(path), before);
    }
    assert!(read_own(&at("open/link"), 2).is_ok());
    symlink("loop", at("loop")).expect("links");
    assert!(resolve_own(&at("loop")).is_err());
}
