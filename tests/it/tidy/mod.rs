//! Rules that no compiler checks: the order of crates, no cycles between files, access to a service
//! only through its `mod.rs`, and the places of SQL.

mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use imports::{Arrow, Crate, circles, collect};
use syn::visit::Visit;

/// The crates of the program in the order of their dependencies: each may use those before it, but
/// for what its line excludes.
const CRATES: [(&str, &[&str]); 10] = [
    ("svc-model", &[]),
    ("svc-sys", &[]),
    ("svc-wire", &[]),
    ("svc-client", &[]),
    ("svc-reach", &[]),
    ("svc-store", &[]),
    ("svc-core", &[]),
    ("svc-sources", &[]),
    ("svc-server", &[]),
    // A small program that outlives the daemon: it knows neither rows nor services.
    ("svc-host", &["svc-store", "svc-core", "svc-sources", "svc-server"]),
];

/// Folders of one crate from the lowest up: a folder may use those before its own group, and none
/// within it.
const LAYERS: [(&str, &[&[&str]]); 3] = [
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

/// Source folders of all packages.
fn packages() -> Vec<PathBuf> {
    let mut all = vec![root().join("src")];
    for entry in std::fs::read_dir(root().join("crates")).expect("crates/") {
        all.push(entry.expect("an entry").path().join("src"));
    }
    all
}

/// Source folders of the program and its crates.
fn program() -> Vec<PathBuf> {
    let crates = CRATES.iter().map(|(name, _)| src_of(name));
    std::iter::once(root().join("src")).chain(crates).collect()
}

/// All files in some source folders, by their names from the root.
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

/// Cargo refuses cycles of crates, but does not check the order.
#[test]
fn crates_depend_only_on_crates_before_them() {
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
fn folders_use_only_folders_below_them() {
    let folder_of = |file: &str| file.split(['/', '.']).next().unwrap_or_default().to_owned();
    let mut strays = Vec::new();
    for (package, groups) in LAYERS {
        let layer_of = |folder: &str| groups.iter().position(|group| group.contains(&folder));
        let arrows = Crate::read(&src_of(package)).arrows();
        assert!(arrows.len() > 50, "imports of {package} are seen: {}", arrows.len());
        for arrow in &arrows {
            let (from, to) = (folder_of(&arrow.from), folder_of(&arrow.to));
            if from != to && layer_of(&to) >= layer_of(&from) {
                strays.push(describe(package, arrow));
            }
        }
    }
    assert!(strays.is_empty(), "these point up:\n{}", strays.join("\n"));
}

/// It starts the daemon and asks it over the wire like any client.
#[test]
fn command_line_uses_no_adapter_and_no_service() {
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
fn files_have_no_import_cycle() {
    for src in packages() {
        let found = circles(&Crate::read(&src).arrows());
        let told: Vec<String> = found.iter().map(|circle| circle.join(", ")).collect();
        assert!(told.is_empty(), "circles in {}:\n{}", src.display(), told.join("\n"));
    }
}

/// In every folder of the program, two files of which one uses the other get the reverse use, in
/// each form of the language.
#[test]
fn planted_import_cycle_is_found_in_any_folder() {
    let mut folders = 0;
    for src in program() {
        folders += plant_circles(&Crate::read(&src));
    }
    assert!(folders > 15, "{folders}");
}

/// The number of folders of this crate in which a cycle was planted.
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
fn reexport_counts_as_the_defining_file() {
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

/// Folders of `service` use each other through their `mod.rs`, and not the files behind it.
#[test]
fn services_use_each_other_through_mod_rs() {
    let mut strays = Vec::new();
    for arrow in Crate::read(&src_of("svc-core")).arrows() {
        let inner = |file: &str| {
            let mut parts = file.strip_prefix("service/")?.split('/');
            let folder = parts.next()?.to_owned();
            parts.next().map(|_| folder)
        };
        if let (Some(from), Some(to)) = (inner(&arrow.from), inner(&arrow.to))
            && from != to
            && arrow.through != ["service".to_owned(), to.clone()]
        {
            strays.push(describe("svc-core", &arrow));
        }
    }
    assert!(
        strays.is_empty(),
        "these name a file behind the mod.rs of another service:\n{}",
        strays.join("\n")
    );
}

/// Every line of code with its position, without comments.
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
fn sql_is_only_in_families_and_engines() {
    let mut strays = Vec::new();
    for (file, n, line) in code() {
        // The load generator measures bare SQLite. `columns` implements the drivers' traits for
        // values, which only their own crate may.
        let own = [
            "crates/svc-store/src/columns.rs",
            "crates/svc-store/src/families/",
            "crates/svc-store/src/postgres/",
            "crates/svc-store/src/readers.rs",
            "crates/svc-store/src/sqlite/",
            "crates/svc-store/src/statement.rs",
            "crates/svc-store/src/store.rs",
            "crates/svc-store/src/tests/testing.rs",
            "crates/svc-store/src/tx.rs",
            "crates/svc-bench/",
            "crates/svc-model/src/columns.rs",
        ];
        let own = own.iter().any(|own| file.starts_with(own));
        if !own && (line.contains("sqlx::") || line.contains("rusqlite::")) {
            strays.push(format!("{file}:{n}: {}", line.trim()));
        }
    }
    assert!(
        strays.is_empty(),
        "SQL outside families and engines of svc-store:\n{}",
        strays.join("\n")
    );
}

/// Where queries are not checked by sqlx, and why.
const UNCHECKED: [(&str, &str); 11] = [
    (
        "crates/svc-store/src/sqlite/direct_connection.rs",
        "its tests prepare each statement against the migrated schema",
    ),
    (
        "crates/svc-store/src/statement.rs",
        "each macro gives the same text to sqlx, which checks it",
    ),
    ("crates/svc-model/src/columns.rs", "values alone, each as sqlx has it"),
    ("crates/svc-store/src/columns.rs", "values and rows alone"),
    ("crates/svc-store/src/readers.rs", "texts of the macros in statement.rs"),
    ("crates/svc-store/src/postgres/row.rs", "values and rows alone"),
    ("crates/svc-store/src/postgres/copy.rs", "rows of tables whose names the schema has"),
    ("crates/svc-store/src/postgres/copy_rows.rs", "rows of tables whose names the schema has"),
    ("crates/svc-store/src/postgres/tests/copy.rs", "a test alone"),
    (
        "crates/svc-store/src/families/frames.rs",
        "its tests prepare each statement against the migrated schema",
    ),
    ("crates/svc-store/src/sqlite/tests.rs", "a test alone, which prepares each"),
];

#[test]
fn unchecked_queries_are_only_in_listed_files() {
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

/// Files that print without `src/cli/output/write.rs`, or print exact bytes through it, and their
/// readers.
const EXACT: [(&str, &str); 15] = [
    ("src/cli/output/write.rs", "the module itself"),
    ("src/cli/output/screen.rs", "asks for the width and prints nothing"),
    ("src/cli/output/table.rs", "cells are made harmless one by one, colours are ours"),
    ("src/cli/events.rs", "sentences of the feed, made harmless there"),
    ("src/cli/daemon/logs.rs", "lines of the log, made harmless there"),
    ("src/cli/top/live.rs", "a page whose texts team.rs makes harmless"),
    ("src/cli/serve.rs", "the readiness line, of the daemon's own words"),
    ("src/cli/hook/mod.rs", "a client"),
    ("src/cli/hook/hold.rs", "a client"),
    ("src/cli/hook/wait.rs", "a client"),
    ("src/cli/task_run.rs", "the bytes of the person's own command"),
    ("src/cli/commands.rs", "a shell"),
    ("src/cli/stdio/bridge.rs", "a client"),
    ("crates/svc-host/src/host/entry.rs", "the daemon that starts a host"),
    ("crates/svc-sources/src/core/fetch.rs", "the daemon that has a page converted"),
];

#[test]
fn printing_goes_through_the_output_module() {
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

/// Collects fields that a result may omit and that its schema requires all the same.
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
fn optional_result_fields_are_not_required_by_the_schema() {
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
fn lint_exceptions_use_expect_and_not_allow() {
    let (allow, inner) = (["#", "[allow("].concat(), ["#!", "[allow("].concat());
    let mut strays = Vec::new();
    for (file, n, line) in code() {
        if line.contains(&allow) || line.contains(&inner) {
            strays.push(format!("{file}:{n}: {}", line.trim()));
        }
    }
    assert!(strays.is_empty(), "use `expect` with a reason:\n{}", strays.join("\n"));
}

/// The alternate form of an error repeats a cause that the error quotes, as those of databases do.
#[test]
fn command_line_says_a_cause_once() {
    let strays: Vec<String> = code()
        .into_iter()
        .filter(|(file, _, line)| file.starts_with("src/") && line.contains(":#}"))
        .map(|(file, line, text)| format!("{file}:{line}: {}", text.trim()))
        .collect();
    assert!(strays.is_empty(), "use `telemetry::chain`:\n{}", strays.join("\n"));
}

/// The code of a future is generated in each crate that awaits it, with all that it awaits itself,
/// unless it is boxed: decision 025. The attribute takes no type parameters and no lifetimes
/// without a name. A replay of millions of frames allocates nothing for each read, and the memory of
/// a subscriber is that of the future in which it waits.
#[test]
fn futures_of_services_and_of_statements_are_boxed() {
    let (mut boxed, mut strays) = (0, Vec::new());
    for (file, text) in files(&[src_of("svc-core"), src_of("svc-store")]) {
        let is_of_rooms = file.contains("/service/") || file.contains("/families/");
        if !is_of_rooms || file.ends_with("testing.rs") || file.ends_with("frames.rs") {
            continue;
        }
        for (at, _) in text.match_indices("pub async fn ") {
            let (before, rest) = text.split_at(at);
            let signature = rest.split('{').next().unwrap_or_default();
            let name = signature["pub async fn ".len()..].split('(').next().unwrap_or_default();
            let is_left_out = ["impl ", "'_>"].iter().any(|part| signature.contains(part))
                || file.contains("/service/log/") && signature.contains("&mut self");
            // Only a method is indented.
            let within = before.ends_with("\n    ").then(|| before.rfind("\nimpl")).flatten();
            let block = within.map_or("", |start| &before[..start]);
            if before.trim_end().ends_with("#[boxed]") || block.ends_with("#[boxed_methods]") {
                boxed += 1;
            } else if !name.contains('<') && !is_left_out {
                strays.push(format!("{file}: {name}"));
            }
        }
    }
    assert!(boxed > 400, "boxed functions are found: {boxed}");
    assert!(strays.is_empty(), "say `#[boxed]`:\n{}", strays.join("\n"));
}

/// A search for a type's name must find one type.
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
                // A crate may name the error of its own results.
                syn::Item::Type(item) if item.ident != "Result" => item.ident,
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
