//! The command line's grammar: parses the arguments and dispatches to a command.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use serde_json::json;

use super::context::{Context, GlobalFlags};
use super::output::{self, OutputClosed};
use super::people::{self, which_one};
use super::{
    ExitResult, ServeArgs, agent, config, daemon, database, doctor, events, ghap, hook, install,
    mcp, mcp_config, message, open, peer, project, send, serve, service_unit, session, stdio, task,
    token, tools, top,
};

/// All commands in groups, in the order of the help: the most important first.
const COMMANDS: &str = "\
Every day:
  install      Connect coding agents to svc, and start the daemon
  top          Show the team live; `svc` alone on a terminal does the same
  open         Open the page in a browser
  inbox        Show the questions, answers and messages for you
  tell         Say something to an agent
  ask          Ask an agent, and wait for the answer
  reply        Answer a message
  answer       Answer what an agent or a session asks of you
  send         Give work to an agent, and print its answer
  agent        List all agents, and start and steer those that svc runs

The team:
  task         Run commands as tasks that others can follow
  peer         List and register peers: whoever has an inbox
  session      Show sessions of coding agents: history, tools, who started whom
  ghap         Search what was tried, and with which result
  events       List and follow the event log

Tools and servers:
  mcp          Manage MCP servers that svc starts once for all agents
  tools        List and call the tools of models

The daemon:
  start        Run it in the background
  stop         Stop it
  restart      Restart it, or start it if none runs
  status       Show whether it runs, where, and since when
  logs         Print its log
  serve        Run it in the foreground
  service      Start it at log-in (systemd, launchd)
  health       Check whether it is healthy, for container health checks
  doctor       Find problems of this installation, and say what to do

Data and configuration:
  config       Show or check the configuration
  token        Show or replace the operator token, and list the others
  project      List projects with their folders, and move a folder
  backup       Copy the database while the daemon runs
  restore      Replace the database by a backup
  migrate      Apply pending migrations

For clients and scripts:
  stdio        Speak MCP on standard input and output
  hook         Report an event of a coding agent
  mcp-config   Print an --mcp-config document with a token for one session
  uninstall    Undo `svc install`
  completions  Print a completion script for your shell
  help         Print the help of a command";

/// The team daemon for coding agents: peers, messages, tasks and an event log that loses nothing
#[derive(Debug, Parser)]
#[command(
    name = "svc",
    version,
    propagate_version = true,
    max_term_width = 100,
    help_template = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}{after-help}",
    before_help = COMMANDS,
    after_help = "\
Examples:
  svc install                     connect the coding agents on this machine, and start the daemon
  svc                             show the team live, on a terminal
  svc tell claude-code@web hello  say something to an agent
  svc task run -- cargo test      run a command as a task that others can watch
  svc events tail --after latest  what happens from now on

