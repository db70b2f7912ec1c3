//! Projects: which project a folder belongs to, and the folders of each project.
//!
//! Rows name a project by its remote, else by its first commit, else by its folder. The first
//! contact of a folder of this machine decides its project, and a row keeps that decision: a
//! changed line in a repository's configuration moves no session into another project. Only a
//! person moves a folder to another project.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use svc_model::{
    Caller, Clock, MovedFolder, Project, ProjectFolder, READ_ALL, Timestamp, is_remote_name,
    journal::Session,
};
use svc_store::{Store, WriteTx, job};
use svc_sys::git_repository::{self, RepositoryIdentity};

use super::{Error, Page, PageBounds, Result, check};
use crate::boxed;

/// Bound on the decisions kept in memory.
const KNOWN: usize = 4096;
/// Minimum time between two updates of a folder's last use.
const USE_NOTED: Duration = Duration::from_mins(10);
const FOLDERS_SHOWN: u32 = 50;

/// Root of the project that a folder belongs to. The path of a folder on another machine is used
/// unchanged.
pub(in crate::service) fn project_root(cwd: &str) -> String {
    let root = git_repository::project_root(Path::new(cwd)).to_string_lossy();
    let trimmed = root.trim_end_matches('/');
    if trimmed.is_empty() { root.into_owned() } else { trimmed.to_owned() }
}

/// The project of what a caller writes in a session: the token's project, or for the operator the
/// project of the session that the operator names.
pub(super) fn project_of_write(caller: &Caller, session: Option<Session>) -> Option<String> {
    if caller.is_operator() {
        session.and_then(|session| session.project)
    } else {
        caller.project().map(str::to_owned)
    }
}

#[derive(Debug, Clone)]
pub struct Projects {
    store: Store,
    clock: Arc<dyn Clock>,
    known: Arc<Mutex<HashMap<String, KnownFolder>>>,
}

#[derive(Debug, Clone)]
struct KnownFolder {
    project: String,
    used_at: Timestamp,
}

/// The identity of the repository in a folder, which names a project.
async fn identity_of(root: &str) -> RepositoryIdentity {
    let root = PathBuf::from(root);
    let read = tokio::task::spawn_blocking(move || git_repository::identity(&root));
    read.await.unwrap_or_default()
}

/// The name of a project, if it is a remote's name.
fn remote(name: Option<&str>) -> Option<&str> {
    name.filter(|name| is_remote_name(name))
}

