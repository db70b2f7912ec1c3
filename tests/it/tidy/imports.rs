//! Which file of a crate takes names from which other, from the syntax trees and not from the text:
//! a name may be reached by `crate::`, `super::`, `self::`, a group, an alias, a re-export, or a
//! path in a macro's arguments.
//!
//! A name counts as taken from the file that defines it, whatever `mod.rs` it is reached through. A
//! public `use` is a re-export and no arrow of its own. Code that only tests compile is left out.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// The files of one crate, parsed. Names are relative to its `src`.
#[derive(Debug, Default, Clone)]
pub(crate) struct Crate {
    /// By module path; the root is the empty path.
    modules: HashMap<Vec<String>, Module>,
}

#[derive(Debug, Default, Clone)]
struct Module {
    file: String,
    /// Modules below it, `true` if they are in the same file.
    children: HashMap<String, bool>,
    items: HashSet<String>,
    imports: Vec<Import>,
    references: Vec<Reference>,
}

#[derive(Debug, Clone)]
struct Import {
    path: Vec<String>,
    /// Its name in this module; `*` for all names of a module.
    name: String,
}

#[derive(Debug, Clone)]
struct Reference {
    path: Vec<String>,
    line: usize,
    /// In a `use`: an imported module is no arrow; names that are used of it are.
    is_import: bool,
}

/// A name that one file takes from another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrow {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) line: usize,
    pub(crate) path: String,
    /// The modules of the target's own folder that the path goes through below the folder's
    /// `mod.rs`.
    pub(crate) through: Vec<String>,
}

impl Crate {
    /// Parses all files below `src`.
    pub(crate) fn read(src: &Path) -> Self {
        let mut files = BTreeMap::new();
        collect(src, src, &mut files);
        Self::parse(&files)
    }

    /// Parses texts by their file names.
    pub(crate) fn parse(files: &BTreeMap<String, String>) -> Self {
        let mut this = Self::default();
        let root = if files.contains_key("lib.rs") { "lib.rs" } else { "main.rs" };
        this.load(files, root, Vec::new());
        this
    }

    fn load(&mut self, files: &BTreeMap<String, String>, file: &str, path: Vec<String>) {
        let text = &files[file];
        let tree = syn::parse_file(text).unwrap_or_else(|error| panic!("{file}: {error}"));
        self.add(files, file, path, tree.items);
    }

