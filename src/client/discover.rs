//! Finding the daemon and the token.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::ClientError;
use super::token_source::TokenSource;
use super::url::Url;
use crate::config::{Config, Env};
use crate::domain::check_secret;
use crate::private_file;

/// How to find the daemon. It is applied again for every connection, as a restart may change the port and the token.
#[derive(Debug, Clone)]
pub struct Discovery {
    fixed: Option<Url>,
    home: PathBuf,
    daemon_json: PathBuf,
    listen: Option<Url>,
    token: Option<Token>,
    token_file: PathBuf,
}

/// Where the daemon is, and the credential for it.
#[derive(Debug, Clone)]
pub struct Target {
    /// The daemon's base URL.
    pub url: Url,
    /// The credential, if there is one.
    pub token: Option<Token>,
    /// Where the credential came from.
    pub token_source: TokenSource,
    /// What the daemon wrote about itself, if that is how it was found.
    pub daemon: Option<DaemonFile>,
}

/// A bearer token; `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// `daemon.json`: written by the daemon once it listens, removed when it exits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonFile {
    /// The daemon's process id.
    pub pid: i32,
    /// Its base URL.
    pub url: String,
    /// Its version.
    pub version: String,
    /// Made anew at every start.
    pub boot_id: String,
    /// RFC 3339.
    pub started_at: String,
}

impl Discovery {
    /// The URL of `--url`, else `SVC_URL`, else `daemon.json`, else the configured address; the token of `SVC_TOKEN`,
    /// else the token file. Reads no file yet.
    ///
    /// Fails if the URL given or the token in the environment cannot be used.
    pub fn new(config: &Config, env: &Env, url_flag: Option<&str>) -> Result<Self, ClientError> {
        let text = |name: &str| env.os(name).map(|value| value.to_string_lossy().into_owned());
        let fixed = url_flag.map(str::to_owned).or_else(|| text("SVC_URL"));
        let token = text("SVC_TOKEN")
            .map(|token| Token::parse(&token, Path::new("SVC_TOKEN")))
            .transpose()?;
        Ok(Self {
            fixed: fixed.as_deref().map(Url::parse).transpose()?,
            home: config.paths.home.clone(),
            daemon_json: config.paths.daemon_json.clone(),
            listen: config
                .listen
                .iter()
                .find(|address| address.port() != 0)
                .copied()
                .map(Url::of_listener),
            token,
            token_file: config.token_file.value.clone(),
        })
    }

    /// Whether the URL was given by flag or environment, so that the daemon may be on another machine.
    pub fn is_fixed(&self) -> bool {
        self.fixed.is_some()
    }

    /// Finds the daemon, without connecting to it.
    ///
    /// Fails with [`ClientError::NotRunning`] if nothing says where it could be, and with
    /// [`ClientError::TokenFile`] if the token file exists but cannot be used.
    pub fn target(&self) -> Result<Target, ClientError> {
        if self.fixed.is_none() || self.token.is_none() {
            // Whoever can write the data folder could send the token where they like.
            private_file::check_folder(&self.home)
                .map_err(|error| ClientError::DataFolder(error.to_string()))?;
        }
        let daemon =
            if self.fixed.is_some() { None } else { DaemonFile::read_live(&self.daemon_json) };
        let url = match (&self.fixed, &daemon) {
            (Some(url), _) => url.clone(),
            (None, Some(daemon)) => Url::parse(&daemon.url)?,
            (None, None) => self.listen.clone().ok_or_else(|| ClientError::NotRunning {
                url: self.daemon_json.display().to_string(),
            })?,
        };
        let (token, token_source) = match &self.token {
            Some(token) => (Some(token.clone()), TokenSource::Env),
            None => match Token::read(&self.token_file)? {
                Some(token) => (Some(token), TokenSource::File(self.token_file.clone())),
                None => (None, TokenSource::Missing(self.token_file.clone())),
            },
        };
        Ok(Target { url, token, token_source, daemon })
    }
}

impl Target {
    /// Whether a connection may go here after one to `previous`.
    ///
    /// A daemon that was found through `daemon.json` is looked for there again. While it restarts the file is not there,
    /// and the configured address may belong to another daemon.
    pub fn may_follow(&self, previous: Option<&Self>) -> bool {
        self.daemon.is_some() || previous.is_none_or(|previous| previous.daemon.is_none())
    }

    /// The same URL without the credential, for a request that needs none.
    #[must_use]
    pub fn without_token(self) -> Self {
        Self { token: None, token_source: TokenSource::Withheld, ..self }
    }
}

impl Token {
    /// Takes a token from text; `source`, a file or a variable's name, is for the message.
    ///
    /// Fails if it is blank or could not stand in a header.
    pub fn parse(text: &str, source: &Path) -> Result<Self, ClientError> {
        let token = text.trim();
        let is_valid = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        if is_valid {
            return Ok(Self(token.to_owned()));
        }
        Err(ClientError::TokenFile {
            path: source.to_path_buf(),
            problem: "it holds no token (one line of letters and digits)".to_owned(),
        })
    }

    /// Reads a token file; `None` if it does not exist.
    pub fn read(path: &Path) -> Result<Option<Self>, ClientError> {
        let bad = |problem: String| ClientError::TokenFile { path: path.to_path_buf(), problem };
        let text = private_file::read_secret(path).map_err(|error| bad(error.to_string()))?;
        let Some(text) = text else { return Ok(None) };
        let token = Self::parse(&text, path)?;
        check_secret(&token.0).map_err(|fault| bad(format!("it {fault}")))?;
        Ok(Some(token))
    }

