//! Rows of items that helped later records, and of items that may have helped.

use svc_model::{Reader, journal::Ghap};

use super::{
    families::ConfirmationWrites,
    json::to_json,
    statement::{change, direct_row, select_all},
};
use crate::{GivenItem, HelpEvidence, StoreError};

direct_row!(GivenItem { id, is_memory, aim, lesson, rest });

impl ConfirmationWrites<'_> {
    /// The records and memories of other sessions that a session was given, the latest first.
    pub async fn given(
        &mut self,
        session_id: &str,
        limit: u32,
    ) -> Result<Vec<GivenItem>, StoreError> {
        let given = select_all!(
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
            order by at desc limit ?2"#,
            GivenItem,
            self.tx,
            "",
            session_id,
            limit
        );
        Ok(given)
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
    ) -> Result<(), StoreError> {
        let (ids, id) = (to_json(ids), by.id.as_str());
        let (key, project) = (reader.key(), reader.project());
        change!(
            self.tx,
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
            on conflict do nothing",
            id,
            shown_by,
            self.tx.now,
            ids,
            by.session_id,
            key,
            project
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use svc_model::GhapId;

    use super::{
        super::testing::{TestStore, journal::record},
        *,
    };

    async fn count(at: &TestStore) -> (i64, i64) {
        let ghap =
            at.store.ghaps().get(&Reader::All, &GhapId::from("ghap_1".to_owned())).await.unwrap();
        let rows = sqlx::query_scalar("select count(*) from confirmation where item = 'ghap_1'");
        (
            ghap.map_or(-1, |ghap| ghap.confirmed_again),
            rows.fetch_one(at.store.readers.file().unwrap()).await.unwrap(),
        )
    }

    async fn run(at: &TestStore, sql: &'static str) {
        at.execute(sql).await;
    }

    #[tokio::test]
    async fn confirmed_again_equals_the_number_of_rows() {
        let at = TestStore::open().await;
        for number in 1..=3 {
            let ghap = record(&at, number, "The tokenizer hangs").await;
            let done: Result<(), StoreError> = at
                .store
                .write(move |tx| Box::pin(async move { tx.ghaps().insert(&ghap).await }))
                .await;
            done.unwrap();
        }
        let confirm = async |by: usize, session: &str| {
            let mut by = record(&at, by, "").await;
            session.clone_into(&mut by.session_id);
            let done: Result<(), StoreError> = at
                .store
                .write(move |tx| {
                    Box::pin(async move {
                        let ids = ["ghap_1", "nothing_else"];
                        tx.confirmations().insert(&Reader::All, &ids, &by, HelpEvidence::Name).await
                    })
                })
                .await;
            done.unwrap();
        };
        confirm(2, "s").await;
        assert_eq!(count(&at).await, (0, 0), "of the same session");
        confirm(2, "other").await;
        confirm(2, "other").await;
        assert_eq!(count(&at).await, (1, 1), "each item counts once per record");
        confirm(3, "other").await;
        assert_eq!(count(&at).await, (2, 2));
        run(&at, "delete from ghap where ghap_id = 'ghap_3'").await;
        assert_eq!(count(&at).await, (1, 1), "changed outside the program");
        run(&at, "delete from ghap where ghap_id = 'ghap_1'").await;
        assert_eq!(count(&at).await, (-1, 0));
    }
}