    fn add(
        &mut self,
        files: &BTreeMap<String, String>,
        file: &str,
        path: Vec<String>,
        items: Vec<syn::Item>,
    ) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        for item in items {
            if is_for_tests(&item) {
                continue;
            }
            match item {
                syn::Item::Mod(inner) => {
                    let name = inner.ident.to_string();
                    let mut below = path.clone();
                    below.push(name.clone());
                    module.children.insert(name, inner.content.is_some());
                    if let Some((_, items)) = inner.content {
                        self.add(files, file, below, items);
                    } else {
                        let stem = below.join("/");
                        let flat = format!("{stem}.rs");
                        let name =
                            if files.contains_key(&flat) { flat } else { format!("{stem}/mod.rs") };
                        assert!(files.contains_key(&name), "{file} declares {stem}: no such file");
                        self.load(files, &name, below);
                    }
                }
                syn::Item::Use(import) => {
                    let is_public = !matches!(import.vis, syn::Visibility::Inherited);
                    let line = import.use_token.span.start().line;
                    let mut leaves = Vec::new();
                    flatten(&import.tree, &mut Vec::new(), &mut leaves);
                    for leaf in leaves {
                        if !is_public {
                            let path = leaf.path.clone();
                            module.references.push(Reference { path, line, is_import: true });
                        }
                        module.imports.push(leaf);
                    }
                }
                item => {
                    if let Some(name) = name_of(&item) {
                        module.items.insert(name);
                    }
                    let mut paths = Paths(&mut module.references);
                    paths.visit_item(&item);
                }
            }
        }
        self.modules.insert(path, module);
    }

    /// Adds code to the end of a file.
    pub(crate) fn plant(&mut self, file: &str, code: &str) {
        // A file may have inline modules below its own.
        let of_file = self.modules.iter().filter(|(_, module)| module.file == file);
        let path = of_file.map(|(path, _)| path).min_by_key(|path| path.len()).cloned();
        let path = path.expect("a file of this crate");
        let before = self.modules.remove(&path).expect("it was there a moment ago");
        let items = syn::parse_file(code).expect("planted code").items;
        self.add(&BTreeMap::new(), file, path.clone(), items);
        let module = self.modules.get_mut(&path).expect("it was added");
        module.children.extend(before.children);
        module.items.extend(before.items);
        module.imports.extend(before.imports);
        module.references.extend(before.references);
    }

    /// Every arrow between two files, once for each pair of files and name.
    pub(crate) fn arrows(&self) -> BTreeSet<Arrow> {
        self.arrows_from(|_| true)
    }

    /// The arrows that begin in some of the files.
    pub(crate) fn arrows_from(&self, is_wanted: impl Fn(&str) -> bool) -> BTreeSet<Arrow> {
        let mut arrows = BTreeSet::new();
        for (at, module) in self.modules.iter().filter(|(_, module)| is_wanted(&module.file)) {
            for reference in &module.references {
                let mut seen = HashSet::new();
                let Some(target) = self.resolve(at, &reference.path, &mut seen) else { continue };
                if target.file == module.file || (reference.is_import && target.is_module) {
                    continue;
                }
                arrows.insert(Arrow {
                    from: module.file.clone(),
                    to: target.file,
                    line: reference.line,
                    path: reference.path.join("::"),
                    through: target.reached_at,
                });
            }
        }
        arrows
    }

    fn resolve(
        &self,
        at: &[String],
        path: &[String],
        seen: &mut HashSet<(Vec<String>, Vec<String>)>,
    ) -> Option<Target> {
        if !seen.insert((at.to_vec(), path.to_vec())) {
            return None;
        }
        let mut rest = path;
        let mut here = at.to_vec();
        let first = rest.first()?;
        match first.as_str() {
            "crate" => {
                here.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|it| it == "super") {
                    here.pop()?;
                    rest = &rest[1..];
                }
            }
            name => {
                let module = self.modules.get(&here)?;
                if !module.children.contains_key(name)
                    && !module.items.contains(name)
                    && !module.imports.iter().any(|import| import.name == *name)
                {
                    return None;
                }
            }
        }
        while let Some(name) = rest.first() {
            let module = self.modules.get(&here)?;
            let is_last = rest.len() == 1;
            let import = module.imports.iter().find(|import| import.name == *name);
            if module.children.contains_key(name) && !(is_last && import.is_some()) {
                here.push(name.clone());
                rest = &rest[1..];
                continue;
            }
            if name == "self" && is_last {
                break;
            }
            if module.items.contains(name) {
                return Some(self.target(&here, false));
            }
            if let Some(import) = import {
                if import.path.first() == Some(name) && !module.children.contains_key(name) {
                    // `use memchr::memchr`: of another crate.
                    return None;
                }
                let mut path = import.path.clone();
                path.extend(rest[1..].iter().cloned());
                let target = self.resolve(&here, &path, seen)?;
                // `TaskEnd::new` reaches the type at its re-export, and not in the file behind it.
                let is_item = |path| {
                    let target = self.resolve(&here, path, &mut HashSet::new());
                    target.is_some_and(|target| !target.is_module)
                };
                let is_reexport = is_last || (here != at && is_item(&import.path));
                let reached_at = if is_reexport { here } else { target.reached_at };
                return Some(Target { reached_at, ..target });
            }
            for glob in module.imports.iter().filter(|import| import.name == "*") {
                let mut path = glob.path.clone();
                path.extend(rest.iter().cloned());
                if let Some(target) = self.resolve(&here, &path, seen) {
                    return Some(Target { reached_at: here, ..target });
                }
            }
            // A name that a macro makes.
            return Some(self.target(&here, false));
        }
        Some(self.target(&here, true))
    }

    fn target(&self, at: &[String], is_module: bool) -> Target {
        Target { file: self.modules[at].file.clone(), is_module, reached_at: at.to_vec() }
    }
}

/// Groups of files each of which reaches all others of its group.
pub(crate) fn circles(arrows: &BTreeSet<Arrow>) -> Vec<Vec<String>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for arrow in arrows {
        next.entry(&arrow.from).or_default().insert(&arrow.to);
        next.entry(&arrow.to).or_default();
    }
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|file| (*file, reachable(file, &next))).collect();
    let mut circles = BTreeSet::new();
    for (file, reached) in &reach {
        if reached.contains(file) {
            let group = reached.iter().filter(|other| reach[**other].contains(file));
            circles.insert(group.map(|it| (*it).to_owned()).collect::<Vec<String>>());
        }
    }
    circles.into_iter().collect()
}

