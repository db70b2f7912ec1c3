//! The graph of sessions that wait for each other.

use std::collections::{HashMap, HashSet, VecDeque};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitEdge {
    /// Key of the waiting session.
    pub waiter: String,
    /// Key of the awaited session.
    pub awaited: String,
}

/// The shortest cycle from `from` back to itself that a wait of `from` for `to` would close; `None`
/// if it would close none.
pub fn wait_cycle(edges: &[WaitEdge], from: &str, to: &str) -> Option<Vec<String>> {
    let mut next: HashMap<&str, Vec<&str>> = HashMap::new();
    for WaitEdge { waiter, awaited } in edges {
        next.entry(waiter).or_default().push(awaited);
    }
    let mut came_from: HashMap<&str, &str> = HashMap::new();
    let (mut seen, mut ahead) = (HashSet::from([to]), VecDeque::from([to]));
    while let Some(here) = ahead.pop_front() {
        if here == from {
            let mut path = vec![from.to_owned()];
            let mut at = here;
            while at != to {
                at = came_from[at];
                path.push(at.to_owned());
            }
            path.push(from.to_owned());
            // The search followed the edges to `from` backwards.
            path.reverse();
            return Some(path);
        }
        for awaited in next.get(here).into_iter().flatten() {
            if seen.insert(awaited) {
                came_from.insert(awaited, here);
                ahead.push_back(awaited);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn edges(pairs: &[(&str, &str)]) -> Vec<WaitEdge> {
        let edge = |(waiter, awaited): &(&str, &str)| WaitEdge {
            waiter: (*waiter).to_owned(),
            awaited: (*awaited).to_owned(),
        };
        pairs.iter().map(edge).collect()
    }

    #[test]
    fn a_cycle_is_returned_whole() {
        for (waits, from, to, circle) in [
            (&[][..], "a", "b", None),
            (&[], "a", "a", Some("a a")),
            (&[("b", "a")], "a", "b", Some("a b a")),
            (&[("a", "b")], "a", "b", None),
            (&[("b", "c"), ("c", "d"), ("d", "a")], "a", "b", Some("a b c d a")),
            (&[("b", "c"), ("c", "a"), ("b", "a")], "a", "b", Some("a b a")),
            (&[("b", "c"), ("c", "b")], "a", "b", None),
            (&[("x", "a"), ("b", "y")], "a", "b", None),
        ] {
            let found = wait_cycle(&edges(waits), from, to).map(|path| path.join(" "));
            assert_eq!(found.as_deref(), circle, "{waits:?} {from}->{to}");
        }
    }

    #[test]
    fn a_long_cycle_is_found() {
        let names: Vec<String> = (0..10_000).map(|number| number.to_string()).collect();
        let chain: Vec<WaitEdge> = names
            .windows(2)
            .map(|pair| WaitEdge { waiter: pair[0].clone(), awaited: pair[1].clone() })
            .collect();
        let circle = wait_cycle(&chain, "9999", "0").expect("a circle");
        assert_eq!((circle.len(), circle[0].as_str(), circle[1].as_str()), (10_001, "9999", "0"));
    }

    proptest! {
        /// If waits that would close a cycle are rejected, the graph has no cycle.
        #[test]
        fn accepted_waits_never_form_a_cycle(pairs in prop::collection::vec(("[a-f]", "[a-f]"), 0..40)) {
            let mut taken: Vec<WaitEdge> = Vec::new();
            for (waiter, awaited) in pairs {
                match wait_cycle(&taken, &waiter, &awaited) {
                    None => taken.push(WaitEdge { waiter, awaited }),
                    Some(path) => {
                        prop_assert!(path.first() == path.last() && path[1] == awaited);
                        let is_wait = |pair: &[String]| {
                            pair[0] == waiter && pair[1] == awaited
                                || taken.iter().any(|edge| edge.waiter == pair[0] && edge.awaited == pair[1])
                        };
                        prop_assert!(path.windows(2).all(is_wait), "{path:?}");
                    }
                }
            }
            // A session that waits for nobody can answer; removing such sessions repeatedly must
            // leave nothing.
            let mut left = taken;
            loop {
                let waiting: HashSet<String> = left.iter().map(|edge| edge.waiter.clone()).collect();
                let before = left.len();
                left.retain(|edge| waiting.contains(&edge.awaited));
                if left.len() == before {
                    break;
                }
            }
            prop_assert!(left.is_empty(), "{left:?}");
        }
    }
}
