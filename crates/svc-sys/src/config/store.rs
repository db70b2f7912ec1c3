//! Which database holds the rows, if it is not the file in the data folder.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::setting::{Setting, SettingSources, within, word};
use super::{ConfigError, Flags};

/// `[store]`: a PostgreSQL database and how to reach it.
#[derive(Debug, Clone)]
pub struct StoreSettings {
    /// Unset: the file `svc.db` in the data folder.
    pub url: Setting<Option<StoreUrl>>,
    /// A file that holds only the password.
    pub password_file: Setting<Option<PathBuf>>,
    /// The schema that holds svc's tables.
    pub schema: Setting<String>,
    /// Most connections of the daemon.
    pub max_connections: Setting<u64>,
    pub connect_timeout: Setting<u64>,
    pub listen: Setting<ListenMode>,
}

/// How the daemon learns of commits by other connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListenMode {
    /// The server notifies the daemon.
    Notify,
    /// The daemon polls once a second.
    Poll,
}

impl StoreSettings {
    pub(super) fn resolve(given: &SettingSources<'_>, flags: &Flags) -> Result<Self, ConfigError> {
        let url = given
            .text("store.url", str::parse::<StoreUrl>)?
            .shown_as(|given| given, |url| json!(url.as_ref().map(StoreUrl::shown)));
        let flag: Option<StoreUrl> = flags.store_url.as_deref().and_then(|text| text.parse().ok());
        if flag.is_some_and(|url| url.has_password()) {
            let problem =
                "has a password, and every user of this machine reads the arguments of a process";
            return Err(ConfigError::Invalid {
                source_name: "--store-url:".to_owned(),
                problem: problem.to_owned(),
                advice: "put it into the file that store.password_file names".to_owned(),
            });
        }
        let flag = flags.store_password_file.as_ref();
        Ok(Self {
            url,
            password_file: given.path("store.password_file", flag)?.shown_as(
                |given| given,
                |file| json!(file.as_ref().map(|file| file.to_string_lossy())),
            ),
            schema: given.text("store.schema", schema)?.or("svc".to_owned()),
            max_connections: given
                .checked("store.max_connections", within(FEWEST_CONNECTIONS..=1000))?
                .or(CONNECTIONS),
            connect_timeout: given.checked("store.connect_timeout", Ok)?.or(CONNECT_TIMEOUT),
            listen: given.text("store.listen", word("notify or poll"))?.or(ListenMode::Notify),
        })
    }
}

const CONNECTIONS: u64 = 6;
/// How long a start waits for the server, in seconds.
const CONNECT_TIMEOUT: u64 = 30;
/// One for the writer, one that holds the schema and listens, and one for reads.
const FEWEST_CONNECTIONS: u64 = 3;

/// A name that needs no quotation marks and that the server does not reserve.
fn schema(text: &str) -> Result<String, String> {
    if text.starts_with("pg_") {
        return Err(format!("`{text}`: names that begin with pg_ are the server's own"));
    }
    let is_name = (1..=40).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        && !text.starts_with(|first: char| first.is_ascii_digit());
    if is_name {
        Ok(text.to_owned())
    } else {
        Err(format!("`{text}` is not a name of lower-case letters, digits and _"))
    }
}

/// `Debug` does not show the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// The content of a password file, without the line end.
    pub fn of_file(text: &str) -> Self {
        Self(text.trim_end_matches(['\r', '\n']).to_owned())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The address of a PostgreSQL database. Its password is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl FromStr for StoreUrl {
    type Err = String;

    /// The error does not quote the text, which may contain a password. What the parser does not
    /// understand is refused, as it might also contain one.
    fn from_str(text: &str) -> Result<Self, String> {
        let refused = |why: &str| Err(format!("is not an address such as {EXAMPLE}: {why}"));
        if !["postgres://", "postgresql://"].iter().any(|begin| text.starts_with(begin)) {
            return refused("it begins with postgres://");
        }
        let url = Self(text.to_owned());
        let (_, _, rest) = url.parts();
        let place = rest.split('?').next().unwrap_or_default();
        if text.contains('#') || place.contains('@') || !url.hosts().all(is_host) {
            return refused("write the characters @ : / ? # of a password as %40 %3A %2F %3F %23");
        }
        let query = text.split_once('?').map_or("", |(_, query)| query);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let name = pair.split('=').next().unwrap_or_default();
            if !PARAMETERS.contains(&name) {
                return refused(&format!("its parameters are {}", PARAMETERS.join(", ")));
            }
        }
        Ok(url)
    }
}

const EXAMPLE: &str = "postgres://user@host:5432/svc";

/// The parameters that an address may have.
const PARAMETERS: [&str; 12] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    PASSWORD,
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    TARGET,
    "user",
];
const PASSWORD: &str = "password";
/// Parameter that selects one of several hosts. svc always uses the host that takes writes.
const TARGET: &str = "target_session_attrs";