Configuration comes from flags, then SVC_… variables, then config.toml; `svc config show` tells which.
Exit codes: 0 ok, 1 failure, 2 usage, 3 already running, 4 migrations pending."
)]
pub(super) struct Cli {
    #[command(flatten)]
    global: GlobalFlags,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon in the foreground
    #[command(after_help = "Example:\n  svc serve --listen 127.0.0.1:7000\n\n\
        Prints one line with its URL when it is ready, with --json as {running, pid, url, version, busy?}; busy is the default address if another \
        program has it. SIGTERM or SIGINT ends it cleanly.")]
    Serve(ServeArgs),
    /// Run the daemon in the background
    #[command(after_help = "Example:\n  svc start --log-level debug\n\n\
        Waits until the daemon answers. Does nothing if it runs already. The log is svc.log in the data folder (`svc logs`).")]
    Start(ServeArgs),
    /// Stop the daemon
    #[command(after_help = "Examples:\n  svc stop\n  svc stop --stay\n\n\
        Waits until the daemon is gone. Does nothing if none runs. Agents that svc runs keep running. The next prompt in a connected client starts \
        the daemon again, unless --stay is given.")]
    Stop {
        /// Keep it stopped until `svc start`: no hook and no client starts it
        #[arg(long)]
        stay: bool,
    },
    /// Stop the daemon if it runs, and start it
    #[command(after_help = "Example:\n  svc restart\n\n\
        The flags of the previous start are not remembered; give them again or put them into config.toml.")]
    Restart(ServeArgs),
    /// Show whether the daemon runs, where, and since when; exit code 0 if it does, else 1
    #[command(after_help = "Example:\n  svc status --json")]
    Status,
    /// Print the log of the daemon in the background
    #[command(after_help = "Example:\n  svc logs -f -n 100")]
    Logs(daemon::LogsArgs),
    /// Check whether the daemon is healthy, for container health checks; exit code 0 if it is, else
    /// 1
    #[command(after_help = "Example:\n  svc health --url http://127.0.0.1:6334")]
    Health,
    /// Show the team and its messages live; `svc` alone on a terminal does the same
    #[command(after_help = "Example:\n  svc top\n\n\
        Who is here, what each is trying, who waits for whom, and what was said last. Arrows walk, tab goes to the next list, \
        enter shows details, a answers a question, m writes a message, q quits. It survives restarts of the daemon.")]
    Top,
    /// List and register peers: whoever has an inbox
    #[command(subcommand, after_help = "Example:\n  svc peer list --status online")]
    Peer(peer::PeerCommand),
    /// Show sessions of coding agents: what each is doing, what was said, who started whom
    #[command(subcommand, after_help = "Example:\n  svc session list --open")]
    Session(session::SessionCommand),
    /// Search what was tried (goal, hypothesis, action, prediction), and with which result
    #[command(subcommand, after_help = "Example:\n  svc ghap list --status falsified")]
    Ghap(ghap::GhapCommand),
    /// Messages between peers
    #[command(
        subcommand,
        hide = true,
        after_help = "Example:\n  svc message send peer_… 'the build is green'"
    )]
    Message(message::MessageCommand),
    /// Ask an agent, and wait for the answer
    #[command(after_help = concat!(
        "Examples:\n  svc ask reviewer 'is the branch ready?'\n  svc ask codex@repo - --timeout 60 < question.txt\n\n\
        Ctrl-C (exit code 130) and --timeout (exit code 1) leave the question open: the answer then waits in `svc inbox`.\n\n",
        which_one!()
    ))]
    Ask(people::AskArgs),
    /// Say something to an agent, which does not have to answer
    #[command(after_help = concat!(
        "Example:\n  svc tell reviewer 'main is frozen'\n\n`svc message broadcast` tells everybody.\n\n",
        which_one!()
    ))]
    Tell(people::TellArgs),
    /// Answer a message
    #[command(after_help = concat!("Example:\n  svc reply latest 'yes, go on'\n\n", which_one!()))]
    Reply(people::ReplyArgs),
    /// Answer what an agent or a session asks of you
    #[command(
        override_usage = "svc answer [OPTIONS] [REQUEST] <OPTION> [TEXT]",
        after_help = "Examples:\n  svc answer allow\n  svc answer req_01k… deny 'use make test'"
    )]
    Answer(people::AnswerArgs),
    /// Show the questions, answers and messages for you
    #[command(after_help = "Examples:\n  svc inbox\n  svc inbox --ack")]
    Inbox(people::InboxArgs),
    /// Run commands as tasks that others can follow
    #[command(subcommand, after_help = "Example:\n  svc task run -- cargo test")]
    Task(task::TaskCommand),
    /// List all agents, and start and steer those that svc runs
    #[command(
        subcommand,
        after_help = "Example:\n  svc agent start claude --prompt 'fix the flaky test'"
    )]
    Agent(agent::AgentCommand),
    /// Give work to an agent, and print its answer
    #[command(after_help = send::EXAMPLES)]
    Send(send::SendArgs),
    /// List and follow the event log
    #[command(subcommand, after_help = "Example:\n  svc events tail --stream team --after latest")]
    Events(events::EventsCommand),
    /// Open the page in a browser, with a link that signs it in
    #[command(after_help = open::EXAMPLES)]
    Open(open::OpenArgs),
    /// List and call the tools of models
    #[command(
        subcommand,
        after_help = "Example:\n  svc tools call peer_send --arg to=reviewer --arg text='the build is green'"
    )]
    Tools(tools::ToolsCommand),
    /// Show or replace the operator token, and list the others
    #[command(subcommand, after_help = "Example:\n  svc token list")]
    Token(token::TokenCommand),
    /// List projects with their folders, and move a folder
    #[command(subcommand, after_help = "Example:\n  svc project list")]
    Project(project::ProjectCommand),
    /// Manage MCP servers that svc starts once for all agents
    #[command(after_help = "Examples:\n  svc mcp    lists the servers\n  \
        svc mcp add files -- npx -y @modelcontextprotocol/server-filesystem /srv")]
    Mcp(mcp::McpArgs),
    /// Print an --mcp-config document with a token for one session
    #[command(after_help = mcp_config::EXAMPLES)]
    McpConfig(mcp_config::McpConfigArgs),
    /// Speak MCP on standard input and output, for clients that start their servers themselves
    #[command(after_help = stdio::EXAMPLES)]
    Stdio(stdio::StdioArgs),
    /// Connect coding agents to svc: as an MCP server, and by hooks
    #[command(after_help = install::EXAMPLES)]
    Install(install::InstallArgs),
    /// Undo `svc install`: remove its entries from other programs' files
    #[command(after_help = "Example:\n  svc uninstall codex\n\n\
        A file that nobody else has changed becomes what it was, byte for byte; from other files only the entries of svc are removed.")]
    Uninstall(install::UninstallArgs),
    /// Report an event of a coding agent; this is what its hooks run
    #[command(after_help = hook::EXAMPLES)]
    Hook(hook::HookArgs),
    /// Run the daemon as a service that starts at log-in (systemd, launchd)
    #[command(subcommand, after_help = "Example:\n  svc service install")]
    Service(service_unit::ServiceCommand),
    /// Show or check the configuration
    #[command(subcommand, after_help = "Example:\n  svc config show")]
    Config(config::ConfigCommand),
    /// Find problems of this installation, and say what to do
    #[command(after_help = "Example:\n  svc doctor\n\n\
        Exit code 1 if anything fails; warnings do not count.")]
    Doctor,
    /// Copy the database to a file while the daemon runs
    #[command(after_help = "Example:\n  svc backup /backups/svc.db")]
    Backup {
        /// The file to write; it must not exist
        path: PathBuf,
    },
    /// Replace the database by a backup; the daemon must not run
    #[command(after_help = "Example:\n  svc restore /backups/svc.db")]
    Restore {
        /// The backup to restore
        path: PathBuf,
    },
    /// Apply pending migrations, or list them with --check (exit code 4 if there are any)
    #[command(after_help = "Example:\n  svc migrate --check")]
    Migrate(database::MigrateArgs),
    /// Print a completion script for your shell
    #[command(after_help = "Example:\n  \
        svc completions bash > ~/.local/share/bash-completion/completions/svc")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

