//! The state of the log (size, counters, growth), retention and maintenance, and the daemon's own
//! stream.

use std::{path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::Serialize;
use svc_model::{NewEvent, Retention, Timestamp, limits};
use svc_store::{
    LastBackup, ServerReport, SizeSample, StoreSize, StoreTrouble, WriterStats, job, last_backup,
};

use super::Log;
use crate::boxed;
use crate::service::{Result, core::append_to_daemon};

#[derive(Debug, Clone)]
pub struct LogStatus {
    /// The database file, or the address of the server without its password.
    pub path: PathBuf,
    /// Sizes on disk, and the version of the schema.
    pub size: StoreSize,
    /// Bytes that the disk has left; `None` if the system does not tell.
    pub free: Option<u64>,
    /// `None` until the size is known of a day.
    pub growth: Option<Growth>,
    /// Position of the last event that retention removed.
    pub trimmed: i64,
    pub head: i64,
    /// The server that has the rows; `None` of a file.
    pub server: Option<ServerReport>,
    pub writer: WriterStats,
    pub queued: usize,
    pub subscribers: usize,
    pub backup: Option<LastBackup>,
}

impl Log {
    /// Why the server that has the rows takes no writes at present.
    pub fn trouble(&self) -> Option<StoreTrouble> {
        self.core.store.trouble()
    }

    #[boxed]
    pub async fn status(&self) -> Result<LogStatus> {
        let store = &self.core.store;
        let size = store.upkeep().size().await?;
        let (trimmed, head) = store.events().bounds().await?;
        let free = svc_sys::private_file::free_bytes(store.path());
        let growth = self.growth(size.database, free).await?;
        Ok(LogStatus {
            path: store.path().to_path_buf(),
            size,
            free,
            growth,
            trimmed,
            head,
            server: store.upkeep().server().await?,
            writer: store.stats(),
            queued: store.queued(),
            subscribers: store.bus().listeners(),
            backup: last_backup(store.path()),
        })
    }

    pub async fn append_daemon_event(
        &self,
        kind: &'static str,
        data: &(impl Serialize + Sync),
    ) -> Result<()> {
        let event = NewEvent::new(kind, data);
        self.core.change(job!(|tx| append_to_daemon(tx, vec![event]).await)).await
    }

    #[boxed]
    pub async fn merge_indexes(&self) -> Result<()> {
        self.core.store.upkeep().merge_indexes().await?;
        Ok(())
    }

    pub fn writes(&self) -> u64 {
        self.core.store.stats().jobs
    }

    /// Frees the memory that earlier work has left in caches.
    #[boxed]
    pub async fn release_memory(&self) -> Result<()> {
        Ok(self.core.store.upkeep().release_memory().await?)
    }

    #[boxed]
    pub async fn checkpoint(&self) -> Result<()> {
        Ok(self.core.store.upkeep().checkpoint().await?)
    }
}

const DAY: Duration = Duration::from_hours(24);
/// No forecast reaches further.
const HORIZON: Duration = Duration::from_hours(10 * 365 * 24);

/// How fast the database grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Growth {
    /// The greater of two averages: of the last day and of the last week.
    pub bytes_per_day: u64,
    /// The bound that the database reaches first at this rate, if it does so within ten years.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reaches: Option<Reached>,
}

/// A bound of the database's size, and when it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Reached {
    pub bound: SizeBound,
    pub at: Timestamp,
}

/// What ends the growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub enum SizeBound {
    /// The disk is full: writes are refused.
    #[serde(rename = "disk")]
    Disk,
    /// Writes are refused.
    #[serde(rename = "store.max_bytes")]
    MaxBytes,
    /// The oldest events are removed.
    #[serde(rename = "retention.max_bytes")]
    RetainedBytes,
    /// Events that are too old are removed.
    #[serde(rename = "retention.max_age_days")]
    RetainedAge,
}

/// The state of the database and its bounds, at one time.
#[derive(Debug, Clone, Copy)]
struct StoreSpace {
    now: Timestamp,
    /// Bytes of the pages in use.
    used: u64,
    /// Bytes that the database may take: of the disk, and of the file's free pages.
    free: Option<u64>,
    max_bytes: Option<u64>,
    retention: Retention,
    oldest: Option<Timestamp>,
}

