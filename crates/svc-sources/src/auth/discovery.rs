//! Discovers the authorization server of an MCP server: the challenge of a response, the server's
//! metadata, and its issuer's metadata.

use std::{collections::HashMap, sync::LazyLock};

use regex_automata::meta::Regex;
use reqwest::{
    StatusCode, Url,
    header::{HeaderMap, WWW_AUTHENTICATE},
};
use serde_json::Value;

use crate::http_clients::{HttpClients, IssuerUnreachable, metadata, post, safe_url, url_named_at};

/// The challenge of a server to a request without a token; the empty one if it gives none.
pub(super) async fn challenge_of(clients: &HttpClients, server: &Url) -> AuthChallenge {
    const PING: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let response = post(clients, server, "application/json", PING.into()).await;
    let refused = response.ok().filter(|it| it.status() == StatusCode::UNAUTHORIZED);
    refused.map(|it| AuthChallenge::from_headers(it.headers())).unwrap_or_default()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AuthorizationServer {
    /// The resource that tokens are for, as the server names it.
    pub(super) resource: String,
    pub(super) issuer: String,
    pub(super) authorization_endpoint: Url,
    pub(super) token_endpoint: Url,
    pub(super) registration_endpoint: Option<Url>,
    pub(super) revocation_endpoint: Option<Url>,
    /// How clients authenticate at the token endpoint.
    pub(super) auth_methods: Option<Vec<String>>,
    /// Whether each redirect names the issuer (RFC 9207).
    pub(super) names_itself: bool,
    /// Whether a client's id may be the URL of a document.
    pub(super) takes_documents: bool,
    /// The server's own scopes, from its metadata.
    pub(super) resource_scopes: Option<String>,
    /// Whether the issuer gives refresh tokens for `offline_access`.
    pub(super) has_offline_access: bool,
}

/// Discovers the issuer. The error is for people.
pub(super) async fn discover(
    clients: &HttpClients,
    server: &Url,
    challenge: &AuthChallenge,
) -> Result<AuthorizationServer, String> {
    let resource = resource_metadata(clients, server, challenge).await?;
    let Some(resource) = resource else {
        // Revision 2025-03-26: the server is its own issuer.
        let issuer = server.origin().ascii_serialization();
        let (url, found) = issuer_metadata(clients, server, &issuer).await?.ok_or_else(|| {
            "it does not say where to log in: it has no metadata of a protected resource".to_owned()
        })?;
        return read_issuer(&issuer, &url, &found, None, server.as_str());
    };
    let (resource, is_of_origin) = resource;
    let named = text(&resource, "resource").unwrap_or_default();
    // Metadata that are found without the path belong to the whole host (RFC 9728, 3.1).
    let root = well_known_root(server);
    let is_its_own =
        is_same_resource(named, server) || (is_of_origin && is_same_resource(named, &root));
    if !is_its_own {
        return Err(format!("its metadata are of another resource, {named:?}, and not of its url"));
    }
    let issuers = resource.get("authorization_servers").and_then(Value::as_array);
    let issuer = issuers.and_then(|all| all.iter().find_map(Value::as_str));
    let issuer = issuer.ok_or("its metadata name no authorization server")?.to_owned();
    let scopes = resource
        .get("scopes_supported")
        .and_then(Value::as_array)
        .map(|all| all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "));
    let found = issuer_metadata(clients, server, &issuer).await?;
    let (url, found) = found.ok_or_else(|| format!("the issuer {issuer} has no metadata"))?;
    let scopes = scopes.filter(|scopes| !scopes.is_empty());
    read_issuer(&issuer, &url, &found, scopes, named)
}

fn well_known_root(server: &Url) -> Url {
    let mut root = server.clone();
    root.set_path("");
    root.set_query(None);
    root
}

/// The metadata, and whether they are those of the whole host.
async fn resource_metadata(
    clients: &HttpClients,
    server: &Url,
    challenge: &AuthChallenge,
) -> Result<Option<(Value, bool)>, String> {
    let of_host = well_known(server, "oauth-protected-resource", false);
    if let Some(named) = challenge.resource_metadata() {
        let url = url_named_at(named, server)?;
        let found = metadata(clients, &url).await.map_err(|error| error.to_string())?;
        let found = found.ok_or_else(|| format!("there are no metadata at {url}"))?;
        return Ok(Some((found, url == of_host)));
    }
    let mut candidates = vec![well_known(server, "oauth-protected-resource", true)];
    candidates.push(of_host.clone());
    candidates.dedup();
    for url in candidates {
        if let Some(found) =
            metadata(clients, &safe_url(url.as_str())?).await.map_err(|error| error.to_string())?
        {
            return Ok(Some((found, url == of_host)));
        }
    }
    Ok(None)
}

/// The well-known URL of a name, with or without the path of `url`.
fn well_known(url: &Url, name: &str, with_path: bool) -> Url {
    let mut known = url.clone();
    let path = url.path().trim_end_matches('/');
    known.set_path(&format!("/.well-known/{name}{}", if with_path { path } else { "" }));
    known.set_fragment(None);
    if !with_path {
        known.set_query(None);
    }
    known
}

/// Whether metadata belong to the server: their `resource` is its URL, but for a slash at the end.
fn is_same_resource(named: &str, server: &Url) -> bool {
    let canonical = |url: &Url| {
        let mut url = url.clone();
        url.set_fragment(None);
        url.as_str().trim_end_matches('/').to_owned()
    };
    Url::parse(named).is_ok_and(|named| canonical(&named) == canonical(server))
}

async fn issuer_metadata(
    clients: &HttpClients,
    server: &Url,
    issuer: &str,
) -> Result<Option<(Url, Value)>, String> {
    let base = url_named_at(issuer, server)?;
    let path = base.path().trim_end_matches('/');
    let mut candidates = vec![well_known(&base, "oauth-authorization-server", true)];
    candidates.push(well_known(&base, "openid-configuration", true));
    if !path.is_empty() {
        let mut after = base.clone();
        after.set_path(&format!("{path}/.well-known/openid-configuration"));
        candidates.push(after);
    }
    let mut problem = None;
    for url in candidates {
        match metadata(clients, &url).await {
            Ok(Some(found)) => return Ok(Some((url, found))),
            Ok(None) => {}
            Err(IssuerUnreachable(reason)) => problem = Some(reason),
        }
    }
    problem.map_or(Ok(None), Err)
}

fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name).and_then(Value::as_str)
}

