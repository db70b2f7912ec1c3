//! Checks what a request may set for a new agent. The rule is
//! [`StartAllowance`](svc_model::StartAllowance); this file applies it to folders as they are on
//! disk. All code that starts agents uses it.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use svc_model::{
    AgentInstance, AgentStarter, Caller, Ownership, Principal, StartAllowance, StartRefusal,
    StartSettings, is_agent_key, limits,
};
use svc_store::WriteTx;

use super::AgentSettings;
use crate::service::{Error, Result, core::Core};

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StartOverrides<'a> {
    pub(super) env: Option<&'a BTreeMap<String, String>>,
    pub(super) args: &'a [String],
    pub(super) cwd: Option<&'a str>,
    /// The folder if neither `cwd` nor the instance's configuration names one.
    pub(super) default_cwd: Option<&'a str>,
    /// The folder of the hosted agent that makes the request, as the daemon knows it. Used if none
    /// of the above names a folder; needs no permission.
    pub(super) own_cwd: Option<&'a str>,
}

/// Checks that the caller may start another agent: agents start agents at most
/// [`limits::SPAWN_DEPTH`] deep.
///
/// # Errors
/// [`Error::LimitReached`] if the caller is that deep. [`Error::NotNow`] if the calling agent has
/// ended.
pub(super) async fn check_depth(core: &Core, caller: &Caller) -> Result<()> {
    let Some(key) = caller.session().filter(|key| is_agent_key(key)) else { return Ok(()) };
    let Some(agent) = core.store.agents().of_key(key).await? else { return Ok(()) };
    if agent.ended_at.is_some() {
        return Err(Error::NotNow("the agent of this token has ended".to_owned()));
    }
    let (mut depth, mut at) = (0, Some(agent.info.id));
    while let Some(id) = at {
        depth += 1;
        at = core.store.agents().parent_of(&id).await?;
        if depth >= limits::SPAWN_DEPTH {
            return Err(Error::LimitReached(format!(
                "agents start agents at most {} deep: do it yourself, or ask who started you",
                limits::SPAWN_DEPTH
            )));
        }
    }
    Ok(())
}

/// Checks that a session has fewer live children than [`limits::SPAWN_CHILDREN`].
///
/// # Errors
/// [`Error::LimitReached`] if it has that many.
pub(super) async fn check_children(tx: &mut WriteTx, caller: &Caller) -> Result<()> {
    if caller.is_operator() {
        return Ok(());
    }
    let children = tx.agents().count_children(&caller.principal()).await?;
    if children >= limits::SPAWN_CHILDREN {
        return Err(Error::LimitReached(format!(
            "{children} sessions that you started are live, and that is the most: wait for one of them to end"
        )));
    }
    Ok(())
}

