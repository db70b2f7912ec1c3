//! `replay`: a long stream from its beginning to one subscriber; the baseline is a bare read of the
//! same rows.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::{
    bench::Bench,
    big_home::BigHome,
    ceiling,
    daemon::{self, Daemon},
    report::{Figure, Goal},
    stats::{self, Slice, Summary},
    wire::Body,
};

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let home = bench.big_home()?;
    let daemon = Daemon::start(&bench.sandbox, home.name)?;
    let stream = format!("task/{}", home.task);
    let (mut alone, mut bare, mut beside_stalled) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        bench.begin_round("replay")?;
        alone.push(replay(&daemon, &home)?);
        let (rows, elapsed) = ceiling::read_stream(&daemon.database(), &stream)?;
        bare.push(Slice::counted(rows, elapsed));
        let stalled = Stalled::open(&daemon, &home)?;
        beside_stalled.push(replay(&daemon, &home)?);
        drop(stalled);
    }
    let name = format!("replay/{}", home.frames);
    let summary = Summary::from_rounds(&alone, 1);
    bench.add(
        Figure::summed(&name, "events/s", summary)
            .beside("bare read", Summary::from_rounds(&bare, 1), stats::ratio(&alone, &bare))
            .goal(Goal::ratio(0.7)),
    );
    bench.add(
        Figure::summed(
            format!("{name} beside a stalled reader"),
            "events/s",
            Summary::from_rounds(&beside_stalled, 1),
        )
        .beside("without one", summary, stats::ratio(&beside_stalled, &alone))
        .goal(Goal::ratio(0.9)),
    );
    daemon.process.stop()
}

/// Reads the whole stream, and checks that it was complete.
pub(crate) fn replay(daemon: &Daemon, home: &BigHome) -> anyhow::Result<Slice> {
    let size = daemon::frame_size();
    let mut socket = TcpStream::connect(daemon.target.address)?;
    socket.set_read_timeout(Some(Duration::from_secs(30)))?;
    let preamble = daemon::PREAMBLE.len() as u64;
    // The first event is the task itself.
    let expected = preamble + size.bytes_of(2, home.frames);
    let cpu = daemon.process.cpu();
    let begun = Instant::now();
    socket.write_all(&daemon.follow_request(&home.task, 1))?;
    let mut body = Body::default();
    let mut buffer = vec![0; 256 * 1024];
    while body.payload < expected {
        let got = match socket.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            got => got?,
        };
        anyhow::ensure!(got > 0, "the replay ended after {} of {expected} bytes", body.payload);
        body.feed(&buffer[..got], |_| {})?;
    }
    anyhow::ensure!(body.payload == expected, "the replay gave more than there is");
    let length = begun.elapsed();
    let cpu = daemon.process.cpu_since(cpu);
    Ok(Slice { cpu, ..Slice::counted(home.frames, length) })
}

/// A reader that requests everything and reads nothing.
struct Stalled {
    _socket: TcpStream,
}

impl Stalled {
    fn open(daemon: &Daemon, home: &BigHome) -> anyhow::Result<Self> {
        let mut socket = TcpStream::connect(daemon.target.address)?;
        socket.write_all(&daemon.follow_request(&home.task, 1))?;
        // Until the sockets' buffers are full.
        std::thread::sleep(Duration::from_millis(200));
        Ok(Self { _socket: socket })
    }
}
