//! The owner of the peer of a TCP connection. This one rule decides about cookies, sign-ins, tokens
//! of local processes, `no_auth` and the redirects of logins.
//!
//! A loopback port is open to every user of the machine. The kernel lists each socket with its
//! owner, so a connection that starts on this machine has a user. The rule fails closed: a local
//! connection whose owner is not listed is refused, and every connection if the list cannot be
//! read. Headers have no influence.

use std::{
    collections::HashSet,
    fs,
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

use crate::process_list;

/// The owner of the peer of a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionOwner {
    /// A program of this user, or of root, which can do all that this user can.
    ThisUser,
    /// A program of a user in `proxy_user`: a reverse proxy, which forwards requests of others.
    Proxy,
    /// Another machine, or a container with addresses of its own.
    OtherMachine,
    /// The program may not use this user's credentials, for this reason.
    Refused(&'static str),
}

impl ConnectionOwner {
    /// The owner of the end `from` of a connection to `to`. `proxies` are the users in
    /// `proxy_user`.
    pub fn of_connection(from: SocketAddr, to: SocketAddr, proxies: &[u32]) -> Self {
        let (from, to) = (canonical(from), canonical(to));
        let Ok(mut socket) = listed(from, to) else {
            return Self::Refused("this system does not list who owns its connections");
        };
        // Asked after the list, as a program may bind addresses that no interface has.
        let is_here = socket.is_some() || is_own_address(from.ip());
        if socket.is_none() && is_here {
            // The kernel's list is read in pages, so a row that moves meanwhile may be missed.
            socket = listed(from, to).unwrap_or_default();
        }
        match socket {
            Some(socket) => socket.owner(rustix::process::geteuid().as_raw(), proxies),
            None if is_here => Self::Refused("no program of this machine has this connection open"),
            None if to.ip().is_loopback() => {
                Self::Refused("another machine does not come to a loopback address")
            }
            None => Self::OtherMachine,
        }
    }

    /// Why the peer may not use a credential of this user's browsers or processes, such as a cookie
    /// or a sign-in.
    pub const fn refusal(self) -> Option<&'static str> {
        match self {
            Self::ThisUser | Self::Proxy | Self::OtherMachine => None,
            Self::Refused(why) => Some(why),
        }
    }

    /// Why the peer may not use the token of a process on this machine.
    pub const fn refusal_of_local_token(self) -> Option<&'static str> {
        match self {
            Self::OtherMachine => Some("another machine has no process of this one"),
            _ => self.refusal(),
        }
    }

    pub const fn is_this_user(self) -> bool {
        matches!(self, Self::ThisUser)
    }
}

/// Whether the kernel lets a program bind an address. This asks the kernel's table of local
/// addresses, which has more than those of the interfaces. Any error but "no such address" counts
/// as yes.
pub fn is_own_address(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    if ip.is_loopback() || ip.is_unspecified() {
        return true;
    }
    match UdpSocket::bind((ip, 0)) {
        Err(error) => error.kind() != ErrorKind::AddrNotAvailable,
        Ok(_) => true,
    }
}

/// A row of `proc_net_tcp(5)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ListedSocket {
    local: SocketAddr,
    remote: SocketAddr,
    is_listening: bool,
    user: u32,
    /// 0 if no program has the socket open: a closed socket has no user.
    inode: u64,
}

/// The process of this user at the other end of a connection; `None` if the system does not show
/// it.
pub fn process_of_connection(from: SocketAddr, to: SocketAddr) -> Option<u32> {
    let socket = listed(canonical(from), canonical(to)).ok()??;
    process_list::holder_of_socket(socket.inode).filter(|_| socket.inode != 0)
}

/// An address on which a process of this user listens; `None` if there is none or the system does
/// not show it.
pub fn listening_address(pid: u32) -> Option<SocketAddr> {
    let open = process_list::sockets_of(pid);
    let lists = ["/proc/net/tcp", "/proc/net/tcp6"];
    let lists = lists.iter().filter_map(|list| fs::read_to_string(list).ok());
    lists.filter(|_| !open.is_empty()).find_map(|list| find_listener(&list, &open))
}