    /// The token itself, for the header or for someone who asked to see it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl DaemonFile {
    /// Reads the file; `None` if it is not there or not (yet) whole.
    pub fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    /// Reads the file of a daemon whose process exists. A killed daemon leaves its file behind, and whoever has its port
    /// by now must not get a token.
    pub fn read_live(path: &Path) -> Option<Self> {
        Self::read(path).filter(|daemon| process_exists(daemon.pid))
    }
}

/// Whether a process with this id exists and runs. A zombie does not.
pub fn process_exists(pid: i32) -> bool {
    let Some(process) = rustix::process::Pid::from_raw(pid).filter(|_| pid > 0) else {
        return false;
    };
    match rustix::process::test_kill_process(process) {
        Err(rustix::io::Errno::SRCH) => false,
        // Another user's process: it exists.
        Err(_) => true,
        Ok(()) => !is_zombie(pid),
    }
}

fn is_zombie(pid: i32) -> bool {
    // Elsewhere than on Linux there is no such file, and init collects promptly.
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    // The name before the state stands in parentheses and may hold anything, parentheses too.
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| matches!(rest.trim_start().chars().next(), Some('Z' | 'X')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, Paths};

    fn discovery(
        home: &Path,
        env: &[(&str, &str)],
        url: Option<&str>,
    ) -> Result<Discovery, ClientError> {
        let env: Env = env.iter().copied().collect();
        let paths = Paths::resolve(&env, Some(home)).expect("a home is given");
        let config = Config::resolve(paths, &env, &Flags::default()).expect("is valid");
        Discovery::new(&config, &env, url)
    }

    fn write_daemon(home: &Path, pid: i32) {
        let daemon = DaemonFile {
            pid,
            url: "http://127.0.0.1:9999".to_owned(),
            version: "0".to_owned(),
            boot_id: "b".to_owned(),
            started_at: "t".to_owned(),
        };
        std::fs::write(home.join("daemon.json"), serde_json::to_vec(&daemon).expect("serialises"))
            .expect("writes");
    }

    #[test]
    fn the_url_comes_from_the_strongest_source() {
        let home = tempfile::tempdir().expect("a folder");
        let url = |env: &[(&str, &str)], flag: Option<&str>| {
            discovery(home.path(), env, flag)
                .expect("is valid")
                .target()
                .expect("found")
                .url
                .to_string()
        };
        assert_eq!(url(&[], None), "http://127.0.0.1:6334");
        assert_eq!(url(&[("SVC_LISTEN", "0.0.0.0:5")], None), "http://127.0.0.1:5");
        write_daemon(home.path(), i32::MAX);
        assert_eq!(url(&[], None), "http://127.0.0.1:6334", "that process does not exist");
        write_daemon(home.path(), i32::try_from(std::process::id()).expect("fits"));
        assert_eq!(url(&[], None), "http://127.0.0.1:9999");
        assert_eq!(url(&[("SVC_URL", "http://e:1")], None), "http://e:1");
        assert_eq!(url(&[("SVC_URL", "http://e:1")], Some("http://f:1")), "http://f:1");
    }

    #[test]
    fn a_port_chosen_by_the_system_is_known_only_from_the_daemon() {
        let home = tempfile::tempdir().expect("a folder");
        let found = discovery(home.path(), &[("SVC_LISTEN", "127.0.0.1:0")], None)
            .expect("is valid")
            .target();
        assert!(found.expect_err("nothing says where").to_string().contains("svc start"));
    }

    #[test]
    fn the_token_comes_from_the_environment_or_the_file() {
        let home = tempfile::tempdir().expect("a folder");
        let found =
            |env: &[(&str, &str)]| discovery(home.path(), env, None).and_then(|d| d.target());
        assert_eq!(
            found(&[]).expect("found").token_source,
            TokenSource::Missing(home.path().join("token"))
        );
        let write = |token: &str| {
            private_file::replace(&home.path().join("token"), token.as_bytes()).expect("writes");
        };
        let token = crate::domain::new_secret();
        write(&format!("{token}\n"));
        let target = found(&[]).expect("found");
        assert_eq!(target.token.expect("read").expose(), token);
        assert_eq!(
            found(&[("SVC_TOKEN", "xyz")]).expect("found").token.expect("given").expose(),
            "xyz"
        );
        found(&[("SVC_TOKEN", "x y")]).expect_err("has a space");
        write("abc");
        let error = found(&[]).expect_err("can be guessed").to_string();
        assert!(error.contains("128 bits") && error.contains("/token"), "{error}");
        write("");
        found(&[]).expect_err("is empty");
    }

    #[test]
    fn nothing_is_read_from_a_folder_that_others_can_write() {
        use std::os::unix::fs::PermissionsExt as _;
        let home = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o770))
            .expect("is ours");
        let found =
            |env: &[(&str, &str)], url| discovery(home.path(), env, url).and_then(|d| d.target());
        for (env, url) in
            [(&[][..], None), (&[("SVC_TOKEN", "t")], None), (&[], Some("http://e:1"))]
        {
            let error = found(env, url).expect_err("others can write it").to_string();
            assert!(error.contains("chmod 700 "), "{error}");
        }
        found(&[("SVC_TOKEN", "t")], Some("http://e:1")).expect("needs nothing of it");
    }
}
