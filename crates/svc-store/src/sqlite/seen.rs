//! What each session was given already, so that it is not given it twice.

use svc_model::{GhapId, Timestamp};

use super::{
    families::{SeenReads, SeenWrites},
    json::to_json,
    statement::change,
};
use crate::{SeenItem, StoreError};

impl SeenWrites<'_> {
    /// Notes that a session is given something, by a call of a hook if it did not ask; answers
    /// whether it may be: not if it has it already.
    pub async fn note(
        &mut self,
        session_id: &str,
        item: &SeenItem,
        hook_id: Option<&str>,
    ) -> Result<bool, StoreError> {
        let done = change!(
            self.tx,
            "insert into seen (session_id, kind, item, version, at, hook_id) values (?, ?, ?, ?, ?, ?)
            on conflict (session_id, kind, item, version)
            do update set may_repeat = 0, hook_id = excluded.hook_id where may_repeat = 1",
            session_id,
            item.kind,
            item.id,
            item.version,
            self.tx.now,
            hook_id
        );
        Ok(done > 0)
    }

    /// Records that a search gave an item to a session. The item may be given again, as the
    /// searcher may have been a sub-agent.
    pub async fn note_found(
        &mut self,
        session_id: &str,
        item: &SeenItem,
    ) -> Result<(), StoreError> {
        change!(
            self.tx,
            "insert into seen (session_id, kind, item, version, at, may_repeat) values (?, ?, ?, ?, ?, 1)
            on conflict do nothing",
            session_id,
            item.kind,
            item.id,
            item.version,
            self.tx.now
        );
        Ok(())
    }

    /// A session has forgotten what it was given, and may be given it again. Changes only what it
    /// was given since it last forgot.
    pub async fn forget(&mut self, session_id: &str) -> Result<(), StoreError> {
        change!(
            self.tx,
            "update seen set may_repeat = 1 where session_id = ? and may_repeat = 0",
            session_id
        );
        Ok(())
    }

    /// Notes that a session is told of a record that was left open; answers whether it may be: not
    /// if a session was told since the record was left.
    pub async fn note_orphan_offer(
        &mut self,
        id: &GhapId,
        session_id: &str,
        hook_id: Option<&str>,
    ) -> Result<bool, StoreError> {
        let id = id.as_str();
        let done = change!(
            self.tx,
            "insert into orphan_offer (ghap_id, session_id, hook_id, at)
            select g.ghap_id, ?2, ?3, ?4 from ghap g
            join session s on s.session_id = g.session_id
            where g.ghap_id = ?1 and g.status = 'active' and not exists (
                select 1 from orphan_offer o
                where o.ghap_id = ?1 and o.at >= max(s.last_seen_at, coalesce(s.ended_at, 0)))
            on conflict (ghap_id) do update
            set session_id = excluded.session_id, hook_id = excluded.hook_id, at = excluded.at",
            id,
            session_id,
            hook_id,
            self.tx.now
        );
        Ok(done > 0)
    }

    /// Takes back what these calls of hooks, which nobody saw, told a session of records that were
    /// left open.
    pub async fn take_back_orphan_offers(
        &mut self,
        session_id: &str,
        calls: &[String],
    ) -> Result<(), StoreError> {
        let calls = to_json(calls);
        change!(
            self.tx,
            "delete from orphan_offer where session_id = ? and hook_id in (select value from json_each(?))",
            session_id,
            calls
        );
        Ok(())
    }

    /// Forgets what a session was given by these calls of hooks, which nobody saw.
    pub async fn take_back(
        &mut self,
        session_id: &str,
        calls: &[String],
    ) -> Result<(), StoreError> {
        let calls = to_json(calls);
        change!(
            self.tx,
            "delete from seen where hook_id in (select value from json_each(?)) and session_id = ?",
            calls,
            session_id
        );
        Ok(())
    }
}

impl SeenReads<'_> {
    /// What a session was given and still has: kind, id and version.
    pub async fn list(
        self,
        session_id: &str,
    ) -> Result<Vec<(String, String, Timestamp)>, StoreError> {
        let rows = sqlx::query!(
            r#"select kind, item, version as "version: Timestamp" from seen
            where session_id = ? and may_repeat = 0"#,
            session_id
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(rows.into_iter().map(|row| (row.kind, row.item, row.version)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::TestStore, *};

    #[tokio::test]
    async fn what_has_changed_is_new_again() {
        let at = TestStore::open().await;
        let item = |version| SeenItem {
            kind: "value",
            id: "val_1".to_owned(),
            version: Timestamp::from_millis(version),
        };
        let note = async |session: &'static str, item: SeenItem| {
            let done: Result<bool, StoreError> = at
                .store
                .write(move |tx| {
                    Box::pin(async move { tx.seen().note(session, &item, None).await })
                })
                .await;
            done.unwrap()
        };
        assert!(note("s", item(1)).await && !note("s", item(1)).await);
        assert!(note("s", item(2)).await, "a later version");
        assert!(note("other", item(1)).await, "another session");
        assert_eq!(at.store.seen().list("s").await.unwrap().len(), 2);
        let forgot: Result<(), StoreError> =
            at.store.write(|tx| Box::pin(async move { tx.seen().forget("s").await })).await;
        forgot.unwrap();
        assert_eq!(
            (
                at.store.seen().list("s").await.unwrap().len(),
                at.store.seen().list("other").await.unwrap().len()
            ),
            (0, 1)
        );
    }
}
