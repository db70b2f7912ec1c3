//! Retention of events by age and size.

use svc_model::Retention;

use super::Log;
use crate::service::Error;

impl Log {
    /// Removes events beyond the bounds, and returns their number. The last event of a stream
    /// always stays.
    pub async fn apply_retention(&self, retention: Retention) -> Result<u64, Error> {
        let mut removed = 0;
        if let Some(age) = retention.max_age
            && let Some(until) =
                self.core.store.events().position_before(self.core.now().minus(age)).await?
        {
            loop {
                let step = self.core.store.upkeep().trim(until, u64::MAX).await?;
                removed += step.removed;
                if !step.more {
                    break;
                }
            }
        }
        if let Some(bytes) = retention.max_bytes {
            // Removes no more than the excess. A page of the file is freed only with its last row,
            // so this takes several steps.
            while let excess = self.core.store.upkeep().used_bytes().await?.saturating_sub(bytes)
                && excess > 0
            {
                let step = self.core.store.upkeep().trim(i64::MAX, excess).await?;
                removed += step.removed;
                if !step.more {
                    break;
                }
            }
        }
        if removed > 0 {
            tracing::info!(event.removed = removed, "retention removed events");
        }
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use svc_model::StreamName;
    use svc_store::testing::{TestStore, append, event};

    use super::*;
    use crate::service::testing::services;

    /// The limit is one of bytes, so large rows are removed one by one like small ones.
    #[tokio::test]
    async fn retention_removes_the_excess_and_at_most_a_few_rows_more() {
        const MIB: u64 = 1024 * 1024;
        let test = TestStore::open().await;
        let services = services(&test);
        let (first, lines) = (StreamName::new("task", "first"), StreamName::new("task", "lines"));
        append(&test.store, &first, vec![event("frame", "{}")]).await;
        let line = format!(r#"{{"line":"{}"}}"#, "x".repeat(10_000));
        for _ in 0..20 {
            append(&test.store, &lines, (0..100).map(|_| event("frame", &line)).collect()).await;
        }
        let used = test.store.upkeep().used_bytes().await.unwrap();
        assert!(used > 20 * MIB, "{used}");
        let keep = |max_bytes| Retention { max_age: None, max_bytes: Some(max_bytes) };
        assert_eq!(services.log.apply_retention(keep(used)).await.unwrap(), 0);

        // More than one step removes, and then less than a row.
        for excess in [9 * MIB, 4096] {
            let max_bytes = test.store.upkeep().used_bytes().await.unwrap() - excess;
            let removed = services.log.apply_retention(keep(max_bytes)).await.unwrap();
            let left = test.store.upkeep().used_bytes().await.unwrap();
            assert!(left <= max_bytes && left + MIB / 2 > max_bytes, "{max_bytes}: {left}");
            assert!(removed > 0 && removed <= excess / 10_000 + 2, "{removed} for {excess}");
        }
        let kept = async |name| test.store.streams().view(name).await.unwrap().unwrap();
        assert_eq!(kept(&first).await.floor, 0, "the last of its stream");
        let lines = kept(&lines).await;
        assert_eq!(
            (lines.floor, lines.head),
            (test.store.events().bounds().await.unwrap().0 - 1, 2000)
        );

        let rest = services.log.apply_retention(keep(1)).await.unwrap();
        assert_eq!(i64::try_from(rest), Ok(1999 - lines.floor));
        assert_eq!(kept(&StreamName::new("task", "lines")).await.floor, 1999);
    }
}
