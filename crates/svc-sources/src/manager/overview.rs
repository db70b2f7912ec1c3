//! All servers as people see them, approve them and log in to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use svc_core::service::sources::{SourceKey, SourceStatus};
use svc_model::source::{SourceEntry, SourceInstance, SourceState, SourceTransport, SourceView};
use svc_sys::config::sources::{
    ApprovedEntry, PlannedSource, SourceChoices, SourceDocument, SourcePlan, SourceStanding,
    content_hash,
};

use super::{ManagedSources, SourceManager, run::store_pin, standing_of};
use crate::{
    auth::{LoginInput, LoginOutcome, LoginRun, OpenLogin},
    lists::{SourceChange, changes, digest},
    run_blocking,
    spec::{FilledEntry, Variables, key_of},
};

struct WaitingFile {
    path: PathBuf,
    /// The hash of the content that was read.
    content: String,
    entries: Vec<SourceChange>,
}

/// The servers in the files for callers of a folder.
#[derive(Debug)]
pub struct FolderSources {
    pub(super) manager: SourceManager,
    pub(super) plan: Arc<SourcePlan>,
}

impl FolderSources {
    /// All servers, also hidden ones.
    pub fn views(&self) -> Vec<SourceView> {
        let state = self.manager.state();
        self.plan.sources.iter().map(|planned| self.view(&state, planned)).collect()
    }

    pub fn problems(&self) -> &[String] {
        &self.plan.problems
    }

    pub fn scopes(&self) -> BTreeSet<String> {
        let entries = self.plan.sources.iter().filter_map(|planned| planned.entry.as_ref().ok());
        entries.filter_map(|entry| entry.scope.clone()).collect()
    }

    fn view(&self, state: &ManagedSources, planned: &PlannedSource) -> SourceView {
        let key = key_of(planned);
        let is_in_force = planned.standing == SourceStanding::InForce;
        let learner = state.learner(&key).filter(|_| is_in_force);
        let now = learner.map(|learner| learner.status());
        // Without an instance, the state is that of the entry.
        let since = now.as_ref().map(|now| now.since);
        let since = since.or_else(|| state.standings.get(&standing_of(planned)).copied());
        let since = since.unwrap_or_else(|| self.manager.services().now());
        let mut status = match &now {
            Some(now) => now.status.clone(),
            None => standing_status(planned),
        };
        let lists = state.learned(&key, &planned.fingerprint).filter(|_| is_in_force);
        let own = state.tools.get(&key).filter(|_| is_in_force);
        let changed = lists.map_or(0, |kept| kept.changed.len());
        if changed > 0 && status.state == SourceState::Connected && status.next_action.is_none() {
            status.next_action = Some(format!("svc mcp approve {}", planned.name));
        }
        let mut warnings = planned.warnings.clone();
        warnings.extend(own.into_iter().flat_map(|own| own.problems.iter().cloned()));
        warnings.extend(lists.into_iter().flat_map(|kept| kept.cut.iter().cloned()));
        let mut instances: Vec<SourceInstance> = state
            .instances
            .iter()
            .filter(|((of, serves), _)| is_in_force && *of == key && !serves.is_empty())
            .map(|((_, serves), instance)| {
                let status = instance.status();
                SourceInstance { key: serves.clone(), pid: status.pid, state: status.status.state }
            })
            .collect();
        instances.sort_by(|a, b| a.key.cmp(&b.key));
        let (transport, sharing) = match &planned.entry {
            Ok(entry) => (entry.transport_name(), entry.sharing),
            Err(_) => SourceEntry::outline(&planned.written),
        };
        SourceView {
            name: planned.name.clone(),
            project: planned.project.clone(),
            state: status.state,
            reason: status.reason,
            next_action: status.next_action,
            attempt: status.attempt,
            // The remaining processes of a server may take longer to end than the backoff.
            next_at: status.next_at.map(|at| at.max(self.manager.services().now())),
            transport: transport.to_owned(),
            sharing,
            tools: own.map_or(0, |own| own.tools.len()),
            resources: lists.map_or(0, |kept| kept.shown.resources.len()),
            prompts: lists.map_or(0, |kept| kept.shown.prompts.len()),
            changed,
            pid: now.as_ref().and_then(|now| now.pid),
            instances,
            runs: (status.state == SourceState::PendingApproval).then(|| {
                ApprovedEntry::new(&planned.name, &planned.entry, &planned.written).runs()
            }),
            from: planned.from.clone(),
            hidden_by: match &planned.standing {
                SourceStanding::Hidden(by) => Some(by.clone()),
                _ => None,
            },
            warnings,
            since,
        }
    }

