//! `svc project move`: a folder follows the remote that its repository has now.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use serde_json::json;
use svc_model::MovedFolder;

use super::{Context, ExitResult, output};

#[derive(Debug, Subcommand)]
pub(super) enum ProjectCommand {
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

pub(super) async fn run(context: &Context, command: ProjectCommand) -> ExitResult {
    let ProjectCommand::Move { folder } = command;
    let folder = folder
        .canonicalize()
        .with_context(|| format!("there is no folder {}", folder.display()))?;
    let folder = folder.to_str().context("the folder's name is not UTF-8")?;
    let moved: MovedFolder =
        context.client()?.post("/v1/projects/move", &json!({ "folder": folder })).await?;
    context.print_line(&moved, &said(&moved))
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