fn read_issuer(
    issuer: &str,
    at: &Url,
    found: &Value,
    resource_scopes: Option<String>,
    resource: &str,
) -> Result<AuthorizationServer, String> {
    // Metadata of another issuer would receive the code and the token (RFC 8414, 3.3).
    let named = text(found, "issuer").unwrap_or_default();
    if named != issuer {
        return Err(format!(
            "the metadata at {at} are of the issuer {named:?}, and not of {issuer:?}"
        ));
    }
    let endpoint = |name: &str| text(found, name).map(|named| url_named_at(named, at)).transpose();
    let needed =
        |name: &str| endpoint(name)?.ok_or_else(|| format!("the issuer {issuer} names no {name}"));
    let list = |name: &str| {
        let all = found.get(name)?.as_array()?;
        Some(all.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>())
    };
    let methods = list("code_challenge_methods_supported").unwrap_or_default();
    if !methods.iter().any(|method| method == "S256") {
        return Err(format!(
            "the issuer {issuer} does not say that it takes PKCE with S256, so a login is not safe"
        ));
    }
    let flag = |name: &str| found.get(name).and_then(Value::as_bool) == Some(true);
    Ok(AuthorizationServer {
        resource: resource.to_owned(),
        issuer: issuer.to_owned(),
        authorization_endpoint: needed("authorization_endpoint")?,
        token_endpoint: needed("token_endpoint")?,
        registration_endpoint: endpoint("registration_endpoint")?,
        revocation_endpoint: endpoint("revocation_endpoint")?,
        auth_methods: list("token_endpoint_auth_methods_supported"),
        names_itself: flag("authorization_response_iss_parameter_supported"),
        takes_documents: flag("client_id_metadata_document_supported"),
        resource_scopes,
        has_offline_access: list("scopes_supported")
            .is_some_and(|scopes| scopes.iter().any(|scope| scope == "offline_access")),
    })
}