/// Whether the text is a host with or without a port.
fn is_host(text: &str) -> bool {
    let port = match text.strip_prefix('[').map(|text| text.split_once(']')) {
        Some(Some((_, port))) => port,
        Some(None) => return false,
        None => text.find(':').map_or("", |at| &text[at..]),
    };
    port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

impl StoreUrl {
    /// Scheme, user with password, and the rest of the address.
    fn parts(&self) -> (&str, Option<&str>, &str) {
        let (scheme, rest) = self.0.split_at(self.0.find("://").map_or(0, |at| at + 3));
        let authority = rest.find(['/', '?']).unwrap_or(rest.len());
        match rest[..authority].rfind('@') {
            Some(at) => (scheme, Some(&rest[..at]), &rest[at + 1..]),
            None => (scheme, None, rest),
        }
    }

    /// The hosts as written, with their ports: one, which may be empty, or several.
    fn hosts(&self) -> impl Iterator<Item = &str> {
        let (_, _, rest) = self.parts();
        rest.split(['/', '?']).next().unwrap_or_default().split(',')
    }

    /// One address for each host, in their order. They contain the password.
    pub fn of_each_host(&self) -> Vec<String> {
        let (scheme, user, rest) = self.parts();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let database = rest[end..].split('?').next().unwrap_or_default();
        let query = self.query_without(TARGET);
        let user = user.map_or_else(String::new, |user| format!("{user}@"));
        self.hosts().map(|host| format!("{scheme}{user}{host}{database}{query}")).collect()
    }

    fn query(&self) -> impl Iterator<Item = (&str, &str)> {
        let query = self.0.split_once('?').map_or("", |(_, query)| query);
        query.split('&').filter_map(|pair| pair.split_once('='))
    }

    /// The query with its question mark; empty if no parameter remains.
    fn query_without(&self, left_out: &str) -> String {
        let kept = self.query().filter(|(name, _)| *name != left_out);
        let kept: Vec<String> = kept.map(|(name, value)| format!("{name}={value}")).collect();
        if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) }
    }

    pub fn has_password(&self) -> bool {
        self.parts().1.is_some_and(|user| user.contains(':'))
            || self.query().any(|(name, _)| name == PASSWORD)
    }

    /// The address without the password.
    pub fn shown(&self) -> String {
        let (scheme, user, rest) = self.parts();
        let user = user.map_or_else(String::new, |user| {
            format!("{}@", user.split(':').next().unwrap_or_default())
        });
        let place = rest.split('?').next().unwrap_or_default();
        format!("{scheme}{user}{place}{}", self.query_without(PASSWORD))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_of_an_address_is_not_shown() {
        for (given, shown, has) in [
            (
                "postgres://u:s3cret@db:5432/svc?sslmode=require",
                "postgres://u@db:5432/svc?sslmode=require",
                true,
            ),
            ("postgres://u:p@ss@db/svc", "postgres://u@db/svc", true),
            ("postgres:///svc?host=/run/pg&password=s3cret", "postgres:///svc?host=/run/pg", true),
            ("postgres://db/svc", "postgres://db/svc", false),
            ("postgresql://u@db", "postgresql://u@db", false),
        ] {
            let url: StoreUrl = given.parse().expect("an address");
            assert_eq!((&*url.shown(), url.has_password()), (shown, has), "{given}");
            assert_eq!(format!("{url:?}"), shown);
        }
        for refused in [
            "mysql://u:s3cret@db",
            "postgres://u:p@s3cret:w/or#d?x@db/svc",
            "postgres://u:x/s3cret@db/svc",
            "postgres://u:x#s3cret@db/svc",
            "postgres://u@db/svc?pass%77ord=s3cret",
            "postgres://u@db/svc?PASSWORD=s3cret",
            "postgres://u@db/svc?sslpassword=s3cret",
            "postgres://u@db/svc?s3cret",
            "postgres://u@db:s3cret/svc",
        ] {
            let error = refused.parse::<StoreUrl>().expect_err(refused);
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn each_host_has_an_address_of_its_own() {
        let several =
            "postgres://u:p@a:1,[::1]:2,b/svc?target_session_attrs=read-write&sslmode=require";
        let several: StoreUrl = several.parse().expect("an address");
        let tail = "/svc?sslmode=require";
        let each = ["a:1", "[::1]:2", "b"].map(|host| format!("postgres://u:p@{host}{tail}"));
        assert_eq!(several.of_each_host(), each);
        let socket: StoreUrl = "postgres:///svc?host=/run/pg".parse().expect("an address");
        assert_eq!(socket.of_each_host(), ["postgres:///svc?host=/run/pg"]);
    }
}
