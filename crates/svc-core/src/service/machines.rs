//! The machines and daemons of the team: this daemon's lease, and what happens to the rows of a
//! machine whose daemon is away.
//!
//! This daemon cannot see the processes of another machine. While that machine's daemon is away,
//! its participants become unreachable, then offline. Its tasks get a reason and stay, and so do
//! its tokens and agents, until `[team] away` has passed.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde_json::json;
use svc_model::{
    DaemonView, Machine, NewEvent, PeerStatus, TaskChange, TaskStatus, Timestamp, limits,
};
use svc_store::{AwayMachine, NewDaemon, job};

use super::{
    Result,
    access::Access,
    agents::{Agents, lose_agent},
    core::{Core, append_to_daemon},
    tasks::end_or_note,
    team::set_reach,
};
use crate::boxed;

#[derive(Debug, Clone)]
pub struct Machines {
    core: Core,
    access: Access,
    agents: Agents,
    joined: Arc<OnceLock<JoinedDaemon>>,
}

#[derive(Debug)]
struct JoinedDaemon {
    daemon: NewDaemon,
    at: Timestamp,
    /// How many commits the database had after the last renewal of the lease.
    commits: AtomicU64,
}

impl Machines {
    pub(super) fn new(core: Core, access: Access, agents: Agents) -> Self {
        Self { core, access, agents, joined: Arc::default() }
    }

    pub fn machine(&self) -> &Machine {
        self.core.store.machine()
    }

    /// The id of this daemon; empty before it has joined.
    pub fn daemon_id(&self) -> &str {
        self.joined.get().map_or("", |joined| &joined.daemon.daemon_id)
    }

    /// All daemons that have not recorded their end.
    #[boxed]
    pub async fn daemons(&self) -> Result<Vec<DaemonView>> {
        let mut daemons = self.core.store.machines().daemons(self.daemon_id()).await?;
        if self.core.store.is_file() {
            // The row may have an older time: see `renew`.
            let until = self.core.now().plus(limits::DAEMON_LEASE);
            daemons.iter_mut().filter(|it| it.is_self).for_each(|it| it.lease_until = until);
        }
        Ok(daemons)
    }

    /// Takes a lease for this daemon. Earlier daemons of this machine whose end is not on record
    /// count as lost.
    #[boxed]
    pub async fn join(&self, daemon: NewDaemon) -> Result<()> {
        let (at, commits) = (self.core.now(), AtomicU64::default());
        self.joined.set(JoinedDaemon { daemon: daemon.clone(), at, commits }).ok();
        self.write_row(daemon).await
    }

    async fn write_row(&self, daemon: NewDaemon) -> Result<()> {
        let name = self.machine().name.clone();
        let write = self.core.change(job!(|tx| {
            let machine_id = tx.machine_id().clone();
            let lost = tx.machines().join(&daemon).await?;
            let mut events: Vec<NewEvent> = lost
                .iter()
                .map(|id| {
                    let data = json!({ "daemon_id": id, "machine_id": machine_id });
                    NewEvent::new("daemon.lost", &data)
                })
                .collect();
            let data = json!({
                "daemon_id": daemon.daemon_id, "machine_id": machine_id, "machine": name,
                "version": daemon.version,
            });
            events.push(NewEvent::new("daemon.joined", &data));
            append_to_daemon(tx, events).await
        }));
        write.await
    }

    /// Renews this daemon's lease. With a database file, only if something was written since the
    /// last renewal: only one daemon opens a file at a time, so no other daemon reads the lease
    /// while this one runs, and an idle daemon writes nothing.
    #[boxed]
    pub async fn renew(&self) -> Result<()> {
        let Some(JoinedDaemon { daemon, commits, .. }) = self.joined.get() else { return Ok(()) };
        let store = &self.core.store;
        if store.is_file() && store.stats().commits == commits.load(Relaxed) {
            return Ok(());
        }
        let id = daemon.daemon_id.clone();
        let renewed = self.core.change(job!(|tx| tx.machines().renew(&id).await));
        if !renewed.await? {
            self.write_row(daemon.clone()).await?;
        }
        commits.store(store.stats().commits, Relaxed);
        Ok(())
    }

