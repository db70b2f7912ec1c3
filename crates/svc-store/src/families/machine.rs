//! Machines, daemons with their leases, what lives on which machine, and the daemons' settings and
//! secrets.
//!
//! Leases are written and judged by the database's clock, which all daemons of a database share.

use svc_model::{DaemonView, Machine, MachineId, Timestamp, limits};
use svc_sys::machine::{self, ThisMachine};

use super::{MachineReads, MachineWrites, SettingReads, SettingWrites};
use crate::{
    AwayMachine, NewDaemon, Result, boxed_methods,
    readers::Rows as _,
    statement::{change, column, direct_row, fields, find_value, query, value},
    upkeep::MoveMark,
};

#[boxed_methods]
impl MachineWrites<'_> {
    /// Records the machine that opened the database. The first machine claims rows from before
    /// machines were recorded. Writes nothing if the machine is known with this name and host: its
    /// daemon records when it was last seen.
    pub(crate) async fn enter(&mut self, this: &ThisMachine) -> Result<()> {
        let Machine { machine_id, name } = &this.machine;
        let host = &this.host;
        let is_known = value!(self.tx.direct,
            r#"select exists (select 1 from machine where machine_id = ? and name = ? and host = ?)
                as "is_known!: bool""#; machine_id, name, host);
        if is_known {
            return Ok(());
        }
        let is_first = value!(
            self.tx.direct,
            r#"select not exists (select 1 from machine) as "is_first!: bool""#
        );
        change!(self.tx,
            "insert into machine (machine_id, name, host, first_seen, last_seen)
        select ?1, ?2, ?3, at, at from (select cast(unixepoch('subsec') * 1000 as integer) as at) where true
        on conflict (machine_id) do update set name = excluded.name, host = excluded.host,
            last_seen = excluded.last_seen"; machine_id, name, host);
        if is_first {
            self.claim(machine_id).await?;
        }
        Ok(())
    }

    async fn claim(&mut self, id: &MachineId) -> Result<()> {
        macro_rules! claim {
            ($($sql:literal),+ $(,)?) => { $(change!(self.tx, $sql; id);)+ };
        }
        claim!(
            "update peer set machine_id = ? where machine_id = '' and pid is not null",
            "update token set machine_id = ? where machine_id = '' and client_pid is not null",
            "update task set machine_id = ? where machine_id = '' and runner_pid is not null",
            "update agent set machine_id = ? where machine_id = ''",
            "update source_process set machine_id = ? where machine_id = ''",
            "update source_list set machine_id = ? where machine_id = ''",
            "update source_state set machine_id = ? where machine_id = ''",
            "update source_pin set machine_id = ? where machine_id = ''",
            "update project_folder set machine_id = ? where machine_id = ''",
        );
        // A start time without a boot id is from an earlier release, of a process that ran at the
        // last check, so during this boot.
        let boot = machine::boot();
        change!(self.tx,
            "update task set runner_started = runner_started || ? where substr(runner_started, -1) = '@'";
            boot);
        change!(self.tx,
            "update agent set host_started = host_started || ? where substr(host_started, -1) = '@'";
            boot);
        Ok(())
    }

    /// Records a daemon with its lease. Returns the other daemons recorded for this machine: a data
    /// folder has one daemon, so they were killed.
    pub async fn join(&mut self, daemon: &NewDaemon) -> Result<Vec<String>> {
        let machine = &self.tx.machine;
        let lost = column!(self.tx.direct,
            r#"delete from daemon where machine_id = ? returning daemon_id as "daemon_id!""#;
            machine);
        let (boot, lease) = (machine::boot(), lease());
        change!(self.tx,
            "insert into daemon (daemon_id, machine_id, boot, pid, version, started_at, lease_until)
            select ?1, ?2, ?3, ?4, ?5, at, at + ?6
            from (select cast(unixepoch('subsec') * 1000 as integer) as at)";
            daemon.daemon_id, machine, boot, daemon.pid, daemon.version, lease);
        Ok(lost)
    }

    /// Renews a lease. Returns false if the daemon has no row any more.
    pub async fn renew(&mut self, daemon_id: &str) -> Result<bool> {
        let lease = lease();
        let done = change!(self.tx,
            "update daemon set lease_until = cast(unixepoch('subsec') * 1000 as integer) + ?1 where daemon_id = ?2";
            lease, daemon_id);
        Ok(done > 0)
    }

    pub async fn leave(&mut self, daemon_id: &str) -> Result<()> {
        change!(self.tx,
            "update machine set last_seen = cast(unixepoch('subsec') * 1000 as integer)
            where machine_id = (select machine_id from daemon where daemon_id = ?)"; daemon_id);
        change!(self.tx, "delete from daemon where daemon_id = ?"; daemon_id);
        Ok(())
    }
}

direct_row!(Machine { machine_id, name });
direct_row!(DaemonView {
    daemon_id,
    name,
    machine,
    address,
    version,
    lease_until,
    agents,
    is_self
});

#[boxed_methods]
impl MachineReads<'_> {
    /// The daemons that did not record their end, as daemon `own` sees them.
    pub async fn daemons(&self, own: &str) -> Result<Vec<DaemonView>> {
        Ok(query!(all(), self.store.pool(),
            r#"select d.daemon_id, m.name, d.machine_id as "machine!: MachineId", d.address, d.version,
                d.lease_until as "lease_until!: Timestamp",
                (select count(*) from agent a where a.machine_id = d.machine_id and a.ended_at is null)
                    as "agents!: i64",
                d.daemon_id = ? as "is_self!: bool"
            from daemon d join machine m on m.machine_id = d.machine_id order by d.started_at, d.daemon_id"#; own))
    }

    pub async fn all(&self) -> Result<Vec<Machine>> {
        Ok(query!(
            all(),
            self.store.pool(),
            r#"select machine_id as "machine_id!: MachineId", name from machine order by machine_id"#
        ))
    }

    /// Other machines without a daemon that holds its lease.
    pub async fn away(&self) -> Result<Vec<AwayMachine>> {
        let (own, lease) = (self.store.machine_id(), lease());
        let rows = fields!(all(), self.store.pool(),
            { machine_id: MachineId, name: String, now: Timestamp, since: Timestamp },
            r#"select m.machine_id as "machine_id!: MachineId", m.name, clock.at as "now!: Timestamp",
                coalesce((select max(d.lease_until) - ?1 from daemon d where d.machine_id = m.machine_id), m.last_seen)
                    as "since!: Timestamp"
            from machine m cross join (select cast(unixepoch('subsec') * 1000 as integer) as at) clock
            where m.machine_id <> ?2 and not exists (
                select 1 from daemon d where d.machine_id = m.machine_id and d.lease_until > clock.at
            )"#; lease, own);
        let away = rows.into_iter().map(|row| AwayMachine {
            machine: Machine { machine_id: row.machine_id, name: row.name },
            since: row.since,
            lasts: row.now.since(row.since),
        });
        Ok(away.collect())
    }
}

fn lease() -> i64 {
    i64::try_from(limits::DAEMON_LEASE.as_millis()).unwrap_or(i64::MAX)
}

#[boxed_methods]
impl SettingWrites<'_> {
    /// The secret of that name. Stores `fresh` if there is none.
    pub async fn secret(&mut self, name: &str, fresh: &[u8]) -> Result<Vec<u8>> {
        change!(self.tx,
            "insert into secret (name, value) values (?, ?) on conflict do nothing"; name, fresh);
        Ok(value!(self.tx.direct, "select value from secret where name = ?"; name))
    }

    pub async fn get(&mut self, name: &str) -> Result<Option<String>> {
        Ok(find_value!(self.tx.direct, "select value from setting where name = ?"; name))
    }

    pub async fn put(&mut self, name: &str, value: &str) -> Result<()> {
        change!(self.tx,
            "insert into setting (name, value) values (?1, ?2) on conflict (name) do update set value = ?2";
            name, value);
        Ok(())
    }
}

#[boxed_methods]
impl SettingReads<'_> {
    pub async fn get(&self, name: &str) -> Result<Option<String>> {
        Ok(find_value!(self.store.pool(), "select value from setting where name = ?"; name))
    }

    /// The database to which this history was moved, or to which an unfinished move moves it.
    pub async fn gone_to(&self) -> Result<Option<String>> {
        for name in [MoveMark::MOVED_TO, MoveMark::MOVING_TO] {
            if let Some(mark) = self.get(name).await? {
                return Ok(Some(MoveMark::read(&mark).map_or(mark, |mark| mark.at)));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sqlx::{ConnectOptions as _, Connection as _, Row as _, SqliteConnection};
    use svc_model::{Clock, MachineProcess, ManualClock, TaskId};
    use svc_sys::machine::HostIdentity;

    use super::*;
    use crate::{
        OpenOptions, Store,
        sqlite::{file::writer_options, migrate},
    };

    /// A row of each table that names a process, a folder or a server, at schema 54.
    const ROWS: &str = "
        insert into stream (id, name, created_at) values (1, 'task/task_1', 1), (2, 'agent/ag_1', 1);
        insert into event (stream_id, seq, position, at, kind, data) values (1, 1, 1, 1, 'task', '{}');
        insert into peer (peer_id, display_name, backend, circle, role, registered_at, last_seen, pid,
            process_started, project, status) values
            ('peer_1', 'a', 'x', 'default', 'agent', 1, 1, 7, '70@boot', '/p', 'online'),
            ('peer_2', 'b', 'y', 'default', 'agent', 1, 1, null, null, '', 'online');
        insert into task (task_id, stream_id, status, created_by, runner_pid, runner_started, created_at)
            values ('task_1', 1, 'active', 'operator', 8, '80', 1);
        insert into token (token_id, hash, session, scopes, created_at, expires_at, client_pid,
            client_started) values ('tok_1', zeroblob(32), 's', '[]', 1, 2, 9, '90@boot');
        insert into agent (agent_id, stream_id, instance, backend, session_key, cwd, created_by, state,
            host_pid, host_started, request_timeout, started_at)
            values ('ag_1', 2, 'cat', 'exec', 'agent:cat:main', '/p', 'operator', 'idle', 10, 100, 1, 1);
        insert into source_list values ('fs', '/p', 'f', '[]', '[]', '[]', '[]', 1);
        insert into source_state (name, project, state, since) values ('fs', '/p', 'ready', 1);
        insert into source_pin values ('fs', '/p', 'b', '[]', '[]', '[]', '[]', '[]', 1);
        insert into source_process values ('mark', 11, '110@boot', 'fs', '/p', 'i', 1);";

    async fn text(conn: &mut SqliteConnection, sql: &'static str) -> String {
        sqlx::query(sql).fetch_one(conn).await.unwrap().get(0)
    }

    #[tokio::test]
    async fn upgrade_assigns_earlier_rows_to_the_upgrading_machine() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("svc.db");
        let mut conn = writer_options(&path).unwrap().connect().await.unwrap();
        migrate::make_earlier(&mut conn, 54).await;
        sqlx::raw_sql(ROWS).execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();

        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp::from_millis(1_000)));
        let options = OpenOptions::for_file(path.clone()).unwrap();
        let (store, writer) = Store::open(&options, Arc::clone(&clock)).await.unwrap();
        let first = store.machine().machine_id.clone();
        let task = store.tasks().get(&TaskId::from("task_1".to_owned())).await.unwrap().unwrap();
        let MachineProcess { machine_id, process } = task.process.unwrap();
        assert_eq!((machine_id, process.pid), (first.clone(), 8));
        assert_eq!(process.started, format!("80@{}", machine::boot()));
        let agent = store.agents().live().await.unwrap().remove(0);
        assert_eq!(agent.host.unwrap().started, format!("100@{}", machine::boot()));
        assert_eq!(store.sources().lists().await.unwrap().len(), 1);
        assert_eq!(store.sources().pins().await.unwrap().len(), 1);
        assert_eq!(store.sources().processes().await.unwrap()[0].started, "110@boot");
        writer.close(store).await.unwrap();

        let mut conn = writer_options(&path).unwrap().connect().await.unwrap();
        let machines = text(
            &mut conn,
            "select group_concat(machine_id, ' ') from (
                select machine_id from peer where peer_id = 'peer_1' union all select machine_id from token
                union all select machine_id from task union all select machine_id from agent
                union all select machine_id from source_list union all select machine_id from source_state
                union all select machine_id from source_pin union all select machine_id from source_process)",
        )
        .await;
        assert_eq!(machines, [first.as_str(); 8].join(" "));
        let without = "select machine_id from peer where peer_id = 'peer_2'";
        assert_eq!(text(&mut conn, without).await, "", "no process, no machine");
        conn.close().await.unwrap();

        // Another machine claims nothing.
        let host = HostIdentity::of_this(Some("another"));
        let elsewhere = tempfile::tempdir().unwrap();
        let machine = ThisMachine::open(elsewhere.path(), &host).unwrap();
        let options = OpenOptions { machine, ..options };
        let (store, writer) = Store::open(&options, clock).await.unwrap();
        assert_ne!(store.machine().machine_id, first);
        let agent = store.agents().live().await.unwrap().remove(0);
        assert_eq!(agent.machine_id, first);
        assert_eq!(store.sources().lists().await.unwrap(), []);
        assert_eq!(store.tokens().processes(None, 10).await.unwrap(), []);
        writer.close(store).await.unwrap();
    }

    #[tokio::test]
    async fn a_lease_is_renewed_and_a_daemon_without_one_is_away() {
        let folder = tempfile::tempdir().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp::from_millis(1_000)));
        let open = async |home: &str, name: &str| {
            let home = folder.path().join(home);
            std::fs::create_dir_all(&home).unwrap();
            let machine = ThisMachine::open(&home, &HostIdentity::of_this(Some(name))).unwrap();
            let file = OpenOptions::for_file(folder.path().join("svc.db")).unwrap();
            let options = OpenOptions { machine, ..file };
            Store::open(&options, Arc::clone(&clock)).await.unwrap()
        };
        let join = async |store: &Store, id: &str| {
            let daemon = NewDaemon { daemon_id: id.to_owned(), pid: 1, version: "1".to_owned() };
            let joined = store.write(job!(|tx| tx.machines().join(&daemon).await));
            joined.await.unwrap()
        };
        let renew = async |store: &Store, id: &'static str| {
            let renewed = store.write(job!(|tx| tx.machines().renew(id).await));
            renewed.await.unwrap()
        };
        let (a, writer) = open("a", "box-a").await;
        assert_eq!(join(&a, "d1").await, [""; 0]);
        let before = a.machines().daemons("d1").await.unwrap().remove(0);
        assert!(before.is_self && before.name == "box-a");
        assert_eq!(before.machine, a.machine().machine_id);
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(renew(&a, "d1").await && !renew(&a, "d0").await);
        let after = a.machines().daemons("d1").await.unwrap().remove(0);
        assert!(after.lease_until > before.lease_until);
        assert_eq!(
            join(&a, "d2").await,
            ["d1"],
            "it was killed, and its folder has another daemon"
        );
        writer.close(a).await.unwrap();

        let (b, writer) = open("b", "box-b").await;
        assert_eq!(
            join(&b, "d3").await,
            [""; 0],
            "a daemon of another machine is not lost by that"
        );
        assert_eq!(b.machines().away().await.unwrap(), [], "it has its lease");
        let path = folder.path().join("svc.db");
        let mut conn = writer_options(&path).unwrap().connect().await.unwrap();
        let over = sqlx::query("update daemon set lease_until = 1 where daemon_id = 'd2'");
        over.execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();
        let away = b.machines().away().await.unwrap();
        assert_eq!((away.len(), &*away[0].machine.name), (1, "box-a"));
        let views = b.machines().daemons("d3").await.unwrap();
        let mine: Vec<_> = views.iter().map(|it| (&*it.daemon_id, it.is_self)).collect();
        assert_eq!(mine, [("d2", false), ("d3", true)]);
        writer.close(b).await.unwrap();
    }
}
