//! The host name of the page: `svc-<random>.localhost`, created once for each data folder.
//!
//! A browser keeps cookies by host and not by port. Under `localhost` or `127.0.0.1` it would send
//! the page's cookie to every server of this machine; under a name that no other server knows it
//! sends the cookie to the daemon alone. So no unauthenticated response contains the name.

use std::io::{self, ErrorKind};

use svc_model::new_secret;
use svc_sys::config::Paths;
use svc_sys::private_file;

/// Characters of the random part.
const LENGTH: usize = 16;

/// The host name of the page. The first call for a data folder creates it.
pub fn page_host(paths: &Paths) -> io::Result<String> {
    if let Some(host) = read(paths)? {
        return Ok(host);
    }
    let name = &new_secret()[..LENGTH];
    match private_file::create_new(&paths.page_name, format!("{name}\n").as_bytes()) {
        Ok(()) => Ok(host_of(name)),
        // A concurrent call created the file.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            read(paths)?.ok_or_else(|| ErrorKind::NotFound.into())
        }
        Err(error) => Err(error),
    }
}

fn read(paths: &Paths) -> io::Result<Option<String>> {
    let Some(text) = private_file::read_secret(&paths.page_name)? else { return Ok(None) };
    let name = text.trim();
    let is_name = (8..=32).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if !is_name {
        let why = "it has no name of 8 to 32 of 0-9 and a-z: remove it, and the next start makes a new one";
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    Ok(Some(host_of(name)))
}

fn host_of(name: &str) -> String {
    format!("svc-{name}.localhost")
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use svc_sys::config::Env;

    use super::*;

    #[test]
    fn page_host_is_kept_in_a_private_file() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::resolve(&Env::default(), Some(folder.path())).unwrap();
        let host = page_host(&paths).unwrap();
        let name = host.strip_prefix("svc-").unwrap().strip_suffix(".localhost").unwrap();
        assert_eq!(name.len(), LENGTH);
        assert_eq!(page_host(&paths).unwrap(), host);
        let mode = fs::metadata(&paths.page_name).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for broken in ["", "short", "With-Capitals", "a.b.c.d.e.f", "evil.example/aaaa"] {
            fs::write(&paths.page_name, broken).unwrap();
            assert!(page_host(&paths).is_err(), "{broken}");
        }
    }
}
