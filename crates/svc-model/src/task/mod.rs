//! Tasks: recorded work.

mod event;
mod record;
mod state;

pub use event::{Frame, FrameKind, ReplyKind, TaskEvent, TaskEventBody, TaskReply};
pub use record::{NewTask, Task};
pub use state::{RunnerProcess, TaskChange, TaskReport, TaskStatus};