fn find_listener(list: &str, open: &HashSet<u64>) -> Option<SocketAddr> {
    let mut listeners = sockets(list).filter(|socket| socket.is_listening);
    listeners.find(|socket| open.contains(&socket.inode)).map(|socket| socket.local)
}

impl ListedSocket {
    fn owner(self, this_user: u32, proxies: &[u32]) -> ConnectionOwner {
        if self.inode == 0 {
            // A program may close its socket at once to hide its user.
            return ConnectionOwner::Refused(
                "the program at the other end has closed the connection",
            );
        }
        if is_shared_number(self.user) {
            return ConnectionOwner::Refused(
                "the system does not show the user of this connection here",
            );
        }
        match self.user {
            user if user == this_user || user == 0 => ConnectionOwner::ThisUser,
            user if proxies.contains(&user) => ConnectionOwner::Proxy,
            _ => {
                ConnectionOwner::Refused("it comes from a program of another user of this machine")
            }
        }
    }
}

/// Whether this is the id that stands for every user whom our user namespace does not map
/// (`user_namespaces(7)`).
fn is_shared_number(user: u32) -> bool {
    let number = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    if number.trim().parse() != Ok(user) {
        return false;
    }
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    // The initial namespace maps all users.
    map.split_ascii_whitespace().ne(["0", "0", "4294967295"])
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The client's end in the kernel's lists. A program that connects over IPv6 may be listed with an
/// IPv4 address.
fn listed(from: SocketAddr, to: SocketAddr) -> io::Result<Option<ListedSocket>> {
    let v4 = fs::read_to_string("/proc/net/tcp")?;
    if let Some(socket) = find(&v4, from, to) {
        return Ok(Some(socket));
    }
    match fs::read_to_string("/proc/net/tcp6") {
        Ok(v6) => Ok(find(&v6, from, to)),
        // A kernel without IPv6 has no such list.
        Err(error) if error.kind() == ErrorKind::NotFound && from.is_ipv4() => Ok(None),
        Err(error) => Err(error),
    }
}

fn find(list: &str, from: SocketAddr, to: SocketAddr) -> Option<ListedSocket> {
    sockets(list).find(|socket| socket.local == from && socket.remote == to)
}

fn sockets(list: &str) -> impl Iterator<Item = ListedSocket> {
    const LISTEN: &str = "0A";
    list.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        Some(ListedSocket {
            local: address(fields.next()?)?,
            remote: address(fields.next()?)?,
            is_listening: fields.next()? == LISTEN,
            // Skips the queues, the timer and the retries.
            user: fields.nth(3)?.parse().ok()?,
            // Skips the timeout. The inode of a closed socket is 0.
            inode: fields.nth(1)?.parse().ok()?,
        })
    })
}

/// The address is in words of four bytes in the processor's byte order, followed by the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok();
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?.to_ne_bytes())),
        32 => {
            let mut bytes = [0; 16];
            for (at, chunk) in bytes.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(at)?.to_ne_bytes());
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, port)))
}