impl Growth {
    /// From measurements of the past, the newest of each average.
    fn measured(space: &StoreSpace, past: &[SizeSample]) -> Option<Self> {
        let bytes_per_day = past
            .iter()
            .map(|sample| {
                let grown = u128::from(space.used.saturating_sub(sample.used));
                let millis = space.now.since(sample.at).as_millis().max(1);
                u64::try_from(grown * DAY.as_millis() / millis).unwrap_or(u64::MAX)
            })
            .max()?;
        let latest = space.now.plus(HORIZON);
        let reaches = space.reached(bytes_per_day).filter(|reached| reached.at <= latest);
        Some(Self { bytes_per_day, reaches })
    }
}

impl StoreSpace {
    /// The bound that is reached first.
    fn reached(&self, bytes_per_day: u64) -> Option<Reached> {
        if bytes_per_day == 0 {
            return None;
        }
        let at_bytes = |bytes: u64| {
            let millis = u128::from(bytes) * DAY.as_millis() / u128::from(bytes_per_day);
            self.now.plus(Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)))
        };
        let below = |bound: u64| at_bytes(bound.saturating_sub(self.used));
        // The measured rate already includes what retention removes.
        let by_age = self.oldest.zip(self.retention.max_age).map(|(first, age)| first.plus(age));
        [
            (SizeBound::RetainedBytes, self.retention.max_bytes.map(below)),
            (SizeBound::RetainedAge, by_age.filter(|at| *at > self.now)),
            (SizeBound::Disk, self.free.map(at_bytes)),
            (SizeBound::MaxBytes, self.max_bytes.map(below)),
        ]
        .into_iter()
        .filter_map(|(bound, at)| Some(Reached { bound, at: at? }))
        .min_by_key(|reached| reached.at)
    }
}

impl Log {
    /// Measures the size of the database, if the last measurement is old enough.
    #[boxed]
    pub async fn measure_size(&self) -> Result<()> {
        let (store, now) = (&self.core.store, self.core.now());
        let last = store.upkeep().size_at(now).await?;
        if last.is_some_and(|last| now.since(last.at) < limits::SIZE_SAMPLES) {
            return Ok(());
        }
        let sample = SizeSample { at: now, used: store.upkeep().used_bytes().await? };
        let oldest = now.minus(limits::SIZE_SAMPLES_KEPT);
        self.core.change(job!(|tx| tx.upkeep().note_size(sample, oldest).await)).await
    }

    /// `file` is the size of the database file, `free` what the disk has left.
    async fn growth(&self, file: u64, free: Option<u64>) -> Result<Option<Growth>> {
        let (store, now) = (&self.core.store, self.core.now());
        let Some(first) = store.upkeep().first_size().await? else { return Ok(None) };
        let mut past = Vec::new();
        // If the installation is younger than a week, its whole age is used.
        for until in [now.minus(DAY), now.minus(7 * DAY).max(first)] {
            past.extend(store.upkeep().size_at(until).await?);
        }
        past.retain(|sample| now.since(sample.at) >= DAY);
        let used = store.upkeep().used_bytes().await?;
        let space = StoreSpace {
            now,
            used,
            free: free.map(|free| free.saturating_add(file.saturating_sub(used))),
            max_bytes: self.core.tuning.store_max_bytes,
            retention: self.core.tuning.retention,
            oldest: store.events().first_at().await?,
        };
        Ok(Growth::measured(&space, &past))
    }