impl Cli {
    pub(super) const fn is_json(&self) -> bool {
        self.global.json
    }

    /// Parses a command line. What stands behind the URL of `svc mcp add`, which the parser takes
    /// for arguments of a program, is parsed as if it stood before the URL.
    pub(super) fn parse_line(line: &[OsString]) -> Result<Self, clap::Error> {
        let cli = Self::try_parse_from(line)?;
        let behind = cli.added_server().map_or(0, |added| added.behind_url().len());
        if behind == 0 {
            return Ok(cli);
        }
        let end: OsString = "--".into();
        let (before, behind) = line.split_at(line.len() - behind);
        let Some((url, before)) = before.split_last() else { return Ok(cli) };
        let before = before.strip_suffix(std::slice::from_ref(&end)).unwrap_or(before);
        let moved = [before, behind, &[end, url.clone()]].concat();
        let cli = Self::try_parse_from(moved)?;
        match cli.added_server().and_then(|added| added.command.first()) {
            Some(word) if url != word.as_str() => Err(clap::Error::raw(
                clap::error::ErrorKind::UnknownArgument,
                format!(
                    "behind the URL: unexpected argument '{word}' found; a server at a URL takes no arguments\n"
                ),
            )),
            _ => Ok(cli),
        }
    }

    fn added_server(&self) -> Option<&mcp::AddArgs> {
        match &self.command {
            Some(Command::Mcp(args)) => args.added(),
            _ => None,
        }
    }
}

/// Whether arguments that could not be parsed contain `--json`.
pub(super) fn wants_json(line: &[OsString]) -> bool {
    line.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json")
}

