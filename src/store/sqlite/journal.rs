//! Rows of the journal: sessions, their counters, outcomes, and records of attempts.

use super::{columns::non_empty, db::Store, errors::changed, tx::WriteTx};
use crate::{
    domain::{
        GhapId, OutcomeId, Timestamp,
        journal::{
            Domain, Ghap, GhapStatus, Iteration, Lesson, Outcome, OutcomeVerdict, RootCause,
            RootCauseCategory, Session, SessionSource, Strategy, Tier, ToolUse,
        },
    },
    store::{
        CalibrationRow, GhapFilter, HitRate, LessonKind, SessionFilter, SessionStart, StoreError,
    },
};

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

macro_rules! sessions {
    ($tail:literal $(, $arg:expr)*) => {
        sqlx::query_as!(
            RawSession,
            r#"select s.session_id as "session_id!", s.project, s.client, s.source as "source: SessionSource",
                s.started_at as "started_at: Timestamp", s.last_seen_at as "last_seen_at: Timestamp",
                s.ended_at as "ended_at: Timestamp", s.end_reason,
                coalesce(c.total, 0) as "tool_calls!: i64", coalesce(c.since, 0) as "tool_count!: i64"
            from session s
            left join session_counter c on c.session_id = s.session_id and c.agent_id = '' "# + $tail
            $(, $arg)*
        )
    };
}

struct RawGhap {
    ghap_id: String,
    session_id: String,
    project: String,
    domain: Domain,
    strategy: Strategy,
    goal: String,
    hypothesis: String,
    action: String,
    prediction: String,
    probability: Option<f64>,
    iteration_count: i64,
    status: GhapStatus,
    result: Option<String>,
    surprise: Option<String>,
    root_cause_category: Option<RootCauseCategory>,
    root_cause: Option<String>,
    what_worked: Option<String>,
    takeaway: Option<String>,
    tier: Option<Tier>,
    outcome_id: Option<String>,
    confirmed_again: i64,
    created_at: Timestamp,
    updated_at: Timestamp,
    resolved_at: Option<Timestamp>,
}

impl From<RawGhap> for Ghap {
    fn from(raw: RawGhap) -> Self {
        let root_cause = raw.root_cause_category.zip(raw.root_cause);
        let takeaway = raw.takeaway;
        Self {
            id: raw.ghap_id.into(),
            session_id: raw.session_id,
            project: non_empty(raw.project),
            domain: raw.domain,
            strategy: raw.strategy,
            goal: raw.goal,
            hypothesis: raw.hypothesis,
            action: raw.action,
            prediction: raw.prediction,
            probability: raw.probability,
            iteration_count: raw.iteration_count,
            status: raw.status,
            result: raw.result,
            surprise: raw.surprise,
            root_cause: root_cause
                .map(|(category, description)| RootCause { category, description }),
            lesson: raw.what_worked.map(|what_worked| Lesson { what_worked, takeaway }),
            confidence_tier: raw.tier,
            outcome_id: raw.outcome_id.map(OutcomeId::from),
            confirmed_again: raw.confirmed_again,
            created_at: raw.created_at,
            updated_at: raw.updated_at,
            resolved_at: raw.resolved_at,
        }
    }
}

macro_rules! ghaps {
    ($tail:literal $(, $arg:expr)*) => {
        sqlx::query_as!(
            RawGhap,
            r#"select g.ghap_id as "ghap_id!", g.session_id, g.project, g.domain as "domain: Domain",
                g.strategy as "strategy: Strategy", g.goal, g.hypothesis, g.action, g.prediction, g.probability,
                g.iteration_count, g.status as "status: GhapStatus", g.result, g.surprise,
                g.root_cause_category as "root_cause_category: RootCauseCategory", g.root_cause, g.what_worked,
                g.takeaway, g.tier as "tier: Tier", g.outcome_id, g.confirmed_again,
                g.created_at as "created_at: Timestamp", g.updated_at as "updated_at: Timestamp", g.resolved_at as "resolved_at: Timestamp"
            from ghap g "# + $tail
            $(, $arg)*
        )
    };
}

