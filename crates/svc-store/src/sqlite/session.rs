//! Sessions of clients: begin, end and owner.

use svc_model::{
    Ownership, PeerId, Principal, Reader, SessionFilter, Timestamp, TokenHash,
    journal::{Session, SessionSource},
};

use super::{
    columns::non_empty,
    errors::changed,
    families::{SessionReads, SessionWrites},
    json::to_json,
    page::read_page,
    statement::{
        change, direct_row, pool_query, query_value, read_one, select_fields, select_one,
        select_values,
    },
};
use crate::{PageSize, RowPage, SessionLock, SessionStart, StoreError};

direct_row! {
    struct RawSession {
        session_id: String,
        project: String,
        client: Option<String>,
        source: SessionSource,
        started_at: Timestamp,
        last_seen_at: Timestamp,
        ended_at: Option<Timestamp>,
        end_reason: Option<String>,
        tool_calls: i64,
        tool_count: i64,
    }
}

impl From<RawSession> for Session {
    fn from(raw: RawSession) -> Self {
        Self {
            session_id: raw.session_id,
            project: non_empty(raw.project),
            client: raw.client,
            source: raw.source,
            started_at: raw.started_at,
            last_seen_at: raw.last_seen_at,
            ended_at: raw.ended_at,
            end_reason: raw.end_reason,
            tool_calls: raw.tool_calls,
            tool_count: raw.tool_count,
        }
    }
}

direct_row! {
    struct RawOwner {
        created_by: String,
        project: String,
    }
}

impl From<RawOwner> for Ownership {
    fn from(raw: RawOwner) -> Self {
        Self::from_row(&raw.created_by, raw.project)
    }
}

/// Selects owner and project of a session.
macro_rules! owners {
    ($run:ident, $($rest:tt)*) => {
        $run!("select created_by, project from session ", RawOwner, $($rest)*)
    };
}

/// Selects the columns of the row; for the macros of `statement`.
macro_rules! sessions {
    ($run:ident, $($rest:tt)*) => {
        $run!(
            r#"select s.session_id as "session_id!", s.project, s.client, s.source as "source: SessionSource",
                s.started_at as "started_at: Timestamp", s.last_seen_at as "last_seen_at: Timestamp",
                s.ended_at as "ended_at: Timestamp", s.end_reason,
                coalesce(c.total, 0) as "tool_calls!: i64", coalesce(c.since, 0) as "tool_count!: i64"
            from session s
            left join session_counter c on c.session_id = s.session_id and c.agent_id = '' "#,
            RawSession,
            $($rest)*
        )
    };
}

impl SessionWrites<'_> {
    /// Begins a session, or resumes it.
    pub async fn begin(&mut self, start: &SessionStart) -> Result<(), StoreError> {
        change!(
            self.tx,
            "insert into session (session_id, project, client, source, created_by, started_at, last_seen_at)
            values (?1, coalesce(?2, ''), ?3, ?4, ?5, ?6, ?6)
            on conflict (session_id) do update set
                project = coalesce(?2, project), client = coalesce(?3, client), source = ?4, last_seen_at = ?6,
                ended_at = null, end_reason = null",
            start.session_id,
            start.project,
            start.client,
            start.source,
            start.created_by,
            self.tx.now
        );
        Ok(())
    }

    /// Creates the session if it is missing, and records that it is alive. Reopens an ended
    /// session.
    pub async fn touch(&mut self, session_id: &str, created_by: &str) -> Result<(), StoreError> {
        change!(
            self.tx,
            "insert into session (session_id, source, created_by, started_at, last_seen_at)
            values (?1, 'startup', ?2, ?3, ?3)
            on conflict (session_id) do update set last_seen_at = ?3, ended_at = null, end_reason = null",
            session_id,
            created_by,
            self.tx.now
        );
        Ok(())
    }

    pub async fn get(&mut self, session_id: &str) -> Result<Option<Session>, StoreError> {
        let raw = sessions!(select_one, self.tx, "where s.session_id = ?", session_id);
        Ok(raw.map(Session::from))
    }

    pub async fn owner(&mut self, session_id: &str) -> Result<Option<Ownership>, StoreError> {
        Ok(owners!(select_one, self.tx, "where session_id = ?", session_id).map(Ownership::from))
    }

    /// Restrictions on who may use a session, besides its owner.
    pub async fn lock(&mut self, session_id: &str) -> Result<SessionLock, StoreError> {
        let row = select_fields!(
            select_one,
            self.tx,
            { secret: Option<Vec<u8>>, ended_at: Option<Timestamp> },
            r#"select secret, ended_at as "ended_at: Timestamp" from session where session_id = ?"#,
            session_id
        );
        Ok(row.map_or_else(SessionLock::default, |row| SessionLock {
            secret: row.secret.and_then(|hash| hash.try_into().ok()),
            ended_at: row.ended_at,
        }))
    }

    /// Stores the SHA-256 of a session's secret.
    pub async fn put_secret(
        &mut self,
        session_id: &str,
        secret: &TokenHash,
    ) -> Result<(), StoreError> {
        let secret = secret.as_slice();
        change!(self.tx, "update session set secret = ? where session_id = ?", secret, session_id);
        Ok(())
    }

    /// Removes the secrets of those sessions of `ids` that ended before `before`.
    pub async fn forget_secrets(
        &mut self,
        ids: &[String],
        before: Timestamp,
    ) -> Result<(), StoreError> {
        let ids = to_json(&ids);
        change!(
            self.tx,
            "update session set secret = null
            where session_id in (select value from json_each(?)) and ended_at < ?",
            ids,
            before
        );
        Ok(())
    }

    /// The open sessions of this owner, the latest seen first, at most `limit`.
    pub async fn open_of(
        &mut self,
        owner: &Principal,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        let owner = owner.to_string();
        let ids = select_values!(
            self.tx,
            r#"select session_id as "session_id!" from session where created_by = ? and ended_at is null
            order by last_seen_at desc, session_id desc limit ?"#,
            owner,
            limit
        );
        Ok(ids)
    }

    /// Gives a session to another owner, and its peers that were the former owner's, whose key is
    /// `from` (`None`: the operator). Answers with those peers. Their streams and the session's
    /// have other readers from now on: the caller says which
    /// ([`set_visibility`](super::families::StreamWrites::set_visibility)).
    pub async fn adopt(
        &mut self,
        session_id: &str,
        from: Option<&str>,
        to: &str,
    ) -> Result<Vec<PeerId>, StoreError> {
        let owner = Principal::Session(to.into()).to_string();
        let done = change!(
            self.tx,
            "update session set created_by = ? where session_id = ?",
            owner,
            session_id
        );
        changed(done, "session", session_id)?;
        let peers = select_values!(
            self.tx,
            r#"update peer set owner = ?1 where session_id = ?2 and session_id <> '' and owner is ?3
            returning peer_id as "peer_id!: String""#,
            to,
            session_id,
            from
        );
        Ok(peers.into_iter().map(PeerId::from).collect())
    }

    pub async fn end(&mut self, session_id: &str, reason: Option<&str>) -> Result<(), StoreError> {
        let done = change!(
            self.tx,
            "update session set ended_at = ?, end_reason = ?, last_seen_at = ? where session_id = ?",
            self.tx.now,
            reason,
            self.tx.now,
            session_id
        );
        changed(done, "session", session_id)
    }

    /// Replaces the times that this job wrote by the event's time, for an event that was reported
    /// late because the daemon was down.
    pub async fn date(
        &mut self,
        session_id: &str,
        at: Timestamp,
        is_new: bool,
    ) -> Result<(), StoreError> {
        let done = change!(
            self.tx,
            "update session set last_seen_at = ?2, started_at = iif(?3, ?2, started_at),
                ended_at = iif(ended_at is null, null, ?2)
            where session_id = ?1",
            session_id,
            at,
            is_new
        );
        changed(done, "session", session_id)
    }
}

