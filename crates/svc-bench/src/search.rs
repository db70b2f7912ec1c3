//! `retrieval`: what the search finds, beside plain BM25 and a keyword score, and how long it takes.

use std::time::Instant;

use svc::domain::RowReader;
use svc::service::search::{
    find,
    retrieval::{NOW, QueryPart, RetrievalFixture, SearchScores, SearchSystem},
};
use tokio::runtime::Runtime;

use crate::{
    append_inproc,
    bench::Bench,
    progress,
    report::{Figure, Goal},
    stats::{Slice, Summary},
};

/// By how much plain BM25 is to be passed.
const AHEAD: f64 = 0.15;
/// To which share of prompts that nothing helps something may be given.
const FALSE_RATE: f64 = 0.05;

/// A figure of what was scored.
type Of = fn(&SearchScores) -> f64;

/// Runs it.
pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let fixture = RetrievalFixture::read()?;
    progress::show("retrieval");
    let (store, writer) = append_inproc::open(&runtime, bench, "retrieval")?;
    runtime.block_on(fixture.fill(&store))?;
    let parts = [
        ("all", None),
        ("development", Some(QueryPart::Development)),
        ("held-out", Some(QueryPart::HeldOut)),
    ];
    for (name, part) in parts {
        let score = |system| runtime.block_on(fixture.score(&store, system, part));
        let (bm25, keywords) = (score(SearchSystem::Bm25)?, score(SearchSystem::Keywords)?);
        let beside = [("BM25", bm25), ("keywords", keywords)];
        for (way, ours) in
            [("search", score(SearchSystem::Ours)?), ("unasked", score(SearchSystem::Unasked)?)]
        {
            let figures: [(&str, Of, Option<Goal>); 3] = [
                (
                    "nDCG@5",
                    |it| it.ndcg,
                    (way == "search").then(|| Goal::at_least(bm25.ndcg + AHEAD)),
                ),
                ("recall@5", |it| it.recall, None),
                // Somebody who searches wants to see the nearest, however far.
                (
                    "false",
                    |it| it.false_rate,
                    (way == "unasked").then(|| Goal::at_most(FALSE_RATE)),
                ),
            ];
            for (figure, of, goal) in figures {
                for (at, (other, scores)) in beside.iter().enumerate() {
                    let figure =
                        Figure::new(format!("retrieval/{name} {way} {figure}"), "", of(&ours))
                            .beside_value(*other, of(scores));
                    bench.add(match goal {
                        Some(goal) if at == 0 => figure.goal(goal),
                        _ => figure,
                    });
                }
            }
        }
    }
    runtime.block_on(writer.close(store))?;

    latency(&runtime, bench, &fixture, if bench.quick { 500 } else { 15_000 }, 1_000.0)?;
    if bench.large {
        latency(&runtime, bench, &fixture, 1_000_000, 5_000.0)?;
    }
    Ok(())
}

fn latency(
    runtime: &Runtime,
    bench: &mut Bench,
    fixture: &RetrievalFixture,
    records: usize,
    most_us: f64,
) -> anyhow::Result<()> {
    let name = format!("retrieval/{records} records");
    progress::show(&name);
    let (store, writer) = append_inproc::open(runtime, bench, &format!("retrieval-{records}"))?;
    runtime.block_on(fixture.fill_with(&store, records))?;
    // As the daemon's maintenance has done by the time that there are so many.
    while !runtime.block_on(store.merge_indexes())? {}
    let mut rounds = Vec::new();
    // One more, which warms.
    for _ in 0..=bench.rounds {
        let mut slice = Slice::default();
        let begun = Instant::now();
        runtime.block_on(async {
            for query in &fixture.queries {
                let begun = Instant::now();
                find(&store, &RowReader::Everything, NOW, &query.search(true)).await?;
                slice.add(begun.elapsed());
            }
            anyhow::Ok(())
        })?;
        slice.length = begun.elapsed();
        rounds.push(slice);
    }
    let figure = Figure::summed(name, "searches/s", Summary::of(&rounds[1..], 1));
    bench.add(figure.goal_if(!bench.quick, Goal::p99_us(most_us)));
    runtime.block_on(writer.close(store))?;
    Ok(())
}
