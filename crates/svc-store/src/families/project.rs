//! Projects: the project of each folder of a machine, and the further names of projects.

use svc_model::{MachineId, MovedFolder, ProjectFolder, Timestamp, is_remote_name, json_bytes};

use super::{ProjectReads, ProjectWrites};
use crate::{
    FolderDecision, PageSize, Result, RowPage, boxed_methods,
    columns::{Columns, DirectRow, Fault},
    readers::Rows as _,
    statement::{change, column, direct_row, find_value, query, value},
};

direct_row!(FolderDecision { project, decided_at, used_at });

impl DirectRow for ProjectFolder {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        Ok(Self {
            machine_id: columns.next("machine_id")?,
            machine: columns.next("machine")?,
            folder: columns.next("folder")?,
            decided_at: columns.next("decided_at")?,
            used_at: columns.next("used_at")?,
            differs: None,
        })
    }
}

macro_rules! decisions {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),
            r#"select project, decided_at as "decided_at: Timestamp", used_at as "used_at!: Timestamp"
            from project_folder "#, $($rest)*
        )
    };
}

#[boxed_methods]
impl ProjectReads<'_> {
    /// The project that was decided for a folder of this machine.
    pub async fn decision(&self, folder: &str) -> Result<Option<FolderDecision>> {
        let here = self.store.machine_id();
        Ok(
            decisions!(one(), self.store.near(), "where machine_id = ? and folder = ?"; here, folder),
        )
    }

    pub async fn of_alias(&self, name: &str) -> Result<Option<String>> {
        Ok(find_value!(self.store.near(),
            "select project from project_alias where name = ?"; name))
    }

    pub async fn aliases(&self, project: &str) -> Result<Vec<String>> {
        Ok(column!(self.store.near(),
            "select name from project_alias where project = ? order by name"; project))
    }

    /// The folders of a project on this machine, the last used first.
    pub async fn folders_here(&self, project: &str, limit: u32) -> Result<Vec<String>> {
        Ok(column!(self.store.pool(),
            "select folder from project_folder where project = ? and machine_id = ?
            order by used_at desc, folder limit ?"; project, self.store.machine_id(), limit))
    }

    /// The folders of a project on all machines, the last used first.
    pub async fn folders(&self, project: &str, limit: u32) -> Result<Vec<ProjectFolder>> {
        Ok(query!(all(),
            r#"select f.machine_id as "machine_id!: MachineId", m.name as "machine!", f.folder as "folder!",
                f.decided_at as "decided_at: Timestamp", f.used_at as "used_at!: Timestamp"
            from project_folder f join machine m on m.machine_id = f.machine_id "#, self.store.near(),
            "where f.project = ? order by f.used_at desc, f.machine_id, f.folder limit ?";
            project, limit))
    }

    pub async fn list(&self, after: Option<&str>, size: PageSize) -> Result<RowPage<String>> {
        let limit = size.limit();
        let page: RowPage<(String,)> = query!(page(size, json_bytes), self.store.pool(),
            r#"select distinct project as "project!" from project_folder
            where ?1 is null or project > ?1 order by project limit ?2"#; after, limit);
        Ok(page.map(|(project,)| project))
    }
}

#[boxed_methods]
impl ProjectWrites<'_> {
    /// Decides the project of a folder of this machine, unless it is decided: the project of `main`
    /// if the folder is a worktree of it, else the project with the name, else a new one. Returns
    /// the project.
    pub async fn decide(
        &mut self,
        folder: &str,
        main: Option<&str>,
        name: Option<&str>,
    ) -> Result<String> {
        let of_main = match main {
            Some(main) => Some(self.decide_one(main, None, name).await?),
            None => None,
        };
        self.decide_one(folder, of_main, name).await
    }

    async fn decide_one(
        &mut self,
        folder: &str,
        of_main: Option<String>,
        name: Option<&str>,
    ) -> Result<String> {
        let known = self.decision(folder).await?;
        let project = match (known, of_main, name) {
            (Some(known), ..) if known.decided_at.is_some() => return Ok(known.project),
            // The folder is from before projects had names. It keeps its project, and the project
            // gets this name unless another project has it.
            (Some(known), None, Some(name)) => {
                if !self.is_taken(name).await? {
                    self.add_alias(name, &known.project).await?;
                }
                known.project
            }
            (Some(known), ..) => known.project,
            (None, Some(of_main), _) => of_main,
            (None, None, Some(name)) => self.of_name(name).await?,
            (None, None, None) => self.nameless(folder).await?,
        };
        self.put(folder, &project).await?;
        Ok(project)
    }

    /// Updates the project of a folder by what its repository says now: that the folder is a
    /// worktree of `main`, or the name of its remote. A project that had no remote keeps its
    /// folders and rows and gets the name, unless another project has it.
    pub async fn follow(
        &mut self,
        folder: &str,
        main: Option<&str>,
        name: Option<&str>,
    ) -> Result<MovedFolder> {
        let from = self.decide(folder, main, name).await?;
        let moved = |project: String, alias| MovedFolder {
            folder: folder.to_owned(),
            from: from.clone(),
            project,
            alias,
        };
        let project = match (main, name) {
            (Some(main), name) => self.decide_one(main, None, name).await?,
            (None, Some(name)) => self.of_name(name).await?,
            (None, None) => return Ok(moved(from.clone(), None)),
        };
        if project == from {
            return Ok(moved(project, None));
        }
        if let (None, Some(name)) = (main, name)
            && !self.has_remote(&from).await?
            && !self.is_taken(name).await?
        {
            self.add_alias(name, &from).await?;
            return Ok(moved(from.clone(), Some(name.to_owned())));
        }
        self.put(folder, &project).await?;
        Ok(moved(project, None))
    }

    pub async fn touch(&mut self, folder: &str) -> Result<()> {
        change!(self.tx,
            "update project_folder set used_at = ? where machine_id = ? and folder = ?";
            self.tx.now, self.tx.machine, folder);
        Ok(())
    }

    /// The folders of a project on this machine, the last used first.
    pub async fn folders_here(&mut self, project: &str, limit: u32) -> Result<Vec<String>> {
        Ok(column!(self.tx.direct,
            "select folder from project_folder where project = ? and machine_id = ?
            order by used_at desc, folder limit ?"; project, self.tx.machine, limit))
    }

    /// The project that was decided for a folder of this machine.
    pub async fn decision(&mut self, folder: &str) -> Result<Option<FolderDecision>> {
        Ok(decisions!(one(), self.tx.direct,
            "where machine_id = ? and folder = ?"; self.tx.machine, folder))
    }

    async fn put(&mut self, folder: &str, project: &str) -> Result<()> {
        change!(self.tx,
            "insert into project_folder (machine_id, folder, project, decided_at, used_at)
            values (?1, ?2, ?3, ?4, ?4)
            on conflict (machine_id, folder) do update set project = excluded.project,
                decided_at = excluded.decided_at, used_at = excluded.used_at";
            self.tx.machine, folder, project, self.tx.now);
        Ok(())
    }

    async fn add_alias(&mut self, name: &str, project: &str) -> Result<()> {
        change!(self.tx, "insert into project_alias (name, project) values (?, ?)"; name, project);
        Ok(())
    }

    async fn of_name(&mut self, name: &str) -> Result<String> {
        let known =
            find_value!(self.tx.direct, "select project from project_alias where name = ?"; name);
        Ok(known.unwrap_or_else(|| name.to_owned()))
    }

    async fn is_taken(&mut self, name: &str) -> Result<bool> {
        Ok(value!(self.tx.direct,
            r#"select exists (select 1 from project_alias where name = ?1)
                or exists (select 1 from project_folder where project = ?1) as "taken!: bool""#;
            name))
    }

    async fn has_remote(&mut self, project: &str) -> Result<bool> {
        if is_remote_name(project) {
            return Ok(true);
        }
        // The name of a remote has a slash, the id of a commit does not.
        Ok(value!(self.tx.direct,
            r#"select exists (select 1 from project_alias where project = ? and name like '%/%')
                as "has!: bool""#; project))
    }

    /// The project of a folder without a remote or commit. Rows from before machines were recorded
    /// have the plain folders of the first machine, so other machines put their id before the
    /// folder.
    async fn nameless(&mut self, folder: &str) -> Result<String> {
        let here = self.tx.machine_id().clone();
        let is_first = value!(self.tx.direct,
            r#"select coalesce((select machine_id from machine order by first_seen, machine_id limit 1) = ?, true)
                as "is_first!: bool""#; here);
        Ok(if is_first { folder.to_owned() } else { format!("{here}:{folder}") })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sqlx::{ConnectOptions as _, Connection as _};
    use svc_model::{Clock, ManualClock};
    use svc_sys::machine::{HostIdentity, ThisMachine};

    use super::*;
    use crate::{
        OpenOptions, Store,
        sqlite::{file::writer_options, migrate},
        testing::TestStore,
    };

    const NAME: &str = "h/ann/shop";

    async fn decide(
        store: &Store,
        folder: &'static str,
        main: Option<&'static str>,
        name: Option<&'static str>,
    ) -> String {
        let decided = store.write(job!(|tx| tx.projects().decide(folder, main, name).await));
        decided.await.unwrap()
    }

    async fn follow(
        store: &Store,
        folder: &'static str,
        main: Option<&'static str>,
        name: Option<&'static str>,
    ) -> (String, Option<String>) {
        let moved = store.write(job!(|tx| tx.projects().follow(folder, main, name).await));
        let moved = moved.await.unwrap();
        (moved.project, moved.alias)
    }

    #[tokio::test]
    async fn first_contact_decides_the_project_until_a_person_moves_the_folder() {
        let at = TestStore::open().await;
        let store = &at.store;
        assert_eq!(decide(store, "/a", None, Some(NAME)).await, NAME);
        assert_eq!(decide(store, "/a", None, Some("h/eve/toy")).await, NAME);
        assert_eq!(decide(store, "/a", None, None).await, NAME);
        assert_eq!(decide(store, "/b", None, Some(NAME)).await, NAME);
        assert_eq!(decide(store, "/c", None, None).await, "/c");
        assert_eq!(decide(store, "/tree", Some("/c"), None).await, "/c");
        assert_eq!(decide(store, "/tree2", Some("/d"), Some("h/bob/d")).await, "h/bob/d");
        assert_eq!(decide(store, "/d", None, Some("else")).await, "h/bob/d");

        // A remote that no project has becomes a further name of a project without one, once.
        let alias = Some("h/ann/c".to_owned());
        assert_eq!(follow(store, "/c", None, Some("h/ann/c")).await, ("/c".to_owned(), alias));
        assert_eq!(follow(store, "/c", None, Some("h/ann/c")).await, ("/c".to_owned(), None));
        assert_eq!(decide(store, "/e", None, Some("h/ann/c")).await, "/c");
        let other = "h/bob/c".to_owned();
        assert_eq!(follow(store, "/c", None, Some("h/bob/c")).await, (other.clone(), None));
        assert_eq!(follow(store, "/tree", Some("/c"), None).await, (other, None));
        // A remote that belongs to a project means that project.
        assert_eq!(decide(store, "/f", None, None).await, "/f");
        assert_eq!(follow(store, "/f", None, Some(NAME)).await, (NAME.to_owned(), None));
        assert_eq!(follow(store, "/f", None, None).await, (NAME.to_owned(), None));
        assert_eq!(store.projects().aliases("/c").await.unwrap(), ["h/ann/c"]);
        assert_eq!(store.projects().of_alias("h/ann/c").await.unwrap().as_deref(), Some("/c"));
        let mut folders = store.projects().folders_here(NAME, 10).await.unwrap();
        folders.sort();
        assert_eq!(folders, ["/a", "/b", "/f"]);
        let page = store.projects().list(Some("/c"), PageSize::rows(2)).await.unwrap();
        assert_eq!((page.rows, page.more), (vec![NAME.to_owned(), "h/bob/c".to_owned()], true));
    }

    #[tokio::test]
    async fn folders_of_before_keep_their_projects_and_get_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("svc.db");
        let mut conn = writer_options(&path).unwrap().connect().await.unwrap();
        migrate::make_earlier(&mut conn, 56).await;
        let rows = "insert into session (session_id, project, source, created_by, started_at, last_seen_at) values
                ('s1', '/a', 'startup', 'operator', 1, 1), ('s2', '/b', 'startup', 'operator', 1, 2),
                ('s3', '', 'startup', 'operator', 1, 3), ('s4', 'word', 'startup', 'operator', 1, 4);
            insert into token (token_id, hash, session, scopes, created_at, expires_at, project)
                values ('tok_1', zeroblob(32), 's', '[]', 5, 6, '/b');";
        sqlx::raw_sql(rows).execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();

        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp::from_millis(1_000)));
        let options = OpenOptions::for_file(path).unwrap();
        let (store, writer) = Store::open(&options, Arc::clone(&clock)).await.unwrap();
        let known = store.projects().decision("/b").await.unwrap().unwrap();
        let used_at = Timestamp::from_millis(5);
        let expected = FolderDecision { project: "/b".to_owned(), decided_at: None, used_at };
        assert_eq!(known, expected);
        assert_eq!(store.projects().decision("word").await.unwrap(), None);
        // Both are checkouts of one remote. They stay two projects.
        assert_eq!(decide(&store, "/a", None, Some(NAME)).await, "/a");
        assert_eq!(decide(&store, "/b", None, Some(NAME)).await, "/b");
        assert_eq!(decide(&store, "/new", None, Some(NAME)).await, "/a");
        assert_eq!(decide(&store, "/a", None, Some("h/eve/toy")).await, "/a");
        assert_eq!(store.projects().aliases("/a").await.unwrap(), [NAME]);
        assert!(store.projects().decision("/a").await.unwrap().unwrap().decided_at.is_some());
        assert_eq!(follow(&store, "/b", None, Some(NAME)).await, ("/a".to_owned(), None));
        writer.close(store).await.unwrap();

        // Another machine has the same names, and other folders.
        let elsewhere = tempfile::tempdir().unwrap();
        let host = HostIdentity::of_this(Some("another"));
        let machine = ThisMachine::open(elsewhere.path(), &host).unwrap();
        let options = OpenOptions { machine, ..options };
        let (store, writer) = Store::open(&options, clock).await.unwrap();
        assert_eq!(store.projects().decision("/a").await.unwrap(), None);
        let own = format!("{}:/a", store.machine().machine_id);
        assert_eq!(decide(&store, "/a", None, None).await, own);
        assert_eq!(decide(&store, "/c", None, Some(NAME)).await, "/a");
        let folders = store.projects().folders("/a", 10).await.unwrap();
        assert_eq!(folders.len(), 4, "{folders:?}");
        writer.close(store).await.unwrap();
    }
}
