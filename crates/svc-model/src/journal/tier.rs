//! How far a record can be trusted.

use super::vocabulary::{Tier, Verdict};

/// The tier of a record that ends with this verdict.
pub fn tier(verdict: Verdict, cites_outcome: bool, goal: &str, hypothesis: &str) -> Tier {
    match verdict {
        Verdict::Abandoned => Tier::Abandoned,
        _ if cites_outcome => Tier::Gold,
        _ if is_vague(goal, hypothesis) => Tier::Bronze,
        _ => Tier::Silver,
    }
}

/// Words that carry no claim: function words, and words that only say that something is wrong.
const EMPTY: &[&str] = &[
    "a",
    "an",
    "and",
    "am",
    "be",
    "broken",
    "bug",
    "code",
    "could",
    "does",
    "doesn",
    "error",
    "fail",
    "fails",
    "fix",
    "has",
    "have",
    "i",
    "in",
    "is",
    "issue",
    "it",
    "maybe",
    "might",
    "not",
    "of",
    "off",
    "or",
    "please",
    "possibly",
    "probably",
    "problem",
    "should",
    "some",
    "somehow",
    "something",
    "somewhere",
    "t",
    "that",
    "the",
    "there",
    "thing",
    "this",
    "to",
    "weird",
    "will",
    "with",
    "work",
    "works",
    "wrong",
];

/// Whether a hypothesis is too vague to be refuted: it repeats the goal, has fewer than four words,
/// or consists of words without a claim.
pub fn is_vague(goal: &str, hypothesis: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        text.split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty())
            .map(str::to_lowercase)
            .collect()
    };
    let words_of_hypothesis = words(hypothesis);
    if words_of_hypothesis == words(goal) {
        return true;
    }
    // In scripts without spaces, a word may be a whole clause.
    if words_of_hypothesis.len() < 4 && hypothesis.chars().filter(|c| !c.is_ascii()).count() < 6 {
        return true;
    }
    words_of_hypothesis.iter().all(|word| EMPTY.contains(&word.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vague_hypotheses_are_recognised() {
        for (goal, hypothesis, vague) in [
            ("Fix the login test", "fix the login test!", true),
            ("Fix the login test", "it is broken", true),
            ("Fix the login test", "Something is probably wrong with the code somewhere", true),
            (
                "Fix the login test",
                "The token expires before the second request because the clock is mocked",
                false,
            ),
            ("Fix the login test", "the cache key lacks the tenant", false),
            ("ログインを直す", "キャッシュのキーにテナントがない", false),
        ] {
            assert_eq!(is_vague(goal, hypothesis), vague, "{hypothesis}");
        }
    }
}