impl SessionReads<'_> {
    pub async fn get(self, session_id: &str) -> Result<Option<Session>, StoreError> {
        let raw = sessions!(read_one, self.store, "where s.session_id = ?", session_id);
        Ok(raw.map(Session::from))
    }

    pub async fn owner(self, session_id: &str) -> Result<Option<Ownership>, StoreError> {
        Ok(owners!(read_one, self.store, "where session_id = ?", session_id).map(Ownership::from))
    }

    /// The open session of this owner that was last seen latest.
    pub async fn latest_of(self, owner: &Principal) -> Result<Option<String>, StoreError> {
        let owner = owner.to_string();
        let id = query_value!(
            r#"select session_id as "session_id!" from session where created_by = ? and ended_at is null
            order by last_seen_at desc, started_at desc, session_id desc limit 1"#,
            owner
        )
        .fetch_optional(&self.store.readers)
        .await?;
        Ok(id)
    }

    /// Sessions with a secret that ended before `before`, at most `limit`.
    pub async fn to_forget(self, before: Timestamp, limit: u32) -> Result<Vec<String>, StoreError> {
        let ids = query_value!(
            r#"select session_id as "session_id!" from session
            where secret is not null and ended_at < ? order by ended_at limit ?"#,
            before,
            limit
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(ids)
    }

    /// Sessions that the reader may read, the latest seen first.
    pub async fn list(
        self,
        reader: &Reader,
        filter: &SessionFilter,
        before: Option<(Timestamp, &str)>,
        size: PageSize,
    ) -> Result<RowPage<Session>, StoreError> {
        let limit = size.limit();
        let (at, id) = before.map_or((i64::MAX, ""), |(at, id)| (at.as_millis(), id));
        let (key, project) = (reader.key(), reader.project());
        // Each condition has an index in the order of the list.
        macro_rules! page {
            ($first:literal) => {
                sessions!(
                    pool_query,
                    $first
                        + "and (?1 is null or s.project = ?1) and (?2 is null or s.client = ?2)
                and (?3 is null or (s.ended_at is null) = ?3)
                and (s.last_seen_at, s.session_id) < (?4, ?5)
                and (?7 is null or s.project = ?8 or s.reader_key = ?7)
            order by s.last_seen_at desc, s.session_id desc limit ?6",
                    filter.project,
                    filter.client,
                    filter.open,
                    at,
                    id,
                    limit,
                    key,
                    project
                )
                .fetch(&self.store.page_readers)
            };
        }
        let rows = if filter.open == Some(true) {
            page!("where s.ended_at is null ")
        } else if filter.project.is_some() {
            page!("where s.project = ?1 ")
        } else {
            page!("where true ")
        };
        read_page(rows, size, |raw| Ok(Session::from(raw)), |session| session).await
    }

    /// Sessions that the reader may read and whose ids begin with `prefix`, open ones first, at
    /// most `limit`.
    pub async fn with_prefix(
        self,
        reader: &Reader,
        prefix: &str,
        limit: u32,
    ) -> Result<Vec<Session>, StoreError> {
        let (key, project) = (reader.key(), reader.project());
        let raw = sessions!(
            pool_query,
            "where s.session_id >= ?1 and substr(s.session_id, 1, length(?1)) = ?1
                and (?3 is null or s.project = ?4 or s.reader_key = ?3)
            order by s.ended_at is not null, s.last_seen_at desc limit ?2",
            prefix,
            limit,
            key,
            project
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(raw.into_iter().map(Session::from).collect())
    }
}
