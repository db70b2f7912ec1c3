//! `svc task`: recorded work with frames and an end. [`super::task_run`] runs commands.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use serde_json::{Value, json};
use svc_client::{Client, FollowItem, Follower, encode, with_object, with_query};
use svc_model::{ListQuery, NewTask, TaskFilter};

use super::events::{ending, note};
use super::naming::{LatestItem, identified};
use super::output::{self, Column, Listing};
use super::session::ended;
use super::{Context, ExitResult, task_run};

const LIST: Listing = Listing {
    items: "tasks",
    columns: &[
        Column::id("TASK", "task_id"),
        Column::state("STATUS", "status"),
        Column::text("TITLE", "title"),
        Column::text("AGENT", "agent").rank(3),
        Column::id("FROM", "from").rank(4),
        Column::number("EXIT", "exit_code").rank(2),
        Column::time("CREATED", "created_at").rank(1),
    ],
    empty: "no tasks; `svc task run -- COMMAND` creates one",
    next: Some("--cursor"),
};

const LATEST_TASK: LatestItem =
    LatestItem { path: "/v1/tasks", items: LIST.items, id: "task_id", empty: LIST.empty };

/// Limits of the part of the prompt that stands in for a missing title.
const TITLE_WORDS: usize = 12;
const TITLE_CHARS: usize = 80;

#[derive(Debug, Subcommand)]
pub(super) enum TaskCommand {
    /// Create a task that another program runs
    #[command(after_help = "Example:\n  svc task create --title 'review the parser' --agent codex")]
    Create(Box<NewTask>),
    /// List tasks, newest first
    #[command(after_help = "Example:\n  svc task list --status active")]
    List(ListQuery<TaskFilter>),
    /// Show one task
    #[command(after_help = "Example:\n  svc task show task_…")]
    Show {
        /// The task's id or the beginning of it, or `latest`
        id: String,
    },
    /// Ask the runner of a task to stop
    #[command(after_help = "Example:\n  svc task cancel task_… && svc task wait task_…")]
    Cancel {
        /// The task's id or the beginning of it, or `latest`
        id: String,
    },
    /// Print a task's output as it comes; exit code 0 if the task ends well, else 1
    #[command(
        after_help = "Examples:\n  svc task watch task_…\n  svc task watch task_… --json | jq .data\n\n\
        Starts at the beginning, resumes when the daemon restarts, and reports missing events on standard error."
    )]
    Watch {
        /// The task's id or the beginning of it, or `latest`
        id: String,
        /// Start after this event id
        #[arg(long, value_name = "N")]
        after: Option<u64>,
    },
    /// Wait until a task has ended; exit code 0 if it ended well, else 1
    #[command(after_help = "Example:\n  svc task wait task_… --timeout 600")]
    Wait {
        /// The task's id or the beginning of it, or `latest`
        id: String,
        /// Give up after this many seconds
        #[arg(long, value_name = "SECONDS")]
        timeout: Option<u64>,
    },
    /// Run a command as a task: each line a frame, its exit the end; exits with the command's code
    #[command(after_help = task_run::EXAMPLES)]
    Run(task_run::RunArgs),
    /// Send the output that a `task run` could not send while the daemon was away
    #[command(after_help = "Example:\n  svc task resend ~/.local/share/svc/spool/run_….ndjson\n\n\
        Lines that have arrived are not stored twice. The file is removed when all lines are acknowledged.")]
    Resend {
        /// The spool file
        file: std::path::PathBuf,
        /// Record the whole run as a new task: the daemon ends a task whose runner has been gone
        /// for a while
        #[arg(long)]
        new: bool,
    },
}

pub(super) async fn run(context: &Context, command: TaskCommand) -> ExitResult {
    match command {
        TaskCommand::Create(task) => {
            print(context, &context.client()?.post("/v1/tasks", &*task).await?)
        }
        TaskCommand::List(query) => {
            let mut page: Value = context.client()?.get(&with_object("/v1/tasks", &query)).await?;
            if !context.json {
                title_by_prompt(&mut page);
            }
            LIST.of_filter(&query.filter).print(context, &page)
        }
        TaskCommand::Show { id } => {
            let client = context.client()?;
            let id = identified(&client, id, LATEST_TASK).await?;
            print(context, &fetch(&client, &id).await?)
        }
        TaskCommand::Cancel { id } => {
            let path = format!("/v1/tasks/{}/cancel", encode(&id));
            print(context, &context.client()?.post(&path, &json!({})).await?)
        }
        TaskCommand::Watch { id, after } => {
            let id = identified(&context.client()?, id, LATEST_TASK).await?;
            watch(context, &id, after).await
        }
        TaskCommand::Wait { id, timeout } => {
            let id = identified(&context.client()?, id, LATEST_TASK).await?;
            wait(context, &id, timeout).await
        }
        TaskCommand::Run(args) => task_run::run(context, args).await,
        TaskCommand::Resend { file, new } => task_run::resend(context, &file, new).await,
    }
}