/// Records by their places in the table, which are an array in JSON; in any order.
pub(super) async fn ghaps_at(
    conn: &mut sqlx::SqliteConnection,
    places: &str,
) -> Result<Vec<Ghap>, StoreError> {
    let raw =
        ghaps!("where g.id in (select value from json_each(?))", places).fetch_all(conn).await?;
    Ok(raw.into_iter().map(Ghap::from).collect())
}

struct RawOutcome {
    outcome_id: String,
    session_id: String,
    command: String,
    verdict: OutcomeVerdict,
    summary: String,
    at: Timestamp,
}

impl From<RawOutcome> for Outcome {
    fn from(raw: RawOutcome) -> Self {
        Self {
            outcome_id: raw.outcome_id.into(),
            session_id: raw.session_id,
            command: raw.command,
            verdict: raw.verdict,
            summary: raw.summary,
            at: raw.at,
        }
    }
}

impl WriteTx {
    /// Begins a session, or begins it again.
    pub async fn begin_session(&mut self, start: &SessionStart) -> Result<(), StoreError> {
        sqlx::query!(
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
            self.now
        )
        .execute(&mut self.conn)
        .await?;
        Ok(())
    }

    /// Makes sure that a session has a row, and notes that it is alive. One that was over goes on.
    pub async fn touch_session(
        &mut self,
        session_id: &str,
        created_by: &str,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            "insert into session (session_id, source, created_by, started_at, last_seen_at)
            values (?1, 'startup', ?2, ?3, ?3)
            on conflict (session_id) do update set last_seen_at = ?3, ended_at = null, end_reason = null",
            session_id,
            created_by,
            self.now
        )
        .execute(&mut self.conn)
        .await?;
        Ok(())
    }

    /// A session by its id.
    pub async fn session(&mut self, session_id: &str) -> Result<Option<Session>, StoreError> {
        let raw =
            sessions!("where s.session_id = ?", session_id).fetch_optional(&mut self.conn).await?;
        Ok(raw.map(Session::from))
    }

    /// Ends a session.
    pub async fn end_session(
        &mut self,
        session_id: &str,
        reason: Option<&str>,
    ) -> Result<(), StoreError> {
        let done = sqlx::query!(
            "update session set ended_at = ?, end_reason = ?, last_seen_at = ? where session_id = ?",
            self.now,
            reason,
            self.now,
            session_id
        )
        .execute(&mut self.conn)
        .await?;
        changed(done.rows_affected(), "session", session_id)
    }

    /// Dates what was last written of a session to when it happened: it is told late, because the daemon was away.
    pub async fn date_session(
        &mut self,
        session_id: &str,
        at: Timestamp,
        is_new: bool,
    ) -> Result<(), StoreError> {
        let done = sqlx::query!(
            "update session set last_seen_at = ?2, started_at = iif(?3, ?2, started_at),
                ended_at = iif(ended_at is null, null, ?2)
            where session_id = ?1",
            session_id,
            at,
            is_new
        )
        .execute(&mut self.conn)
        .await?;
        changed(done.rows_affected(), "session", session_id)
    }

    /// Counts from zero again.
    pub async fn reset_tool_count(
        &mut self,
        session_id: &str,
        agent_id: &str,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            "update session_counter set since = 0 where session_id = ? and agent_id = ?",
            session_id,
            agent_id
        )
        .execute(&mut self.conn)
        .await?;
        Ok(())
    }

    /// Remembers a fact about the daemon as a whole.
    pub async fn put_setting(&mut self, name: &str, value: &str) -> Result<(), StoreError> {
        sqlx::query!(
            "insert into setting (name, value) values (?1, ?2) on conflict (name) do update set value = ?2",
            name,
            value
        )
        .execute(&mut self.conn)
        .await?;
        Ok(())
    }

    /// The verdicts of a session's last outcomes, the latest first, and when they came.
    pub async fn last_verdicts(
        &mut self,
        session_id: &str,
        limit: u32,
    ) -> Result<Vec<(OutcomeVerdict, Timestamp)>, StoreError> {
        let rows = sqlx::query!(
            r#"select verdict as "verdict: OutcomeVerdict", at as "at: Timestamp"
            from outcome where session_id = ? order by at desc, outcome_id desc limit ?"#,
            session_id,
            limit
        )
        .fetch_all(&mut self.conn)
        .await?;
        Ok(rows.into_iter().map(|row| (row.verdict, row.at)).collect())
    }

    /// Stores an outcome, or finds the one that was stored for the same tool call.
    pub async fn insert_outcome(
        &mut self,
        outcome: &Outcome,
        agent_id: &str,
        project: &str,
        tool_use_id: Option<&str>,
    ) -> Result<Outcome, StoreError> {
        if let Some(tool_use_id) = tool_use_id {
            let known = sqlx::query_as!(
                RawOutcome,
                r#"select outcome_id as "outcome_id!", session_id, command, verdict as "verdict: OutcomeVerdict", summary,
                    at as "at: Timestamp"
                from outcome where session_id = ? and tool_use_id = ?"#,
                outcome.session_id,
                tool_use_id
            )
            .fetch_optional(&mut self.conn)
            .await?;
            if let Some(known) = known {
                return Ok(known.into());
            }
        }
        let id = outcome.outcome_id.as_str();
        sqlx::query!(
            "insert into outcome (outcome_id, session_id, agent_id, project, tool_use_id, command, verdict, summary, at)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            id,
            outcome.session_id,
            agent_id,
            project,
            tool_use_id,
            outcome.command,
            outcome.verdict,
            outcome.summary,
            self.now
        )
        .execute(&mut self.conn)
        .await?;
        Ok(Outcome { at: self.now, ..outcome.clone() })
    }

    /// The session that an outcome was seen in.
    pub async fn outcome_session(&mut self, id: &str) -> Result<Option<String>, StoreError> {
        let session =
            sqlx::query_scalar!("select session_id from outcome where outcome_id = ?", id)
                .fetch_optional(&mut self.conn)
                .await?;
        Ok(session)
    }

    /// Stores a new record.
    pub async fn insert_ghap(
        &mut self,
        ghap: &Ghap,
        imported_from: Option<&str>,
    ) -> Result<(), StoreError> {
        let (id, project) = (ghap.id.as_str(), ghap.project.as_deref().unwrap_or_default());
        let category = ghap.root_cause.as_ref().map(|cause| cause.category);
        let cause = ghap.root_cause.as_ref().map(|cause| &cause.description);
        let worked = ghap.lesson.as_ref().map(|lesson| &lesson.what_worked);
        let takeaway = ghap.lesson.as_ref().and_then(|lesson| lesson.takeaway.as_ref());
        let outcome = ghap.outcome_id.as_ref().map(OutcomeId::as_str);
        sqlx::query!(
            "insert into ghap (ghap_id, session_id, project, domain, strategy, goal, hypothesis, action, prediction,
                probability, iteration_count, status, result, surprise, root_cause_category, root_cause, what_worked,
                takeaway, tier, outcome_id, imported_from, created_at, updated_at, resolved_at)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            id,
            ghap.session_id,
            project,
            ghap.domain,
            ghap.strategy,
            ghap.goal,
            ghap.hypothesis,
            ghap.action,
            ghap.prediction,
            ghap.probability,
            ghap.iteration_count,
            ghap.status,
            ghap.result,
            ghap.surprise,
            category,
            cause,
            worked,
            takeaway,
            ghap.confidence_tier,
            outcome,
            imported_from,
            ghap.created_at,
            ghap.updated_at,
            ghap.resolved_at
        )
        .execute(&mut self.conn)
        .await?;
        self.index_ghap(ghap).await
    }

    /// Writes a record back as it is now.
    pub async fn update_ghap(&mut self, ghap: &Ghap) -> Result<(), StoreError> {
        let id = ghap.id.as_str();
        let category = ghap.root_cause.as_ref().map(|cause| cause.category);
        let cause = ghap.root_cause.as_ref().map(|cause| &cause.description);
        let worked = ghap.lesson.as_ref().map(|lesson| &lesson.what_worked);
        let takeaway = ghap.lesson.as_ref().and_then(|lesson| lesson.takeaway.as_ref());
        let outcome = ghap.outcome_id.as_ref().map(OutcomeId::as_str);
        let done = sqlx::query!(
            "update ghap set session_id = ?, domain = ?, strategy = ?, goal = ?, hypothesis = ?, action = ?,
                prediction = ?, probability = ?, iteration_count = ?, status = ?, result = ?, surprise = ?,
                root_cause_category = ?, root_cause = ?, what_worked = ?, takeaway = ?, tier = ?, outcome_id = ?,
                updated_at = ?, resolved_at = ?
            where ghap_id = ?",
            ghap.session_id,
            ghap.domain,
            ghap.strategy,
            ghap.goal,
            ghap.hypothesis,
            ghap.action,
            ghap.prediction,
            ghap.probability,
            ghap.iteration_count,
            ghap.status,
            ghap.result,
            ghap.surprise,
            category,
            cause,
            worked,
            takeaway,
            ghap.confidence_tier,
            outcome,
            ghap.updated_at,
            ghap.resolved_at,
            id
        )
        .execute(&mut self.conn)
        .await?;
        changed(done.rows_affected(), "ghap", id)?;
        self.index_ghap(ghap).await
    }

    /// Keeps what a record said before it is changed.
    pub async fn insert_iteration(
        &mut self,
        id: &GhapId,
        before: &Iteration,
    ) -> Result<(), StoreError> {
        let id = id.as_str();
        sqlx::query!(
            "insert into ghap_history (ghap_id, iteration, hypothesis, action, prediction, at)
            values (?, ?, ?, ?, ?, ?)",
            id,
            before.iteration,
            before.hypothesis,
            before.action,
            before.prediction,
            before.at
        )
        .execute(&mut self.conn)
        .await?;
        Ok(())
    }

    /// Adds a note to a record.
    pub async fn insert_note(
        &mut self,
        id: &GhapId,
        note: &str,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let id = id.as_str();
        sqlx::query!("insert into ghap_note (ghap_id, note, at) values (?, ?, ?)", id, note, at)
            .execute(&mut self.conn)
            .await?;
        Ok(())
    }

    /// Notes to a record, in order.
    pub async fn notes(&mut self, id: &GhapId) -> Result<Vec<String>, StoreError> {
        let id = id.as_str();
        let notes =
            sqlx::query_scalar!("select note from ghap_note where ghap_id = ? order by id", id)
                .fetch_all(&mut self.conn)
                .await?;
        Ok(notes)
    }

    /// The active record of a session.
    pub async fn active_ghap(&mut self, session_id: &str) -> Result<Option<Ghap>, StoreError> {
        let raw = ghaps!("where g.session_id = ? and g.status = 'active'", session_id)
            .fetch_optional(&mut self.conn)
            .await?;
        Ok(raw.map(Ghap::from))
    }

    /// A record by its id.
    pub async fn ghap(&mut self, id: &GhapId) -> Result<Option<Ghap>, StoreError> {
        let id = id.as_str();
        let raw = ghaps!("where g.ghap_id = ?", id).fetch_optional(&mut self.conn).await?;
        Ok(raw.map(Ghap::from))
    }

    /// Whether a record was imported from there already.
    pub async fn is_imported(&mut self, from: &str) -> Result<bool, StoreError> {
        let known = sqlx::query_scalar!(
            r#"select exists (select 1 from ghap where imported_from = ?) as "known!: bool""#,
            from
        )
        .fetch_one(&mut self.conn)
        .await?;
        Ok(known)
    }
}

