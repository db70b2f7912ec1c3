//! What time does to the database: old events go, if the owner wants that, and the write-ahead log is kept small.

use std::time::Duration;

use super::{Error, Services};
use crate::store::StoreError;

/// How much of the log to keep. Both off by default: nothing is ever removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Events older than this go.
    pub max_age: Option<Duration>,
    /// Above this size of the rows, in bytes, the oldest events go.
    pub max_bytes: Option<u64>,
}

impl Services {
    /// Removes what is too old or too much; answers how many events went. The last event of a stream always stays.
    pub async fn apply_retention(&self, retention: Retention) -> Result<u64, Error> {
        let mut removed = 0;
        if let Some(age) = retention.max_age
            && let Some(until) = self.store.position_before(self.now().minus(age)).await?
        {
            loop {
                let (gone, more) = self.trim(until).await?;
                removed += gone;
                if !more {
                    break;
                }
            }
        }
        if let Some(bytes) = retention.max_bytes {
            while self.store.used_bytes().await? > bytes {
                let (_, head) = self.store.log_bounds().await?;
                let (gone, more) = self.trim(head).await?;
                removed += gone;
                if !more {
                    break;
                }
            }
        }
        if removed > 0 {
            tracing::info!(event.removed = removed, "retention removed events");
        }
        Ok(removed)
    }

    async fn trim(&self, until: i64) -> Result<(u64, bool), StoreError> {
        let trim =
            self.store.write(move |tx| Box::pin(async move { tx.trim(until).await })).await?;
        Ok((trim.removed, trim.more))
    }
}
