//! `svc project`: projects with their folders, and the move of a folder.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use serde_json::{Value, json};
use svc_client::with_object;
use svc_model::{MovedFolder, PageQuery};

use super::output::{self, Column, Listing};
use super::{Context, ExitResult};

#[derive(Debug, Subcommand)]
pub(super) enum ProjectCommand {
    /// List projects with their folders, by name
    #[command(after_help = "Examples:\n  svc project list\n  svc project list --json\n\n\
        A project is named by its remote `origin`, else by its first commit, else by its folder.")]
    List {
        /// How many projects [default: 50]
        #[arg(long, value_name = "N")]
        limit: Option<u32>,
        /// Where the page before ended
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Let a folder follow the remote that its repository has now
    #[command(after_help = "Example:\n  svc project move ~/src/shop\n\n\
        A folder's project is decided when svc first meets it. A remote that changes later changes nothing until this command. \
        A project that had no remote keeps what it has, and gets the remote's name as well. Otherwise the folder joins the \
        project of that remote from the next session on, and what was recorded so far stays with the project before.")]
    Move {
        /// The folder, or one below it
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

const LIST: Listing = Listing {
    items: "projects",
    columns: &[
        Column::name("PROJECT", "project"),
        Column::text("MACHINE", "machine").rare(),
        Column::path("FOLDER", "folder").least(24),
        Column::time("USED", "used_at").rank(2),
        Column::text("ALSO", "also").rank(3),
        Column::text("NOW SAYS", "differs").rank(1),
    ],
    empty: "no projects: svc has met no folder yet",
    next: Some("--cursor"),
};

pub(super) async fn run(context: &Context, command: ProjectCommand) -> ExitResult {
    let client = context.client()?;
    match command {
        ProjectCommand::List { limit, cursor } => {
            let query = PageQuery { limit, cursor };
            let page: Value = client.get(&with_object("/v1/projects", &query)).await?;
            LIST.print(context, &if context.json { page } else { by_folder(&page) })
        }
        ProjectCommand::Move { folder } => {
            let folder = folder
                .canonicalize()
                .with_context(|| format!("there is no folder {}", folder.display()))?;
            let folder = folder.to_str().context("the folder's name is not UTF-8")?;
            let moved: MovedFolder =
                client.post("/v1/projects/move", &json!({ "folder": folder })).await?;
            context.print_line(&moved, &said(&moved))
        }
    }
}

/// The page with a row for each folder.
fn by_folder(page: &Value) -> Value {
    let (mut rows, mut machines) = (Vec::new(), BTreeSet::new());
    for project in output::items(page, LIST.items) {
        let aliases = output::items(project, "aliases").iter().filter_map(Value::as_str);
        let aliases = aliases.collect::<Vec<_>>().join(", ");
        for folder in output::items(project, "folders") {
            let mut row = folder.clone();
            row["project"] = project["project"].clone();
            if !aliases.is_empty() {
                row["also"] = json!(aliases);
            }
            machines.insert(row["machine_id"].to_string());
            rows.push(row);
        }
    }
    if machines.len() < 2 {
        for row in &mut rows {
            row["machine"].take();
        }
    }
    let mut table = json!({ "projects": rows });
    if let Some(cursor) = page.get("next_cursor") {
        table["next_cursor"] = cursor.clone();
    }
    table
}

fn said(moved: &MovedFolder) -> String {
    let MovedFolder { folder, from, project, alias } = moved;
    let text = match alias {
        Some(alias) => format!("{folder} stays {project}, which is {alias} as well from now on"),
        None if project == from => format!("{folder} is {project}, as before"),
        None => format!("{folder} was {from} and is {project} from now on"),
    };
    output::visible(&text)
}