impl Projects {
    pub(super) fn new(store: Store, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, known: Arc::default() }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, KnownFolder>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, root: String, project: &str, used_at: Timestamp) {
        let mut known = self.known();
        if known.len() >= KNOWN {
            known.clear();
        }
        known.insert(root, KnownFolder { project: project.to_owned(), used_at });
    }

    /// The project of a folder, decided at the folder's first contact. A text that is not an
    /// absolute path is the name of a project.
    #[boxed]
    pub async fn of_folder(&self, folder: &str) -> Result<String> {
        if !folder.starts_with('/') {
            return self.of_name(folder).await;
        }
        self.of_root(project_root(folder)).await
    }

    /// The project of a folder, if there is a folder.
    pub(super) async fn of_any(&self, folder: Option<&str>) -> Result<Option<String>> {
        match folder {
            Some(folder) => self.of_folder(folder).await.map(Some),
            None => Ok(None),
        }
    }

    async fn of_root(&self, root: String) -> Result<String> {
        let now = self.clock.now();
        let known = self.known().get(&root).cloned();
        if let Some(KnownFolder { project, used_at }) = known
            && now.since(used_at) < USE_NOTED
        {
            return Ok(project);
        }
        let row = match self.store.projects().decision(&root).await? {
            Some(row) if row.decided_at.is_some() => {
                let mut used_at = row.used_at;
                if now.since(used_at) >= USE_NOTED {
                    let used = root.clone();
                    let touched = self.store.write(job!(|tx| tx.projects().touch(&used).await));
                    touched.await?;
                    used_at = now;
                }
                self.remember(root, &row.project, used_at);
                return Ok(row.project);
            }
            row => row,
        };
        if !Path::new(&root).is_dir() {
            return Ok(row.map_or(root, |row| row.project));
        }
        let RepositoryIdentity { name, main } = identity_of(&root).await;
        let folder = root.clone();
        let decided = self.store.write(job!(|tx| {
            tx.projects().decide(&folder, main.as_deref(), name.as_deref()).await
        }));
        let project = decided.await?;
        self.remember(root, &project, now);
        Ok(project)
    }

    /// The project of this name. The name may be an alias: a remote that the project got after its
    /// name was decided.
    async fn of_name(&self, name: &str) -> Result<String> {
        let of_alias = self.store.projects().of_alias(name).await?;
        Ok(of_alias.unwrap_or_else(|| name.to_owned()))
    }

    /// The project that a filter names, by its name or by one of its folders. Decides no folder's
    /// project.
    #[boxed]
    pub async fn named(&self, text: Option<&str>) -> Result<Option<String>> {
        let Some(text) = text else { return Ok(None) };
        if !text.starts_with('/') {
            return self.of_name(text).await.map(Some);
        }
        let row = self.store.projects().decision(&project_root(text)).await?;
        Ok(Some(row.map_or_else(|| text.to_owned(), |row| row.project)))
    }

    /// The project of a new session or agent. With a session token it is the token's project,
    /// whatever folder the caller names, so no caller can put a session into another project.
    pub(super) async fn to_start(
        &self,
        caller: &Caller,
        cwd: Option<&str>,
    ) -> Result<Option<String>> {
        if caller.is_operator() {
            self.of_any(cwd).await
        } else {
            Ok(caller.project().map(str::to_owned))
        }
    }

    /// The root of a project on this machine: the root of `folder` if that is in the project, else
    /// the root that was used last.
    #[boxed]
    pub async fn root(&self, project: &str, folder: Option<&str>) -> Result<Option<String>> {
        if let Some(folder) = folder.filter(|folder| folder.starts_with('/')) {
            let root = project_root(folder);
            if self.of_root(root.clone()).await? == project {
                return Ok(Some(root));
            }
        }
        let last = self.store.projects().folders_here(project, 1).await?.pop();
        // A folder without a row is the name of its project.
        Ok(last.or_else(|| project.starts_with('/').then(|| project.to_owned())))
    }

    pub(super) async fn roots_in(tx: &mut WriteTx, project: &str) -> Result<Vec<String>> {
        let mut roots = tx.projects().folders_here(project, FOLDERS_SHOWN).await?;
        if roots.is_empty() && project.starts_with('/') {
            roots.push(project.to_owned());
        }
        Ok(roots)
    }

    /// Like [`Self::of_folder`], in a write job. Reads the disk only for a folder whose project is
    /// not decided.
    pub(super) async fn of_folder_in(tx: &mut WriteTx, folder: &str) -> Result<String> {
        let root = project_root(folder);
        if let Some(row) = tx.projects().decision(&root).await?
            && row.decided_at.is_some()
        {
            return Ok(row.project);
        }
        let identity = git_repository::identity(Path::new(&root));
        let (name, main) = (identity.name.as_deref(), identity.main.as_deref());
        Ok(tx.projects().decide(&root, main, name).await?)
    }

    /// The caller with `project`, the project of the session whose client made the call. The
    /// session works in `folder`.
    pub(super) async fn caller_in(
        &self,
        caller: &Caller,
        project: &str,
        folder: Option<&str>,
    ) -> Result<Caller> {
        let root = match folder.filter(|folder| folder.starts_with('/')).map(project_root) {
            Some(root) if self.of_root(root.clone()).await? == project => Some(root),
            _ if caller.project() == Some(project) => return Ok(caller.clone()),
            _ => self.root(project, None).await?,
        };
        Ok(caller.in_project(project, root.as_deref()))
    }

    /// A page of the projects, with their folders. Only a caller with `read_all` may list projects.
    pub async fn list(
        &self,
        caller: &Caller,
        page: impl Into<PageBounds<'_>>,
    ) -> Result<Page<Project>> {
        if !caller.has_scope(READ_ALL) {
            let why = "projects are the operator's to see, or need read_all";
            return Err(Error::Forbidden(why.to_owned()));
        }
        let read = async |after: Option<String>, size| {
            self.store.projects().list(after.as_deref(), size).await
        };
        let key = |project: &String| project.clone();
        let Page { items, next_cursor } = Page::read("projects", page.into(), read, key).await?;
        let mut projects = Vec::with_capacity(items.len());
        for project in items {
            projects.push(self.shown(project).await?);
        }
        Ok(Page { items: projects, next_cursor })
    }

    async fn shown(&self, project: String) -> Result<Project> {
        let reads = || self.store.projects();
        let aliases = reads().aliases(&project).await?;
        let mut folders = reads().folders(&project, FOLDERS_SHOWN).await?;
        let here = &self.store.machine().machine_id;
        // A folder whose project is not decided yet gets the new name at its next contact.
        let is_decided =
            |it: &&mut ProjectFolder| it.machine_id == *here && it.decided_at.is_some();
        for folder in folders.iter_mut().filter(is_decided) {
            let claim = identity_of(&folder.folder).await;
            let of_main = match &claim.main {
                Some(main) => reads().decision(main).await?,
                None => None,
            };
            let claimed = match (of_main, remote(claim.name.as_deref())) {
                (Some(row), _) => Some(row.project),
                (None, Some(name)) => Some(self.of_name(name).await?),
                (None, None) => None,
            };
            folder.differs = claimed.filter(|claimed| *claimed != project);
        }
        Ok(Project { project, aliases, folders })
    }

    /// Lets a folder of this machine follow its repository's present remote: moves the folder to
    /// the remote's project, or makes the remote's name an alias of a project that has no remote
    /// yet. Only the operator may do so.
    #[boxed]
    pub async fn move_folder(&self, caller: &Caller, folder: &str) -> Result<MovedFolder> {
        if !caller.is_operator() {
            return Err(Error::Forbidden("only the operator moves a folder".to_owned()));
        }
        check::short("folder", Some(folder))?;
        let root = project_root(folder);
        if !folder.starts_with('/') || !Path::new(&root).is_dir() {
            return Err(Error::invalid("folder", "must be an absolute folder of this machine"));
        }
        // The project of a folder that was never used is decided first, as for any folder.
        self.of_root(root.clone()).await?;
        let claim = identity_of(&root).await;
        let to_move = root.clone();
        let moved = self.store.on_behalf_of(caller).write(job!(|tx| tx
            .projects()
            .follow(&to_move, claim.main.as_deref(), remote(claim.name.as_deref()))
            .await));
        let moved = moved.await?;
        self.known().remove(&root);
        Ok(moved)
    }
}
