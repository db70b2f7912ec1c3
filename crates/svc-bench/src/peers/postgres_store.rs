//! `postgres-store`: svc with its rows in `PostgreSQL`. The baselines are svc with a file, the bare
//! function that appends, a row and a `NOTIFY` per event, and `COPY`, all on the same server.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use svc_model::{Clock as _, NewEvent, SystemClock};
use svc_store::{PostgresOptions, Store, Writer};
use svc_sys::{
    config::ListenMode,
    machine::{HostIdentity, ThisMachine},
};
use tokio::runtime::Runtime;

use super::{
    Peer as _,
    postgres::{Installation, Postgres, ask, connect, url},
};
use crate::{
    append::{self, Bare, Ours, produce},
    bench::Bench,
    ceiling::{self, BareEvent, GroupCommit, STREAMS},
    daemon::{BigHome, Daemon},
    fanout::{self, Crowd},
    hook,
    load::Protocol,
    report::{self, Figure, Goal, Slice, Summary},
};

/// The round trip to a database on another machine of the same site.
const ROUND_TRIP: Duration = Duration::from_micros(500);
/// The schema of svc's tables.
const SCHEMA: &str = "svc";

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let server = Installation::find().map_err(anyhow::Error::msg).and_then(|installation| {
        Ok((Postgres::start(&bench.sandbox, &installation)?, installation.version()))
    });
    let server = match server {
        Err(why) => {
            bench.peers = vec![format!("postgres: {why:#}")];
            return Ok(());
        }
        Ok((server, version)) => {
            bench.peers = version.into_iter().collect();
            server
        }
    };
    append_in_process(bench, &server)?;
    append_over_http(bench, &server)?;
    notify(bench, &server)?;
    hook_events(bench, &server)?;
    import_and_replay(bench, &server)
}

fn daemon(bench: &Bench, server: &Postgres, name: &str) -> anyhow::Result<Daemon> {
    let url = server.database(name)?;
    Daemon::start_with(&bench.sandbox, name, &[("SVC_STORE_URL", &url)])
}

fn open(
    runtime: &Runtime,
    bench: &Bench,
    server: &Postgres,
    name: &str,
) -> anyhow::Result<(Store, Writer)> {
    let home = bench.sandbox.path(name);
    std::fs::create_dir_all(&home)?;
    let machine = ThisMachine::open(&home, &HostIdentity::of_this(Some(name)))?;
    let options = PostgresOptions {
        url: server.database(name)?.parse().map_err(anyhow::Error::msg)?,
        password: None,
        schema: SCHEMA.to_owned(),
        max_connections: 6,
        listen: ListenMode::Notify,
        connect_timeout: Duration::from_secs(30),
        migrate: true,
    };
    Ok(runtime.block_on(Store::open_postgres(&options, &machine, Arc::new(SystemClock)))?)
}

/// The store's appends, compared with the function that they call, on one connection.
fn append_in_process(bench: &mut Bench, server: &Postgres) -> anyhow::Result<()> {
    let producers = if bench.quick { 16 } else { 64 };
    let runtime = ceiling::runtime()?;
    let (store, writer) = open(&runtime, bench, server, "postgres_inproc")?;
    let names = append::make_streams(&runtime, &store)?;
    let (bare_store, bare_writer) = open(&runtime, bench, server, "postgres_bare")?;
    append::make_streams(&runtime, &bare_store)?;
    runtime.block_on(bare_writer.close(bare_store))?;
    let group = bare_function(server, "postgres_bare")?;
    let data = ceiling::data();
    let event = NewEvent { kind: "frame".into(), data: Arc::clone(&data), producer_id: None };
    let name = format!("postgres-store/append-inproc/{producers}");
    let ours = Ours { store: store.clone(), names, event, events: 1 };
    let bare = Bare { appender: group.appender(), data, events: 1 };
    let figure = bench.in_turns(
        (&name, "events/s", 1),
        |bench| runtime.block_on(produce(producers, bench.window(), ours.clone())),
        ("bare function", |bench| {
            runtime.block_on(produce(producers, bench.window(), bare.clone()))
        }),
    )?;
    bench.add(figure.goal(Goal::ratio(0.8)));
    // The store and the loop end when the last of these is dropped.
    drop((ours, bare));
    group.finish()?;
    runtime.block_on(writer.close(store))?;
    Ok(())
}

