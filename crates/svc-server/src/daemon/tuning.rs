//! Bounds of the configuration, and durations and bounds that tests shorten through undocumented
//! variables.

use std::time::Duration;

use anyhow::Context as _;
use svc_core::service::Tuning;
use svc_model::Retention;
use svc_sys::config::{Config, Env};

/// The configuration and the defaults, overridden by the environment.
pub(super) fn tuning(config: &Config, env: &Env) -> anyhow::Result<Tuning> {
    let days = config.retention_max_age_days.value;
    let mut tuning = Tuning {
        budget: config.budget_bounds(),
        retention: Retention {
            max_age: Some(Duration::from_secs(days.saturating_mul(24 * 60 * 60))),
            max_bytes: config.retention_max_bytes.value,
        },
        store_max_bytes: config.store_max_bytes.value,
        ..Tuning::default()
    };
    let number = |name: &str| -> anyhow::Result<Option<u64>> {
        let Some(text) = env.text(name)? else {
            return Ok(None);
        };
        Ok(Some(text.parse().with_context(|| format!("{name} must be a number"))?))
    };
    for (name, value) in [
        ("SVC_PEER_TIMEOUT_MS", &mut tuning.peer_timeout),
        ("SVC_LEASE_MS", &mut tuning.lease),
        ("SVC_RUNNER_GRACE_MS", &mut tuning.runner_grace),
        ("SVC_MAINTENANCE_MS", &mut tuning.maintenance),
        ("SVC_QUIET_MS", &mut tuning.quiet),
        ("SVC_SSE_KEEPALIVE_MS", &mut tuning.sse_keep_alive),
        ("SVC_BODY_TIMEOUT_MS", &mut tuning.body_stall),
        ("SVC_MCP_TASK_AFTER_MS", &mut tuning.mcp_task_after),
        ("SVC_LIST_CHANGED_MS", &mut tuning.list_changed_pause),
        ("SVC_FIRST_HOOK_MS", &mut tuning.first_hook),
    ] {
        if let Some(millis) = number(name)? {
            *value = Duration::from_millis(millis.max(1));
        }
    }
    if let Some(most) = number("SVC_INBOX_MAX")? {
        tuning.inbox_max = u32::try_from(most)?;
    }
    if let Some(most) = number("SVC_SESSION_SENDS")? {
        tuning.session_sends = u32::try_from(most)?;
    }
    if let Some(most) = number("SVC_WAKES")? {
        tuning.wakes = u32::try_from(most)?;
    }
    Ok(tuning)
}
