//! The house rules that no compiler checks: which crate may ask for which, that files import each
//! other in no circle, that rooms of one crate meet at their doors, and where SQL may stand.

mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use imports::{Arrow, Crate, circles, collect};
use syn::visit::Visit;

/// The crates of the program, in the order in which they may name each other: each those before it,
/// but for what its line bars.
const CRATES: [(&str, &[&str]); 9] = [
    ("svc-model", &[]),
    ("svc-sys", &[]),
    ("svc-wire", &[]),
    ("svc-client", &[]),
    ("svc-store", &[]),
    ("svc-core", &[]),
    ("svc-sources", &[]),
    ("svc-server", &[]),
    // A small program that outlives the daemon: it knows neither rows nor services.
    ("svc-host", &["svc-store", "svc-core", "svc-sources", "svc-server"]),
];

/// Rooms of one crate from the lowest up: a room may name those before its own group, and nothing
/// beside it.
const ROOMS: [(&str, &[&[&str]]); 3] = [
    ("svc-core", &[&["service"], &["tools"]]),
    ("svc-server", &[&["web"], &["http", "mcp"], &["daemon"]]),
    ("svc-host", &[&["runner"], &["host"]]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

fn src_of(package: &str) -> PathBuf {
    root().join("crates").join(package).join("src")
}

/// Folders of sources of all packages.
fn packages() -> Vec<PathBuf> {
    let mut all = vec![root().join("src")];
    for entry in std::fs::read_dir(root().join("crates")).expect("crates/") {
        all.push(entry.expect("an entry").path().join("src"));
    }
    all
}

/// Folders of sources of the program and its crates.
fn program() -> Vec<PathBuf> {
    let crates = CRATES.iter().map(|(name, _)| src_of(name));
    std::iter::once(root().join("src")).chain(crates).collect()
}

/// All files in some folders of sources, by their names from the root.
fn files(folders: &[PathBuf]) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for folder in folders {
        collect(&root(), folder, &mut files);
    }
    files
}

fn describe(package: &str, arrow: &Arrow) -> String {
    format!(
        "{package}: {}:{} names {}, which is in {}",
        arrow.from, arrow.line, arrow.path, arrow.to
    )
}

/// Cargo sees to it that no two crates name each other, and not to the order.
#[test]
fn crates_ask_for_those_before_them_alone() {
    for (n, (name, barred)) in CRATES.iter().enumerate() {
        let file = root().join("crates").join(name).join("Cargo.toml");
        let manifest = std::fs::read_to_string(file).expect("a manifest");
        let after = CRATES[n..].iter().map(|(name, _)| name);
        for other in after.chain(*barred) {
            let asks = manifest.lines().any(|line| {
                line.strip_prefix(other).is_some_and(|rest| rest.starts_with([' ', '.', '=']))
            });
            assert!(!asks, "{name} asks for {other}");
        }
    }
}

#[test]
fn rooms_of_a_crate_name_those_below_them_alone() {
    let room = |file: &str| file.split(['/', '.']).next().unwrap_or_default().to_owned();
    let mut strays = Vec::new();
    for (package, groups) in ROOMS {
        let place = |room: &str| groups.iter().position(|group| group.contains(&room));
        let arrows = Crate::read(&src_of(package)).arrows();
        assert!(arrows.len() > 50, "imports of {package} are seen: {}", arrows.len());
        for arrow in &arrows {
            let (from, to) = (room(&arrow.from), room(&arrow.to));
            if from != to && place(&to) >= place(&from) {
                strays.push(describe(package, arrow));
            }
        }
    }
    assert!(strays.is_empty(), "these point up:\n{}", strays.join("\n"));
}

/// It starts the daemon and asks it over the wire like anybody else.
#[test]
fn the_command_line_names_no_adapter_and_no_service() {
    let named = |line: &str, name: &str| line.contains(&format!("{name}::"));
    let strays: Vec<_> = code()
        .into_iter()
        .filter(|(file, ..)| file.starts_with("src/cli/"))
        .filter(|(.., line)| {
            named(line, "svc_core")
                || (named(line, "svc_server") && !line.contains("svc_server::daemon"))
                || (named(line, "svc_sources") && !line.contains("convert"))
        })
        .map(|(file, n, line)| format!("{file}:{n}: {}", line.trim()))
        .collect();
    assert!(strays.is_empty(), "{}", strays.join("\n"));
}

#[test]
fn files_import_each_other_in_no_circle() {
    for src in packages() {
        let found = circles(&Crate::read(&src).arrows());
        let told: Vec<String> = found.iter().map(|circle| circle.join(", ")).collect();
        assert!(told.is_empty(), "circles in {}:\n{}", src.display(), told.join("\n"));
    }
}

/// In every folder of the program two files are taken that know each other one way, and the way
/// back is planted in each form that the language has.
#[test]
fn a_circle_planted_in_any_room_is_found() {
    let mut folders = 0;
    for src in program() {
        folders += plant_circles(&Crate::read(&src));
    }
    assert!(folders > 15, "{folders}");
}

/// How many folders of this crate a circle was planted in.
fn plant_circles(tree: &Crate) -> usize {
    let arrows = tree.arrows();
    let mut folders = BTreeSet::new();
    for arrow in &arrows {
        let folder = |file: &str| file.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
        let (home, is_same) = (folder(&arrow.from), folder(&arrow.from) == folder(&arrow.to));
        let is_module = |file: &str| ["mod.rs", "lib.rs"].iter().any(|end| file.ends_with(end));
        if !is_same || is_module(&arrow.to) || is_module(&arrow.from) || !folders.insert(home) {
            continue;
        }
        let stem = |file: &str| {
            let name = file.rsplit('/').next().unwrap_or_default();
            name.trim_end_matches(".rs").to_owned()
        };
        let (upper, path) =
            (stem(&arrow.from), arrow.from.trim_end_matches(".rs").replace('/', "::"));
        for planted in [
            format!("use crate::{path}::Planted;"),
            format!("use super::{upper}::{{self as planted, Planted}};"),
            format!("use super::{{{upper}}};\nfn planted() {{ {upper}::planted() }}"),
            format!("fn planted() {{ assert!(super::{upper}::planted()); }}"),
            format!("fn planted(_: &crate::{path}::Planted) {{}}"),
        ] {
            let mut planted_in = tree.clone();
            planted_in.plant(&arrow.from, "pub struct Planted;\npub fn planted() {}");
            planted_in.plant(&arrow.to, &planted);
            let mut arrows = arrows.clone();
            arrows.extend(planted_in.arrows_from(|file| *file == *arrow.to));
            let found = circles(&arrows);
            let is_found =
                found.iter().any(|it| it.contains(&arrow.from) && it.contains(&arrow.to));
            assert!(is_found, "{planted:?} in {} is not seen as a circle", arrow.to);
        }
    }
    folders.len()
}

#[test]
fn a_reexport_counts_as_the_file_that_defines_the_name() {
    let files = BTreeMap::from(
        [
            ("lib.rs", "mod room;\nmod other;"),
            ("room/mod.rs", "mod low;\nmod high;\npub use low::Low;\npub use high::*;"),
            ("room/low.rs", "use super::high_one;\npub struct Low;"),
            ("room/high.rs", "use crate::room::Low;\npub fn high_one() {}"),
            ("other.rs", "#[cfg(test)]\nmod tests { use crate::room::Low; }"),
        ]
        .map(|(name, text)| (name.to_owned(), text.to_owned())),
    );
    let tree = Crate::parse(&files);
    assert_eq!(circles(&tree.arrows()), [["room/high.rs", "room/low.rs"]]);
    assert!(tree.arrows().iter().all(|arrow| arrow.from != "other.rs"), "tests do not count");
}

/// Rooms of `service` know each other by what their `mod.rs` shows, and not by the files behind it.
#[test]
fn rooms_of_one_floor_meet_at_their_doors() {
    let mut strays = Vec::new();
    for arrow in Crate::read(&src_of("svc-core")).arrows() {
        let inner = |file: &str| {
            let mut parts = file.strip_prefix("service/")?.split('/');
            let room = parts.next()?.to_owned();
            parts.next().map(|_| room)
        };
        if let (Some(from), Some(to)) = (inner(&arrow.from), inner(&arrow.to))
            && from != to
            && arrow.through != ["service".to_owned(), to.clone()]
        {
            strays.push(describe("svc-core", &arrow));
        }
    }
    assert!(strays.is_empty(), "these go behind a door:\n{}", strays.join("\n"));
}

/// Every line of code with where it stands, without comments.
fn code() -> Vec<(String, usize, String)> {
    let mut lines = Vec::new();
    for (file, text) in files(&packages()) {
        for (n, line) in text.lines().enumerate() {
            if !line.trim_start().starts_with("//") {
                lines.push((file.clone(), n + 1, line.to_owned()));
            }
        }
    }
    assert!(!lines.is_empty(), "there is something to look at");
    lines
}

#[test]
fn sql_stands_in_the_engine_alone() {
    let mut strays = Vec::new();
    for (file, n, line) in code() {
        // The load generator measures bare SQLite beside us, which is what it is for. `columns`
        // gives values the traits of the drivers, which only their own crate may.
        let own = [
            "crates/svc-store/src/sqlite/",
            "crates/svc-bench/",
            "crates/svc-model/src/columns.rs",
        ];
        let own = own.iter().any(|own| file.starts_with(own));
        if !own && (line.contains("sqlx::") || line.contains("rusqlite::")) {
            strays.push(format!("{file}:{n}: {}", line.trim()));
        }
    }
    assert!(strays.is_empty(), "SQL outside svc-store/sqlite:\n{}", strays.join("\n"));
}

/// Where queries leave sqlx's check, and why that is well.
const UNCHECKED: [(&str, &str); 8] = [
    (
        "crates/svc-store/src/sqlite/direct_connection.rs",
        "its tests prepare each statement against the migrated schema",
    ),
    (
        "crates/svc-store/src/sqlite/statement.rs",
        "each macro gives the same text to sqlx, which checks it",
    ),
    ("crates/svc-model/src/columns.rs", "values alone, each as sqlx has it"),
    (
        "crates/svc-store/src/sqlite/frames.rs",
        "its tests prepare each statement against the migrated schema",
    ),
    ("crates/svc-store/src/sqlite/frame_readers.rs", "connections without a statement"),
    ("crates/svc-store/src/sqlite/row_readers.rs", "connections without a statement"),
    ("crates/svc-store/src/sqlite/reader_tests.rs", "a test alone, which prepares each"),
    ("crates/svc-store/src/sqlite/errors.rs", "only the error's type"),
];

#[test]
fn queries_leave_the_check_of_the_compiler_in_few_files() {
    let strays: Vec<_> = code()
        .into_iter()
        .filter(|(file, _, line)| {
            !file.starts_with("crates/svc-bench/") && line.contains("rusqlite::")
        })
        .filter(|(file, ..)| !UNCHECKED.iter().any(|(known, _)| file == known))
        .map(|(file, n, line)| format!("{file}:{n}: {}", line.trim()))
        .collect();
    assert!(strays.is_empty(), "queries that nobody checks:\n{}", strays.join("\n"));
}

/// Files that print past `src/cli/output/write.rs`, or print exact bytes through it, and who reads
/// those.
const EXACT: [(&str, &str); 15] = [
    ("src/cli/output/write.rs", "the door itself"),
    ("src/cli/output/screen.rs", "asks for the width and prints nothing"),
    ("src/cli/output/table.rs", "cells are made harmless one by one, colours are ours"),
    ("src/cli/events.rs", "sentences of the feed, made harmless there"),
    ("src/cli/daemon/logs.rs", "lines of the log, made harmless by log_line.rs"),
    ("src/cli/top/live.rs", "a page whose texts team.rs makes harmless"),
    ("src/cli/serve.rs", "the readiness line, of the daemon's own words"),
    ("src/cli/hook/run.rs", "a client"),
    ("src/cli/hook/wait.rs", "a client"),
    ("src/cli/task_run/printer.rs", "the bytes of the person's own command"),
    ("src/cli/completions.rs", "a shell"),
    ("src/cli/service_unit/mod.rs", "a service manager"),
    ("src/cli/stdio/lines.rs", "a client"),
    ("crates/svc-host/src/host/entry.rs", "the daemon that starts a host"),
    ("crates/svc-sources/src/markdown.rs", "the daemon that has a page converted"),
];

#[test]
fn what_is_printed_goes_through_the_door() {
    let marks = ["io::stdout()", "io::stderr()", "output::exact(", " styled(", "styled_line("];
    let outside: Vec<String> = code()
        .into_iter()
        .filter(|(_, _, line)| {
            marks.iter().any(|mark| line.contains(mark)) && !line.contains("is_terminal")
        })
        .filter(|(file, ..)| {
            let is_tool = ["svc-bench", "svc-install"];
            !is_tool.iter().any(|tool| file.starts_with(&format!("crates/{tool}/")))
                && !EXACT.iter().any(|(known, _)| file == known)
        })
        .map(|(file, line, text)| format!("{file}:{line}: {text}"))
        .collect();
    assert!(outside.is_empty(), "{}", outside.join("\n"));
}

/// Looks for fields that a result may leave out and that its schema requires all the same.
#[derive(Default)]
struct LeftOutFields {
    file: String,
    strays: Vec<String>,
    seen: usize,
}

impl<'ast> Visit<'ast> for LeftOutFields {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let lists = |attributes: &[syn::Attribute], name: &str| -> Vec<String> {
            let named = attributes.iter().filter(|attribute| attribute.path().is_ident(name));
            let lists = named.filter_map(|attribute| attribute.meta.require_list().ok());
            lists.map(|list| list.tokens.to_string()).collect()
        };
        if !lists(&item.attrs, "derive").iter().any(|derives| derives.contains("JsonSchema")) {
            return;
        }
        for field in &item.fields {
            for serde in lists(&field.attrs, "serde") {
                // An `Option` is never required.
                if !serde.contains("skip_serializing_if") || serde.contains("Option::is_none") {
                    continue;
                }
                self.seen += 1;
                if !serde.contains("default") {
                    let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
                    self.strays.push(format!("{}: {}.{name}", self.file, item.ident));
                }
            }
        }
    }
}