    /// The server of this name that is in force.
    pub fn find(&self, name: &str) -> Option<SourceView> {
        self.find_keyed(name).map(|(_, view)| view)
    }

    pub fn key_of(&self, name: &str) -> Option<SourceKey> {
        self.find_keyed(name).map(|(key, _)| key)
    }

    fn find_keyed(&self, name: &str) -> Option<(SourceKey, SourceView)> {
        let planned = self.plan.meant(name).or_else(|| {
            // All entries of the name are bad.
            self.plan.sources.iter().find(|planned| planned.name == name)
        })?;
        Some((key_of(planned), self.view(&self.manager.state(), planned)))
    }

    /// The changes that wait for a person's approval, and their digest: the entries of a project's
    /// file, if the server is named there, else the server's changed definitions. `None` if there
    /// is no server of that name, or none in the file `from`.
    pub fn changes(&self, name: &str, from: Option<&str>) -> Option<(Vec<SourceChange>, String)> {
        if let Some(file) = self.waiting_file(name, from) {
            return Some((file.entries, file.content));
        }
        if from.is_some() {
            return None;
        }
        let key = self.key_of(name)?;
        Some(changes_of(&self.manager.state(), &key))
    }

    /// The project's file that names a server and waits for approval. Without `from` only if no
    /// other file's server of that name is in force.
    fn waiting_file(&self, name: &str, from: Option<&str>) -> Option<WaitingFile> {
        let plan = &self.plan;
        let waits = |source: &&PlannedSource| source.standing == SourceStanding::PendingApproval;
        let meant = match from {
            None => plan.meant(name),
            Some(from) => {
                plan.sources.iter().find(|source| source.name == name && source.from == from)
            }
        };
        let meant = meant.filter(waits)?;
        let of_file = plan.sources.iter().filter(|source| source.from == meant.from);
        let entries = of_file.map(|source| SourceChange {
            kind: "server",
            name: source.name.clone(),
            before: None,
            after: source.written.clone(),
        });
        Some(WaitingFile {
            path: PathBuf::from(&meant.from),
            content: meant.content.clone()?,
            entries: entries.collect(),
        })
    }

    /// Approves a project's file, if its digest still is `seen`.
    fn approve_file(&self, file: &WaitingFile, seen: &str) -> io::Result<bool> {
        let read = run_blocking(|| SourceDocument::load(&file.path));
        let Some(Ok((_, text))) = read else { return Ok(false) };
        if file.content != seen || content_hash(&text) != seen {
            return Ok(false);
        }
        let approve = |choices: &mut SourceChoices| choices.approve(file.path.clone(), &text);
        run_blocking(|| SourceChoices::change(self.manager.home(), approve))?;
        self.manager.reload();
        Ok(true)
    }

    /// Approves the changes of a server; `None` if there is no server of that name, `Some(false)`
    /// if their digest is not `seen`.
    pub async fn approve(
        &self,
        name: &str,
        from: Option<&str>,
        seen: &str,
    ) -> io::Result<Option<bool>> {
        if let Some(file) = self.waiting_file(name, from) {
            return self.approve_file(&file, seen).map(Some);
        }
        Ok(self.approve_definitions(name, seen).await)
    }

    async fn approve_definitions(&self, name: &str, seen: &str) -> Option<bool> {
        let manager = &self.manager;
        let key = self.key_of(name)?;
        let pin = {
            let mut state = manager.state();
            if changes_of(&state, &key).1 != seen {
                return Some(false);
            }
            let Some(known) = state.lists.get(&key) else { return Some(true) };
            let lists = Arc::clone(&known.lists);
            let Some(pin) = state.pins.get_mut(&key) else { return Some(true) };
            (pin.lists, pin.told) = (lists, BTreeSet::new());
            let pin = pin.clone();
            manager.settle(&mut state);
            pin
        };
        store_pin(manager.services(), &key, &pin, Vec::new()).await;
        Some(true)
    }

    /// Restarts all instances of a server; `false` if none of that name is to run.
    pub fn reconnect(&self, name: &str) -> bool {
        self.key_of(name).is_some_and(|key| self.manager.reconnect_all(&key))
    }