/// Runs the program without a command: a terminal gets the view of the team, and everything else
/// the help. The exit code is 0: a client that drops a hook's arguments reads another as a
/// decision.
pub(super) fn without_command(global: GlobalFlags) -> ExitResult {
    if top::is_wanted() {
        return on_runtime(client_command(Context::new(global)?, Command::Top));
    }
    if global.json {
        return help_as_json(&Cli::command().render_help().to_string());
    }
    printed(Cli::command().print_help())
}

fn help_as_json(help: &str) -> ExitResult {
    output::json(&json!({ "help": help })).map(|()| ExitCode::SUCCESS)
}

/// The exit code after a help was printed. A closed pipe is no error.
fn printed(result: io::Result<()>) -> ExitResult {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        result => Ok(result.map(|()| ExitCode::SUCCESS)?),
    }
}

pub(super) fn dispatch(cli: Cli) -> ExitResult {
    let Cli { global, command } = cli;
    let Some(command) = command else { return without_command(global) };
    if let Command::Hook(args) = command {
        return Ok(hook::run(global, args, std::time::Instant::now()));
    }
    if let Command::Completions { shell } = command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "svc", &mut script);
        output::exact(&script)?;
        return Ok(ExitCode::SUCCESS);
    }
    let context = Context::new(global)?;
    let local = match &command {
        Command::Serve(_) => Some("serve"),
        Command::Start(_) => Some("start"),
        Command::Stop { .. } => Some("stop"),
        Command::Restart(_) => Some("restart"),
        Command::Doctor => Some("doctor"),
        _ => None,
    };
    if let Some(name) = local {
        context.refuse_url(name)?;
    }
    match command {
        // These have a runtime of their own, or need none.
        Command::Serve(args) => {
            if args.detached {
                // Fails only if the process leads a process group, and then it has no controlling
                // terminal to lose.
                let _ = rustix::process::setsid();
            }
            serve::run(&context.config(&args.flags)?, &context.env, context.json)
        }
        Command::Migrate(args) => database::migrate(&context, &args),
        Command::Backup { path } => database::backup(&context, &path),
        Command::Restore { path } => database::restore(&context, &path),
        Command::Config(command) => config::run(&context, command),
        command => on_runtime(client_command(context, command)),
    }
}

async fn client_command(context: Context, command: Command) -> ExitResult {
    let context = &context;
    // The other commands report a bad configuration file themselves, or have no person to report
    // to.
    let is_of_daemon = matches!(command, Command::Start(_) | Command::Restart(_));
    if !is_of_daemon && !matches!(command, Command::Stdio(_) | Command::Doctor | Command::Mcp(_)) {
        context.warn_of_file();
    }
    match command {
        Command::Start(args) => daemon::start(context, &args).await,
        Command::Stop { stay } => daemon::stop(context, stay).await,
        Command::Restart(args) => daemon::restart(context, &args).await,
        Command::Status => daemon::status(context).await,
        Command::Logs(args) => daemon::logs(context, &args).await,
        Command::Health => daemon::health(context).await,
        Command::Top => top::run(context).await,
        Command::Peer(command) => peer::run(context, command).await,
        Command::Session(command) => session::run(context, command).await,
        Command::Ghap(command) => ghap::run(context, command).await,
        Command::Message(command) => message::run(context, command).await,
        Command::Ask(args) => Box::pin(people::ask(context, args)).await,
        Command::Tell(args) => people::tell(context, args).await,
        Command::Reply(args) => people::reply(context, args).await,
        Command::Answer(args) => people::answer(context, args).await,
        Command::Inbox(args) => people::inbox(context, args).await,
        Command::Task(command) => task::run(context, command).await,
        Command::Agent(command) => agent::run(context, command).await,
        Command::Send(args) => send::run(context, args).await,
        Command::Events(command) => events::run(context, command).await,
        Command::Open(args) => open::run(context, &args).await,
        Command::Tools(command) => tools::run(context, command).await,
        Command::Token(command) => token::run(context, command).await,
        Command::Project(command) => project::run(context, command).await,
        Command::Mcp(args) => mcp::run(context, args).await,
        Command::McpConfig(args) => mcp_config::run(context, &args).await,
        Command::Stdio(args) => stdio::run(context, args).await,
        Command::Install(args) => install::install(context, &args).await,
        Command::Uninstall(args) => install::uninstall(context, &args).await,
        Command::Doctor => doctor::run(context).await,
        Command::Service(command) => service_unit::run(context, command).await,
        command => unreachable!("{command:?} is dispatched without a runtime"),
    }
}

