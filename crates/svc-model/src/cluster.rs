//! Groups of similar texts: TF-IDF vectors, clustered by average linkage (Sokal and Michener 1958).
//!
//! The same texts in the same order give the same groups, and equal texts are always in one group.

use std::collections::HashMap;

use crate::text;

/// Minimum average cosine between the texts of two clusters that are merged. On fixtures/retrieval,
/// whose 239 records are of about as many incidents, the groups from here on have a subject (locks,
/// clocks, memory that runs out); at 0.2 there are nearly none, at 0.1 they share only a word.
const NEAR: f64 = 0.12;
const LEAST: usize = 3;
/// Weight of an everyday word.
const COMMON: f64 = 0.35;

/// Texts as vectors: each term is a dimension.
#[derive(Debug)]
pub struct TermSpace {
    /// Dimension and rarity of each term.
    terms: HashMap<String, (usize, f64)>,
    /// Rarity of a term that no text has.
    unknown: f64,
    vectors: Vec<TermVector>,
}

/// A vector of length one, as pairs of dimension and value. It is shorter if some terms are in no
/// text of the space.
pub type TermVector = Vec<(usize, f64)>;

impl TermSpace {
    pub fn new(texts: &[String]) -> Self {
        let count = float(texts.len());
        let of_each: Vec<HashMap<String, usize>> = texts.iter().map(|text| counts(text)).collect();
        let mut names: Vec<&String> = of_each.iter().flat_map(HashMap::keys).collect();
        names.sort_unstable();
        let mut terms: HashMap<String, (usize, f64)> = HashMap::new();
        for same in names.chunk_by(|a, b| a == b) {
            // Plus one, so that a term of all texts still counts.
            let rarity = ((1.0 + count) / (1.0 + float(same.len()))).ln() + 1.0;
            let rarity = rarity * if text::is_common(same[0]) { COMMON } else { 1.0 };
            terms.insert(same[0].clone(), (terms.len(), rarity));
        }
        let unknown = (1.0 + count).ln() + 1.0;
        let mut space = Self { terms, unknown, vectors: Vec::new() };
        space.vectors = of_each.iter().map(|counts| space.direction(counts)).collect();
        space
    }

    /// The vector of each text, in the order of the texts.
    pub fn vectors(&self) -> &[TermVector] {
        &self.vectors
    }

    pub fn vector(&self, text: &str) -> TermVector {
        self.direction(&counts(text))
    }

    fn direction(&self, counts: &HashMap<String, usize>) -> TermVector {
        let mut vector = Vec::with_capacity(counts.len());
        let mut elsewhere = 0.0;
        for (term, count) in counts {
            let often = 1.0 + float(*count).ln();
            match self.terms.get(term) {
                Some((dimension, rarity)) => vector.push((*dimension, often * rarity)),
                None => elsewhere += (often * self.unknown).powi(2),
            }
        }
        vector.sort_unstable_by_key(|(dimension, _)| *dimension);
        let length =
            (vector.iter().map(|(_, value)| value * value).sum::<f64>() + elsewhere).sqrt();
        for (_, value) in &mut vector {
            *value /= length;
        }
        vector
    }

    /// The centroid of some texts, each with a weight.
    pub fn middle(&self, members: impl IntoIterator<Item = (usize, f64)>) -> TermVector {
        let mut sum = vec![0.0; self.terms.len()];
        for (at, weight) in members {
            for (dimension, value) in &self.vectors[at] {
                sum[*dimension] += weight * value;
            }
        }
        let length = sum.iter().map(|value| value * value).sum::<f64>().sqrt();
        let parts = sum.into_iter().enumerate().filter(|(_, value)| *value != 0.0);
        parts.map(|(dimension, value)| (dimension, value / length)).collect()
    }