impl StartOverrides<'_> {
    /// The working folder of the agent, if the caller may set all that the request sets, and
    /// whether the request chose the folder. It is the requested folder, that of the instance's
    /// configuration, or that of the caller. If a session chose it, its links are resolved.
    ///
    /// # Errors
    /// [`Error::Invalid`] for settings that no request may choose, and [`Error::Forbidden`] for
    /// those that this caller may not choose.
    pub(super) fn permitted_folder(
        &self,
        settings: &AgentSettings,
        caller: &Caller,
        instance: &AgentInstance,
    ) -> Result<(String, bool)> {
        let named = self.cwd.filter(|cwd| !cwd.trim().is_empty()).map(str::to_owned);
        let of_entry = instance.cwd.as_ref().map(|cwd| cwd.to_string_lossy().into_owned());
        let is_chosen = named.is_some() || of_entry.is_none() && self.default_cwd.is_some();
        let home = || {
            let home = settings.env.os("HOME")?.to_str()?;
            caller.is_operator().then(|| home.to_owned())
        };
        let path = named
            .or(of_entry)
            .or_else(|| self.default_cwd.map(str::to_owned))
            .or_else(|| self.own_cwd.map(str::to_owned))
            .or_else(|| caller.folder().map(str::to_owned))
            .or_else(home)
            .ok_or_else(|| Error::invalid("cwd", "must name the folder that it works in"))?;
        if !Path::new(&path).is_absolute() {
            return Err(Error::invalid("cwd", "must be an absolute folder"));
        }
        let real = real_path(Path::new(&path));
        let nothing = BTreeMap::new();
        let asked = StartSettings {
            env: self.env.unwrap_or(&nothing),
            args: self.args,
            folder: real.as_deref().filter(|_| is_chosen),
        };
        let roots: Vec<String> = caller.root().map(str::to_owned).into_iter().collect();
        permits(&instance.allow, &caller.principal(), &roots, &asked)?;
        let is_bound = is_chosen && !caller.is_operator();
        if is_bound && real.is_none() {
            return Err(forbidden(&StartRefusal::Folder(path)));
        }
        let path = match real.filter(|real| real.is_dir()) {
            Some(real) if is_bound => real
                .into_os_string()
                .into_string()
                .map_err(|_| Error::invalid("cwd", "leads to a folder whose name is not UTF-8"))?,
            Some(_) => path,
            None => return Err(Error::invalid("cwd", format!("there is no folder {path}"))),
        };
        Ok((path, is_chosen))
    }
}

/// Checks again that an agent for a task may work in the folder that its request chose. Since the
/// task was made, the folder may have become a link, and failover may have chosen another instance.
/// `roots` are those of the task's project.
pub(super) fn still_permits(
    instance: &AgentInstance,
    owned: &Ownership,
    roots: &[String],
    cwd: &str,
) -> Result<(), String> {
    let Some(owner) = &owned.owner else {
        return Err("the owner of this task is unknown".to_owned());
    };
    if *owner == Principal::Operator {
        return Ok(());
    }
    let real = Path::new(cwd).canonicalize().map_err(|error| format!("{cwd}: {error}"))?;
    if real != Path::new(cwd) {
        return Err(format!("{cwd} is a link by now"));
    }
    let nothing = BTreeMap::new();
    let settings = StartSettings { env: &nothing, args: &[], folder: Some(&real) };
    permits(&instance.allow, owner, roots, &settings).map_err(|error| error.to_string())
}

/// Refuses what the allowance does not permit. `roots` are the folders of the session's project.
fn permits(
    allowance: &StartAllowance,
    principal: &Principal,
    roots: &[String],
    settings: &StartSettings<'_>,
) -> Result<()> {
    // Folders of the allowance and roots are compared by their real paths. A missing folder allows
    // nothing.
    let folders = allowance.folders.iter().filter_map(|folder| folder.canonicalize().ok());
    let real = StartAllowance { folders: folders.collect(), ..allowance.clone() };
    let mut roots = roots.iter().filter_map(|root| Path::new(root).canonicalize().ok());
    let root = roots.find(|root| settings.folder.is_some_and(|it| it.starts_with(root)));
    let requester = match principal {
        Principal::Operator => AgentStarter::Operator,
        Principal::Session(_) => AgentStarter::Session(root.as_deref()),
    };
    real.permits(requester, settings).map_err(|refusal| match &refusal {
        StartRefusal::NeverSet(name) => Error::invalid(format!("env.{name}"), refusal.to_string()),
        _ => forbidden(&refusal),
    })
}

fn forbidden(refusal: &StartRefusal) -> Error {
    Error::Forbidden(refusal.to_string())
}

/// Resolves the links in a path. If the path does not exist, resolves its longest existing part.
/// `None` if that fails, as with a dangling link or with `..` in a path that does not exist.
fn real_path(path: &Path) -> Option<PathBuf> {
    if let Ok(real) = path.canonicalize() {
        return Some(real);
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let known = path.ancestors().find(|part| part.symlink_metadata().is_ok())?;
    Some(known.canonicalize().ok()?.join(path.strip_prefix(known).ok()?))
}
