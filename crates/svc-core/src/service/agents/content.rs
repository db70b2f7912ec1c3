//! What an agent said of a task.

use serde::Deserialize;
use svc_model::{Caller, FrameKind, Task, TaskId, limits};
use svc_store::PageSize;

use super::Agents;
use crate::service::{Error, assignments::note_returned, tasks};

impl Agents {
    /// The result of a task, or what its agent has said so far; and whether there was more than
    /// that.
    pub async fn content_of(&self, task: &Task) -> Result<(String, bool), Error> {
        if let Some(result) = &task.result
            // One that was cut, at a character, may have some bytes less than the bound.
            && result.len() + char::MAX_LEN_UTF8 <= limits::TASK_RESULT_BYTES
        {
            return Ok((result.clone(), false));
        }
        let name = tasks::stream_of(&task.task_id);
        let Some(view) = self.core.store.streams().view(&name).await? else {
            return Ok((String::new(), false));
        };
        let (mut content, mut after) = (String::new(), 0);
        // Nothing, and a line that the next frame goes on in, have no end to be written.
        let (mut is_open, mut is_cut) = (true, false);
        loop {
            let size = PageSize::rows(limits::PAGE_MAX);
            let page = self
                .core
                .store
                .events()
                .of_stream(view.id, &name, after, Some("frame"), size)
                .await?;
            for event in &page.events {
                after = event.seq;
                let Ok(said) = serde_json::from_str::<SaidLine>(&event.data) else { continue };
                if said.kind != FrameKind::Stdout {
                    continue;
                }
                if content.len() + said.line.len() + 1 > limits::TASK_CONTENT_BYTES {
                    return Ok((content, true));
                }
                if !is_open {
                    content.push('\n');
                }
                content.push_str(&said.line);
                is_open = said.partial;
                is_cut |= said.truncated;
            }
            if !page.more {
                return Ok((content, is_cut));
            }
        }
    }

    /// The call that waited for a task has its answer, so it is told to nobody once more. Answers
    /// whose words they are: the instance, and its kind of agent.
    pub async fn return_answer(
        &self,
        caller: &Caller,
        task: &TaskId,
    ) -> Result<Option<(String, String)>, Error> {
        let task = task.clone();
        self.core
            .store
            .on_behalf_of(caller)
            .write(move |tx| {
                Box::pin(async move {
                    let work = tx.assignments().of_task(&task).await?;
                    let Some(mut work) = work else { return Ok(None) };
                    note_returned(tx, &mut work).await?;
                    Ok(Some((work.instance, work.backend)))
                })
            })
            .await
    }
}

/// A frame, as the log has it.
#[derive(Deserialize)]
struct SaidLine {
    line: String,
    kind: FrameKind,
    /// Whether the next frame goes on in the line.
    #[serde(default)]
    partial: bool,
    /// Whether what it is of went on.
    #[serde(default)]
    truncated: bool,
}
