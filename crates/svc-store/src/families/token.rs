//! Rows of session tokens and of browsers, and sign-in codes. They contain the hash of a token or
//! code and never the secret itself.

use std::time::Duration;

use svc_model::{
    MachineId, MachineProcess, ProcessIdentity, Timestamp, TokenHash, TokenId, json_bytes,
};

use super::{BrowserReads, BrowserWrites, TokenReads, TokenWrites};
use crate::{
    LoginCodeRow, PageSize, ProcessSubject, Result, RowPage, SubjectHolders, TokenEnd, TokenRow,
    boxed, boxed_methods,
    columns::{Columns, DirectRow, Fault},
    readers::Rows as _,
    statement::{change, changed, column, direct_row, find_value, query, value},
};

impl DirectRow for TokenRow {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        Ok(Self {
            token_id: columns.next("token_id")?,
            session: columns.next("session")?,
            scopes: columns.json("scopes")?,
            project: columns.next("project")?,
            created_at: columns.next("created_at")?,
            expires_at: columns.next("expires_at")?,
            last_used_at: columns.next("last_used_at")?,
            revoked_at: columns.next("revoked_at")?,
            process: process(columns)?,
            cwd: columns.next("cwd")?,
            operator_credential: columns.next("operator_credential")?,
        })
    }
}

/// The process of a client, if the row names one.
fn process(columns: &mut Columns<'_>) -> Result<Option<ProcessIdentity>, Fault> {
    let pid: Option<u32> = columns.next("client_pid")?;
    let started: Option<String> = columns.next("client_started")?;
    Ok(pid.zip(started).map(|(pid, started)| ProcessIdentity { pid, started }))
}

impl DirectRow for ProcessSubject {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        Ok(Self {
            token_id: columns.next("token_id")?,
            session: columns.next("session")?,
            scopes: columns.json("scopes")?,
            project: columns.next("project")?,
            cwd: columns.next("cwd")?,
            is_barred: columns.next("is_barred")?,
        })
    }
}

macro_rules! tokens {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),
            r#"select token_id as "token_id!", session, scopes, nullif(project, '') as "project: String",
                created_at as "created_at: Timestamp",
                expires_at as "expires_at: Timestamp", last_used_at as "last_used_at: Timestamp",
                revoked_at as "revoked_at: Timestamp", client_pid, client_started, cwd, operator_credential
            from token "#,
            $($rest)*
        )
    };
}