#[cfg(test)]
#[cfg(target_os = "linux")]
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
   7: 070200C0:A0A6 0100007F:18BE 01 00000000:00000000 00:00000000 00000000    33        0 7 1 0
   8: broken
   9: 0100007F:A0A7 0100007F:18BE 01 00000000:00000000 00:00000000 00000000  1000        0 9 1 0";

    #[cfg(target_endian = "little")]
    #[test]
    fn table_of_sockets_names_the_owner_of_each() {
        use ConnectionOwner::{Proxy, ThisUser};
        let closed =
            ConnectionOwner::Refused("the program at the other end has closed the connection");
        let another =
            ConnectionOwner::Refused("it comes from a program of another user of this machine");
        for (ip, port, socket, end) in [
            ("127.0.0.1", 0xA0A0, Some((1001, true)), Some(another)),
            ("127.0.0.1", 0xA0A1, Some((0, false)), Some(closed)),
            ("127.0.0.1", 0xA0A2, Some((0, true)), Some(ThisUser)),
            ("127.0.0.1", 0xA0A3, Some((1000, true)), Some(ThisUser)),
            ("127.0.0.1", 0xA0A4, None, None),
            ("127.0.0.1", 0xA0A5, Some((1000, false)), Some(closed)),
            // From a network address to the loopback address.
            ("192.0.2.7", 0xA0A6, Some((33, true)), Some(Proxy)),
            ("127.0.0.1", 0xA0A6, None, None),
            ("127.0.0.1", 0xA0A7, Some((1000, true)), Some(ThisUser)),
        ] {
            let from = SocketAddr::new(ip.parse().unwrap(), port);
            let found = find(LIST, from, "127.0.0.1:6334".parse().unwrap());
            assert_eq!(found.map(|it| (it.user, it.inode != 0)), socket, "{from}");
            assert_eq!(found.map(|it| it.owner(1000, &[33])), end, "{from}");
        }
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn the_listener_of_a_process_is_found_by_its_sockets() {
        let open = |inodes: &[u64]| inodes.iter().copied().collect::<HashSet<u64>>();
        let at = Some("127.0.0.1:6334".parse().unwrap());
        assert_eq!(find_listener(LIST, &open(&[1, 2])), at);
        assert_eq!(find_listener(LIST, &open(&[2, 3])), None, "these are connections");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(listening_address(std::process::id()).is_some(), "{listener:?}");
    }

    #[test]
    fn only_this_user_is_the_operator_without_a_proxy_between() {
        let refused = ConnectionOwner::Refused("why");
        for (end, cookie, token, is_user) in [
            (ConnectionOwner::ThisUser, true, true, true),
            (ConnectionOwner::Proxy, true, true, false),
            (ConnectionOwner::OtherMachine, true, false, false),
            (refused, false, false, false),
        ] {
            assert_eq!(end.refusal().is_none(), cookie, "{end:?}");
            assert_eq!(end.refusal_of_local_token().is_none(), token, "{end:?}");
            assert_eq!(end.is_this_user(), is_user, "{end:?}");
        }
    }

    #[test]
    fn addresses_of_this_machine_are_told_from_others() {
        for own in ["127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1", "0.0.0.0"] {
            assert!(is_own_address(own.parse().unwrap()), "{own}");
        }
        // Addresses for documentation: this machine may have one of them, but not all three.
        let foreign = ["192.0.2.213", "198.51.100.213", "203.0.113.213"];
        let binds_all = fs::read_to_string("/proc/sys/net/ipv4/ip_nonlocal_bind");
        if binds_all.is_ok_and(|text| text.trim() == "0") {
            assert!(foreign.iter().any(|ip| !is_own_address(ip.parse().unwrap())));
        }
    }

    #[test]
    fn list_of_this_machine_has_our_own_connections() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let to = listener.local_addr().unwrap();
            let client = TcpStream::connect(to).unwrap();
            let from = client.local_addr().unwrap();
            assert_eq!(
                ConnectionOwner::of_connection(from, to, &[]),
                ConnectionOwner::ThisUser,
                "{host}"
            );
            drop(client);
            let end = ConnectionOwner::of_connection(from, to, &[]);
            assert!(matches!(end, ConnectionOwner::Refused(_)), "{host}: it is closed, {end:?}");
        }
    }

    #[test]
    fn another_machine_does_not_come_to_a_loopback_address() {
        let from = "198.51.100.213:40000".parse().unwrap();
        if is_own_address("198.51.100.213".parse().unwrap()) {
            return;
        }
        let end = |to: &str| ConnectionOwner::of_connection(from, to.parse().unwrap(), &[]);
        assert!(matches!(end("127.0.0.1:6334"), ConnectionOwner::Refused(_)));
        assert!(matches!(end("[::ffff:127.0.0.1]:6334"), ConnectionOwner::Refused(_)));
        assert_eq!(end("192.0.2.7:6334"), ConnectionOwner::OtherMachine);
    }
}
