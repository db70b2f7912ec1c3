//! Projects: the name of a repository, the same in every folder and on every machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{MachineId, Timestamp};

/// Longest name of a project, in bytes.
const NAME_BYTES: usize = 512;

/// A project, with the folders that it is in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Project {
    /// As rows name it: its remote as `host/path`, else its first commit, else its folder; a folder
    /// of another machine than the first stands behind that machine's id and a colon.
    pub project: String,
    /// Further names: a project that gets a remote keeps its rows.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub aliases: Vec<String>,
    /// Where it is, the last used first.
    pub folders: Vec<ProjectFolder>,
}

/// A folder whose project is decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProjectFolder {
    /// Its machine.
    pub machine_id: MachineId,
    /// Name of its machine.
    pub machine: String,
    /// The root.
    pub folder: String,
    /// When it was decided; absent for a folder of before projects had names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<Timestamp>,
    /// About when it was last used.
    pub used_at: Timestamp,
    /// What its repository says now, if that is another project: `svc project move` follows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differs: Option<String>,
}

/// What a move of a folder did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MovedFolder {
    /// The root.
    pub folder: String,
    /// The project before.
    pub from: String,
    /// The project from now on. The same as before if nothing was to be done, or the project got a
    /// further name.
    pub project: String,
    /// The name that the project got.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
}

/// The name of the project whose remote has this address, as `host/path`: the host in lower case,
/// without protocol, user, default port and `.git`. `None` for what names no host, such as a path.
pub fn remote_name(address: &str) -> Option<String> {
    let address = address.trim();
    let (host, path) = match address.split_once("://") {
        Some((scheme, rest)) => {
            let port = default_port(&scheme.to_ascii_lowercase())?;
            // A query or fragment may hold a secret.
            let rest = rest.split(['?', '#']).next().unwrap_or_default();
            let (authority, path) = rest.split_once('/')?;
            (host_of(without_user(authority), port)?, path)
        }
        None => of_scp_form(address)?,
    };
    let path = path.trim_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path).trim_end_matches('/');
    let is_plain = |c: char| !c.is_control() && !c.is_whitespace() && c != '\\';
    let name = format!("{host}/{path}");
    let is_name = !path.is_empty() && path.chars().all(is_plain) && name.len() <= NAME_BYTES;
    is_name.then_some(name)
}

/// Whether a project is named by its remote, and not by a commit or a folder.
pub fn is_remote_name(project: &str) -> bool {
    // A folder of another machine has the machine's id and a colon before it.
    let host = project.split_once('/').map_or("", |(host, _)| host);
    !host.is_empty() && !host.ends_with(':')
}

fn default_port(scheme: &str) -> Option<&'static str> {
    Some(match scheme {
        "ssh" | "git+ssh" | "ssh+git" => "22",
        "git" => "9418",
        "http" => "80",
        "https" => "443",
        "ftp" => "21",
        "ftps" => "990",
        _ => return None,
    })
}

