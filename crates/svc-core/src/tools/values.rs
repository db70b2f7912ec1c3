//! Tools for clusters of records, and values.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    NOT_BLANK, Timestamp, ValueId,
    learning::{Axis, Value},
    limits, quote,
};
use svc_store::{ClusterRow, MemberRow};

use super::{Call, Failure, Tool, sessions::in_session};
use crate::service::{
    journal::{ClusterList, ValueDistances, distance_error},
    team::ActingSession,
};

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new("get_clusters", CLUSTERS, clusters)
            .title("What records are alike")
            .read_only()
            .heavy(),
        Tool::new("get_cluster_members", MEMBERS, members)
            .title("Look into a cluster")
            .read_only()
            .heavy(),
        Tool::new("validate_value", VALIDATE, validate)
            .title("Does a value fit")
            .read_only()
            .heavy(),
        in_session("store_value", STORE, store).title("Keep a value").idempotent(),
        Tool::new("list_values", LIST, list).title("List values").read_only(),
    ]
}

/// To the third digit: more are not significant for words.
fn round(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

const CLUSTERS: &str = "\
Groups the records that are over by what they have in common: on the whole (full), in how they were gone about (strategy), in \
what was not expected (surprise), in why predictions were wrong (root_cause), or in what they are about (domain).

It takes 20 records; of more than 1,000 the latest are looked at. The records of a cluster can be read with \
get_cluster_members; a sentence that says what they teach is kept with store_value.";

#[derive(Deserialize, JsonSchema)]
struct ClusterListInput {
    /// The axis of comparison.
    axis: Axis,
    /// How many at most.
    #[schemars(range(min = 1, max = 500), extend("default" = 50))]
    limit: Option<usize>,
}

#[derive(Serialize, JsonSchema)]
struct ClusterRows {
    axis: Axis,
    /// The largest first.
    clusters: Vec<ClusterRow>,
    count: usize,
    /// How many there are besides the limit.
    total: usize,
    /// Records that are like no others.
    noise_count: i64,
    /// Records that were looked at.
    record_count: i64,
}

async fn clusters(call: Call, input: ClusterListInput) -> Result<ClusterRows, Failure> {
    let list = call.services.journal.clusters(&call.caller, input.axis).await?;
    let ClusterList { mut clusters, records, noise } = list;
    let total = clusters.len();
    clusters.truncate(input.limit.unwrap_or(50));
    for cluster in &mut clusters {
        cluster.avg_weight = round(cluster.avg_weight);
        cluster.goal = quote::excerpt(&cluster.goal, 120);
    }
    Ok(ClusterRows {
        axis: input.axis,
        count: clusters.len(),
        clusters,
        total,
        noise_count: noise,
        record_count: records,
    })
}

const MEMBERS: &str = "\
Lists the records of a cluster, those in its middle first. get_ghap gives one with all its texts.";

#[derive(Deserialize, JsonSchema)]
struct ClusterMembersInput {
    /// The cluster's id from `get_clusters`.
    #[schemars(regex(pattern = NOT_BLANK))]
    cluster_id: String,
    /// How many at most.
    #[schemars(range(min = 1, max = 100), extend("default" = 50))]
    limit: Option<u32>,
}

#[derive(Serialize, JsonSchema)]
struct ClusterMembers {
    cluster_id: String,
    axis: Axis,
    members: Vec<ClusterMember>,
    count: usize,
}

/// A record of a cluster.
#[derive(Serialize, JsonSchema)]
struct ClusterMember {
    #[serde(flatten)]
    row: MemberRow,
    cluster_label: i64,
}

async fn members(call: Call, input: ClusterMembersInput) -> Result<ClusterMembers, Failure> {
    let (limit, cluster_id) = (input.limit.unwrap_or(50), input.cluster_id);
    let (axis, rows) =
        call.services.journal.cluster_members(&call.caller, &cluster_id, limit).await?;
    let label = cluster_id.rsplit('_').next().and_then(|label| label.parse().ok());
    let cluster_label = label.unwrap_or_default();
    let member = |row: MemberRow| {
        let (goal, similarity) = (quote::excerpt(&row.goal, 120), round(row.similarity));
        ClusterMember { row: MemberRow { goal, similarity, ..row }, cluster_label }
    };
    let members: Vec<ClusterMember> = rows.into_iter().map(member).collect();
    Ok(ClusterMembers { cluster_id, axis, count: members.len(), members })
}

const VALIDATE: &str = "\
Tells whether a sentence is about what the records of a cluster have in common, without keeping it: whether it is as near to \
their middle as they are themselves, by the words that it uses.";

#[derive(Deserialize, JsonSchema)]
struct ValidateInput {
    /// The lesson of the records, in a sentence or two.
    #[schemars(length(max = limits::VALUE_CHARS), regex(pattern = NOT_BLANK))]
    text: String,
    /// The cluster's id from `get_clusters`.
    #[schemars(regex(pattern = NOT_BLANK))]
    cluster_id: String,
}

#[derive(Serialize, JsonSchema)]
struct ValidityOutput {
    valid: bool,
    cluster_id: String,
    /// How near it is to the middle of the cluster, 0 to 1.
    similarity: f64,
    /// Why it does not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    metrics: ValueDistances,
}

async fn validate(call: Call, input: ValidateInput) -> Result<ValidityOutput, Failure> {
    let validity =
        call.services.journal.validate_value(&call.caller, &input.text, &input.cluster_id).await?;
    let reason = format!("the sentence {}", distance_error(&validity.distances));
    Ok(ValidityOutput {
        valid: validity.is_valid,
        cluster_id: input.cluster_id,
        similarity: round(validity.similarity),
        reason: (!validity.is_valid).then_some(reason),
        metrics: validity.distances.map(round),
    })
}

const STORE: &str = "\
Keeps a sentence that says what the records of a cluster teach, for assemble_context to give to later sessions. It is checked \
first, as validate_value does. The same once more for a cluster changes nothing and gives the value that there is.";

#[derive(Deserialize, JsonSchema)]
struct StoreValueInput {
    /// The lesson of the records, in a sentence or two.
    #[schemars(length(max = limits::VALUE_CHARS), regex(pattern = NOT_BLANK))]
    text: String,
    /// The cluster's id from `get_clusters`.
    #[schemars(regex(pattern = NOT_BLANK))]
    cluster_id: String,
    /// The axis of the cluster; follows from its id.
    axis: Option<Axis>,
}

#[derive(Serialize, JsonSchema)]
struct ValueStored {
    id: ValueId,
    /// `stored`, or `known` if it was there already.
    status: &'static str,
    /// The beginning of the sentence.
    text: String,
    cluster_id: String,
    axis: Axis,
    created_at: Timestamp,
}

async fn store(
    call: Call,
    acting: ActingSession,
    input: StoreValueInput,
) -> Result<ValueStored, Failure> {
    let (journal, StoreValueInput { text, cluster_id, axis }) = (&call.services.journal, input);
    let stored = journal.store_value(&call.caller, acting, text, cluster_id, axis).await?;
    Ok(ValueStored {
        text: quote::excerpt(&stored.value.text, 120),
        id: stored.value.id,
        status: if stored.is_known { "known" } else { "stored" },
        cluster_id: stored.value.cluster_id,
        axis: stored.value.axis,
        created_at: stored.value.validated_at,
    })
}

const LIST: &str =
    "Lists values, the latest first: sentences that were drawn from clusters of records.";

#[derive(Deserialize, JsonSchema)]
struct ValueListInput {
    /// Only this axis.
    axis: Option<Axis>,
    /// How many at most.
    #[schemars(range(min = 1, max = 100), extend("default" = 20))]
    limit: Option<u32>,
    /// Return whole sentences; by default only the beginning of each.
    full: Option<bool>,
}

#[derive(Serialize, JsonSchema)]
struct ValueList {
    results: Vec<Value>,
    count: usize,
    /// How many there are besides the limit.
    total: i64,
}

/// Bytes of a sentence in a list: an entry has at most 500.
const EXCERPT: usize = 270;

async fn list(call: Call, input: ValueListInput) -> Result<ValueList, Failure> {
    let journal = &call.services.journal;
    let (mut results, total) =
        journal.values(&call.caller, input.axis, input.limit.unwrap_or(20)).await?;
    for value in &mut results {
        value.distance = round(value.distance);
        if !input.full.unwrap_or(false) {
            value.text = quote::excerpt(&value.text, EXCERPT);
        }
    }
    Ok(ValueList { count: results.len(), results, total })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{World, each, text};
    use crate::tools::{Call, ErrorType};

    async fn try_it(world: &World, call: &Call, about: &str) {
        let start = json!({
            "domain": "debugging", "strategy": "read-the-error", "goal": about, "hypothesis": about,
            "action": "look", "prediction": "it passes",
        });
        world.call(call, "start_ghap", start).await;
        let end = json!({
            "status": "falsified", "result": "it failed", "surprise": about,
            "root_cause": { "category": "oversight", "description": about },
            "lesson": { "what_worked": about },
        });
        world.call(call, "resolve_ghap", end).await;
    }

    const CACHE: &str = "The cache key lacks the tenant, so tenants read each other's rows";
    const CLOCK: &str = "The mocked clock never moves, so the token never expires in tests";

    #[tokio::test]
    async fn the_error_for_too_few_records_has_their_number() {
        let (world, call) = World::with_session().await;
        for have in [0, 19] {
            for _ in 0..have {
                try_it(&world, &call, CACHE).await;
            }
            let sentence = json!({ "text": "x", "cluster_id": "full_0" });
            for (name, arguments) in [
                ("get_clusters", json!({ "axis": "full" })),
                ("get_cluster_members", json!({ "cluster_id": "full_0" })),
                ("validate_value", sentence.clone()),
                ("store_value", sentence),
            ] {
                let error = world.refuse(&call, name, arguments, ErrorType::InsufficientData).await;
                assert_eq!((error.have, error.need), (Some(have), Some(20)), "{name}");
            }
        }
        assert_eq!(world.call(&call, "list_values", json!({})).await["total"], 0);
        try_it(&world, &call, CACHE).await;
        for axis in ["full", "strategy", "surprise", "root_cause", "domain"] {
            let found = world.call(&call, "get_clusters", json!({ "axis": axis })).await;
            assert_eq!(found["clusters"][0]["size"], 20, "{axis}: {found}");
            assert_eq!((&found["noise_count"], &found["count"]), (&json!(0), &json!(1)));
        }
    }

    #[tokio::test]
    async fn clusters_keep_their_ids_and_have_members() {
        let (world, call) = World::with_session().await;
        for n in 0..12 {
            try_it(&world, &call, &format!("{CACHE} {n}")).await;
            try_it(&world, &call, &format!("{CLOCK} {n}")).await;
        }
        try_it(&world, &call, "Something else entirely went wrong with webhooks").await;
        let look = json!({ "axis": "full" });
        let found = world.call(&call, "get_clusters", look.clone()).await;
        assert_eq!(each(&found["clusters"], "size"), [json!(12), json!(12)]);
        assert_eq!((&found["noise_count"], &found["record_count"]), (&json!(1), &json!(25)));
        assert_eq!(found, world.call(&call, "get_clusters", look.clone()).await);
        let first = json!({ "axis": "full", "limit": 1 });
        let first = world.call(&call, "get_clusters", first).await;
        assert_eq!((&first["count"], &first["total"]), (&json!(1), &json!(2)));
        let of = async |id: &Value| {
            let members = json!({ "cluster_id": id, "limit": 100 });
            world.call(&call, "get_cluster_members", members).await
        };
        let about = |found: &Value, id: &Value| -> String {
            let one =
                found["clusters"].as_array().unwrap().iter().find(|one| one["cluster_id"] == *id);
            text(one.unwrap(), "about")
        };
        for id in each(&found["clusters"], "cluster_id") {
            let members = of(&id).await;
            assert_eq!(members["count"], 12);
            assert!(
                members["members"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .all(|one| one.to_string().len() <= 500)
            );
        }
        // More records of the other kind: now its cluster is the larger one, but both keep their
        // ids.
        let clock = each(&found["clusters"], "cluster_id")
            .into_iter()
            .find(|id| about(&found, id).contains("clock"))
            .unwrap();
        for n in 20..25 {
            try_it(&world, &call, &format!("{CLOCK} {n}")).await;
        }
        let later = world.call(&call, "get_clusters", look).await;
        assert_eq!(later["clusters"][0]["cluster_id"], clock);
        assert_eq!(later["clusters"][0]["size"], 17);
        assert_eq!(of(&clock).await["count"], 17);

        let none = json!({ "cluster_id": "full_77" });
        world.refuse(&call, "get_cluster_members", none, ErrorType::NotFound).await;
        for odd in ["full", "full_", "sports_0", "full_-1", "'"] {
            let odd = json!({ "cluster_id": odd });
            world.refuse(&call, "get_cluster_members", odd, ErrorType::ValidationError).await;
        }
    }

    #[tokio::test]
    async fn a_value_is_checked_against_its_cluster() {
        let (world, call) = World::with_session().await;
        for _ in 0..20 {
            try_it(&world, &call, CACHE).await;
        }
        let found = world.call(&call, "get_clusters", json!({ "axis": "full" })).await;
        let id = found["clusters"][0]["cluster_id"].clone();
        let good = json!({ "text": "Put the tenant into every cache key", "cluster_id": id });
        let fits = world.call(&call, "validate_value", good.clone()).await;
        assert_eq!(fits["valid"], true, "{fits}");
        let bad = json!({ "text": "Water the plants on Mondays", "cluster_id": id });
        let misfit = world.call(&call, "validate_value", bad.clone()).await;
        assert_eq!((&misfit["valid"], &misfit["similarity"]), (&json!(false), &json!(0.0)));
        assert!(text(&misfit, "reason").contains("distance"));
        world.refuse_field(&call, "store_value", bad, "text").await;
        let mut wrong = good.clone();
        wrong["axis"] = json!("surprise");
        world.refuse_field(&call, "store_value", wrong, "axis").await;

        let stored = world.call(&call, "store_value", good.clone()).await;
        assert_eq!((&stored["status"], &stored["axis"]), (&json!("stored"), &json!("full")));
        let again = world.call(&call, "store_value", good).await;
        assert_eq!((&again["status"], &again["id"]), (&json!("known"), &stored["id"]));
        let long =
            format!("The tenant belongs into the cache key {}", "\"cache\" tenant key ".repeat(24));
        let long = json!({ "text": long, "cluster_id": id });
        assert!(world.call(&call, "store_value", long.clone()).await.to_string().len() < 500);
        let list = world.call(&call, "list_values", json!({ "limit": 1 })).await;
        assert_eq!((&list["count"], &list["total"]), (&json!(1), &json!(2)));
        assert!(list["results"][0].to_string().len() <= 500, "{list}");
        assert_ne!(list["results"][0]["text"], long["text"]);
        let full = world.call(&call, "list_values", json!({ "full": true })).await;
        assert_eq!(full["results"][0]["text"], long["text"]);
        let other = world.call(&call, "list_values", json!({ "axis": "domain" })).await;
        assert_eq!(other["total"], 0);

        // The value is returned for a matching prompt, and before an attempt of its kind.
        let ask = json!({ "query": "tenants share a cache key", "context_types": ["values"] });
        let context = world.call(&call, "assemble_context", ask).await;
        assert_eq!(context["item_count"], 2);
        let before = world
            .call(&call, "premortem", json!({ "domain": "debugging", "max_tokens": 5000 }))
            .await;
        assert!(text(&before, "markdown").contains("## Relevant values\n- "));
    }
}
