//! A request that may be sent again: it carries a key by which the daemon knows it.

use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use svc_model::new_secret;
use tokio::time::sleep;

use super::{connection::Client, discover::Discovery, error::ClientError, follow::backoff};

/// How long a daemon that ended while it had the request is waited for.
const RESEND_FOR: Duration = Duration::from_secs(10);

/// Posts a body with an `idempotency_key` of its own. If the daemon ends before it answers, the next one is asked with the
/// same key: it knows whether it has been done.
///
/// # Errors
/// As [`Client::post`]. That the answer was lost stays the error if there is none from another daemon within ten seconds.
pub async fn post_keyed<T: DeserializeOwned>(
    discovery: &Discovery,
    path: &str,
    mut body: Value,
) -> Result<T, ClientError> {
    body["idempotency_key"] = json!(new_secret());
    let lost = match Client::new(discovery.target()?).post(path, &body).await {
        Err(error @ ClientError::Connection { sent: true, .. }) => error,
        done => return done,
    };
    let (began, mut failures) = (Instant::now(), 0);
    while began.elapsed() < RESEND_FOR {
        sleep(backoff(failures, None)).await;
        failures += 1;
        // The next daemon may be at another address.
        match Client::new(discovery.target()?).post(path, &body).await {
            Err(error) if error.is_transient() => {}
            done => return done,
        }
    }
    Err(lost)
}

#[cfg(test)]
mod tests {
    use super::super::fake_daemon::{FakeDaemon, answer, discovery};
    use super::*;

    #[tokio::test]
    async fn a_request_whose_answer_was_lost_is_sent_again_with_its_key() {
        let home = tempfile::tempdir().expect("a folder");
        let done = answer("200 OK", "content-type: application/json\r\n", r#"{"id":"msg_1"}"#);
        let starting = answer("503 Service Unavailable", "", "");
        // The first ends without an answer.
        let scripts = vec![vec![String::new()], vec![starting], vec![done]];
        let daemon = FakeDaemon::start(home.path(), scripts);
        let body = json!({ "text": "hi" });
        let sent: Value =
            post_keyed(&discovery(home.path()), "/v1/x", body).await.expect("it is answered");
        assert_eq!(sent["id"], "msg_1");
        let bodies: Vec<String> = daemon
            .requests()
            .iter()
            .map(|request| request.split_once("\r\n\r\n").expect("a body").1.to_owned())
            .collect();
        assert_eq!(bodies.len(), 3);
        assert!(bodies[0].contains("idempotency_key"), "{bodies:?}");
        assert!(bodies.iter().all(|body| *body == bodies[0]), "{bodies:?}");
    }

    #[tokio::test]
    async fn where_nothing_listens_nothing_is_waited_for() {
        let home = tempfile::tempdir().expect("a folder");
        let began = Instant::now();
        let sent = post_keyed::<Value>(&discovery(home.path()), "/v1/x", json!({})).await;
        assert!(matches!(sent, Err(ClientError::NotRunning { .. })), "{sent:?}");
        assert!(began.elapsed() < RESEND_FOR);
    }
}
