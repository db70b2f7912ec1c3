//! The servers of all files, and which entry of each name counts.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use svc_model::limits::SOURCE_FILE_BYTES;
use svc_model::source::{SecretDestination, SourceEntry, SourceProblem};

use super::super::FileConfig;
use super::{
    FlagSources, FoundSource, ImportFile, SourceChoices, SourceDocument, content_hash, folder_of,
};
use crate::bounded_file;
use crate::git_repository::project_root;

/// File in a project's folder that names servers for callers of that project.
const PROJECT_FILE: &str = ".mcp.json";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFiles {
    pub home: PathBuf,
    pub config_file: PathBuf,
    /// Documents of flags, in the order of the command line.
    pub flags: Vec<FlagSources>,
    /// Files of other clients whose servers are imported.
    pub imports: Vec<ImportFile>,
    /// Whether only servers from the flags count.
    pub strict: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedSource {
    pub name: String,
    /// Root of the project that the file belongs to.
    pub project: Option<String>,
    /// The folder of that file: the project's root or a folder below it.
    pub folder: Option<String>,
    pub from: String,
    /// The folder of the file, to which relative paths in the entry are relative.
    pub base: String,
    pub entry: Result<SourceEntry, SourceProblem>,
    pub warnings: Vec<String>,
    pub standing: SourceStanding,
    /// A hash that changes with the entry.
    pub fingerprint: String,
    pub written: Value,
    /// Whether the entry is from the person's own files, and not from a project or a plugin.
    pub is_own: bool,
    /// The id of the approval of the project's file.
    pub approval: Option<String>,
    /// The hash of the project's file as it was read.
    pub content: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SourceStanding {
    InForce,
    /// The entry counts, but a person has switched it off.
    Disabled,
    PendingApproval,
    Bad,
    /// The entry in the file of this name counts instead.
    Hidden(String),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourcePlan {
    /// Sorted by name; of one name the entry that counts is first.
    pub sources: Vec<PlannedSource>,
    /// Problems of documents that cannot be read.
    pub problems: Vec<String>,
}

struct Layer {
    from: String,
    base: String,
    project: Option<String>,
    folder: Option<String>,
    is_approved: bool,
    is_own: bool,
    approval: Option<String>,
    content: Option<String>,
    found: Vec<FoundSource>,
}

impl PlannedSource {
    fn as_found(&self) -> FoundSource {
        FoundSource {
            name: self.name.clone(),
            entry: self.entry.clone(),
            warnings: self.warnings.clone(),
            written: self.written.clone(),
        }
    }

    /// Where the entry's secrets go; `None` for an invalid entry.
    pub fn secret_destination(&self) -> Option<SecretDestination> {
        let file = (!self.is_own).then_some(self.from.as_str());
        self.entry.as_ref().ok().map(|entry| SecretDestination::from_entry(entry, file))
    }
}

impl SourcePlan {
    /// The entry that a person means by a name: one that is in force or switched off, else one that
    /// waits for approval.
    pub fn meant(&self, name: &str) -> Option<&PlannedSource> {
        let rank = |source: &PlannedSource| match source.standing {
            SourceStanding::InForce | SourceStanding::Disabled => Some(0),
            SourceStanding::PendingApproval => Some(1),
            SourceStanding::Bad | SourceStanding::Hidden(_) => None,
        };
        let named = self.sources.iter().filter(|source| source.name == name);
        let ranked = named.filter_map(|source| Some((rank(source)?, source)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, source)| source)
    }
}

impl SourceFiles {
    /// The plan for a folder. Without a folder, no project's file counts.
    pub fn plan(&self, folder: Option<&Path>) -> SourcePlan {
        self.plan_after(folder, &SourcePlan::default())
    }

    /// As [`Self::plan`], but servers of the person's own files in `before` stay while their file
    /// cannot be read. Servers of a project's file do not stay, as the file must be approved in its
    /// current form.
    pub fn plan_after(&self, folder: Option<&Path>, before: &SourcePlan) -> SourcePlan {
        let mut problems = Vec::new();
        let choices = SourceChoices::load(&self.home).unwrap_or_else(|error| {
            let path = SourceChoices::file(&self.home);
            problems.push(format!("{}: {error}", path.display()));
            SourceChoices::default()
        });
        // Layers are in order of precedence, the strongest first.
        let of_flag = |flag: &FlagSources| Layer {
            base: flag.base.clone(),
            ..Layer::own(flag.from.clone(), flag.document.0.clone())
        };
        let mut layers: Vec<Layer> = self.flags.iter().rev().map(of_flag).collect();
        if !self.strict {
            if let Some(folder) = folder {
                layers.extend(project_layers(folder, &choices, &mut problems));
            }
            layers.push(self.config_layer(before, &mut problems));
            layers.extend(self.plugin_layers(&mut problems));
            layers.extend(self.import_layers(before, &mut problems));
        }
        SourcePlan { sources: in_order(layers, &choices), problems }
    }

    fn config_layer(&self, before: &SourcePlan, problems: &mut Vec<String>) -> Layer {
        let from = self.config_file.display().to_string();
        match FileConfig::load(&self.config_file) {
            Ok(file) => Layer::own(from, SourceDocument::from_config(file.source_entries()).0),
            Err(error) => Layer::kept(from, before, error.to_string(), problems),
        }
    }

    /// The folder of plugins, and the file of each plugin.
    pub fn plugin_files(&self) -> (PathBuf, Vec<PathBuf>) {
        let folder = self.home.join("plugins");
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> =
            entries.map(|entry| entry.path().join("plugin.json")).collect();
        files.sort();
        (folder, files)
    }

    fn plugin_layers(&self, problems: &mut Vec<String>) -> Vec<Layer> {
        let (_, files) = self.plugin_files();
        let layers = files.iter().filter_map(|file| {
            let text = match bounded_file::read_text(file, SOURCE_FILE_BYTES) {
                Ok(text) => text?,
                Err(error) => {
                    problems.push(format!("{} cannot be read: {error}", file.display()));
                    return None;
                }
            };
            let names_none = serde_json::from_str::<Value>(&text)
                .is_ok_and(|plugin| plugin.get("mcpServers").is_none());
            if names_none {
                return None;
            }
            layer_of_file(file, None, |_| true, problems)
        });
        layers.collect()
    }

    /// The first client in the list is the weakest.
    fn import_layers(&self, before: &SourcePlan, problems: &mut Vec<String>) -> Vec<Layer> {
        let layers = self.imports.iter().rev().filter_map(|file| {
            let from = file.path().display().to_string();
            Some(match file.found()? {
                Ok(found) => Layer::own(from, found),
                Err(problem) => {
                    let problem = format!("{from} {problem}");
                    Layer::kept(from, before, problem, problems)
                }
            })
        });
        layers.collect()
    }
}

impl Layer {
    /// A layer of one of the person's own files.
    fn own(from: String, found: Vec<FoundSource>) -> Self {
        Self {
            base: folder_of(&from),
            from,
            project: None,
            folder: None,
            is_approved: true,
            is_own: true,
            approval: None,
            content: None,
            found,
        }
    }

    /// The earlier servers of a file that currently cannot be read.
    fn kept(
        from: String,
        before: &SourcePlan,
        mut problem: String,
        problems: &mut Vec<String>,
    ) -> Self {
        let named = before.sources.iter().filter(|source| source.is_own && source.from == from);
        let found: Vec<_> = named.map(PlannedSource::as_found).collect();
        if !found.is_empty() {
            problem.push_str("; until then its servers stay as they were");
        }
        problems.push(problem);
        Self::own(from, found)
    }
}

fn layer_of_file(
    path: &Path,
    project: Option<&str>,
    is_approved: impl FnOnce(&str) -> bool,
    problems: &mut Vec<String>,
) -> Option<Layer> {
    match SourceDocument::load(path)? {
        Ok((document, text)) => Some(Layer {
            project: project.map(str::to_owned),
            folder: project.and(path.parent()).map(|up| up.display().to_string()),
            is_approved: is_approved(&text),
            is_own: false,
            content: project.map(|_| content_hash(&text)),
            ..Layer::own(path.display().to_string(), document.0)
        }),
        Err(problem) => {
            problems.push(format!("{} {problem}", path.display()));
            None
        }
    }
}

impl FileConfig {
    pub fn server_problems(&self) -> Vec<String> {
        let found = SourceDocument::from_config(self.source_entries()).0;
        let problems = found.into_iter().filter_map(|found| {
            let problem = found.entry.err()?;
            let dot = if problem.path.is_empty() { "" } else { "." };
            Some(format!("key `sources.{}{dot}{}`: {}", found.name, problem.path, problem.reason))
        });
        problems.collect()
    }
}

/// The files of the project that a folder belongs to, the nearest first.
pub fn project_files(folder: &Path) -> Vec<PathBuf> {
    let root = project_root(folder);
    let folders = folder.ancestors().take_while(|up| up.starts_with(root));
    folders.map(|up| up.join(PROJECT_FILE)).collect()
}

/// The nearest folder, up to the project's root, that has a file with servers; else the root. All
/// folders between have the same servers.
pub fn naming_folder(folder: &Path) -> PathBuf {
    let files = project_files(folder);
    let nearest = files.iter().find(|file| file.symlink_metadata().is_ok()).or(files.last());
    nearest.and_then(|file| file.parent()).unwrap_or(folder).to_owned()
}

/// Layers of a project's files, the nearest first.
fn project_layers(
    folder: &Path,
    choices: &SourceChoices,
    problems: &mut Vec<String>,
) -> Vec<Layer> {
    let project = project_root(folder).to_string_lossy();
    let layers = project_files(folder).into_iter().filter_map(|path| {
        // Compares the text that was read, not the file again.
        let is_approved = |text: &str| choices.is_approved(&path, text);
        let layer = layer_of_file(&path, Some(&project), is_approved, problems)?;
        Some(Layer { approval: Some(choices.approval(&path).to_owned()), ..layer })
    });
    layers.collect()
}

/// All entries by name. Layers come in order of precedence, the strongest first.
fn in_order(layers: Vec<Layer>, choices: &SourceChoices) -> Vec<PlannedSource> {
    let mut all: Vec<PlannedSource> = Vec::new();
    // The file of the entry that counts, by server name.
    let mut winners: HashMap<String, String> = HashMap::new();
    for layer in layers {
        let Layer { from, base, project, folder, is_approved, is_own, approval, content, found } =
            layer;
        for FoundSource { name, entry, warnings, written } in found {
            let standing = match (&entry, winners.get(&name)) {
                (Err(_), _) => SourceStanding::Bad,
                (Ok(_), Some(winner)) => SourceStanding::Hidden(winner.clone()),
                (Ok(_), None) if !is_approved => SourceStanding::PendingApproval,
                (Ok(entry), None) => {
                    if choices.switch(&name, folder.as_deref()).unwrap_or(entry.enabled) {
                        SourceStanding::InForce
                    } else {
                        SourceStanding::Disabled
                    }
                }
            };
            if matches!(standing, SourceStanding::InForce | SourceStanding::Disabled) {
                winners.insert(name.clone(), from.clone());
            }
            let fingerprint = hex::encode(&Sha256::digest(format!("{from}\n{written}"))[..8]);
            let (from, project, folder) = (from.clone(), project.clone(), folder.clone());
            all.push(PlannedSource {
                name,
                project,
                folder,
                from,
                base: base.clone(),
                entry,
                warnings,
                standing,
                fingerprint,
                written,
                is_own,
                approval: approval.clone(),
                content: content.clone(),
            });
        }
    }
    // The sort is stable, so entries of one name stay in order of precedence.
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standings(plan: &SourcePlan) -> Vec<(String, &'static str)> {
        let word = |standing: &SourceStanding| match standing {
            SourceStanding::InForce => "in force",
            SourceStanding::Disabled => "disabled",
            SourceStanding::PendingApproval => "pending",
            SourceStanding::Bad => "bad",
            SourceStanding::Hidden(_) => "hidden",
        };
        let file = |from: &str| from.rsplit('/').next().unwrap_or_default().to_owned();
        plan.sources
            .iter()
            .map(|source| {
                (format!("{}:{}", source.name, file(&source.from)), word(&source.standing))
            })
            .collect()
    }

    #[test]
    fn strongest_valid_entry_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().expect("has one")).expect("is made");
            std::fs::write(path, text).expect("is written");
        };
        write(
            "home/config.toml",
            "[sources.a]\ncommand = \"cfg\"\n[sources.b]\ncommand = \"cfg\"\n[sources.c]\ncommand = \"cfg\"\nenabled = false\n",
        );
        write(
            "home/plugins/p/plugin.json",
            r#"{"name":"p","mcpServers":{"a":{"command":"plug"},"c":{"command":"plug"},"d":{"command":"plug"}}}"#,
        );
        write("home/plugins/q/plugin.json", r#"{"name":"q"}"#);
        write("project/.git/HEAD", "");
        write("project/.mcp.json", r#"{"mcpServers":{"a":{"command":"prj"},"b":{"command":3}}}"#);
        write("project/sub/.mcp.json", r#"{"mcpServers":{"e":{"command":"sub"}}}"#);
        let home = root.join("home");
        let mut files = SourceFiles {
            config_file: home.join("config.toml"),
            home: home.clone(),
            flags: Vec::new(),
            imports: Vec::new(),
            strict: false,
        };
        let sub = root.join("project/sub");
        let of = |pairs: &[(&str, &'static str)]| {
            pairs.iter().map(|(name, word)| ((*name).to_owned(), *word)).collect::<Vec<_>>()
        };
        let plan = files.plan(Some(&sub));
        assert_eq!(plan.problems, Vec::<String>::new());
        assert_eq!(
            standings(&plan),
            of(&[
                ("a:.mcp.json", "pending"),
                ("a:config.toml", "in force"),
                ("a:plugin.json", "hidden"),
                ("b:.mcp.json", "bad"),
                ("b:config.toml", "in force"),
                ("c:config.toml", "disabled"),
                ("c:plugin.json", "hidden"),
                ("d:plugin.json", "in force"),
                ("e:.mcp.json", "pending"),
            ])
        );
        let project = root.join("project/.mcp.json");
        let text = std::fs::read_to_string(&project).expect("is there");
        let mut choices = SourceChoices::default();
        choices.approve(project.clone(), &text);
        choices.save(&home).expect("is saved");
        let plan = files.plan(Some(&sub));
        assert_eq!(
            standings(&plan)[..2],
            of(&[("a:.mcp.json", "in force"), ("a:config.toml", "hidden")])
        );
        assert_eq!(plan.sources[0].project.as_deref(), root.join("project").to_str());
        // A changed file needs a new approval.
        std::fs::write(&project, text.replace("prj", "other")).expect("is written");
        assert_eq!(standings(&files.plan(Some(&sub)))[0].1, "pending");
        assert_eq!(standings(&files.plan(None))[0].0, "a:config.toml");
        files.flags = vec![
            FlagSources::read(r#"{"mcpServers":{"a":{"command":"one"}}}"#).expect("is good"),
            FlagSources::read(r#"{"mcpServers":{"a":{"command":"two"}}}"#).expect("is good"),
        ];
        let plan = files.plan(None);
        assert_eq!(plan.sources[0].written["command"], "two");
        files.strict = true;
        assert_eq!(files.plan(Some(&sub)).sources.len(), 2);
    }
}
