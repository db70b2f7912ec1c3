//! A request with an idempotency key, which may be repeated.

use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use svc_model::new_secret;
use tokio::time::sleep;

use super::{connection::Client, discover::Discovery, error::ClientError, follow::backoff};

/// How long to wait for the next daemon.
const RESEND_FOR: Duration = Duration::from_secs(10);

/// Posts a body with a new `idempotency_key`. If the daemon ends before it responds, the next one
/// gets the same key. Without another daemon within ten seconds the error stays that the response
/// was lost.
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
        // The next daemon may have another address.
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
    async fn request_with_a_lost_response_is_repeated_with_its_key() {
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
    async fn missing_daemon_fails_at_once() {
        let home = tempfile::tempdir().expect("a folder");
        let began = Instant::now();
        let sent = post_keyed::<Value>(&discovery(home.path()), "/v1/x", json!({})).await;
        assert!(matches!(sent, Err(ClientError::NotRunning { .. })), "{sent:?}");
        assert!(began.elapsed() < RESEND_FOR);
    }
}
