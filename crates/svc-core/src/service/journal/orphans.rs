//! Orphaned records: active, but their session has ended or is stale.

use svc_model::{
    Caller, GhapId, Timestamp,
    journal::{Ghap, GhapStatus, Resolution},
    limits,
};
use svc_store::WriteTx;

use super::{Journal, records::tell_of, texts::check_text};
use crate::service::{Error, ResourceKind, projects::project_of_write, team::ActingSession};

impl Journal {
    /// Orphaned records in the project of a session, the one that was changed last first.
    pub async fn orphans(
        &self,
        caller: &Caller,
        acting: &ActingSession,
    ) -> Result<Vec<Ghap>, Error> {
        let session = self.core.store.sessions().get(&acting.session_id).await?;
        let project = match project_of_write(caller, session) {
            Some(project) => project,
            // Sessions without a project have nothing in common.
            None if !caller.is_operator() => return Ok(Vec::new()),
            None => String::new(),
        };
        let stale = self.core.now().minus(limits::SESSION_STALE);
        Ok(self.core.store.ghaps().orphans(&project, &acting.session_id, stale).await?)
    }

    /// Moves an orphaned record to the caller's session: it keeps its id and its history.
    pub async fn adopt_ghap(
        &self,
        caller: &Caller,
        acting: ActingSession,
        id: Option<&str>,
    ) -> Result<(Ghap, String), Error> {
        let orphan = self.one_orphan(caller, &acting, id).await?;
        let subject = caller.principal().to_string();
        let stale = self.core.now().minus(limits::SESSION_STALE);
        self.core
            .store
            .on_behalf_of(caller)
            .write(move |tx| {
                Box::pin(async move {
                    tx.sessions().touch(&acting.session_id, &subject).await?;
                    if let Some(active) = tx.ghaps().active(&acting.session_id).await? {
                        return Err(Error::ActiveGhap { id: active.id });
                    }
                    let mut ghap = read_orphan(tx, &orphan, stale).await?;
                    let from = std::mem::replace(&mut ghap.session_id, acting.session_id.clone());
                    ghap.updated_at = tx.now();
                    tx.ghaps().update(&ghap).await?;
                    tx.tool_counts().reset(&acting.session_id, "").await?;
                    tell_of(tx, &ghap, "ghap.adopted").await?;
                    Ok((ghap, from))
                })
            })
            .await
    }

    /// Abandons an orphaned record, under the session that left it. The operator may abandon one of
    /// any project, by its id or a prefix of it.
    pub async fn abandon_orphan(
        &self,
        caller: &Caller,
        acting: ActingSession,
        id: Option<&str>,
        reason: String,
    ) -> Result<Ghap, Error> {
        check_text("reason", &reason, limits::GHAP_LONG_TEXT_CHARS)?;
        let orphan = match id {
            Some(id) if caller.is_operator() => self.ghap(caller, id).await?.ghap.id,
            _ => self.one_orphan(caller, &acting, id).await?,
        };
        let stale = self.core.now().minus(limits::SESSION_STALE);
        self.core
            .store
            .on_behalf_of(caller)
            .write(move |tx| {
                Box::pin(async move {
                    let mut ghap = read_orphan(tx, &orphan, stale).await?;
                    ghap.resolve(Resolution::abandoned(reason), tx.now());
                    tx.ghaps().update(&ghap).await?;
                    tell_of(tx, &ghap, "ghap.resolved").await?;
                    Ok(ghap)
                })
            })
            .await
    }

    async fn one_orphan(
        &self,
        caller: &Caller,
        acting: &ActingSession,
        id: Option<&str>,
    ) -> Result<GhapId, Error> {
        let mut orphans = self.orphans(caller, acting).await?;
        match id {
            None if orphans.is_empty() => {
                Err(Error::not_found(ResourceKind::OrphanedRecord, "in this project"))
            }
            None => Ok(orphans.swap_remove(0).id),
            Some(id) => orphans
                .into_iter()
                .map(|ghap| ghap.id)
                .find(|known| known.as_str() == id)
                .ok_or_else(|| Error::not_found(ResourceKind::OrphanOfProject, id)),
        }
    }
}

/// Reads a record that was an orphan; an error if its session has returned since.
async fn read_orphan(tx: &mut WriteTx, id: &GhapId, stale: Timestamp) -> Result<Ghap, Error> {
    let unknown = || Error::not_found(ResourceKind::GhapRecord, id.as_str());
    let ghap = tx.ghaps().get(id).await?.ok_or_else(unknown)?;
    let session = tx.sessions().get(&ghap.session_id).await?;
    let left =
        session.is_none_or(|session| session.ended_at.is_some() || session.last_seen_at < stale);
    if ghap.status != GhapStatus::Active {
        return Err(Error::Conflict(format!("record {id} has ended: it is {}", ghap.status)));
    }
    if !left {
        return Err(Error::Conflict(format!(
            "record {id} is not left open: session {} still works on it",
            ghap.session_id
        )));
    }
    Ok(ghap)
}