/// A loop that passes all queued events to the appending function, one call at a time.
fn bare_function(server: &Postgres, database: &str) -> anyhow::Result<GroupCommit> {
    const DAEMON: &str = "bare";
    let mut socket = connect(server.address(), database)?;
    ask(&mut socket, &format!("set search_path = {SCHEMA}, pg_catalog"))?;
    ask(&mut socket, "delete from svc_group")?;
    ask(&mut socket, &format!("insert into svc_group values ('{DAEMON}', 0)"))?;
    ask(&mut socket, "update svc_commit set number = 0")?;
    // The other streams have no events, as `make_streams` only opens them.
    ask(
        &mut socket,
        "prepare append (bigint, bigint, bigint, bigint[], bigint[], text[], text[], text[]) as \
        select svc_append('bare', $1, $2, $3, $4, $5, $6, $7, $8)",
    )?;
    let mut group = 0;
    GroupCommit::spawn(i64::try_from(STREAMS)?, move |events: &[BareEvent]| {
        group += 1;
        let list = |item: &dyn Fn(&BareEvent) -> String| {
            let items: Vec<String> = events.iter().map(item).collect();
            items.join(",")
        };
        let (streams, seqs) =
            (list(&|event| event.0.to_string()), list(&|event| event.1.to_string()));
        let kinds = list(&|_| "frame".to_owned());
        let data = list(&|event| format!("'{}'", event.2));
        let producers = list(&|_| "null".to_owned());
        let (known, at) = (group - 1, SystemClock.now().as_millis());
        ask(
            &mut socket,
            &format!(
                "execute append ({group}, {known}, {at}, '{{{streams}}}', '{{{seqs}}}', '{{{kinds}}}', \
                array[{data}], '{{{producers}}}')"
            ),
        )?;
        Ok(())
    })
}

/// Appends over HTTP, compared with svc with a file.
fn append_over_http(bench: &mut Bench, server: &Postgres) -> anyhow::Result<()> {
    let ours = daemon(bench, server, "postgres_http")?;
    let file = Daemon::start(&bench.sandbox, "postgres-http-file")?;
    let (our_tasks, file_tasks) =
        (append::make_tasks(bench, &ours)?, append::make_tasks(bench, &file)?);
    for (connections, least) in [(64, 0.6), (8, 0.5)] {
        let name = format!("postgres-store/append-http/{connections}");
        let figure = bench.in_turns(
            (&name, "events/s", 1),
            |bench| append::append(&ours, &our_tasks, bench.window_of, connections, 1),
            ("svc with a file", |bench| {
                append::append(&file, &file_tasks, bench.window_of, connections, 1)
            }),
        )?;
        bench.add(figure.goal(Goal::ratio(least)));
    }
    file.process.stop()?;
    ours.process.stop()
}

/// Acknowledged appends without and with subscribers, compared with a row and a `NOTIFY` per event.
fn notify(bench: &mut Bench, server: &Postgres) -> anyhow::Result<()> {
    let ours = daemon(bench, server, "postgres_notify")?;
    let Crowd { producers, subscribers } = Crowd::new(bench);
    for (subscribers, least) in [(0, 5.0), (subscribers, 20.0)] {
        let crowd = Crowd { producers, subscribers };
        let name = format!("postgres-store/mixed/{producers}+{subscribers} acks");
        let figure = bench.in_turns(
            (&name, "events/s", 1),
            |bench| Ok(fanout::mixed_round(&ours, crowd, bench.window_of)?.acks),
            ("a row and NOTIFY for each", |bench| Ok(server.mixed(bench.window_of, crowd)?.acks)),
        )?;
        bench.add(figure.goal(Goal::ratio(least)));
    }
    ours.process.stop()
}