impl Store {
    /// A session by its id.
    pub async fn session(&self, session_id: &str) -> Result<Option<Session>, StoreError> {
        let raw =
            sessions!("where s.session_id = ?", session_id).fetch_optional(&self.readers).await?;
        Ok(raw.map(Session::from))
    }

    /// A page of sessions, those heard of last first.
    pub async fn sessions(
        &self,
        filter: &SessionFilter,
        before: Option<(Timestamp, &str)>,
        limit: u32,
    ) -> Result<Vec<Session>, StoreError> {
        let (at, id) = before.unzip();
        let raw = sessions!(
            "where (?1 is null or s.project = ?1) and (?2 is null or s.client = ?2)
                and (?3 is null or (s.ended_at is null) = ?3)
                and (?4 is null or (s.last_seen_at, s.session_id) < (?4, ?5))
            order by s.last_seen_at desc, s.session_id desc limit ?6",
            filter.project,
            filter.client,
            filter.open,
            at,
            id,
            limit
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(raw.into_iter().map(Session::from).collect())
    }

    /// How often each tool was called in a session, the most called first.
    pub async fn tool_uses(&self, session_id: &str) -> Result<Vec<ToolUse>, StoreError> {
        let rows = sqlx::query!(
            r#"select tool_name, agent_id, count, last_at as "last_at: Timestamp" from tool_use
            where session_id = ? order by agent_id, count desc, tool_name"#,
            session_id
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| ToolUse {
                tool_name: row.tool_name,
                agent_id: non_empty(row.agent_id),
                count: row.count,
                last_at: row.last_at,
            })
            .collect())
    }