    /// Groups of similar texts, the largest first, each in the order of the texts. A text that is
    /// similar to no other is in no group.
    pub fn groups(&self) -> Vec<Vec<usize>> {
        let count = self.vectors.len();
        let mut far = Vec::with_capacity(count * count.saturating_sub(1) / 2);
        let mut here = vec![0.0; self.terms.len()];
        for (at, one) in self.vectors.iter().enumerate() {
            for (dimension, value) in one {
                here[*dimension] = *value;
            }
            for other in &self.vectors[at + 1..] {
                let near: f64 =
                    other.iter().map(|(dimension, value)| here[*dimension] * value).sum();
                far.push((1.0 - near).max(0.0));
            }
            for (dimension, _) in one {
                here[*dimension] = 0.0;
            }
        }
        let mut groups: Vec<Option<Vec<usize>>> = (0..count).map(|at| Some(vec![at])).collect();
        if count > 1 {
            let tree = kodama::linkage(&mut far, count, kodama::Method::Average);
            // Steps are in the order of distance; each makes a group with the next number.
            for step in tree.steps().iter().take_while(|step| step.dissimilarity <= 1.0 - NEAR) {
                let mut both = groups[step.cluster1].take().unwrap_or_default();
                both.extend(groups[step.cluster2].take().unwrap_or_default());
                groups.push(Some(both));
            }
        }
        let mut groups: Vec<Vec<usize>> =
            groups.into_iter().flatten().filter(|group| group.len() >= LEAST).collect();
        for group in &mut groups {
            group.sort_unstable();
        }
        groups.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        groups
    }
}

pub fn cosine(one: &TermVector, other: &TermVector) -> f64 {
    let other: HashMap<usize, f64> = other.iter().copied().collect();
    one.iter().filter_map(|(dimension, value)| Some(value * other.get(dimension)?)).sum()
}

/// Mean and standard deviation of the values.
pub fn spread(values: &[f64]) -> (f64, f64) {
    let count = float(values.len()).max(1.0);
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

fn counts(text: &str) -> HashMap<String, usize> {
    let terms = text::terms(text);
    let mut counts = HashMap::new();
    for term in terms.split(' ').filter(|term| !term.is_empty()) {
        *counts.entry(term.to_owned()).or_default() += 1;
    }
    if counts.is_empty() {
        // A text of stop words only is similar to an equal text.
        counts.insert(text.to_owned(), 1);
    }
    counts
}

#[expect(clippy::cast_precision_loss, reason = "counts here are far below 2^53")]
fn float(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn groups(texts: &[&str]) -> Vec<Vec<usize>> {
        TermSpace::new(&texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>()).groups()
    }

    #[test]
    fn equal_texts_are_together_however_many() {
        for count in [3, 19, 20, 63, 300] {
            assert_eq!(
                groups(&vec!["The cache lacks the tenant"; count]),
                [(0..count).collect::<Vec<_>>()]
            );
            assert_eq!(groups(&vec!["it is"; count]).len(), 1, "also if they say nothing");
        }
        assert_eq!(groups(&[]), Vec::<Vec<usize>>::new());
        assert_eq!(groups(&["one"]), Vec::<Vec<usize>>::new());
        assert_eq!(groups(&["one two", "one two"]), Vec::<Vec<usize>>::new(), "two are no group");
    }

    #[test]
    fn texts_about_one_subject_are_in_one_cluster() {
        let found = groups(&[
            "cache key lacks the tenant",
            "clock in the test is mocked",
            "tenant missing in the cache key",
            "the mocked clock never moves in the test",
            "cached without the tenant in its key",
            "test relies on a mocked clock",
            "webhook signature uses the parsed body",
        ]);
        assert_eq!(found, [vec![0, 2, 4], vec![1, 3, 5]]);
    }

    #[test]
    fn the_middle_is_near_its_texts_and_far_from_others() {
        let texts =
            ["cache key lacks the tenant", "tenant missing in the cache key", "mocked clock"];
        let space = TermSpace::new(&texts.map(str::to_owned));
        let middle = space.middle([(0, 1.0), (1, 1.0)]);
        assert!(cosine(&space.vectors()[0], &middle) > 0.8);
        assert!(cosine(&space.vectors()[2], &middle) < 0.01);
        assert!(cosine(&space.vector("put the tenant into the cache key"), &middle) > 0.7);
        assert!(cosine(&space.vector("write a poem about spring"), &middle) < 0.01);
        assert_eq!(spread(&[1.0, 3.0]), (2.0, 1.0));
    }

    proptest! {
        #[test]
        fn any_texts_are_grouped_and_each_is_in_one_group(
            texts in prop::collection::vec("[a-c ]{0,6}", 0..40)
        ) {
            let space = TermSpace::new(&texts);
            let found = space.groups();
            let mut all: Vec<usize> = found.iter().flatten().copied().collect();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(all.len(), count);
            prop_assert!(found.iter().all(|group| group.len() >= LEAST));
            prop_assert_eq!(&found, &TermSpace::new(&texts).groups());
        }
    }
}