pub(super) async fn watch(context: &Context, id: &str, after: Option<u64>) -> ExitResult {
    let mut follower = subscription(context, id, after)?;
    let mut has_words = after.is_some_and(|after| after > 0);
    while let Some(item) = follower.next().await? {
        let FollowItem::Event { id, kind, data } = item else {
            if context.json
                && let FollowItem::Gap(gap) = &item
            {
                output::ndjson(&json!({ "kind": "gap", "data": gap }))?;
            }
            note(&item);
            continue;
        };
        let data: Value =
            serde_json::from_str(&data).context("the daemon sent an event that is not JSON")?;
        if context.json {
            output::ndjson(&json!({ "id": id, "kind": kind, "data": data }))?;
        } else if kind == "frame" {
            let line = data["line"].as_str().context("the daemon sent a frame without a line")?;
            has_words |= data["kind"] != "stderr";
            match data["kind"].as_str() {
                // The command wrote it to standard error. A closed standard error is ignored.
                Some("stderr") => output::note(line),
                // The next frame continues this line.
                _ if data["partial"] == true => output::block(&output::visible(line))?,
                _ => output::line(line)?,
            }
        } else if kind == "reply" {
            output::notes(&reply_text(&data));
        } else if kind == "task"
            && let Some(reason) = data["reason"].as_str()
        {
            output::note(&format!("svc: {}", output::visible(reason)));
        }
        if kind == "terminal" {
            if !context.json {
                // An attended session writes no output frames, only a reply.
                if let Some(result) = data["result"].as_str().filter(|_| !has_words) {
                    output::block(&ended(result))?;
                }
                output::note(&format!("svc: task {}", output::visible(&ending(&data))));
            }
            return Ok(exit_code(&data));
        }
    }
    // The requested position is after the end of the stream.
    Ok(exit_code(&fetch(&context.client()?, id).await?))
}

async fn wait(context: &Context, id: &str, timeout: Option<u64>) -> ExitResult {
    let ended = wait_for_end(context, id);
    let task = match timeout {
        None => ended.await?,
        Some(seconds) => match tokio::time::timeout(Duration::from_secs(seconds), ended).await {
            Ok(task) => task?,
            Err(_) => bail!("task {id} has not ended within {seconds} s"),
        },
    };
    print(context, &task)?;
    Ok(exit_code(&task))
}

/// Waits for the terminal task, without its earlier output.
async fn wait_for_end(context: &Context, id: &str) -> Result<Value> {
    let task = fetch(&context.client()?, id).await?;
    if is_terminal(&task) {
        return Ok(task);
    }
    let last = task.get("last_id").and_then(Value::as_u64);
    let mut follower = subscription(context, id, last)?;
    while let Some(item) = follower.next().await? {
        if let FollowItem::Event { kind, data, .. } = &item
            && kind == "terminal"
        {
            return Ok(serde_json::from_str(data)?);
        }
    }
    fetch(&context.client()?, id).await
}

fn subscription(context: &Context, id: &str, after: Option<u64>) -> Result<Follower> {
    let path = with_query("/v1/biam/subscribe", &[("task_id", Some(id))]);
    let follower = Follower::new(context.discovery()?, path);
    Ok(match after {
        Some(after) => follower.after(after),
        None => follower,
    })
}

async fn fetch(client: &Client, id: &str) -> Result<Value> {
    Ok(client.get(&format!("/v1/tasks/{}", encode(id))).await?)
}

fn print(context: &Context, task: &Value) -> ExitResult {
    let first = ["task_id", "status", "title", "agent", "from", "exit_code", "signal", "error"];
    context.print_object(task, &first)
}

/// Sets a missing title in a table to the first words of the prompt.
fn title_by_prompt(page: &mut Value) {
    for task in page.get_mut("tasks").and_then(Value::as_array_mut).into_iter().flatten() {
        if task["title"].is_null()
            && let Some(prompt) = task["prompt"].as_str()
        {
            let words: Vec<&str> = prompt.split_whitespace().take(TITLE_WORDS).collect();
            let title: String = words.join(" ").chars().take(TITLE_CHARS).collect();
            task["title"] = title.into();
        }
    }
}

/// The text of a reply, which is no part of the task's output.
fn reply_text(reply: &Value) -> String {
    let cell = |key| output::cell(reply, key);
    let head = output::visible(&format!("svc: {} from {}:", cell("kind"), cell("from")));
    let body = cell("body").lines().map(output::visible).collect::<Vec<_>>().join("\n  ");
    format!("{head} {body}")
}

fn is_terminal(task: &Value) -> bool {
    matches!(task["status"].as_str(), Some("done" | "failed" | "cancelled" | "expired"))
}

fn exit_code(task: &Value) -> ExitCode {
    if task["status"] == "done" { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_without_a_title_shows_its_prompt() {
        let mut page = json!({ "tasks": [
            { "prompt": "look at\nthe last   commit" }, { "title": "own", "prompt": "x" }, {},
        ] });
        title_by_prompt(&mut page);
        assert_eq!(page["tasks"][0]["title"], "look at the last commit");
        assert_eq!(page["tasks"][1]["title"], "own");
        assert!(page["tasks"][2]["title"].is_null());
    }

    #[test]
    fn signal_is_shown_only_without_an_error() {
        let failed = json!({ "status": "failed", "signal": "SIGKILL", "error": "not logged in" });
        assert_eq!(ending(&failed), "failed, error not logged in");
        let killed = json!({ "status": "failed", "signal": "SIGKILL" });
        assert_eq!(ending(&killed), "failed, signal SIGKILL");
    }
}