/// Hook events of sixteen sessions, with a server at a distance of half a millisecond.
fn hook_events(bench: &mut Bench, server: &Postgres) -> anyhow::Result<()> {
    const SESSIONS: usize = 16;
    let far = delay(server.address(), ROUND_TRIP / 2)?;
    server.database("postgres_hook")?;
    let url = url(far, "postgres_hook");
    let daemon = Daemon::start_with(&bench.sandbox, "postgres_hook", &[("SVC_STORE_URL", &url)])?;
    let round_trip = {
        let mut socket = connect(far, "postgres_hook")?;
        let mut times = Vec::new();
        for _ in 0..if bench.quick { 10 } else { 200 } {
            let begun = Instant::now();
            ask(&mut socket, "select 1")?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        report::median(times)
    };
    let name = "postgres-store/hook events, database 0.5 ms away";
    let mut slices: Vec<Slice> = Vec::new();
    for _ in 0..bench.rounds {
        bench.begin_round(name)?;
        let (address, process) = (daemon.target.address, &daemon.process);
        slices.push(append::slice(bench.window_of, address, process, SESSIONS, |number| {
            let call = hook::call("PostToolUse", &format!("bench-{number}"));
            (Protocol::HTTP, vec![daemon.target.request("POST", "/mcp", &call)])
        })?);
    }
    let figure = Figure::summed(name, "calls/s", Summary::from_rounds(&slices, 1));
    bench.add(
        figure.goal(Goal::at_least(150.0)).note(format!("a `select 1` took {round_trip:.2} ms")),
    );
    daemon.process.stop()
}

/// Moves a long history to the server and reads its stream, compared with `COPY`.
fn import_and_replay(bench: &mut Bench, server: &Postgres) -> anyhow::Result<()> {
    const NAME: &str = "postgres_big";
    let home = BigHome::make(&bench.sandbox, NAME, if bench.quick { 20_000 } else { 1_000_000 })?;
    let url = server.database(NAME)?;
    bench.begin_round("postgres-store/import")?;
    let begun = Instant::now();
    let mut import = Command::new(bench.sandbox.svc());
    import.env_clear().env("SVC_HOME", bench.sandbox.path(NAME));
    let moved = import.args(["migrate", "--to", &url]).stdin(Stdio::null()).output()?;
    let complaint = String::from_utf8_lossy(&moved.stderr);
    anyhow::ensure!(moved.status.success(), "svc migrate: {}", complaint.trim());
    let took = begun.elapsed().as_secs_f64();
    let figure = Figure::new(format!("postgres-store/import/{}", home.frames), "s", took);
    bench.add(figure.goal(Goal::at_most(20.0)));

    let daemon = Daemon::start_with(&bench.sandbox, NAME, &[("SVC_STORE_URL", &url)])?;
    let mut socket = connect(server.address(), NAME)?;
    ask(&mut socket, &format!("vacuum analyze {SCHEMA}.event"))?;
    let copy = format!(
        "copy (select seq, kind, data, at from {SCHEMA}.event where stream_id = \
        (select id from {SCHEMA}.stream where name = 'task/{}') order by seq) to stdout",
        home.task
    );
    let name = format!("postgres-store/replay/{}", home.frames);
    let figure = bench.in_turns(
        (&name, "events/s", 1),
        |_| fanout::replay(&daemon, &home),
        ("COPY", |_| {
            let begun = Instant::now();
            let rows = ask(&mut socket, &copy)?;
            Ok(Slice::counted(rows, begun.elapsed()))
        }),
    )?;
    bench.add(figure.goal(Goal::ratio(0.7)));
    daemon.process.stop()
}

/// An address of the server with a delay of `one_way` in each direction. The threads end with their
/// connections, and the last one with this program.
fn delay(server: SocketAddr, one_way: Duration) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let pair = client.and_then(|client| Ok((client, TcpStream::connect(server)?)));
            let Ok((client, server)) = pair else { continue };
            for (from, to) in [(client.try_clone(), server.try_clone()), (Ok(server), Ok(client))] {
                let (Ok(from), Ok(to)) = (from, to) else { break };
                std::thread::spawn(move || carry(from, to, one_way));
            }
        }
    });
    report::show_step("preparing a server that is far away");
    Ok(address)
}

fn carry(mut from: TcpStream, mut to: TcpStream, one_way: Duration) -> Option<()> {
    to.set_nodelay(true).ok()?;
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let got = from.read(&mut buffer).ok().filter(|got| *got > 0);
        let Some(got) = got else {
            to.shutdown(std::net::Shutdown::Write).ok();
            return None;
        };
        // A sleep takes about 60 µs longer than requested.
        std::thread::sleep(one_way.saturating_sub(Duration::from_micros(60)));
        to.write_all(&buffer[..got]).context("the other end").ok()?;
    }
}