#[boxed_methods]
impl TokenWrites<'_> {
    /// Stores a token's row with the SHA-256 of the token.
    pub async fn insert(&mut self, row: &TokenRow, hash: &[u8; 32]) -> Result<()> {
        let (id, hash) = (row.token_id.as_str(), hash.as_slice());
        let scopes = serde_json::to_string(&row.scopes).expect("strings have a JSON form");
        let project = row.project.as_deref().unwrap_or_default();
        let (pid, started) = row.process.as_ref().map(|it| (it.pid, &*it.started)).unzip();
        // A token of a process is made on the machine of the process.
        let machine = row.process.as_ref().map_or("", |_| self.tx.machine.as_str());
        change!(self.tx,
            "insert into token (token_id, hash, session, scopes, project, created_at, expires_at, client_pid,
                client_started, cwd, operator_credential, machine_id)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
            id, hash, row.session, scopes, project, row.created_at, row.expires_at, pid, started,
            row.cwd, row.operator_credential, machine);
        Ok(())
    }

    /// Revokes a token for the operator; an earlier time of revocation stays.
    pub async fn revoke(&mut self, id: &TokenId) -> Result<Option<TokenRow>> {
        change!(self.tx,
            "update token set revoked_at = coalesce(revoked_at, ?), revoke_reason = ? where token_id = ?";
            self.tx.now, TokenEnd::Revoked, id);
        Ok(tokens!(one(), self.tx.direct, "where token_id = ?"; id))
    }

    /// Revokes the minted tokens of a session and returns those that were not revoked before. The
    /// token of a process is revoked with the end of the process.
    pub async fn revoke_minted_of(&mut self, session: &str) -> Result<Vec<TokenId>> {
        Ok(column!(self.tx.direct,
            r#"update token set revoked_at = ?, revoke_reason = ? where session = ? and revoked_at is null
                and operator_credential is null and client_pid is null
            returning token_id as "token_id!: TokenId""#; self.tx.now, TokenEnd::Ended, session))
    }

    /// Revokes all tokens of a session and returns those that were not revoked before.
    pub async fn revoke_all_of(&mut self, session: &str) -> Result<Vec<TokenId>> {
        Ok(column!(self.tx.direct,
            r#"update token set revoked_at = ?, revoke_reason = ? where session = ? and revoked_at is null
                and operator_credential is null
            returning token_id as "token_id!: TokenId""#; self.tx.now, TokenEnd::Ended, session))
    }

    /// Revokes the tokens of a process that has exited, at most `limit`. Returns them.
    pub async fn end_of_process(
        &mut self,
        process: &ProcessIdentity,
        limit: u32,
    ) -> Result<Vec<TokenId>> {
        Ok(column!(self.tx.direct,
            r#"update token set revoked_at = ?1, revoke_reason = ?2 where token_id in
                (select token_id from token where client_pid = ?3 and client_started = ?4 and revoked_at is null
                limit ?5)
            returning token_id as "token_id!: TokenId""#;
            self.tx.now, TokenEnd::Gone, process.pid, process.started, limit))
    }

    /// Revokes the tokens of processes of a machine, at most `limit`. Returns them.
    pub async fn end_of_machine(
        &mut self,
        machine: &MachineId,
        limit: u32,
    ) -> Result<Vec<TokenId>> {
        Ok(column!(self.tx.direct,
            r#"update token set revoked_at = ?1, revoke_reason = ?2 where token_id in
                (select token_id from token where machine_id = ?3 and client_pid is not null and revoked_at is null
                limit ?4)
            returning token_id as "token_id!: TokenId""#; self.tx.now, TokenEnd::Gone, machine, limit))
    }

    /// Records which `svc` process uses a token of a client's process.
    pub async fn set_bearer(&mut self, id: &TokenId, bearer: &str) -> Result<()> {
        change!(self.tx, "update token set bearer = ? where token_id = ?"; bearer, id);
        Ok(())
    }

    /// The `svc` processes that use tokens of a client's process.
    pub async fn bearers(&mut self, process: &ProcessIdentity) -> Result<Vec<String>> {
        Ok(column!(self.tx.direct,
            r#"select distinct bearer as "bearer!" from token
            where client_pid = ? and client_started = ? and bearer is not null"#;
            process.pid, process.started))
    }

    /// Removes tokens of a client's process that process `bearer` uses, except the latest `kept`,
    /// at most `limit`. Tokens that the operator revoked stay.
    pub async fn trim_of_bearer(
        &mut self,
        process: &ProcessIdentity,
        bearer: &str,
        kept: u32,
        limit: u32,
    ) -> Result<Vec<TokenId>> {
        Ok(column!(self.tx.direct,
            r#"delete from token where token_id in
                (select token_id from token where client_pid = ?1 and client_started = ?2 and bearer = ?3
                    and revoke_reason is not 'revoked'
                order by token_id desc limit ?5 offset ?4)
            returning token_id as "token_id!: TokenId""#; process.pid, process.started, bearer, kept, limit))
    }

    /// Removes tokens whose processes exited before `before`, at most `limit`. Returns their
    /// number.
    pub async fn forget_gone_processes(&mut self, before: Timestamp, limit: u32) -> Result<u64> {
        Ok(change!(self.tx,
            "delete from token where token_id in (select token_id from token
                where revoke_reason = ? and revoked_at < ? limit ?)";
            TokenEnd::Gone, before, limit))
    }

    pub async fn process_subject(
        &mut self,
        process: &ProcessIdentity,
    ) -> Result<Option<ProcessSubject>> {
        Ok(query!(one(), self.tx.direct,
            r#"select token_id as "token_id!", session, scopes, nullif(project, '') as "project: String", cwd,
                exists (select 1 from token where client_pid = ?1 and client_started = ?2
                    and revoke_reason = 'revoked') as "is_barred!: bool"
            from token where client_pid = ?1 and client_started = ?2 order by token_id limit 1"#;
            process.pid, process.started))
    }

    pub async fn of_process(&mut self, process: &ProcessIdentity) -> Result<Option<TokenRow>> {
        Ok(tokens!(one(), self.tx.direct,
            "where client_pid = ? and client_started = ? and revoked_at is null and expires_at > ?
            order by token_id desc limit 1"; process.pid, process.started, self.tx.now))
    }

    pub async fn is_subject(&mut self, session: &str) -> Result<bool> {
        Ok(value!(self.tx.direct,
            r#"select exists (select 1 from token where session = ?1 or session = lower(?1)) as "is_subject!: bool""#;
            session))
    }

    /// Who can speak as a subject: its valid minted tokens, and the processes that were issued
    /// tokens of the subject.
    pub async fn subject_holders(&mut self, session: &str) -> Result<SubjectHolders> {
        let has_minted = value!(self.tx.direct,
            r#"select exists (select 1 from token where session = ? and client_pid is null
                and revoked_at is null and expires_at > ?) as "has_minted!: bool""#;
            session, self.tx.now);
        let processes: Vec<(u32, String, MachineId)> = query!(all(), self.tx.direct,
            r#"select distinct client_pid as "client_pid!", client_started as "client_started!",
                machine_id as "machine_id!: MachineId"
            from token where session = ? and client_pid is not null and client_started is not null"#;
            session);
        let processes = processes.into_iter().map(|(pid, started, machine_id)| MachineProcess {
            machine_id,
            process: ProcessIdentity { pid, started },
        });
        let processes = processes.collect();
        let projects = column!(self.tx.direct,
            "select distinct project from token where session = ? and project <> ''"; session);
        Ok(SubjectHolders { has_minted, processes, projects })
    }

    pub async fn note_use(&mut self, id: &TokenId) -> Result<()> {
        let done = change!(self.tx,
            "update token set last_used_at = ? where token_id = ?"; self.tx.now, id);
        changed(done, "token", id)
    }
}

#[boxed_methods]
impl TokenReads<'_> {
    /// The token with this SHA-256, in any state.
    pub async fn by_hash(&self, hash: &[u8; 32]) -> Result<Option<TokenRow>> {
        let hash = hash.as_slice();
        Ok(tokens!(one(), self.store.near(), "where hash = ?"; hash))
    }

    /// The hash of a token that is valid at `now` and whose hash is from `least` to `greatest`.
    pub async fn good_between(
        &self,
        least: &TokenHash,
        greatest: &TokenHash,
        now: Timestamp,
    ) -> Result<Option<TokenHash>> {
        let (least, greatest) = (least.as_slice(), greatest.as_slice());
        let hash = find_value!(self.store.pool(),
            "select hash from token where hash between ? and ? and revoked_at is null and expires_at > ?
                and operator_credential is null limit 1"; least, greatest, now);
        Ok(hash.and_then(|hash| hash.try_into().ok()))
    }

    pub async fn get(&self, id: &TokenId) -> Result<Option<TokenRow>> {
        Ok(tokens!(one(), self.store.pool(), "where token_id = ?"; id))
    }

    /// The latest token of a process that is valid at `now`.
    pub async fn of_process(
        &self,
        process: &ProcessIdentity,
        now: Timestamp,
    ) -> Result<Option<TokenRow>> {
        Ok(tokens!(one(), self.store.near(),
            "where client_pid = ? and client_started = ? and revoked_at is null and expires_at > ?
            order by token_id desc limit 1"; process.pid, process.started, now))
    }

    /// Whether there are tokens whose processes exited before `before`.
    pub async fn has_gone_processes(&self, before: Timestamp) -> Result<bool> {
        Ok(value!(self.store.pool(),
            r#"select exists (select 1 from token where revoke_reason = ? and revoked_at < ?) as "has!: bool""#;
            TokenEnd::Gone, before))
    }

    /// Processes of this machine that have unrevoked tokens, at most `limit`, after the cursor
    /// `after`.
    pub async fn processes(
        &self,
        after: Option<&ProcessIdentity>,
        limit: u32,
    ) -> Result<Vec<ProcessIdentity>> {
        let (pid, started) = after.map_or((-1, ""), |it| (i64::from(it.pid), it.started.as_str()));
        let rows: Vec<(u32, String)> = query!(all(), self.store.pool(),
            r#"select distinct client_pid as "client_pid!", client_started as "client_started!" from token
            where client_pid is not null and revoked_at is null and client_started is not null and machine_id = ?
                and (client_pid, client_started) > (?, ?)
            order by client_pid, client_started limit ?"#;
            self.store.machine_id(), pid, started, limit);
        Ok(rows.into_iter().map(|(pid, started)| ProcessIdentity { pid, started }).collect())
    }

    /// Tokens whose ids begin with `prefix`, unrevoked ones first, at most `limit`.
    pub async fn with_prefix(&self, prefix: &str, limit: u32) -> Result<Vec<TokenRow>> {
        Ok(tokens!(all(), self.store.pool(),
            "where token_id >= ?1 and token_id < ?1 || '~'
            order by revoked_at is not null, token_id desc limit ?2"; prefix, limit))
    }

    /// Tokens, the latest first, before the cursor `before`.
    pub async fn list(&self, before: Option<&str>, size: PageSize) -> Result<RowPage<TokenRow>> {
        let limit = size.limit();
        Ok(tokens!(page(size, |row: &TokenRow| json_bytes(&row.scopes)), self.store.pool(),
            "where ?1 is null or token_id < ?1 order by token_id desc limit ?2"; before, limit))
    }
}

macro_rules! login_codes {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),
            r#"select operator_credential, expires_at as "expires_at: Timestamp", used_at as "used_at: Timestamp"
            from login_code "#,
            $($rest)*
        )
    };
}

direct_row!(LoginCodeRow { operator_credential, expires_at, used_at });

impl BrowserReads<'_> {
    #[boxed]
    pub async fn login_code(&self, hash: &TokenHash) -> Result<Option<LoginCodeRow>> {
        let hash = hash.as_slice();
        Ok(login_codes!(one(), self.store.pool(), "where hash = ?"; hash))
    }
}

#[boxed_methods]
impl BrowserWrites<'_> {
    pub async fn insert_login_code(
        &mut self,
        hash: &TokenHash,
        operator_credential: &str,
        expires_at: Timestamp,
    ) -> Result<()> {
        let hash = hash.as_slice();
        change!(self.tx,
            "insert into login_code (hash, operator_credential, expires_at) values (?, ?, ?)";
            hash, operator_credential, expires_at);
        Ok(())
    }

    pub async fn login_code(&mut self, hash: &TokenHash) -> Result<Option<LoginCodeRow>> {
        let hash = hash.as_slice();
        Ok(login_codes!(one(), self.tx.direct, "where hash = ?"; hash))
    }

    pub async fn use_login_code(&mut self, hash: &TokenHash) -> Result<()> {
        let key = hash.as_slice();
        let done = change!(self.tx,
            "update login_code set used_at = ? where hash = ? and used_at is null";
            self.tx.now, key);
        changed(done, "login_code", "of a browser")
    }

    /// Removes codes that expired more than `kept` ago, at most `limit`.
    pub async fn forget_login_codes(&mut self, kept: Duration, limit: u32) -> Result<()> {
        let before = self.tx.now.minus(kept);
        change!(self.tx,
            "delete from login_code where hash in (select hash from login_code where expires_at < ? limit ?)";
            before, limit);
        Ok(())
    }

    /// Removes browsers whose sign-in expired more than `kept` ago, at most `limit`.
    pub async fn forget(&mut self, kept: Duration, limit: u32) -> Result<()> {
        let before = self.tx.now.minus(kept);
        change!(self.tx,
            "delete from token where token_id in
                (select token_id from token where operator_credential is not null and expires_at < ? limit ?)";
            before, limit);
        Ok(())
    }

    /// Revokes the cookies of all browsers. Returns those that were not revoked before.
    pub async fn revoke_all(&mut self) -> Result<Vec<TokenId>> {
        Ok(column!(self.tx.direct,
            r#"update token set revoked_at = ?, revoke_reason = ?
            where operator_credential is not null and revoked_at is null
            returning token_id as "token_id!: TokenId""#; self.tx.now, TokenEnd::Revoked))
    }
}
