//! Periodic work: silent participants and tasks, hooks' spools, maintenance, retention.

use std::sync::Arc;
use std::time::Duration;

use svc_core::service::Services;
use svc_core::tools::Catalogue;
use svc_model::limits;
use svc_sys::config::Config;
use tokio::time::Instant;

use super::hook_drain::drain_hook_spool;
use super::lifecycle::Lifecycle;

pub(super) fn start(
    lifecycle: &Lifecycle,
    services: &Services,
    catalogue: &Arc<Catalogue>,
    config: &Config,
) {
    lifecycle.run("lease", renew_lease(services.clone()));
    lifecycle.run("machines", sweep_machines(services.clone()));
    lifecycle.run("peers", sweep_peers(services.clone()));
    lifecycle.run("client records", read_client_records(services.clone()));
    lifecycle.run("stranded inboxes", sweep_stranded_inboxes(services.clone()));
    lifecycle.run("hand-overs", services.handovers.clone().run());
    lifecycle.run("agents", services.agents.clone().run());
    let registry = Arc::new(services.hooks.clone());
    lifecycle.run("app-servers", services.app_servers.clone().run(registry));
    lifecycle.run("tasks", sweep_tasks(services.clone()));
    lifecycle.run("processes", sweep_processes(services.clone()));
    lifecycle.run("session secrets", sweep_session_secrets(services.clone()));
    lifecycle.run("mcp sessions", sweep_mcp_sessions(services.clone()));
    let home = config.paths.home.clone();
    lifecycle.run("hooks", sweep_hooks(services.clone(), Arc::clone(catalogue), home));
    lifecycle.run("maintenance", maintain(services.clone()));
    lifecycle.run("memory", give_back_memory(services.clone()));
    let days = |days: u64| Duration::from_secs(days.saturating_mul(24 * 60 * 60));
    let messages = days(config.retention_messages_days.value);
    let tasks = days(config.retention_tasks_days.value);
    lifecycle.run("expiry", expire(services.clone(), messages, tasks));
}

async fn renew_lease(services: Services) {
    loop {
        tokio::time::sleep(limits::DAEMON_RENEWAL).await;
        if let Err(error) = services.machines.renew().await {
            error.report("cannot renew the lease of this daemon");
        }
    }
}

async fn sweep_machines(services: Services) {
    loop {
        tokio::time::sleep(limits::PID_CHECK).await;
        if let Err(error) = services.machines.sweep().await {
            error.report("cannot look at what other machines hold");
        }
    }
}

async fn sweep_peers(services: Services) {
    loop {
        let pause = services.team.sweep_peers().await.unwrap_or_else(|error| {
            error.report("cannot sweep the peers");
            limits::PID_CHECK
        });
        tokio::time::sleep(pause).await;
    }
}

async fn read_client_records(services: Services) {
    loop {
        let mut pause = limits::RECORDS_POLL;
        if let Err(error) = services.team.read_client_records().await {
            error.report("cannot read what clients have on record");
            pause = limits::PID_CHECK;
        }
        if let Err(error) = services.team.sweep_limits().await {
            error.report("cannot look at the usage limits of sessions");
            pause = limits::PID_CHECK;
        }
        if let Err(error) = services.prompts.sweep().await {
            error.report("cannot look at the prompts of sessions");
            pause = limits::PID_CHECK;
        }
        if let Err(error) = services.team.end_silent_turns().await {
            error.report("cannot end the turns whose end no hook has reported");
            pause = limits::PID_CHECK;
        }
        tokio::time::sleep(pause).await;
    }
}

async fn sweep_stranded_inboxes(services: Services) {
    loop {
        if let Err(error) = services.team.sweep_stranded_inboxes().await {
            error.report("cannot end the deliveries to removed peers");
        }
        tokio::time::sleep(services.tuning().maintenance).await;
    }
}