#[test]
fn what_a_result_may_leave_out_its_schema_does_not_require() {
    let mut fields = LeftOutFields::default();
    for (file, text) in files(&program()) {
        fields.file = file;
        fields.visit_file(&syn::parse_file(&text).expect("it compiles"));
    }
    assert!(fields.seen > 10, "fields are seen: {}", fields.seen);
    let strays = fields.strays.join("\n");
    assert!(strays.is_empty(), "clients refuse a result without these: say `default`:\n{strays}");
}

#[test]
fn exceptions_from_lints_are_expected_and_not_allowed() {
    let (allow, inner) = (["#", "[allow("].concat(), ["#!", "[allow("].concat());
    let mut strays = Vec::new();
    for (file, n, line) in code() {
        if line.contains(&allow) || line.contains(&inner) {
            strays.push(format!("{file}:{n}: {}", line.trim()));
        }
    }
    assert!(strays.is_empty(), "use `expect` with a reason:\n{}", strays.join("\n"));
}

/// A name has to say by itself which type it is: who searches for it finds one.
#[test]
fn no_two_types_share_a_name() {
    let mut files = files(&program());
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    // Tests have small types of their own.
    files.retain(|file, _| !file.contains("/tests/") && !file.ends_with("testing.rs"));
    for (file, text) in files {
        for item in syn::parse_file(&text).expect("it compiles").items {
            let name = match item {
                syn::Item::Struct(item) => item.ident,
                syn::Item::Enum(item) => item.ident,
                syn::Item::Trait(item) => item.ident,
                syn::Item::Type(item) => item.ident,
                _ => continue,
            };
            defined.entry(name.to_string()).or_default().push(file.clone());
        }
    }
    assert!(defined.len() > 500, "types are found: {}", defined.len());
    let twice = defined.iter().filter(|(_, files)| files.len() > 1);
    let strays: Vec<_> = twice.map(|(name, at)| format!("{name}: {}", at.join(", "))).collect();
    assert!(strays.is_empty(), "these names mean more than one type:\n{}", strays.join("\n"));
}