    #[boxed]
    pub async fn leave(&self) -> Result<()> {
        let id = self.daemon_id().to_owned();
        self.core.change(job!(|tx| tx.machines().leave(&id).await)).await
    }

    /// Handles what machines hold whose daemons are away. Counts only time during which this daemon
    /// was running.
    #[boxed]
    pub async fn sweep(&self) -> Result<()> {
        let Some(joined) = self.joined.get() else { return Ok(()) };
        let here_for = self.core.now().since(joined.at);
        if here_for < limits::DAEMON_LEASE {
            // The other daemon may be about to renew its lease.
            return Ok(());
        }
        for away in self.core.store.machines().away().await? {
            let lasts = away.lasts.min(here_for);
            self.change_peers(&away, lasts).await?;
            let is_over = lasts >= self.core.tuning.away;
            self.change_tasks(&away, is_over).await?;
            if is_over {
                self.end_what_it_holds(&away).await?;
            }
        }
        Ok(())
    }

    async fn change_peers(&self, away: &AwayMachine, lasts: Duration) -> Result<()> {
        let is_for_long = lasts >= limits::MACHINE_AWAY;
        let next = if is_for_long { PeerStatus::Offline } else { PeerStatus::Unreachable };
        for row in self.core.store.peers().on_machine(&away.machine.machine_id).await? {
            if row.peer.status == next {
                continue;
            }
            let (id, seen, since) = (row.peer.peer_id, row.peer.status, away.since);
            let write = self.core.change(job!(|tx| {
                let row = tx.peers().get(&id).await?;
                let Some(mut row) = row.filter(|row| row.peer.status == seen) else {
                    return Ok(());
                };
                let at = if is_for_long { tx.now() } else { since };
                set_reach(tx, &mut row.peer, next, at, "its machine is away").await
            }));
            write.await?;
        }
        Ok(())
    }

    async fn change_tasks(&self, away: &AwayMachine, is_over: bool) -> Result<()> {
        let Machine { machine_id, name } = &away.machine;
        for row in self.core.store.tasks().active_on(machine_id).await? {
            let change = if is_over {
                let error = format!("machine {name} is away");
                TaskChange::to(TaskStatus::Failed, Some(error))
            } else {
                let reason = format!("machine {name} is away since {}", away.since);
                if row.task.reason.as_ref() == Some(&reason) {
                    continue;
                }
                TaskChange { reason: Some(reason), ..TaskChange::to(TaskStatus::Active, None) }
            };
            end_or_note(&self.core, row.task, change).await?;
        }
        Ok(())
    }

    async fn end_what_it_holds(&self, away: &AwayMachine) -> Result<()> {
        let id = away.machine.machine_id.clone();
        let ended = self
            .core
            .change(job!(|tx| tx.tokens().end_of_machine(&id, limits::PROCESSES_PER_PAGE).await));
        self.access.forget(&ended.await?);
        for agent in self.core.store.agents().live().await? {
            if agent.machine_id == away.machine.machine_id {
                let why = format!("machine {} is away", away.machine.name);
                lose_agent(&self.agents, &agent.info.id, why).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use svc_store::testing::TestStore;

    use super::*;
    use crate::service::testing::services;

    #[tokio::test]
    async fn a_daemon_at_rest_writes_no_renewal() {
        let test = TestStore::open().await;
        let machines = services(&test).machines.clone();
        let daemon = NewDaemon { daemon_id: "d1".into(), pid: 1, version: "1".into() };
        machines.join(daemon).await.unwrap();
        machines.renew().await.unwrap();
        let commits = || test.store.stats().commits;
        let at_rest = commits();
        machines.renew().await.unwrap();
        assert_eq!(commits(), at_rest);
        let lease = machines.daemons().await.unwrap().remove(0).lease_until;
        assert_eq!(lease, machines.core.now().plus(limits::DAEMON_LEASE));
        machines.write_row(machines.joined.get().unwrap().daemon.clone()).await.unwrap();
        machines.renew().await.unwrap();
        assert_eq!(commits(), at_rest + 2, "something was written, so the lease is renewed");
    }
}
