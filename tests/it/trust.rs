//! The daemon's Unix socket, and to whom a secret is sent.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;

use crate::daemon::{Daemon, Home};

/// The answer to one request over the socket, head and body.
fn over_socket(home: &Home, head: &str) -> String {
    let mut stream = UnixStream::connect(home.path("svc.sock")).expect("the daemon listens");
    stream.write_all(format!("{head}\r\nConnection: close\r\n\r\n").as_bytes()).expect("is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn the_socket_serves_the_same_routes_for_its_owner_alone() {
    let mut d = Daemon::start();
    let metadata = fs::symlink_metadata(d.home.path("svc.sock")).expect("is there");
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);

    let token = d.home.token().expect("is there");
    let answer = over_socket(&d.home, "GET /v1/health HTTP/1.1\r\nHost: any.example");
    assert!(answer.starts_with("HTTP/1.1 401 "), "the token is demanded: {answer}");
    let with_token =
        format!("GET /v1/health HTTP/1.1\r\nHost: any.example\r\nAuthorization: Bearer {token}");
    let answer = over_socket(&d.home, &with_token);
    assert!(answer.starts_with("HTTP/1.1 200 "), "there is no question of Host: {answer}");
    let from_a_page = format!("{with_token}\r\nOrigin: http://evil.example");
    let answer = over_socket(&d.home, &from_a_page);
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");

    d.stop();
    fs::symlink_metadata(d.home.path("svc.sock")).expect_err("it is removed at the end");
}

#[test]
fn the_socket_of_a_killed_daemon_is_replaced() {
    let mut d = Daemon::start();
    d.kill9();
    fs::symlink_metadata(d.home.path("svc.sock")).expect("it was left behind");
    UnixStream::connect(d.home.path("svc.sock")).expect_err("nobody listens");
    d.restart();
    let answer = over_socket(&d.home, "GET /health HTTP/1.1\r\nHost: x");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let leftovers: Vec<_> = fs::read_dir(d.home.dir())
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with('.'))
        .collect();
    assert!(leftovers.is_empty(), "{leftovers:?}");
}
