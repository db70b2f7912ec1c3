//! Items that each session was given, so that no session is given an item twice.

use svc_model::{GhapId, Timestamp};

use super::{
    families::{SeenReads, SeenWrites},
    json::to_json,
    statement::{change, query_fields},
};
use crate::{ItemVersion, StoreError};

impl SeenWrites<'_> {
    /// Records that a session is given an item, by a hook call if the session did not ask. Returns
    /// false if the session has the item already.
    pub async fn note(
        &mut self,
        session_id: &str,
        item: &ItemVersion,
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

    /// Records that a search gave an item to a session. The item may be given again, because the
    /// searcher may have been a sub-agent.
    pub async fn note_found(
        &mut self,
        session_id: &str,
        item: &ItemVersion,
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

    /// Marks all items of a session as forgotten, so that they may be given again. Changes only
    /// items that were given since the last such call.
    pub async fn forget(&mut self, session_id: &str) -> Result<(), StoreError> {
        change!(
            self.tx,
            "update seen set may_repeat = 1 where session_id = ? and may_repeat = 0",
            session_id
        );
        Ok(())
    }

    /// Records that a session is offered a record that was left open. Returns false if the session
    /// has had this offer since the record was left.
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

    /// Reverts the offers of open records that these hook calls made and no client took.
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

    /// Reverts the items that these hook calls gave and no client took.
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
    /// Items that a session was given and has not forgotten: kind, id and version.
    pub async fn list(
        self,
        session_id: &str,
    ) -> Result<Vec<(String, String, Timestamp)>, StoreError> {
        let rows = query_fields!(
            { kind: String, item: String, version: Timestamp },
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
    async fn a_changed_item_may_be_given_again() {
        let at = TestStore::open().await;
        let item = |version| ItemVersion {
            kind: "value",
            id: "val_1".to_owned(),
            version: Timestamp::from_millis(version),
        };
        let note = async |session: &'static str, item: ItemVersion| {
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
