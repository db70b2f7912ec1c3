//! What a request may set of an agent: [`StartAllowance`](svc_model::StartAllowance) has the rule,
//! and here it is asked, with the folders as they are on the disk. All that start agents come here.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use svc_model::{
    AgentInstance, Caller, Ownership, Principal, StartAllowance, StartRefusal, StartRequester,
    StartSettings, is_agent_key, limits,
};

use super::AgentSettings;
use crate::service::{Error, core::Core};

/// What a request sets of the agent that it asks for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RequestedStart<'a> {
    /// Variables; `None` of a request that has none.
    pub(super) env: Option<&'a BTreeMap<String, String>>,
    /// Arguments.
    pub(super) args: &'a [String],
    /// The folder.
    pub(super) cwd: Option<&'a str>,
    /// The folder, if neither `cwd` nor the instance's entry says one.
    pub(super) default_cwd: Option<&'a str>,
    /// Where the hosted agent that asks works, as the daemon knows: it counts if nothing else says
    /// where, and needs no leave.
    pub(super) own_cwd: Option<&'a str>,
}

/// Where an agent works.
#[derive(Debug)]
pub(super) struct StartFolder {
    /// The folder. One that a session chose has no links in it.
    pub(super) path: String,
    /// Whether the request chose it.
    pub(super) is_chosen: bool,
}

/// Whether the caller may start another agent: agents start agents only so deep.
///
/// # Errors
/// [`Error::LimitReached`] if they may not. [`Error::NotNow`] if the agent that asks has ended.
pub(super) async fn check_depth(core: &Core, caller: &Caller) -> Result<(), Error> {
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

impl RequestedStart<'_> {
    /// Where an agent works, if the request may set what it sets: as it is asked for, as its entry
    /// says, or where the caller works.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what nobody's request sets, and [`Error::Forbidden`] for what this
    /// caller's does not.
    pub(super) fn permitted_folder(
        &self,
        settings: &AgentSettings,
        caller: &Caller,
        instance: &AgentInstance,
    ) -> Result<StartFolder, Error> {
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
        let requester = requester(&caller.principal(), caller.project());
        permits(&instance.allow, &requester, &asked)?;
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
        Ok(StartFolder { path, is_chosen })
    }
}

/// Whether an agent for a task may work in the folder that its request chose. Much may have been
/// moved since the task was taken, and this may be another instance than the one that it was taken
/// for.
pub(super) fn still_permits(
    instance: &AgentInstance,
    owned: &Ownership,
    cwd: &str,
) -> Result<(), String> {
    let Some(owner) = &owned.owner else {
        return Err("the owner of this task is unknown".to_owned());
    };
    let requester = requester(owner, owned.project.as_deref());
    if matches!(requester, RealRequester::Operator) {
        return Ok(());
    }
    let real = Path::new(cwd).canonicalize().map_err(|error| format!("{cwd}: {error}"))?;
    if real != Path::new(cwd) {
        return Err(format!("{cwd} is a link by now"));
    }
    let nothing = BTreeMap::new();
    let settings = StartSettings { env: &nothing, args: &[], folder: Some(&real) };
    permits(&instance.allow, &requester, &settings).map_err(|error| error.to_string())
}

/// As [`StartRequester`], with the real path of the project.
enum RealRequester {
    Operator,
    Session(Option<PathBuf>),
}

fn requester(principal: &Principal, project: Option<&str>) -> RealRequester {
    match principal {
        Principal::Operator => RealRequester::Operator,
        Principal::Session(_) => RealRequester::Session(
            project.and_then(|project| Path::new(project).canonicalize().ok()),
        ),
    }
}

fn permits(
    allowance: &StartAllowance,
    requester: &RealRequester,
    settings: &StartSettings<'_>,
) -> Result<(), Error> {
    // A folder that is named counts where it leads to. One that is not there allows nothing.
    let folders = allowance.folders.iter().filter_map(|folder| folder.canonicalize().ok());
    let real = StartAllowance { folders: folders.collect(), ..allowance.clone() };
    let requester = match requester {
        RealRequester::Operator => StartRequester::Operator,
        RealRequester::Session(project) => StartRequester::Session(project.as_deref()),
    };
    real.permits(requester, settings).map_err(|refusal| match &refusal {
        StartRefusal::NeverSet(name) => Error::invalid(format!("env.{name}"), refusal.to_string()),
        StartRefusal::Variable(_) | StartRefusal::Argument(_) | StartRefusal::Folder(_) => {
            forbidden(&refusal)
        }
    })
}

fn forbidden(refusal: &StartRefusal) -> Error {
    Error::Forbidden(refusal.to_string())
}

/// Where a path leads, also if it is not there: then by its longest part that is. `None` if nobody
/// can say, as of a link that leads nowhere.
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