/// The parameters of a `Bearer` challenge; empty without one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AuthChallenge {
    params: Option<HashMap<String, String>>,
}

impl AuthChallenge {
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let values = headers.get_all(WWW_AUTHENTICATE).iter();
        let params = values.filter_map(|value| value.to_str().ok()).find_map(bearer_params);
        Self { params }
    }

    fn param(&self, name: &str) -> Option<&str> {
        self.params.as_ref()?.get(name).map(String::as_str)
    }

    /// Whether there is a `Bearer` challenge, so that a login may help.
    pub(crate) fn is_auth(&self) -> bool {
        self.params.is_some()
    }

    /// Whether the token is valid and lacks a scope.
    pub(crate) fn lacks_scope(&self) -> bool {
        self.param("error") == Some("insufficient_scope")
    }

    pub(super) fn scope(&self) -> Option<&str> {
        self.param("scope").filter(|scope| !scope.trim().is_empty())
    }

    pub(super) fn resource_metadata(&self) -> Option<&str> {
        self.param("resource_metadata")
    }
}

/// A scheme, or a parameter with its value, which may be quoted.
static PART: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"([^\s,="]+)\s*(?:=\s*(?:"((?:[^"\\]|\\.)*)(?:"|$)|([^\s,"]*)))?"#)
        .expect("the pattern is well formed")
});

/// The parameters of the first `Bearer` challenge of a header, with names in lower case.
fn bearer_params(text: &str) -> Option<HashMap<String, String>> {
    let mut params = None;
    for part in PART.captures_iter(text) {
        let group = |at| part.get_group(at).map(|span| &text[span]);
        let name = group(1).unwrap_or_default();
        let value = group(2).map(unescaped).or(group(3).map(str::to_owned));
        match (value, &mut params) {
            (Some(value), Some(params)) => {
                let params: &mut HashMap<String, String> = params;
                params.entry(name.to_ascii_lowercase()).or_insert(value);
            }
            (Some(_), None) => {}
            // Another scheme begins.
            (None, Some(_)) => break,
            (None, None) => params = name.eq_ignore_ascii_case("bearer").then(HashMap::new),
        }
    }
    params
}