fn reachable<'a>(from: &str, next: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = next[from].iter().copied().collect();
    while let Some(file) = open.pop() {
        if reached.insert(file) {
            open.extend(&next[file]);
        }
    }
    reached
}

struct Target {
    file: String,
    is_module: bool,
    /// The module in which the path found the name, defined or re-exported.
    reached_at: Vec<String>,
}

/// All source files below a folder, by their names relative to `root`.
pub(crate) fn collect(root: &Path, folder: &Path, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("a folder entry").path();
        if path.is_dir() {
            collect(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).expect("below the root").display().to_string();
            files.insert(name, fs::read_to_string(&path).expect("a source file"));
        }
    }
}

fn flatten(tree: &syn::UseTree, before: &mut Vec<String>, leaves: &mut Vec<Import>) {
    let leaf = |before: &[String], name: &syn::Ident| {
        let mut path = before.to_vec();
        // `a::{self}` is `a`.
        if name != "self" || path.is_empty() {
            path.push(name.to_string());
        }
        path
    };
    match tree {
        syn::UseTree::Path(step) => {
            before.push(step.ident.to_string());
            flatten(&step.tree, before, leaves);
            before.pop();
        }
        syn::UseTree::Name(name) => {
            let path = leaf(before, &name.ident);
            let name = path.last().cloned().unwrap_or_default();
            leaves.push(Import { path, name });
        }
        syn::UseTree::Rename(name) => {
            let path = leaf(before, &name.ident);
            leaves.push(Import { path, name: name.rename.to_string() });
        }
        syn::UseTree::Glob(_) => {
            leaves.push(Import { path: before.clone(), name: "*".to_owned() });
        }
        syn::UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, before, leaves);
            }
        }
    }
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(it) => &it.attrs,
        syn::Item::Enum(it) => &it.attrs,
        syn::Item::Fn(it) => &it.attrs,
        syn::Item::Impl(it) => &it.attrs,
        syn::Item::Macro(it) => &it.attrs,
        syn::Item::Mod(it) => &it.attrs,
        syn::Item::Static(it) => &it.attrs,
        syn::Item::Struct(it) => &it.attrs,
        syn::Item::Trait(it) => &it.attrs,
        syn::Item::Type(it) => &it.attrs,
        syn::Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

/// Under `#[cfg(test)]`.
fn is_for_tests(item: &syn::Item) -> bool {
    attributes(item).iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

fn name_of(item: &syn::Item) -> Option<String> {
    Some(match item {
        syn::Item::Const(it) => it.ident.to_string(),
        syn::Item::Enum(it) => it.ident.to_string(),
        syn::Item::Fn(it) => it.sig.ident.to_string(),
        syn::Item::Macro(it) => it.ident.as_ref()?.to_string(),
        syn::Item::Static(it) => it.ident.to_string(),
        syn::Item::Struct(it) => it.ident.to_string(),
        syn::Item::Trait(it) => it.ident.to_string(),
        syn::Item::Type(it) => it.ident.to_string(),
        _ => return None,
    })
}

/// Collects the paths in an item's code.
struct Paths<'a>(&'a mut Vec<Reference>);

impl Paths<'_> {
    fn add(&mut self, path: Vec<String>, line: usize) {
        // A single name is defined or imported in the same module.
        if path.len() > 1 {
            self.0.push(Reference { path, line, is_import: false });
        }
    }

    fn tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut line, mut colons) = (Vec::new(), 0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.add(std::mem::take(&mut path), line);
                        line = name.span().start().line;
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                other => {
                    self.add(std::mem::take(&mut path), line);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.add(path, line);
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let line = path.segments.first().map_or(0, |first| first.ident.span().start().line);
        self.add(path.segments.iter().map(|segment| segment.ident.to_string()).collect(), line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.visit_path(&invocation.path);
        self.tokens(invocation.tokens.clone());
    }

    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        // In a function's body.
        let mut leaves = Vec::new();
        flatten(&import.tree, &mut Vec::new(), &mut leaves);
        let line = import.use_token.span.start().line;
        for leaf in leaves {
            self.add(leaf.path, line);
        }
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_item_mod(&mut self, inner: &'ast syn::ItemMod) {
        let is_for_tests = inner.attrs.iter().any(|attribute| {
            attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
        });
        if !is_for_tests {
            visit::visit_item_mod(self, inner);
        }
    }
}