    /// The end of a server's error output, of all its instances.
    pub fn log(&self, name: &str) -> Option<String> {
        let key = self.key_of(name)?;
        let state = self.manager.state();
        let mut own: Vec<_> = state.instances.iter().filter(|((of, _), _)| *of == key).collect();
        own.sort_by(|((_, a), _), ((_, b), _)| a.cmp(b));
        let logs = own.into_iter().map(|((_, serves), instance)| {
            let text = instance.log.text();
            if serves.is_empty() || text.is_empty() { text } else { format!("[{serves}]\n{text}") }
        });
        Some(logs.collect())
    }
}

fn changes_of(state: &ManagedSources, key: &SourceKey) -> (Vec<SourceChange>, String) {
    let changes = || {
        let spec = &state.learner(key)?.spec;
        let pin = state.pins.get(key).filter(|pin| pin.basis == spec.pin_basis())?;
        Some(changes(&pin.lists, &state.learned(key, &spec.fingerprint)?.lists))
    };
    let changes = changes().unwrap_or_default();
    let digest = digest(&changes);
    (changes, digest)
}

/// The state of an entry that has no instance.
pub(super) fn standing_status(planned: &PlannedSource) -> SourceStatus {
    let (state, reason, next_action) = match &planned.standing {
        SourceStanding::InForce if is_builtin(planned) => (SourceState::Connected, None, None),
        SourceStanding::InForce => (SourceState::Pending, None, None),
        SourceStanding::Disabled => (
            SourceState::Disabled,
            Some("it is turned off".to_owned()),
            Some(format!("svc mcp enable {}", planned.name)),
        ),
        SourceStanding::PendingApproval => (
            SourceState::PendingApproval,
            Some(format!("{} is new or has changed", planned.from)),
            Some(format!("look at it, then svc mcp approve {}", planned.from)),
        ),
        SourceStanding::Bad => {
            let reason = planned.entry.as_ref().err().map(ToString::to_string);
            (SourceState::Misconfigured, reason, Some(format!("correct it in {}", planned.from)))
        }
        SourceStanding::Hidden(by) => (
            SourceState::Hidden,
            Some(format!("the entry of {by} is used in its place")),
            Some("remove or rename one of the two".to_owned()),
        ),
    };
    SourceStatus { reason, next_action, ..SourceStatus::from_state(state) }
}

fn is_builtin(planned: &PlannedSource) -> bool {
    let entry = planned.entry.as_ref();
    entry.is_ok_and(|entry| matches!(entry.transport, SourceTransport::Builtin { .. }))
}

/// The states of entries that no instance has and announces, by server and file. One of several
/// plans that use the entry decides, else one that would use it, else the first: that of no folder
/// must come first, as its reasons name no project. A bad entry beside a good one of the same key
/// is left out, since the state of a key is that of the server that runs.
pub(super) fn standing_states<'a>(
    plans: impl Iterator<Item = &'a SourcePlan>,
) -> BTreeMap<(SourceKey, String), SourceStatus> {
    let rank = |planned: &PlannedSource| match planned.standing {
        SourceStanding::InForce => 0,
        SourceStanding::Hidden(_) => 2,
        _ => 1,
    };
    let mut entries = BTreeMap::new();
    for planned in plans.flat_map(|plan| &plan.sources) {
        let known = entries.entry((key_of(planned), planned.from.clone())).or_insert(planned);
        if rank(planned) < rank(known) {
            *known = planned;
        }
    }
    let good: BTreeSet<SourceKey> = entries
        .iter()
        .filter(|(_, planned)| planned.entry.is_ok() && rank(planned) < 2)
        .map(|((key, _), _)| key.clone())
        .collect();
    entries.retain(|(key, _), planned| planned.entry.is_ok() || !good.contains(key));
    let states = entries.into_iter().map(|(id, planned)| (id, standing_status(planned)));
    states.filter(|(_, status)| status.state != SourceState::Pending).collect()
}

/// The name of a configured client's secret.
const CLIENT_SECRET: &str = "OAUTH_CLIENT_SECRET";