/// A quoted text, in which a backslash makes any character itself (RFC 9110 5.6.4).
fn unescaped(quoted: &str) -> String {
    let mut chars = quoted.chars();
    std::iter::from_fn(|| match chars.next()? {
        '\\' => chars.next(),
        other => Some(other),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;
    use serde_json::json;

    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).expect("is a URL")
    }

    #[test]
    fn well_known_urls_by_table() {
        let of = |text: &str, with_path| well_known(&url(text), "x", with_path).to_string();
        assert_eq!(of("https://h/a/b", true), "https://h/.well-known/x/a/b");
        assert_eq!(of("https://h/a/b?c=1", false), "https://h/.well-known/x");
        assert_eq!(of("https://h/", true), "https://h/.well-known/x");
    }

    #[test]
    fn metadata_resource_must_match_the_server_url() {
        let server = url("https://h/mcp");
        for (named, expected) in [
            ("https://h/mcp", true),
            ("https://h/mcp/", true),
            ("https://H/mcp", true),
            ("https://h", false),
            ("https://h/mcp/other", false),
            ("https://evil/mcp", false),
            ("", false),
        ] {
            assert_eq!(is_same_resource(named, &server), expected, "{named}");
        }
    }

    #[tokio::test]
    async fn remote_server_cannot_name_a_loopback_url() {
        let clients = HttpClients::default();
        let (near, far) = (url("http://127.0.0.1:9/mcp"), url("https://h/mcp"));
        for named in [
            "http://127.0.0.1:9/m",
            "http://localhost:9/m",
            "https://[::1]:9/m",
            "https://LOCALHOST.:9/m",
            "https://a.localhost:9/m",
            "https://0.0.0.0:9/m",
            "https://[::ffff:127.0.0.1]:9/m",
            "https://[::]:9/m",
        ] {
            let mut headers = HeaderMap::new();
            let challenge = format!("Bearer resource_metadata=\"{named}\"");
            headers
                .insert(WWW_AUTHENTICATE, HeaderValue::from_str(&challenge).expect("is a value"));
            let challenge = AuthChallenge::from_headers(&headers);
            let refused = discover(&clients, &far, &challenge).await.expect_err(named);
            assert!(refused.contains("on this machine"), "{refused}");
            let refused = issuer_metadata(&clients, &far, named).await.expect_err(named);
            assert!(refused.contains("on this machine"), "{refused}");
            // A server on this machine may name an address of this machine.
            assert!(url_named_at(named, &near).is_ok(), "{named}");
        }
    }

    #[test]
    fn issuer_metadata_parse_by_table() {
        let good = json!({
            "issuer": "https://i", "authorization_endpoint": "https://i/a", "token_endpoint": "https://i/t",
            "code_challenge_methods_supported": ["S256"], "scopes_supported": ["offline_access"],
        });
        let read = |change: &dyn Fn(&mut Value)| {
            let mut found = good.clone();
            change(&mut found);
            read_issuer("https://i", &url("https://i/.well-known/x"), &found, None, "https://h")
        };
        assert!(
            read(&|_| {}).is_ok_and(|server| server.has_offline_access && !server.names_itself)
        );
        let changes: [(&str, Value, &str); 7] = [
            ("issuer", json!("https://other"), "not of"),
            ("issuer", json!("https://i/"), "not of"),
            ("code_challenge_methods_supported", json!(["plain"]), "S256"),
            ("token_endpoint", json!("http://i/t"), "only https"),
            ("token_endpoint", json!("http://127.0.0.1:1/t"), "on this machine"),
            ("registration_endpoint", json!("https://localhost/r"), "on this machine"),
            ("authorization_endpoint", Value::Null, "authorization_endpoint"),
        ];
        for (name, value, problem) in changes {
            let error = read(&|found| found[name] = value.clone()).expect_err(name);
            assert!(error.contains(problem), "{name}: {error}");
        }
    }

    #[test]
    fn challenges_parse_by_table() {
        for (text, scope, metadata, lacks, is_auth) in [
            ("Bearer", None, None, false, true),
            ("bearer realm=\"x\"", None, None, false, true),
            (
                "Bearer error=\"insufficient_scope\", scope=\"a b\", resource_metadata=\"https://h/m?a=1,2\"",
                Some("a b"),
                Some("https://h/m?a=1,2"),
                true,
                true,
            ),
            ("Basic realm=\"a, Bearer b\", Bearer scope=one", Some("one"), None, false, true),
            (
                "Bearer scope=\"a \\\"b\\\"\"  , Basic realm=\"x\"",
                Some("a \"b\""),
                None,
                false,
                true,
            ),
            (
                r#"Bearer resource_metadata="https:\/\/h\/m", scope="a\\b""#,
                Some(r"a\b"),
                Some("https://h/m"),
                false,
                true,
            ),
            ("Bearer scope=\"open", Some("open"), None, false, true),
            ("Bearer scope=\"\"", None, None, false, true),
            ("Basic realm=\"x\"", None, None, false, false),
            ("", None, None, false, false),
            ("= ,,\"", None, None, false, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_str(text).expect("is a value"));
            let challenge = AuthChallenge::from_headers(&headers);
            assert_eq!(
                (
                    challenge.scope(),
                    challenge.resource_metadata(),
                    challenge.lacks_scope(),
                    challenge.is_auth()
                ),
                (scope, metadata, lacks, is_auth),
                "{text}"
            );
        }
    }
}