fn on_runtime(work: impl Future<Output = ExitResult> + Send) -> ExitResult {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // Boxed: the program has the code of all commands once, and not in each place that polls them.
    let work: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(work);
    let result = runtime.block_on(work);
    // A write to an output that nobody reads must not delay the exit.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_definitions_pass_the_checks_of_clap() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help_and_an_example() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path} has no help");
            assert!(command.get_after_help().is_some(), "{path} has no example");
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{path}: {} has no help", argument.get_id());
            }
            command.get_subcommands().for_each(|child| check(child, &path));
        }
        check(&Cli::command(), "");
    }

    #[test]
    fn help_groups_every_command_and_lists_ten_first() {
        let command = Cli::command();
        let shown = |name: &str| COMMANDS.contains(&format!("\n  {name} "));
        for child in command.get_subcommands() {
            assert_eq!(shown(child.get_name()), !child.is_hide_set(), "{}", child.get_name());
        }
        let first = COMMANDS.trim_start().split("\n\n").next().unwrap_or_default();
        assert_eq!(first.lines().count(), 11, "a heading, and the ten that matter: {first}");
        let names = COMMANDS.lines().filter_map(|line| line.strip_prefix("  "));
        for name in names.filter_map(|line| line.split(' ').next()).filter(|name| *name != "help") {
            assert!(command.find_subcommand(name).is_some(), "there is no {name}");
        }
        let help = Cli::command().render_help().to_string();
        assert!(help.contains(COMMANDS.trim()), "{help}");
        assert!(!help.contains("\nCommands:"), "once: {help}");
    }

    /// A terminal wraps paragraphs; text that is wrapped already comes out ragged.
    #[test]
    fn help_paragraphs_are_not_wrapped() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ');
            for (line, next) in help.lines().zip(help.lines().skip(1)) {
                let is_broken = is_text(line) && is_text(next) && !line.ends_with([':', '.']);
                assert!(!is_broken, "{}: {line:?} {next:?}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn options_behind_the_url_of_a_server_count_as_before_it() {
        let url = "https://h.example/mcp";
        let parsed = |words: &[&str]| {
            let line = ["svc", "mcp", "add", "wiki"].iter().chain(words);
            Cli::parse_line(&line.map(OsString::from).collect::<Vec<_>>())
        };
        for words in [
            &[url, "--json", "--home", "/h", "-t", "sse", "-H", "A: 1"][..],
            &["-H", "A: 1", "--", url, "--home=/h", "--transport", "sse", "--json"],
            &["-t", "sse", "${BASE}/mcp", "--json", "--home", "/h", "-H", "A: 1"],
        ] {
            let cli = parsed(words).expect("parses");
            let added = cli.added_server().expect("a server");
            assert!(cli.global.json && cli.global.home.is_some(), "{words:?}");
            assert_eq!(added.options.header, ["A: 1"], "{words:?}");
            assert_eq!(added.command.len(), 1, "{words:?}");
        }
        let refused = |words: &[&str]| parsed(words).expect_err("is refused");
        assert_eq!(refused(&[url, "--help"]).kind(), clap::error::ErrorKind::DisplayHelp);
        assert!(refused(&[url, "--nope"]).to_string().contains("'--nope'"));
        assert!(refused(&[url, "-H"]).to_string().contains("--header"));
        for words in [&[url, "more"][..], &[url, "--json", "more"], &[url, "more", "-t", "sse"]] {
            let text = refused(words).to_string();
            assert!(text.contains("'more'") && text.contains("takes no arguments"), "{text}");
        }
        let program = parsed(&["--", "python3", "--json"]).expect("parses");
        assert!(!program.global.json, "it is the program's");
    }

    #[test]
    fn global_flags_are_accepted_anywhere_but_within_a_command_to_run() {
        let parsed =
            Cli::try_parse_from(["svc", "task", "run", "--title", "t", "--", "ls", "--json"])
                .expect("parses");
        assert!(!parsed.global.json);
        let parsed =
            Cli::try_parse_from(["svc", "peer", "list", "--json", "--home", "/h"]).expect("parses");
        assert!(parsed.global.json && parsed.global.home.is_some());
    }
}