    /// A fact about the daemon as a whole.
    pub async fn setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        let value = sqlx::query_scalar!("select value from setting where name = ?", name)
            .fetch_optional(&self.readers)
            .await?;
        Ok(value)
    }

    /// The active record of a session.
    pub async fn active_ghap(&self, session_id: &str) -> Result<Option<Ghap>, StoreError> {
        let raw = ghaps!("where g.session_id = ? and g.status = 'active'", session_id)
            .fetch_optional(&self.readers)
            .await?;
        Ok(raw.map(Ghap::from))
    }

    /// A record by its id.
    pub async fn ghap(&self, id: &GhapId) -> Result<Option<Ghap>, StoreError> {
        let id = id.as_str();
        let raw = ghaps!("where g.ghap_id = ?", id).fetch_optional(&self.readers).await?;
        Ok(raw.map(Ghap::from))
    }

    /// A page of records, the latest made first.
    pub async fn ghaps(
        &self,
        filter: &GhapFilter,
        before: Option<&GhapId>,
        limit: u32,
    ) -> Result<Vec<Ghap>, StoreError> {
        let before = before.map(GhapId::as_str);
        let raw = ghaps!(
            "where (?1 is null or g.domain = ?1) and (?2 is null or g.status = ?2)
                and (?3 is null or g.project = ?3) and (?4 is null or g.session_id = ?4)
                and (?5 is null or g.resolved_at >= ?5)
                and g.id < coalesce((select id from ghap where ghap_id = ?6), 9223372036854775807)
            order by g.id desc limit ?7",
            filter.domain,
            filter.status,
            filter.project,
            filter.session_id,
            filter.since,
            before,
            limit
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(raw.into_iter().map(Ghap::from).collect())
    }

    /// All records after one, in the order in which they were made.
    pub async fn ghaps_after(
        &self,
        after: Option<&GhapId>,
        limit: u32,
    ) -> Result<Vec<Ghap>, StoreError> {
        let after = after.map(GhapId::as_str);
        let raw = ghaps!(
            "where g.id > coalesce((select id from ghap where ghap_id = ?1), 0) order by g.id limit ?2",
            after,
            limit
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(raw.into_iter().map(Ghap::from).collect())
    }

    /// Active records of a project whose session is over, or was not heard of since `stale`; not that of `session_id`.
    pub async fn orphans(
        &self,
        project: &str,
        session_id: &str,
        stale: Timestamp,
    ) -> Result<Vec<Ghap>, StoreError> {
        let raw = ghaps!(
            "join session s on s.session_id = g.session_id
            where g.status = 'active' and g.project = ?1 and g.session_id <> ?2
                and (s.ended_at is not null or s.last_seen_at < ?3)
            order by g.updated_at desc",
            project,
            session_id,
            stale
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(raw.into_iter().map(Ghap::from).collect())
    }

    /// What a record said before it was changed, in order.
    pub async fn iterations(&self, id: &GhapId) -> Result<Vec<Iteration>, StoreError> {
        let id = id.as_str();
        let rows = sqlx::query!(
            r#"select iteration, hypothesis, action, prediction, at as "at: Timestamp" from ghap_history
            where ghap_id = ? order by iteration"#,
            id
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| Iteration {
                iteration: row.iteration,
                hypothesis: row.hypothesis,
                action: row.action,
                prediction: row.prediction,
                at: row.at,
            })
            .collect())
    }

    /// Notes to a record, in order.
    pub async fn notes(&self, id: &GhapId) -> Result<Vec<String>, StoreError> {
        let id = id.as_str();
        let notes =
            sqlx::query_scalar!("select note from ghap_note where ghap_id = ? order by id", id)
                .fetch_all(&self.readers)
                .await?;
        Ok(notes)
    }

    /// Outcomes of a session, the latest first.
    pub async fn outcomes(&self, session_id: &str, limit: u32) -> Result<Vec<Outcome>, StoreError> {
        let rows = sqlx::query_as!(
            RawOutcome,
            r#"select outcome_id as "outcome_id!", session_id, command, verdict as "verdict: OutcomeVerdict", summary,
                at as "at: Timestamp"
            from outcome where session_id = ? order by at desc, outcome_id desc limit ?"#,
            session_id,
            limit
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(rows.into_iter().map(Outcome::from).collect())
    }

    /// The latest records that are over.
    pub async fn latest_resolved(&self, limit: u32) -> Result<Vec<Ghap>, StoreError> {
        let raw = ghaps!("where g.status <> 'active' order by g.id desc limit ?", limit)
            .fetch_all(&self.readers)
            .await?;
        Ok(raw.into_iter().map(Ghap::from).collect())
    }

    /// Records of a kind that have something to tell to another attempt: those of `project` first, then those with a
    /// lesson, then the latest.
    pub async fn telling(
        &self,
        domain: Domain,
        strategy: Option<Strategy>,
        kind: LessonKind,
        project: &str,
        limit: u32,
    ) -> Result<Vec<Ghap>, StoreError> {
        let failed = kind == LessonKind::Falsified;
        let raw = ghaps!(
            "where g.domain = ?1 and (?2 is null or g.strategy = ?2) and g.status <> 'active'
                and ((?3 and g.status = 'falsified') or (not ?3 and g.surprise is not null))
            order by g.project = ?4 desc, g.what_worked is null, g.id desc limit ?5",
            domain,
            strategy,
            failed,
            project,
            limit
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(raw.into_iter().map(Ghap::from).collect())
    }

    /// How often each strategy came true in a domain, the one asked for first, then the most used.
    pub async fn hit_rates(
        &self,
        domain: Domain,
        strategy: Option<Strategy>,
    ) -> Result<Vec<HitRate>, StoreError> {
        let rows = sqlx::query_as!(
            HitRate,
            r#"select strategy as "strategy!: Strategy", count(*) as "records!: i64",
                sum(status = 'confirmed') as "confirmed!: i64"
            from ghap where domain = ?1 and status in ('confirmed', 'falsified')
            group by strategy order by coalesce(strategy = ?2, 0) desc, count(*) desc, strategy"#,
            domain,
            strategy
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(rows)
    }

    /// Why predictions of a domain were wrong, the most frequent cause first.
    pub async fn root_causes(
        &self,
        domain: Domain,
        strategy: Option<Strategy>,
    ) -> Result<Vec<(RootCauseCategory, i64)>, StoreError> {
        let rows = sqlx::query!(
            r#"select root_cause_category as "category!: RootCauseCategory", count(*) as "count!: i64"
            from ghap
            where domain = ?1 and (?2 is null or strategy = ?2) and status = 'falsified'
                and root_cause_category is not null
            group by root_cause_category order by count(*) desc, root_cause_category"#,
            domain,
            strategy
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(rows.into_iter().map(|row| (row.category, row.count)).collect())
    }

    /// How well predictions came true, by client and domain.
    pub async fn calibration(
        &self,
        project: Option<&str>,
        client: Option<&str>,
        domain: Option<Domain>,
    ) -> Result<Vec<CalibrationRow>, StoreError> {
        let rows = sqlx::query_as!(
            CalibrationRow,
            r#"select s.client, g.domain as "domain!: Domain", count(*) as "records!: i64",
                avg(g.status = 'confirmed') as "hit_rate!: f64", count(g.probability) as "with_probability!: i64",
                avg((g.probability - (g.status = 'confirmed')) * (g.probability - (g.status = 'confirmed')))
                    as "brier: f64"
            from ghap g
            join session s on s.session_id = g.session_id
            where g.status in ('confirmed', 'falsified') and (?1 is null or g.project = ?1)
                and (?2 is null or s.client = ?2) and (?3 is null or g.domain = ?3)
            group by s.client, g.domain order by s.client, g.domain"#,
            project,
            client,
            domain
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(rows)
    }
}
