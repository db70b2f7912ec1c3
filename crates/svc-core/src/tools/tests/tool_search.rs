//! Recall of the tool search: questions of people about the tools of public servers. Every third
//! question is held out: its answers are not looked at while the search is changed.

use std::{collections::BTreeMap, sync::Arc};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::{
    Catalogue, Output, Tool, search,
    testing::{World, each},
};

/// Number of hits that count for a question.
const ANSWERS: usize = 5;

#[derive(Deserialize)]
struct ToolText {
    name: String,
    #[serde(default)]
    title: String,
    description: String,
    arguments: BTreeMap<String, String>,
}

/// The tools, by the names that clients see.
fn tools() -> Vec<(String, ToolText)> {
    let text = include_str!("../../../../../fixtures/tool-search/tools.json");
    let servers: BTreeMap<String, Vec<ToolText>> = serde_json::from_str(text).expect("JSON");
    let named = servers.into_iter().flat_map(|(server, tools)| {
        tools.into_iter().map(move |tool| (format!("{server}__{}", tool.name), tool))
    });
    named.collect()
}

/// The questions, each with the tools that answer it.
fn questions() -> Vec<(&'static str, Vec<&'static str>)> {
    let text = include_str!("../../../../../fixtures/tool-search/questions.txt");
    let lines = text.lines().map(|line| line.split_once('|').expect("a question and its answers"));
    lines.map(|(question, answers)| (question, answers.split(' ').collect())).collect()
}

/// The share of answered questions, of those not held out and of those held out.
fn recall(mut ask: impl FnMut(&str) -> Vec<String>) -> [f64; 2] {
    let (mut hits, mut all) = ([0.0; 2], [0.0; 2]);
    for (index, (question, answers)) in questions().iter().enumerate() {
        let held_out = usize::from(index % 3 == 2);
        let found = ask(question);
        let is_hit = found.iter().take(ANSWERS).any(|name| answers.contains(&name.as_str()));
        hits[held_out] += f64::from(u8::from(is_hit));
        all[held_out] += 1.0;
    }
    [hits[0] / all[0], hits[1] / all[1]]
}

fn catalogue(tools: &[(String, ToolText)]) -> Arc<Catalogue> {
    let declared = tools.iter().map(|(name, text)| {
        let properties: Map<String, Value> = text
            .arguments
            .iter()
            .map(|(name, text)| (name.clone(), json!({ "description": text })))
            .collect();
        let input = json!({ "type": "object", "properties": properties });
        let title: &'static str = Box::leak(text.title.clone().into_boxed_str());
        let tool = Tool::raw(name.clone(), text.description.clone(), input, async |_, _| {
            Ok(Output::text(""))
        });
        if title.is_empty() { tool } else { tool.title(title) }
    });
    let declared: Vec<Tool> = declared.collect();
    Arc::new_cyclic(|weak| Catalogue::new(declared.into_iter().chain([search::tool(weak.clone())])))
}

/// Textbook BM25: every word has the same weight in every field, and is not normalised.
struct PlainSearch {
    names: Vec<String>,
    texts: Vec<BTreeMap<String, f64>>,
}

fn plain_words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
}

impl PlainSearch {
    fn new(tools: &[(String, ToolText)]) -> Self {
        let texts = tools.iter().map(|(name, text)| {
            let mut counts = BTreeMap::new();
            let arguments = text.arguments.iter().flat_map(|(name, text)| [name, text]);
            for text in [name, &text.title, &text.description].into_iter().chain(arguments) {
                for word in plain_words(text) {
                    *counts.entry(word).or_insert(0.0) += 1.0;
                }
            }
            counts
        });
        Self { texts: texts.collect(), names: tools.iter().map(|(name, _)| name.clone()).collect() }
    }

    fn find(&self, query: &str) -> Vec<String> {
        let count = |having: usize| f64::from(u32::try_from(having).expect("few"));
        let all = count(self.texts.len());
        let mean = self.texts.iter().flat_map(BTreeMap::values).sum::<f64>() / all;
        let mut scores = vec![0.0; self.texts.len()];
        for word in plain_words(query) {
            let having = count(self.texts.iter().filter(|text| text.contains_key(&word)).count());
            let rarity = (1.0 + (all - having + 0.5) / (having + 0.5)).ln();
            for (score, text) in scores.iter_mut().zip(&self.texts) {
                let found = text.get(&word).copied().unwrap_or(0.0);
                let length = 0.25 + 0.75 * text.values().sum::<f64>() / mean;
                *score += rarity * found * 2.2 / (found + 1.2 * length);
            }
        }
        let mut ranked: Vec<(f64, &String)> = scores.into_iter().zip(&self.names).collect();
        ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        ranked.into_iter().map(|(_, name)| name.clone()).collect()
    }
}

#[tokio::test]
async fn nine_of_ten_questions_are_answered_and_more_than_by_plain_bm25() {
    let tools = tools();
    assert!(
        tools.len() >= 300 && questions().len() >= 150,
        "{} {}",
        tools.len(),
        questions().len()
    );
    let known = |name: &&str| tools.iter().any(|(known, _)| known == name);
    assert!(questions().iter().all(|(_, answers)| answers.iter().all(known)));
    let plain = PlainSearch::new(&tools);
    let plain = recall(|question| plain.find(question));
    let mut world = World::open().await;
    world.catalogue = catalogue(&tools);
    let mut answers = BTreeMap::new();
    for (question, _) in questions() {
        let arguments = json!({ "query": question, "limit": ANSWERS, "detail": "name" });
        let answer = world.call(&world.operator(None), "ToolSearch", arguments).await;
        let names = each(&answer["tools"], "name").into_iter();
        answers.insert(
            question,
            names.filter_map(|name| name.as_str().map(str::to_owned)).collect::<Vec<_>>(),
        );
    }
    let ours = recall(|question| answers[question].clone());
    for (ours, plain) in ours.into_iter().zip(plain) {
        assert!(ours >= 0.9, "{ours} of the questions are answered, by plain BM25 {plain}");
        assert!(ours > plain, "{ours} of the questions are answered, by plain BM25 {plain}");
    }
}
