//! The files of a daemon.

use std::path::{Path, PathBuf};

use super::{ConfigError, Env};

/// The files of one daemon. All paths are absolute; nothing is created here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The data folder, mode 0700.
    pub home: PathBuf,
    /// The database, `svc.db`.
    pub db: PathBuf,
    /// The lock that keeps one daemon per database, `svc.db.lock`.
    pub lock: PathBuf,
    /// The operator token's default file, `token` (`token_file` in the configuration moves it).
    pub token: PathBuf,
    /// The random name of the page, `page_name`.
    pub page_name: PathBuf,
    /// The running daemon's pid and URL, `daemon.json`.
    pub daemon_json: PathBuf,
    /// The Unix socket by which commands of this user reach the running daemon, `svc.sock`.
    pub socket: PathBuf,
    /// The log of background runs, `svc.log`.
    pub log: PathBuf,
    /// The sockets of agent hosts, `agents/`.
    pub agents: PathBuf,
    /// Output of `svc task run` that the daemon has not acknowledged yet, `spool/`.
    pub spool: PathBuf,
    /// The configuration file, which need not exist.
    pub config_file: PathBuf,
    /// Whether the home was chosen (`--home` or `SVC_HOME`) and not derived from the XDG rules.
    pub explicit_home: bool,
}

impl Paths {
    /// Resolves the paths: `home_flag`, else `$SVC_HOME`, else `$XDG_DATA_HOME/svc`, else `~/.local/share/svc`.
    ///
    /// The configuration file is `config.toml` in a chosen home, else `$XDG_CONFIG_HOME/svc/config.toml`, else
    /// `~/.config/svc/config.toml`. Relative XDG variables are ignored, as the XDG specification asks.
    ///
    /// Fails with [`ConfigError::NoHome`] if no rule gives a folder.
    pub fn resolve(env: &Env, home_flag: Option<&Path>) -> Result<Self, ConfigError> {
        let chosen =
            home_flag.map(Path::to_path_buf).or_else(|| env.os("SVC_HOME").map(PathBuf::from));
        if let Some(home) = chosen {
            let home = absolute(&home)?;
            let config_file = home.join("config.toml");
            return Ok(Self::under(home, config_file, true));
        }
        let xdg = |name: &str, fallback: &str| {
            env.os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
                .or_else(|| env.os("HOME").map(|home| Path::new(home).join(fallback)))
                .ok_or(ConfigError::NoHome)
        };
        let home = absolute(&xdg("XDG_DATA_HOME", ".local/share")?.join("svc"))?;
        let config_file = absolute(&xdg("XDG_CONFIG_HOME", ".config")?.join("svc/config.toml"))?;
        Ok(Self::under(home, config_file, false))
    }

    fn under(home: PathBuf, config_file: PathBuf, explicit_home: bool) -> Self {
        Self {
            db: home.join("svc.db"),
            lock: home.join("svc.db.lock"),
            token: home.join("token"),
            page_name: home.join("page_name"),
            daemon_json: home.join("daemon.json"),
            socket: home.join("svc.sock"),
            log: home.join("svc.log"),
            agents: home.join("agents"),
            spool: home.join("spool"),
            config_file,
            explicit_home,
            home,
        }
    }
}

/// A background daemon has another working directory, so no relative path may survive.
fn absolute(path: &Path) -> Result<PathBuf, ConfigError> {
    std::path::absolute(path).map_err(|_| ConfigError::NoHome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_and_config_follow_the_documented_order() {
        type Case<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>, &'a str, &'a str);
        let cases: &[Case<'_>] = &[
            (&[("HOME", "/u")], None, "/u/.local/share/svc", "/u/.config/svc/config.toml"),
            (
                &[("HOME", "/u"), ("XDG_DATA_HOME", "/d"), ("XDG_CONFIG_HOME", "/c")],
                None,
                "/d/svc",
                "/c/svc/config.toml",
            ),
            (
                &[("HOME", "/u"), ("XDG_DATA_HOME", "rel")],
                None,
                "/u/.local/share/svc",
                "/u/.config/svc/config.toml",
            ),
            (
                &[("HOME", "/u"), ("SVC_HOME", "/s"), ("XDG_CONFIG_HOME", "/c")],
                None,
                "/s",
                "/s/config.toml",
            ),
            (
                &[("HOME", "/u"), ("SVC_HOME", "")],
                None,
                "/u/.local/share/svc",
                "/u/.config/svc/config.toml",
            ),
            (&[("SVC_HOME", "/s")], Some("/flag"), "/flag", "/flag/config.toml"),
        ];
        for (vars, flag, home, config) in cases {
            let env: Env = vars.iter().copied().collect();
            let paths = Paths::resolve(&env, flag.map(Path::new)).expect("resolves");
            assert_eq!(
                (paths.home.as_path(), paths.config_file.as_path()),
                (Path::new(home), Path::new(config)),
                "{vars:?}"
            );
            assert_eq!(paths.db, Path::new(home).join("svc.db"));
        }
    }

    #[test]
    fn no_home_at_all_is_an_error_that_says_what_to_set() {
        let error = Paths::resolve(&Env::default(), None).expect_err("nothing is set");
        assert!(error.to_string().contains("SVC_HOME"), "{error}");
    }
}
