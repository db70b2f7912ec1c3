//! Settings of the daemon, and its secrets.

use super::{
    families::{SettingReads, SettingWrites},
    statement::{change, find_value, query_value, select_value},
};
use crate::{StoreError, upkeep::MoveMark};

impl SettingWrites<'_> {
    /// The secret of that name. Stores `fresh` if there is none.
    pub async fn secret(&mut self, name: &str, fresh: &[u8]) -> Result<Vec<u8>, StoreError> {
        change!(
            self.tx,
            "insert into secret (name, value) values (?, ?) on conflict do nothing",
            name,
            fresh
        );
        let value = select_value!(self.tx, "select value from secret where name = ?", name);
        Ok(value)
    }

    pub async fn get(&mut self, name: &str) -> Result<Option<String>, StoreError> {
        let value = find_value!(self.tx, "select value from setting where name = ?", name);
        Ok(value)
    }

    pub async fn put(&mut self, name: &str, value: &str) -> Result<(), StoreError> {
        change!(
            self.tx,
            "insert into setting (name, value) values (?1, ?2) on conflict (name) do update set value = ?2",
            name,
            value
        );
        Ok(())
    }
}

impl SettingReads<'_> {
    pub async fn get(self, name: &str) -> Result<Option<String>, StoreError> {
        let value = query_value!("select value from setting where name = ?", name)
            .fetch_optional(&self.store.readers)
            .await?;
        Ok(value)
    }

    /// The database that has this history now, or will have it when a move ends that was begun.
    pub async fn gone_to(self) -> Result<Option<String>, StoreError> {
        for name in [MoveMark::MOVED_TO, MoveMark::MOVING_TO] {
            if let Some(mark) = self.get(name).await? {
                return Ok(Some(MoveMark::read(&mark).map_or(mark, |mark| mark.at)));
            }
        }
        Ok(None)
    }
}
