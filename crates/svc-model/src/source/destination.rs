//! Where the secrets of a server go. A secret that was set for one destination is given to no
//! other, whatever entry bears the server's name.

use std::fmt;

use url::Url;

use super::{SourceEntry, SourceTransport};

/// What stands for the person's own files.
const OWN: &str = "own";

/// Where the secrets of an entry go: the origin of a server at a URL, the file that names a
/// program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretDestination(String);

impl SecretDestination {
    /// That of an entry. `file` is the project's or plugin's that names it; `None` for the person's
    /// own files.
    pub fn from_entry(entry: &SourceEntry, file: Option<&str>) -> Self {
        let file = file.unwrap_or(OWN);
        let SourceTransport::Remote { url, headers_helper, .. } = &entry.transport else {
            return Self(file.to_owned());
        };
        // What is filled in may be any address, and a helper is told the URL with all that is
        // filled in.
        let helper = headers_helper.as_ref().filter(|_| url.contains("${"));
        match (literal_origin(url), helper) {
            (Some(origin), None) => Self(origin),
            (_, None) => Self(format!("{file} {url}")),
            (_, Some(helper)) => Self(format!("{file} {url} {helper}")),
        }
    }

    /// One that was kept under this name.
    pub fn named(id: &str) -> Self {
        Self(id.to_owned())
    }

    /// What it is kept under.
    pub fn id(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, rest) = self.0.split_once(' ').unwrap_or((&self.0, ""));
        match (file, rest) {
            (OWN, "") => f.write_str("a program of your own configuration"),
            (OWN, url) => f.write_str(url),
            (file, "") if file.starts_with('/') => write!(f, "a program of {file}"),
            (_, _) => f.write_str(&self.0),
        }
    }
}

/// Scheme, host and port of a URL, if no variable has a say in them.
fn literal_origin(url: &str) -> Option<String> {
    let url = url.trim();
    let after = url.find("://")? + "://".len();
    let end = url[after..].find(['/', '\\', '?', '#']).map_or(url.len(), |at| after + at);
    let (head, _) = url.split_at(end);
    if head.contains("${") {
        return None;
    }
    let origin = Url::parse(head).ok()?.origin();
    origin.is_tuple().then(|| origin.ascii_serialization())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn destination(entry: &Value, file: Option<&str>) -> String {
        let (entry, _) = SourceEntry::parse(entry, true).expect("is good");
        SecretDestination::from_entry(&entry, file).id().to_owned()
    }

    #[test]
    fn a_server_at_a_url_is_its_origin_and_a_program_its_file() {
        let file = Some("/p/.mcp.json");
        for (url, origin) in [
            ("https://a.example/mcp", "https://a.example"),
            (" https://A.example:443/other?x=${KEY}", "https://a.example"),
            ("https://a.example:8443/mcp", "https://a.example:8443"),
            ("http://a.example/mcp", "http://a.example"),
            ("https://a.example@b.example/mcp", "https://b.example"),
            ("https://b.example\\@a.example/", "https://b.example"),
        ] {
            let entry = json!({ "type": "http", "url": url });
            assert_eq!(destination(&entry, None), origin, "{url}");
            assert_eq!(destination(&entry, file), origin, "{url}");
        }
        // A variable may be any host: what counts is who has written it, and what.
        for url in
            ["https://${HOST}/mcp", "https://a.example${X}/", "${URL}", "https:/a.example/${X}"]
        {
            let entry = json!({ "type": "http", "url": url });
            assert_eq!(destination(&entry, None), format!("own {url}"));
            assert_eq!(destination(&entry, file), format!("/p/.mcp.json {url}"));
        }
        let entry =
            json!({ "type": "http", "url": "https://a.example/${KEY}", "headersHelper": "./x" });
        assert_eq!(destination(&entry, file), "/p/.mcp.json https://a.example/${KEY} ./x");
        let entry = json!({ "command": "x" });
        assert_eq!(
            (destination(&entry, None), destination(&entry, file)),
            ("own".into(), "/p/.mcp.json".into())
        );
    }
}
