//! What hooks reported, and what they gave to sessions: received calls, results of commands such as
//! test runs, the items that each session was given, so that none is given twice, and those that
//! helped.

use svc_model::{
    GhapId, Principal, Reader, Timestamp,
    journal::{Ghap, Outcome, OutcomeVerdict},
};

use super::{ConfirmationWrites, HookWrites, OutcomeReads, OutcomeWrites, SeenReads, SeenWrites};
use crate::{
    GivenItem, HelpEvidence, ItemVersion, Result, boxed, boxed_methods,
    columns::to_json,
    readers::Rows as _,
    statement::{change, changed, direct_row, find_value, query, value},
};

#[boxed_methods]
impl HookWrites<'_> {
    /// Records the id of an event; returns false if it was recorded before.
    pub async fn remember(&mut self, id: &str) -> Result<bool> {
        let done = change!(self.tx,
            "insert into hook_seen (hook_id, at) values (?, ?) on conflict (hook_id) do nothing";
            id, self.tx.now);
        Ok(done == 1)
    }

    /// Records that no client took, or will take, the answers to these hook calls.
    pub async fn remember_lost(&mut self, calls: &[String], by: &Principal) -> Result<()> {
        let (calls, by) = (to_json(calls), by.to_string());
        change!(self.tx,
            "insert into hook_lost (hook_id, at, created_by) select value, ?, ? from json_each(?) where true
            on conflict (hook_id) do nothing"; self.tx.now, by, calls);
        Ok(())
    }

    pub async fn is_lost(&mut self, call: &str) -> Result<bool> {
        Ok(value!(self.tx.direct,
            r#"select exists (select 1 from hook_lost where hook_id = ?) as "lost!: bool""#; call))
    }

    /// Records that the answer to a call contains a reminder, and the number of tool calls before
    /// it.
    pub async fn note_reminder(&mut self, call: &str, agent_id: &str, after: i64) -> Result<()> {
        let done = change!(self.tx,
            "update hook_seen set reminded_agent = ?, reminded_after = ? where hook_id = ?";
            agent_id, after, call);
        changed(done, "hook_seen", call)
    }

    /// Reverts the reminders of these calls: the session's next tool call is due for a reminder
    /// again.
    pub async fn take_back_reminders(&mut self, session_id: &str, calls: &[String]) -> Result<()> {
        let calls = to_json(calls);
        change!(self.tx,
            "update session_counter set since = since + lost.after
            from (select reminded_agent, sum(reminded_after) as after from hook_seen
                where hook_id in (select value from json_each(?2)) and reminded_after is not null
                group by reminded_agent) as lost
            where session_id = ?1 and agent_id = lost.reminded_agent"; session_id, calls);
        change!(self.tx,
            "update hook_seen set reminded_agent = null, reminded_after = null
            where hook_id in (select value from json_each(?)) and reminded_after is not null";
            calls);
        Ok(())
    }
}

direct_row!(Outcome { outcome_id, session_id, command, verdict, summary, at });

#[boxed_methods]
impl OutcomeWrites<'_> {
    /// The verdicts and times of a session's last outcomes, the latest first.
    pub async fn last_verdicts(
        &mut self,
        session_id: &str,
        limit: u32,
    ) -> Result<Vec<(OutcomeVerdict, Timestamp)>> {
        Ok(query!(all(), self.tx.direct,
            r#"select verdict as "verdict: OutcomeVerdict", at as "at: Timestamp"
            from outcome where session_id = ? order by at desc, outcome_id desc limit ?"#;
            session_id, limit))
    }

    /// Stores an outcome, or returns the one that was stored for the same tool call.
    pub async fn insert(
        &mut self,
        outcome: &Outcome,
        agent_id: &str,
        project: &str,
        tool_use_id: Option<&str>,
    ) -> Result<Outcome> {
        if let Some(tool_use_id) = tool_use_id {
            let known = query!(one(), self.tx.direct,
            r#"select outcome_id as "outcome_id!", session_id, command, verdict as "verdict: OutcomeVerdict", summary,
                    at as "at: Timestamp"
                from outcome where session_id = ? and tool_use_id = ?"#; outcome.session_id, tool_use_id);
            if let Some(known) = known {
                return Ok(known);
            }
        }
        change!(self.tx,
            "insert into outcome (outcome_id, session_id, agent_id, project, tool_use_id, command, verdict, summary, at)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?)";
            outcome.outcome_id, outcome.session_id, agent_id, project, tool_use_id, outcome.command,
            outcome.verdict, outcome.summary, self.tx.now);
        Ok(Outcome { at: self.tx.now, ..outcome.clone() })
    }

    pub async fn session(&mut self, id: &str) -> Result<Option<String>> {
        Ok(find_value!(self.tx.direct, "select session_id from outcome where outcome_id = ?"; id))
    }
}

impl OutcomeReads<'_> {
    #[boxed]
    pub async fn list(&self, session_id: &str, limit: u32) -> Result<Vec<Outcome>> {
        Ok(query!(all(), self.store.pool(),
            r#"select outcome_id as "outcome_id!", session_id, command, verdict as "verdict: OutcomeVerdict", summary,
                at as "at: Timestamp"
            from outcome where session_id = ? order by at desc, outcome_id desc limit ?"#; session_id, limit))
    }
}

#[boxed_methods]
impl SeenWrites<'_> {
    /// Records that a session is given an item, by a hook call if the session did not ask. Returns
    /// false if the session has the item already.
    pub async fn note(
        &mut self,
        session_id: &str,
        item: &ItemVersion,
        hook_id: Option<&str>,
    ) -> Result<bool> {
        let done = change!(self.tx,
            "insert into seen (session_id, kind, item, version, at, hook_id) values (?, ?, ?, ?, ?, ?)
            on conflict (session_id, kind, item, version)
            do update set may_repeat = 0, hook_id = excluded.hook_id where may_repeat = 1";
            session_id, item.kind, item.id, item.version, self.tx.now, hook_id);
        Ok(done > 0)
    }

    /// Records that a search gave an item to a session. The item may be given again, because the
    /// searcher may have been a sub-agent.
    pub async fn note_found(&mut self, session_id: &str, item: &ItemVersion) -> Result<()> {
        change!(self.tx,
            "insert into seen (session_id, kind, item, version, at, may_repeat) values (?, ?, ?, ?, ?, 1)
            on conflict do nothing"; session_id, item.kind, item.id, item.version, self.tx.now);
        Ok(())
    }

    /// Marks all items of a session as forgotten, so that they may be given again. Changes only
    /// items that were given since the last such call.
    pub async fn forget(&mut self, session_id: &str) -> Result<()> {
        change!(self.tx,
            "update seen set may_repeat = 1 where session_id = ? and may_repeat = 0"; session_id);
        Ok(())
    }

    /// Records that a session is offered a record that was left open. Returns false if the session
    /// has had this offer since the record was left.
    pub async fn note_orphan_offer(
        &mut self,
        id: &GhapId,
        session_id: &str,
        hook_id: Option<&str>,
    ) -> Result<bool> {
        let done = change!(self.tx,
            "insert into orphan_offer (ghap_id, session_id, hook_id, at)
            select g.ghap_id, ?2, ?3, ?4 from ghap g
            join session s on s.session_id = g.session_id
            where g.ghap_id = ?1 and g.status = 'active' and not exists (
                select 1 from orphan_offer o
                where o.ghap_id = ?1 and o.at >= max(s.last_seen_at, coalesce(s.ended_at, 0)))
            on conflict (ghap_id) do update
            set session_id = excluded.session_id, hook_id = excluded.hook_id, at = excluded.at";
            id, session_id, hook_id, self.tx.now);
        Ok(done > 0)
    }

    /// Reverts the offers of open records that these hook calls made and no client took.
    pub async fn take_back_orphan_offers(
        &mut self,
        session_id: &str,
        calls: &[String],
    ) -> Result<()> {
        let calls = to_json(calls);
        change!(self.tx,
            "delete from orphan_offer where session_id = ? and hook_id in (select value from json_each(?))";
            session_id, calls);
        Ok(())
    }

    /// Reverts the items that these hook calls gave and no client took.
    pub async fn take_back(&mut self, session_id: &str, calls: &[String]) -> Result<()> {
        let calls = to_json(calls);
        change!(self.tx,
            "delete from seen where hook_id in (select value from json_each(?)) and session_id = ?";
            calls, session_id);
        Ok(())
    }
}

impl SeenReads<'_> {
    /// Items that a session was given and has not forgotten: kind, id and version.
    #[boxed]
    pub async fn list(&self, session_id: &str) -> Result<Vec<(String, String, Timestamp)>> {
        Ok(query!(all(), self.store.pool(),
            r#"select kind, item, version as "version: Timestamp" from seen
            where session_id = ? and may_repeat = 0"#; session_id))
    }
}

direct_row!(GivenItem { id, is_memory, aim, lesson, rest });

#[boxed_methods]
impl ConfirmationWrites<'_> {
    /// The records and memories of other sessions that a session was given, the latest first.
    pub async fn given(&mut self, session_id: &str, limit: u32) -> Result<Vec<GivenItem>> {
        Ok(query!(all(), self.tx.direct,
            r#"select id as "id!", is_memory as "is_memory!: bool", aim as "aim!", lesson as "lesson!", rest as "rest!"
            from (
                select g.ghap_id as id, false as is_memory, t.aim, t.lesson, t.rest, max(s.at) as at
                from seen s
                cross join ghap g on g.ghap_id = s.item and g.session_id <> s.session_id
                cross join ghap_text t on t.id = g.id
                where s.session_id = ?1 and s.kind = 'experience'
                group by g.id, t.id
                union all
                select m.memory_id, true, m.terms, '', '', max(s.at)
                from seen s
                cross join memory m on m.memory_id = s.item and m.session_id <> s.session_id
                where s.session_id = ?1 and s.kind = 'memory'
                group by m.id
            )
            order by at desc limit ?2"#; session_id, limit))
    }

    /// Records that the items of `ids` helped a record that was confirmed. Each item counts once
    /// per record. Items of the record's own session do not count, nor items that `reader`, the
    /// owner of the record, may not read.
    pub async fn insert(
        &mut self,
        reader: &Reader,
        ids: &[&str],
        by: &Ghap,
        shown_by: HelpEvidence,
    ) -> Result<()> {
        let (ids, id) = (to_json(ids), by.id.as_str());
        change!(self.tx,
            "insert into confirmation (kind, item, confirmed_by, shown_by, at)
            select i.kind, i.item, ?1, ?2, ?3
            from (
                select 'experience' as kind, g.ghap_id as item, g.session_id, g.project, 0 as shared
                from json_each(?4) j cross join ghap g on g.ghap_id = j.value and g.status <> 'active'
                union all
                select 'memory', m.memory_id, m.session_id, m.project, m.shared
                from json_each(?4) j cross join memory m on m.memory_id = j.value
            ) i
            where i.session_id <> ?5
                and (?6 is null or i.shared = 1 or i.project = ?7 or i.session_id in (select session_id from session where reader_key = ?6))
            on conflict do nothing";
            id, shown_by, self.tx.now, ids, by.session_id, reader.key(), reader.project());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        TestStore,
        journal::{put, record},
    };

    #[tokio::test]
    async fn a_changed_item_may_be_given_again() {
        let at = TestStore::open().await;
        let item = |version| ItemVersion {
            kind: "value",
            id: "val_1".to_owned(),
            version: Timestamp::from_millis(version),
        };
        let note = async |session: &'static str, item: ItemVersion| {
            at.write(crate::job!(|tx| tx.seen().note(session, &item, None).await)).await
        };
        assert!(note("s", item(1)).await && !note("s", item(1)).await);
        assert!(note("s", item(2)).await, "a later version");
        assert!(note("other", item(1)).await, "another session");
        assert_eq!(at.store.seen().list("s").await.unwrap().len(), 2);
        at.write(crate::job!(|tx| tx.seen().forget("s").await)).await;
        assert_eq!(
            (
                at.store.seen().list("s").await.unwrap().len(),
                at.store.seen().list("other").await.unwrap().len()
            ),
            (0, 1)
        );
    }

    async fn count(at: &TestStore) -> (i64, i64) {
        let ghap =
            at.store.ghaps().get(&Reader::All, &GhapId::from("ghap_1".to_owned())).await.unwrap();
        let rows = "select count(*) from confirmation where item = 'ghap_1'";
        (ghap.map_or(-1, |ghap| ghap.confirmed_again), at.column(rows)[0])
    }

    #[tokio::test]
    async fn confirmed_again_equals_the_number_of_rows() {
        let at = TestStore::open().await;
        for number in 1..=3 {
            let ghap = record(&at, number, "The tokenizer hangs").await;
            put(&at, ghap).await;
        }
        let confirm = async |by: usize, session: &str| {
            let mut by = record(&at, by, "").await;
            session.clone_into(&mut by.session_id);
            at.write(crate::job!(|tx| {
                let ids = ["ghap_1", "nothing_else"];
                tx.confirmations().insert(&Reader::All, &ids, &by, HelpEvidence::Name).await
            }))
            .await;
        };
        confirm(2, "s").await;
        assert_eq!(count(&at).await, (0, 0), "of the same session");
        confirm(2, "other").await;
        confirm(2, "other").await;
        assert_eq!(count(&at).await, (1, 1), "each item counts once per record");
        confirm(3, "other").await;
        assert_eq!(count(&at).await, (2, 2));
        at.execute("delete from ghap where ghap_id = 'ghap_3'").await;
        assert_eq!(count(&at).await, (1, 1), "changed outside the program");
        at.execute("delete from ghap where ghap_id = 'ghap_1'").await;
        assert_eq!(count(&at).await, (-1, 0));
    }
}
