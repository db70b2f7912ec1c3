//! All servers as people see them.

use std::{collections::BTreeSet, io, path::PathBuf, sync::Arc};

use svc_core::service::sources::{SourceKey, SourceStatus};
use svc_model::{
    Timestamp,
    source::{SourceInstance, SourceState, SourceView},
};
use svc_sys::config::sources::{
    ApprovedEntry, PlannedSource, SourceChoices, SourceDocument, SourcePlan, SourceStanding,
    content_hash,
};

use super::{
    records::store_pin,
    state::{ManagedSources, SourceManager},
};
use crate::{
    blocking::run_blocking,
    pins::{SourceChange, changes, digest},
    spec::{SourceSpec, key_of},
};

/// A project's file that waits for approval.
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
        self.keyed_views().into_iter().map(|(_, view)| view).collect()
    }

    fn keyed_views(&self) -> Vec<(SourceKey, SourceView)> {
        let state = self.manager.state();
        let sources = self.plan.sources.iter();
        sources.map(|planned| (key_of(planned), self.view(&state, planned))).collect()
    }

    /// Problems with the files.
    pub fn problems(&self) -> &[String] {
        &self.plan.problems
    }

    /// The scopes that servers require of callers.
    pub fn scopes(&self) -> BTreeSet<String> {
        let entries = self.plan.sources.iter().filter_map(|planned| planned.entry.as_ref().ok());
        entries.filter_map(|entry| entry.scope.clone()).collect()
    }

    fn view(&self, state: &ManagedSources, planned: &PlannedSource) -> SourceView {
        let key = key_of(planned);
        let is_in_force = planned.standing == SourceStanding::InForce;
        let learner = state.instances.get(&(key.clone(), String::new())).filter(|_| is_in_force);
        let now = learner.map(|learner| learner.status());
        let since = now.as_ref().map_or_else(|| self.manager.services().now(), |now| now.since);
        let status =
            now.as_ref().map_or_else(|| standing_status(planned), |now| now.status.clone());
        let is_builtin = SourceSpec::parse(planned).is_some_and(|spec| spec.is_builtin());
        let status = if is_in_force && is_builtin {
            SourceStatus::from_state(SourceState::Connected)
        } else {
            status
        };
        let lists = state.lists.get(&key).filter(|kept| kept.fingerprint == planned.fingerprint);
        let lists = lists.filter(|_| is_in_force);
        let own = state.tools.get(&key).filter(|_| is_in_force);
        let changed = lists.map_or(0, |kept| kept.changed.len());
        let mut status = status;
        if changed > 0 && status.state == SourceState::Connected && status.next_action.is_none() {
            status.next_action = Some(format!("svc mcp approve {}", planned.name));
        }
        let mut warnings = planned.warnings.clone();
        warnings.extend(own.into_iter().flat_map(|own| own.problems.iter().cloned()));
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
        let entry = planned.entry.as_ref().ok();
        SourceView {
            name: planned.name.clone(),
            project: planned.project.clone(),
            state: status.state,
            reason: status.reason,
            next_action: status.next_action,
            attempt: status.attempt,
            // The remaining processes of a server may take longer to end than the backoff.
            next_at: status.next_at.map(|at| at.max(self.manager.services().now())),
            transport: entry.map(|entry| entry.transport_name().to_owned()),
            sharing: entry.map(|entry| entry.sharing),
            tools: own.map_or(0, |own| own.tools.len()),
            resources: lists.map_or(0, |kept| kept.shown.resources.len()),
            prompts: lists.map_or(0, |kept| kept.shown.prompts.len()),
            changed,
            pid: now.as_ref().and_then(|now| now.pid),
            instances,
            runs: (status.state == SourceState::PendingApproval)
                .then(|| ApprovedEntry::new(&planned.name, &planned.written).runs()),
            from: planned.from.clone(),
            hidden_by: match &planned.standing {
                SourceStanding::Hidden(by) => Some(by.clone()),
                _ => None,
            },
            warnings,
            since: Timestamp::clone(&since),
        }
    }

    /// The server of this name that is in force.
    pub fn find(&self, name: &str) -> Option<SourceView> {
        self.find_keyed(name).map(|(_, view)| view)
    }

    /// The key of the server of this name that is in force.
    pub fn key_of(&self, name: &str) -> Option<SourceKey> {
        self.find_keyed(name).map(|(key, _)| key)
    }

    fn find_keyed(&self, name: &str) -> Option<(SourceKey, SourceView)> {
        let named = self.keyed_views().into_iter().filter(|(key, _)| key.name == name);
        let mut views = named.collect::<Vec<_>>();
        let best = views.iter().position(|(_, view)| {
            !matches!(view.state, SourceState::Hidden | SourceState::PendingApproval)
        });
        (!views.is_empty()).then(|| views.swap_remove(best.unwrap_or(0)))
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
            let known = state
                .lists
                .get(&key)
                .map(|known| (Arc::clone(&known.lists), Arc::clone(&known.shown)));
            let Some((lists, before)) = known else { return Some(true) };
            let Some(pin) = state.pins.get_mut(&key) else { return Some(true) };
            (pin.lists, pin.told) = (lists, BTreeSet::new());
            let pin = pin.clone();
            manager.settle(&mut state);
            if let Some(known) = state.lists.get(&key) {
                manager.0.changes.count(Some(&before), &known.shown);
            }
            pin
        };
        manager.tell_catalogue();
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
    let learner = state.instances.get(&(key.clone(), String::new()));
    let pin = learner.and_then(|learner| {
        state.pins.get(key).filter(|pin| pin.basis == learner.spec.pin_basis())
    });
    let known = learner.and_then(|learner| {
        state.lists.get(key).filter(|known| known.fingerprint == learner.spec.fingerprint)
    });
    let changes = match (pin, known) {
        (Some(pin), Some(known)) => changes(&pin.lists, &known.lists),
        _ => Vec::new(),
    };
    let digest = digest(&changes);
    (changes, digest)
}

pub(super) fn standing_status(planned: &PlannedSource) -> SourceStatus {
    let (state, reason, next_action) = match &planned.standing {
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