fn without_user(authority: &str) -> &str {
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

/// `user@host:path`, which ssh takes as `ssh://user@host/path`. A colon after a slash is part of a
/// path.
fn of_scp_form(address: &str) -> Option<(String, &str)> {
    let begin = address.find('[').map_or(0, |open| open + address[open..].find(']').unwrap_or(0));
    let colon = begin + address[begin..].find(':')?;
    let (authority, path) = (&address[..colon], &address[colon + 1..]);
    if authority.contains('/') || path.starts_with(':') {
        return None;
    }
    let host = without_user(authority);
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    // Brackets are around an address with colons, or around a host with its port.
    let host = bare.filter(|bare| bare.matches(':').count() == 1).unwrap_or(host);
    Some((host_of(host, "22")?, path))
}

/// The host in canonical form, with its port unless that is the default.
fn host_of(authority: &str, default: &str) -> Option<String> {
    let end = authority.rfind(']').map_or(0, |close| close + 1);
    let (host, port) = match authority[end..].split_once(':') {
        Some((rest, port)) => (&authority[..end + rest.len()], port),
        None => (authority, ""),
    };
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match in_brackets {
        Some(bare) => bare.chars().all(|c| c.is_ascii_hexdigit() || matches!(c, ':' | '.')),
        None => host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')),
    };
    // With a leading dash it is an option of ssh, and git refuses it.
    let is_host = is_host && !host.is_empty() && !host.starts_with(['-', '.']);
    if !is_host {
        return None;
    }
    if port.is_empty() || port == default {
        return Some(host);
    }
    let number: u16 = port.parse().ok()?;
    Some(format!("{host}:{number}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_repository_has_one_name_by_every_address() {
        const ADDRESSES: &str = "https://github.com/ann/shop.git https://github.com/ann/shop \
            https://github.com/ann/shop/ https://github.com/ann/shop.git/ \
            https://GitHub.com:443/ann/shop https://ann:s3cret@github.com/ann/shop.git \
            https://x@y@github.com/ann/shop.git \
            https://github.com/ann/shop.git?token=s3cret#main http://github.com:80/ann/shop.git \
            HTTPS://github.com./ann/shop.git git@github.com:ann/shop.git github.com:ann/shop \
            git@github.com:/ann/shop.git [github.com:22]:ann/shop.git \
            ssh://git@github.com/ann/shop.git ssh://git@github.com:22/ann/shop.git \
            ssh://git@github.com:/ann/shop.git git+ssh://git@github.com/ann/shop.git \
            git://github.com:9418/ann/shop.git";
        for address in ADDRESSES.split(' ').chain([" https://github.com/ann/shop.git\n"]) {
            assert_eq!(remote_name(address).as_deref(), Some("github.com/ann/shop"), "{address}");
        }
    }

    #[test]
    fn what_differs_has_another_name_and_what_names_no_host_has_none() {
        for (address, name) in [
            ("git@github.com:bob/shop.git", Some("github.com/bob/shop")),
            ("git@github.com:ann/Shop.git", Some("github.com/ann/Shop")),
            ("ssh://git@git.example:2222/ann/shop", Some("git.example:2222/ann/shop")),
            ("[git.example:2222]:ann/shop", Some("git.example:2222/ann/shop")),
            ("https://git.example:22/ann/shop", Some("git.example:22/ann/shop")),
            ("ssh://[2001:DB8::1]:22/shop", Some("[2001:db8::1]/shop")),
            ("git@[::1]:shop.git", Some("[::1]/shop")),
            ("https://git.example/~ann/a%20b.git", Some("git.example/~ann/a%20b")),
            ("https://git.example/shop.git.git", Some("git.example/shop.git")),
            ("/srv/git/shop.git", None),
            ("../shop.git", None),
            ("./a:b/shop.git", None),
            ("file:///srv/git/shop.git", None),
            ("C:\\src\\shop", None),
            ("ext::sh -c whoami", None),
            ("codecommit::eu://shop", None),
            ("ssh://-oProxyCommand=x/shop", None),
            ("-oProxyCommand=x:shop", None),
            ("https:///shop", None),
            ("https://git.example", None),
            ("https://git.example/", None),
            ("https://git.example/.git", None),
            ("https://git.example:99999/shop", None),
            ("https://git.example:x/shop", None),
            ("https://gi\u{301}t.example/shop", None),
            ("https://git.example/a b", None),
            ("https://git.example/a\u{1b}[2Jb", None),
            ("https://git.example/a\nb", None),
            ("https://git example/shop", None),
            ("", None),
            (":", None),
            ("@:", None),
            ("[", None),
            ("]:[", None),
        ] {
            assert_eq!(remote_name(address).as_deref(), name, "{address}");
        }
        assert_eq!(remote_name(&format!("git.example:{}", "x".repeat(600))), None);
    }

    #[test]
    fn folders_and_commits_are_no_remotes() {
        for (project, is) in [
            ("github.com/ann/shop", true),
            ("git.example:2222/shop", true),
            ("/home/ann/shop", false),
            ("mach_01:/home/ann/shop", false),
            ("0123456789012345678901234567890123456789", false),
            ("", false),
        ] {
            assert_eq!(is_remote_name(project), is, "{project}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_a_valid_remote_name_or_none(text in any::<String>()) {
            if let Some(name) = remote_name(&text) {
                prop_assert!(is_remote_name(&name));
                prop_assert!(!name.contains(|c: char| c.is_control() || c.is_whitespace()));
            }
        }

        #[test]
        fn remote_name_of_a_remote_name_is_itself(
            user in "[a-z:]{0,8}", host in "[A-Za-z0-9]{1,8}(\\.[a-z]{2,5}){0,2}", port in 1000u16..9000,
            path in "[a-zA-Z0-9~_]{1,6}(/[a-zA-Z0-9_-]{1,6}){0,3}"
        ) {
            let user = if user.is_empty() { user } else { format!("{user}@") };
            let host_name = host.to_lowercase();
            let name = remote_name(&format!("https://{user}{host}:{port}/{path}.git")).unwrap();
            prop_assert_eq!(&name, &format!("{host_name}:{port}/{path}"));
            prop_assert_eq!(remote_name(&format!("ssh://{name}")).unwrap(), name);
            let by_scp = remote_name(&format!("git@{host}:{path}")).unwrap();
            prop_assert_eq!(remote_name(&format!("https://{host}/{path}/")).unwrap(), by_scp);
        }
    }
}
