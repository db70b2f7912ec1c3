//! `retrieval`: the quality and the latency of the search. The baselines are plain BM25 and a
//! keyword score.

use std::time::Instant;

use svc_core::service::search::find;
use svc_model::Reader;
use tokio::runtime::Runtime;

use super::{
    append,
    bench::Bench,
    report::{self, Figure, Goal, Slice, Summary},
    retrieval::{Estimate, NOW, QueryPart, RetrievalFixture, SearchScores, SearchSystem},
};

/// The goal: the lead of the search over plain BM25.
const AHEAD: f64 = 0.15;
/// The goal: largest share of prompts without a relevant record that still get one.
const FALSE_RATE: f64 = 0.05;

/// The goal: smallest share of unsolicited records that are relevant.
const PRECISION: f64 = 0.75;
/// The goal: smallest share of prompts with a relevant record that get it unsolicited.
const HELPED: f64 = 0.7;

type Of = fn(&SearchScores) -> Estimate;

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let fixture = RetrievalFixture::read()?;
    report::show_step("retrieval");
    let parts = [
        ("all", None),
        ("development", Some(QueryPart::Development)),
        ("held-out", Some(QueryPart::HeldOut)),
    ];
    quality(&runtime, bench, &fixture, "first", &parts)?;
    let parts = [
        ("all", None),
        ("development", Some(QueryPart::Development)),
        ("frozen", Some(QueryPart::Frozen)),
    ];
    quality(&runtime, bench, &RetrievalFixture::read_second()?, "second", &parts)?;

    latency(&runtime, bench, &fixture, if bench.quick { 500 } else { 15_000 }, 1_000.0)?;
    if bench.large {
        latency(&runtime, bench, &fixture, 1_000_000, 5_000.0)?;
    }
    Ok(())
}

fn quality(
    runtime: &Runtime,
    bench: &mut Bench,
    fixture: &RetrievalFixture,
    set: &str,
    parts: &[(&str, Option<QueryPart>)],
) -> anyhow::Result<()> {
    let (store, writer) = append::open(runtime, bench, &format!("retrieval-{set}"))?;
    runtime.block_on(fixture.fill(&store))?;
    for (part, of_part) in parts {
        let score = |system| runtime.block_on(fixture.score(&store, system, *of_part));
        let (bm25, keywords) = (score(SearchSystem::Bm25)?, score(SearchSystem::Keywords)?);
        let ahead = Goal::at_least(bm25.ndcg.value + AHEAD);
        // A person who searches wants the nearest records, at any distance.
        let search: [(&str, Of, Option<Goal>); 2] =
            [("nDCG@5", |it| it.ndcg, Some(ahead)), ("recall@5", |it| it.recall, None)];
        let unasked: [(&str, Of, Option<Goal>); 4] = [
            ("nDCG@5", |it| it.ndcg, None),
            ("false", |it| it.false_rate, Some(Goal::at_most(FALSE_RATE))),
            ("precision", |it| it.precision, Some(Goal::at_least(PRECISION))),
            ("helped", |it| it.helped, Some(Goal::at_least(HELPED))),
        ];
        for (way, ours, figures) in [
            ("search", score(SearchSystem::Ours)?, search.as_slice()),
            ("unasked", score(SearchSystem::Unasked)?, unasked.as_slice()),
        ] {
            for (figure, of, goal) in figures {
                let Estimate { value, low, high } = of(&ours);
                let beside = [
                    ("BM25", of(&bm25).value),
                    ("keywords", of(&keywords).value),
                    ("2.5 % below", low),
                    ("2.5 % above", high),
                ];
                for (index, (other, other_value)) in beside.into_iter().enumerate() {
                    let name = format!("retrieval/{set} {part} {way} {figure}");
                    let figure = Figure::new(name, "", value).beside_value(other, other_value);
                    bench.add(figure.goal_of(goal.filter(|_| index == 0)));
                }
            }
        }
    }
    runtime.block_on(writer.close(store))?;
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
    report::show_step(&name);
    let (store, writer) = append::open(runtime, bench, &format!("retrieval-{records}"))?;
    runtime.block_on(fixture.fill_with(&store, records))?;
    // The daemon's maintenance has done this by the time that there are so many records.
    while !runtime.block_on(store.upkeep().merge_indexes())? {}
    let mut rounds = Vec::new();
    // The first round is the warm-up.
    for _ in 0..=bench.rounds {
        let mut slice = Slice::default();
        let begun = Instant::now();
        runtime.block_on(async {
            for query in &fixture.queries {
                let begun = Instant::now();
                find(&store, &Reader::All, NOW, &query.search(true)).await?;
                slice.add(begun.elapsed());
            }
            anyhow::Ok(())
        })?;
        slice.length = begun.elapsed();
        rounds.push(slice);
    }
    let figure = Figure::summed(name, "searches/s", Summary::from_rounds(&rounds[1..], 1));
    bench.add(figure.goal_if(!bench.quick, Goal::p99_us(most_us)));
    runtime.block_on(writer.close(store))?;
    Ok(())
}