    /// Removes events beyond the bounds, and returns their number. The last event of a stream
    /// always stays.
    #[boxed]
    pub async fn apply_retention(&self, retention: Retention) -> Result<u64> {
        let (store, mut removed) = (&self.core.store, 0);
        if let Some(age) = retention.max_age
            && let Some(until) = store.events().position_before(self.core.now().minus(age)).await?
        {
            loop {
                let step = store.upkeep().trim(until, u64::MAX).await?;
                removed += step.removed;
                if !step.more {
                    break;
                }
            }
        }
        if let Some(bytes) = retention.max_bytes {
            // Removes no more than the excess. A page of the file is freed only with its last row,
            // so this takes several steps.
            while let excess = store.upkeep().used_bytes().await?.saturating_sub(bytes)
                && excess > 0
            {
                let step = store.upkeep().trim(i64::MAX, excess).await?;
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

    use crate::service::{
        Tuning,
        testing::{opened, services_with},
    };

    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn days(days: u64) -> Duration {
        DAY * u32::try_from(days).unwrap()
    }

    fn now() -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000)
    }

    fn space() -> StoreSpace {
        StoreSpace {
            now: now(),
            used: 1000 * MIB,
            free: Some(900 * MIB),
            max_bytes: None,
            retention: Retention::default(),
            oldest: Some(now().minus(days(200))),
        }
    }

    fn ago(age: u64, mib: u64) -> SizeSample {
        SizeSample { at: now().minus(days(age)), used: mib * MIB }
    }

    #[test]
    fn growth_is_that_of_the_last_day_or_of_the_week_if_that_is_more() {
        let rate = |past: &[SizeSample]| {
            Growth::measured(&space(), past).map(|growth| growth.bytes_per_day / MIB)
        };
        assert_eq!(rate(&[]), None);
        assert_eq!(rate(&[ago(1, 910), ago(7, 300)]), Some(100), "a Sunday counts as a week day");
        assert_eq!(rate(&[ago(1, 500), ago(7, 300)]), Some(500), "a flood counts at once");
        assert_eq!(rate(&[ago(2, 900)]), Some(50), "over the time that it took");
        assert_eq!(rate(&[ago(1, 1200), ago(7, 1000)]), Some(0), "it shrank");
    }

    #[test]
    fn first_bound_that_is_reached_is_named_with_its_day() {
        let past = [ago(1, 900)];
        let reaches = |space: StoreSpace| {
            let growth = Growth::measured(&space, &past).unwrap();
            growth
                .reaches
                .map(|reached| (reached.bound, reached.at.since(now()).as_secs() / 86_400))
        };
        assert_eq!(reaches(space()), Some((SizeBound::Disk, 9)));
        let max_bytes = Some(1500 * MIB);
        assert_eq!(reaches(StoreSpace { max_bytes, ..space() }), Some((SizeBound::MaxBytes, 5)));
        let kept = |max_age: Option<u64>, max_bytes: Option<u64>| StoreSpace {
            retention: Retention {
                max_age: max_age.map(days),
                max_bytes: max_bytes.map(|mib| mib * MIB),
            },
            ..space()
        };
        assert_eq!(reaches(kept(None, Some(1300))), Some((SizeBound::RetainedBytes, 3)));
        assert_eq!(reaches(kept(None, Some(800))), Some((SizeBound::RetainedBytes, 0)));
        assert_eq!(reaches(kept(Some(202), None)), Some((SizeBound::RetainedAge, 2)));
        assert_eq!(reaches(kept(Some(365), None)), Some((SizeBound::Disk, 9)), "that is sooner");
        assert_eq!(reaches(kept(Some(100), None)), Some((SizeBound::Disk, 9)), "in the rate");
        let free = Some(10_000_000 * MIB);
        assert_eq!(reaches(StoreSpace { free, ..space() }), None, "in more than ten years");
        assert_eq!(Growth::measured(&space(), &[ago(1, 1000)]).unwrap().reaches, None);
    }

    #[tokio::test]
    async fn size_is_measured_once_an_hour_and_outlives_the_daemon() {
        let test = TestStore::open().await;
        let services = services_with(&test, Tuning::default());
        let status = async || services.log.status().await.unwrap().growth;
        services.log.measure_size().await.unwrap();
        let first = test.store.upkeep().first_size().await.unwrap();
        assert!(first.is_some());
        test.clock.advance(limits::SIZE_SAMPLES / 2);
        services.log.measure_size().await.unwrap();
        let newest = test.store.upkeep().size_at(services.now()).await.unwrap().unwrap();
        assert_eq!(Some(newest.at), first, "half an hour later");
        assert_eq!(status().await, None, "of less than a day nothing is said");
        test.clock.advance(DAY);
        services.log.measure_size().await.unwrap();
        assert_eq!(status().await.map(|growth| growth.bytes_per_day), Some(0));
        test.clock.advance(limits::SIZE_SAMPLES_KEPT);
        services.log.measure_size().await.unwrap();
        let kept = test.store.upkeep().first_size().await.unwrap();
        assert!(kept > first, "old measurements are forgotten");
    }

    /// The limit is one of bytes, so large rows are removed one by one like small ones.
    #[tokio::test]
    async fn retention_removes_the_excess_and_at_most_a_few_rows_more() {
        const MIB: u64 = 1024 * 1024;
        let (test, services) = opened().await;
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

        // The first excess takes more than one step; the second is less than a row.
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