impl SourceManager {
    /// Begins a login to a server. The error is for people.
    pub async fn begin_login(
        &self,
        key: &SourceKey,
        port: Option<u16>,
    ) -> Result<OpenLogin, String> {
        let spec = self.spec(key).ok_or("it may not run")?;
        let kept = self.vault().kept().map_err(|error| error.to_string())?;
        let (secrets, withheld) = (kept.given_to(&spec.bearer), kept.withheld_from(&spec.bearer));
        let variables = Variables { secrets: &secrets, withheld: &withheld, env: self.env() };
        let filled = spec.fill(&variables, spec.root.as_deref())?;
        let (SourceTransport::Remote { oauth, .. }, FilledEntry::Remote(filled)) =
            (&spec.entry.transport, filled)
        else {
            return Err("it is a program and has no login".to_owned());
        };
        if filled.headers.contains_key(reqwest::header::AUTHORIZATION) {
            return Err("its entry has an Authorization header, which is what counts".to_owned());
        }
        let port = port.or(oauth.callback_port).unwrap_or(0);
        let request = LoginInput {
            url: filled.url,
            choice: oauth.clone(),
            secret: secrets.get(CLIENT_SECRET).cloned(),
        };
        // Cancels an earlier login, which holds the port.
        self.state().logins.remove(key);
        let (this, name) = (self.downgrade(), key.clone());
        let done = move || {
            if let Some(manager) = this.upgrade() {
                manager.reconnect_all(&name);
            }
        };
        let run = LoginRun::start(self.auth_of(key), request, port, done).await;
        let run = run.map_err(|problem| filled.redactor.hide(&problem).into_owned())?;
        let open = run.open.clone();
        self.state().logins.insert(key.clone(), Arc::new(run));
        Ok(open)
    }

    /// Waits up to `max_wait` for the login's end; `None` if no login is under way. `redirect` is a
    /// URL that a person pasted.
    pub async fn login_outcome(
        &self,
        key: &SourceKey,
        redirect: Option<&str>,
        max_wait: Duration,
    ) -> Option<LoginOutcome> {
        let run = self.state().logins.get(key).cloned()?;
        if let Some(redirect) = redirect {
            run.paste(redirect);
        }
        let mut progress = run.progress.clone();
        let over = progress.wait_for(|progress| *progress != LoginOutcome::Waiting);
        Some(match tokio::time::timeout(max_wait, over).await {
            Err(_) => LoginOutcome::Waiting,
            Ok(Err(_)) => LoginOutcome::Failed("the login was given up".to_owned()),
            Ok(Ok(progress)) => progress.clone(),
        })
    }

    /// Removes the login and revokes its tokens; `None` if there was none, `Some(false)` if the
    /// issuer could not be told.
    pub async fn end_login(&self, key: &SourceKey) -> io::Result<Option<bool>> {
        self.state().logins.remove(key);
        let was_there = self.auth_of(key).log_out().await?;
        self.reconnect_all(key);
        Ok(was_there)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use svc_model::source::SourceProblem;

    use super::*;

    #[test]
    fn standing_state_names_no_project_and_covers_no_server_that_runs() {
        let hidden = |by: &str| SourceStanding::Hidden(by.to_owned());
        let planned = |name: &str, from: &str, standing: SourceStanding| PlannedSource {
            name: name.to_owned(),
            project: None,
            folder: None,
            from: from.to_owned(),
            base: String::new(),
            entry: if standing == SourceStanding::Bad {
                Err(SourceProblem::new("", "is wrong"))
            } else {
                SourceEntry::parse(&json!({ "command": "cat" }), true).map(|(entry, _)| entry)
            },
            warnings: Vec::new(),
            standing,
            fingerprint: String::new(),
            written: Value::Null,
            is_own: true,
            approval: None,
            content: None,
        };
        let plan = |sources| SourcePlan { sources, problems: Vec::new() };
        let of_nobody = plan(vec![
            planned("twice", "imported", hidden("config.toml")),
            planned("toy", "config.toml", SourceStanding::InForce),
        ]);
        let of_project = plan(vec![
            planned("twice", "imported", hidden("/secret/.mcp.json")),
            planned("toy", "imported", SourceStanding::Bad),
            planned("lone", "imported", SourceStanding::Bad),
        ]);
        let states = standing_states([&of_nobody, &of_project].into_iter());
        let state = |name: &str| {
            let found =
                states.iter().find(|((key, from), _)| key.name == name && from == "imported");
            found.map(|(_, status)| (status.state, status.reason.clone().unwrap_or_default()))
        };
        let reason = "the entry of config.toml is used in its place".to_owned();
        assert_eq!(state("twice"), Some((SourceState::Hidden, reason)));
        assert_eq!(state("toy"), None, "it runs");
        assert_eq!(state("lone").expect("is told").0, SourceState::Misconfigured);
    }
}
