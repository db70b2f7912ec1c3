//! Whose program is at the other end of a connection within this machine.
//!
//! A browser sends a cookie to every port of a host, whoever listens there. So another user of the machine can get the cookie
//! of the page, by a server of its own and a link to that; and gets nothing by it, as its programs may not use it.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use http::Extensions;

use super::listener::{ClientAddress, LocalAddress};

/// A socket as the system lists it (`proc_net_tcp(5)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ListedSocket {
    user: u32,
    /// Whether somebody holds its end: one that is given up has no user any more.
    is_held: bool,
}

/// Whether the program that sent a request may use the cookie of a browser of this daemon's user: it is that user's, or the
/// system's own. Who comes from elsewhere, or over a system that does not list sockets, cannot be asked.
pub(super) fn may_use_cookie(extensions: &Extensions) -> bool {
    let (Some(ClientAddress(from)), Some(LocalAddress(to))) =
        (extensions.get::<ClientAddress>(), extensions.get::<LocalAddress>())
    else {
        return true;
    };
    let (from, to) = (canonical(*from), canonical(*to));
    if !from.ip().is_loopback() {
        return true;
    }
    let file = if from.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" };
    // A browser that connects by IPv6 may have an IPv4 address there, and the other way round.
    let Ok(own_kind) = fs::read_to_string(file) else { return true };
    let other = || fs::read_to_string("/proc/net/tcp6").unwrap_or_default();
    let socket = find(&own_kind, from, to).or_else(|| find(&other(), from, to));
    is_ours(socket, rustix::process::geteuid().as_raw())
}

/// One that is not listed is closed already: who sends and closes at once does not want to be seen.
fn is_ours(socket: Option<ListedSocket>, user: u32) -> bool {
    socket.is_some_and(|socket| socket.is_held && (socket.user == user || socket.user == 0))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The client's end of a connection in a list of sockets.
fn find(list: &str, from: SocketAddr, to: SocketAddr) -> Option<ListedSocket> {
    list.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let is_it = address(fields.next()?)? == from && address(fields.next()?)? == to;
        // The state, the queues, the timer and the retries stand between.
        let user = fields.nth(4)?.parse().ok()?;
        // After the timeout its file, which a socket that nobody holds has not.
        let is_held = fields.nth(1)? != "0";
        is_it.then_some(ListedSocket { user, is_held })
    })
}

/// An address as the list has it: words of four bytes as the processor keeps them, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let words: Vec<[u8; 4]> = (0..ip.len() / 8)
        .map(|word| u32::from_str_radix(ip.get(word * 8..word * 8 + 8)?, 16).ok())
        .map(|word| word.map(u32::to_ne_bytes))
        .collect::<Option<_>>()?;
    let bytes = words.concat();
    let ip = match <[u8; 4]>::try_from(&*bytes) {
        Ok(bytes) => IpAddr::V4(Ipv4Addr::from(bytes)),
        Err(_) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&*bytes).ok()?)),
    };
    Some(canonical(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const LIST: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:18BE 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0
   1: 0100007F:18BE 0100007F:A0A0 01 00000000:00000000 00:00000000 00000000  1000        0 2 1 0 20 4 30 10 -1
   2: 0100007F:A0A0 0100007F:18BE 01 00000000:00000000 00:00000000 00000000  1001        0 3 1 0 20 4 30 10 -1
   3: 0100007F:A0A1 0100007F:18BE 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0
   4: 0100007F:A0A2 0100007F:18BE 08 00000000:00000000 00:00000000 00000000     0        0 4 1 0
   5: 0000000000000000FFFF00000100007F:A0A3 0000000000000000FFFF00000100007F:18BE 01 00000000:00000000 00:00000000 00000000  1000        0 5 1 0
   6: 0100007F:A0A5 0100007F:18BE 05 00000000:00000000 00:00000000 00000000  1000        0 0 3 0
   7: broken";

    #[cfg(target_endian = "little")]
    #[test]
    fn the_user_of_a_socket_by_table() {
        for (port, socket, may) in [
            (0xA0A0, Some((1001, true)), false),
            (0xA0A1, Some((0, false)), false),
            (0xA0A2, Some((0, true)), true),
            (0xA0A3, Some((1000, true)), true),
            (0xA0A4, None, false),
            (0xA0A5, Some((1000, false)), false),
        ] {
            let of = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let found = find(LIST, of(port), of(0x18BE));
            assert_eq!(found.map(|it| (it.user, it.is_held)), socket, "{port:x}");
            assert_eq!(is_ours(found, 1000), may, "{port:x}");
        }
    }

    #[test]
    fn the_list_of_this_machine_has_our_own_connections() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let to = listener.local_addr().unwrap();
            let client = TcpStream::connect(to).unwrap();
            let from = client.local_addr().unwrap();
            let mut extensions = Extensions::new();
            extensions.insert(LocalAddress(to));
            extensions.insert(ClientAddress(from));
            assert!(may_use_cookie(&extensions), "{host}");
            drop(client);
            assert!(!may_use_cookie(&extensions), "{host}: it is closed");
        }
    }
}