async fn sweep_tasks(services: Services) {
    loop {
        if let Err(error) = services.tasks.sweep_tasks().await {
            error.report("cannot sweep the tasks");
        }
        tokio::time::sleep(limits::PID_CHECK.min(services.tuning().runner_grace)).await;
    }
}

async fn sweep_processes(services: Services) {
    loop {
        if let Err(error) = services.access.sweep_processes().await {
            error.report("cannot sweep the processes of clients");
        }
        tokio::time::sleep(limits::PID_CHECK).await;
    }
}

async fn sweep_session_secrets(services: Services) {
    loop {
        if let Err(error) = services.team.sweep_session_secrets().await {
            error.report("cannot forget the secrets of old sessions");
        }
        tokio::time::sleep(limits::MCP_SWEEP).await;
    }
}

async fn sweep_mcp_sessions(services: Services) {
    loop {
        if let Err(error) = services.mcp.sweep_mcp_sessions().await {
            error.report("cannot sweep the MCP sessions");
        }
        tokio::time::sleep(limits::MCP_SWEEP).await;
    }
}

/// A hook that missed its deadline spools its event although the daemon runs, so the spool is
/// drained periodically.
async fn sweep_hooks(services: Services, catalogue: Arc<Catalogue>, home: std::path::PathBuf) {
    let maintenance = services.tuning().maintenance;
    let mut forgotten: Option<Instant> = None;
    loop {
        let mut pause = limits::RECORDS_POLL.min(maintenance);
        match drain_hook_spool(&services, &catalogue, &home).await {
            Ok(0) => {}
            Ok(events) => tracing::info!(events, "took in the events of the hooks' spool"),
            // The server of the database is away, which is said elsewhere.
            Err(error) if error.kind() == std::io::ErrorKind::NotConnected => {}
            Err(error) => {
                tracing::error!(%error, "cannot drain the hooks' spool");
                pause = maintenance;
            }
        }
        if forgotten.is_none_or(|at| at.elapsed() >= maintenance) {
            if let Err(error) = services.hooks.sweep_hooks().await {
                error.report("cannot forget old events of hooks");
            }
            forgotten = Some(Instant::now());
        }
        tokio::time::sleep(pause).await;
    }
}

/// Expires messages that were not delivered and tasks that were not started in time.
async fn expire(services: Services, messages: Duration, tasks: Duration) {
    loop {
        if let Err(error) = services.team.expire_messages(messages).await {
            error.report("cannot end the deliveries of old messages");
        }
        if let Err(error) = services.tasks.expire_tasks(tasks).await {
            error.report("cannot end old tasks");
        }
        tokio::time::sleep(limits::EXPIRY_POLL).await;
    }
}

async fn maintain(services: Services) {
    let tuning = services.tuning();
    loop {
        tokio::time::sleep(tuning.maintenance).await;
        if let Err(error) = services.log.measure_size().await {
            error.report("cannot measure the size of the database");
        }
        if let Err(error) = services.log.apply_retention(tuning.retention).await {
            error.report("cannot apply the retention");
        }
        if let Err(error) = services.log.merge_indexes().await {
            error.report("cannot merge the indexes");
        }
        if let Err(error) = services.log.checkpoint().await {
            error.report("cannot checkpoint");
        }
    }
}

/// Gives back what work has left in memory, once it is over: caches, and free pages of the heap.
async fn give_back_memory(services: Services) {
    let (mut seen, mut given_back) = (0, 0);
    loop {
        tokio::time::sleep(services.tuning().quiet).await;
        let writes = services.log.writes();
        let is_quiet = writes.saturating_sub(seen) <= limits::QUIET_WRITES;
        seen = writes;
        if !is_quiet || writes == given_back {
            continue;
        }
        if let Err(error) = services.log.release_memory().await {
            error.report("cannot empty the caches of the database");
        }
        svc_heap::give_back();
        // That was a write, too.
        (seen, given_back) = (services.log.writes(), services.log.writes());
    }
}
