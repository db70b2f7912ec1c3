"""Figures of child servers: what the daemon adds to a call, how many calls it passes on, what it saves, and another gateway.

    SVC_BIN=... gateways.py FOLDER [--quick]

FOLDER has the packages that `tests/clients/run --install` installs. Each figure is measured in turns with what stands beside
it, by one generator: raw sockets and pipes, requests made beforehand. It prints a line for each figure and misses no goal
silently; the exit code is 0 all the same.
"""

import json
import os
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

CHILD = "child" in sys.argv[1:2]
HTTP_CHILD = "http-child" in sys.argv[1:2]


# ---------------------------------------------------------------- the children


def result_of(message):
    method = message.get("method")
    if method == "initialize":
        info = {"name": "echo", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    text = json.dumps(message.get("params", {}).get("arguments"))
    return {"content": [{"type": "text", "text": text}]}


def answer_of(line):
    message = json.loads(line)
    if message.get("id") is None or "method" not in message:
        return None
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result_of(message)})


def serve_pipes():
    for line in sys.stdin:
        answer = answer_of(line)
        if answer is not None:
            sys.stdout.write(answer + "\n")
            sys.stdout.flush()


def serve_http(port):
    listener = socket.create_server(("127.0.0.1", port), backlog=64)

    def serve(peer):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                piece = peer.recv(65536)
                if not piece:
                    return
                data += piece
            head, data = data.split(b"\r\n\r\n", 1)
            lines = head.decode().lower().split("\r\n")
            length = next((int(it.split(":")[1]) for it in lines if it.startswith("content-length:")), 0)
            while len(data) < length:
                data += peer.recv(65536)
            body, data = data[:length], data[length:]
            if not lines[0].startswith("post"):
                peer.sendall(b"HTTP/1.1 405 no\r\ncontent-length: 0\r\n\r\n")
                continue
            if b"server/discover" in body:
                peer.sendall(b"HTTP/1.1 400 no\r\ncontent-length: 0\r\n\r\n")
                continue
            answer = answer_of(body)
            if answer is None:
                peer.sendall(b"HTTP/1.1 202 taken\r\ncontent-length: 0\r\n\r\n")
                continue
            kind = "content-type: application/json\r\nmcp-session-id: one"
            peer.sendall(f"HTTP/1.1 200 ok\r\n{kind}\r\ncontent-length: {len(answer)}\r\n\r\n{answer}".encode())

    while True:
        peer, _ = listener.accept()
        threading.Thread(target=serve, args=(peer,), daemon=True).start()


if CHILD:
    serve_pipes()
    sys.exit(0)
if HTTP_CHILD:
    serve_http(int(sys.argv[2]))
    sys.exit(0)

sys.dont_write_bytecode = True
from daemon import BIN, Daemon, free_port, wait_for  # noqa: E402

FOLDER = sys.argv[1]
QUICK = "--quick" in sys.argv
CALLS = 200 if QUICK else 3000
SECONDS = 0.5 if QUICK else 4
CLIENTS = 2 if QUICK else 10
ARGUMENTS = {"message": "x" * 200}
ZONES = {"source_timezone": "UTC", "target_timezone": "Asia/Tokyo", "time": "12:30"}


# ---------------------------------------------------------------- the generator


def rpc(method, params, ident=1):
    return json.dumps({"jsonrpc": "2.0", "id": ident, "method": method, "params": params})


def tool_call(name):
    arguments = ZONES if name.endswith("convert_time") else ARGUMENTS
    return rpc("tools/call", {"name": name, "arguments": arguments})


def post(address, path, body, headers):
    lines = [f"POST {path} HTTP/1.1", f"Host: {address[0]}:{address[1]}", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}", "", body]
    return "\r\n".join(lines).encode()


class Http:
    """A connection that asks one thing again and again."""

    def __init__(self, address, request):
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request, self.data = request, b""

    def send(self):
        self.socket.sendall(self.request)

    def whole(self):
        """The answer, if all of it is there."""
        end = self.data.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = self.data[:end].lower()
        at = head.find(b"content-length:")
        if at >= 0:
            stop = end + 4 + int(head[at + 15 :].split(b"\r\n", 1)[0])
            if len(self.data) < stop:
                return None
        else:
            stop = self.data.find(b"\r\n0\r\n\r\n", end)
            if stop < 0:
                return None
            stop += 7
        answer, self.data = self.data[:stop], self.data[stop:]
        return answer

    def take(self):
        piece = self.socket.recv(65536)
        if not piece:
            raise EOFError("the connection ended: " + self.data[:300].decode("utf-8", "replace"))
        self.data += piece
        return self.whole()

    def ask(self):
        self.send()
        while (answer := self.take()) is None:
            pass
        return answer


class Pipes:
    """A server on our own pipes."""

    def __init__(self, command, name, cwd=None):
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=cwd)
        self.out, self.data = self.child.stdout.fileno(), b""
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "svc", "version": "1"}}
        self.request = (rpc("initialize", hello) + "\n").encode()
        self.ask()
        os.write(self.child.stdin.fileno(), b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        self.request = (tool_call(name) + "\n").encode()

    def send(self):
        os.write(self.child.stdin.fileno(), self.request)

    def answers(self):
        """How many answers have come, at least one."""
        while True:
            piece = os.read(self.out, 65536)
            if not piece:
                raise EOFError("the server ended")
            self.data += piece
            lines = self.data.split(b"\n")
            self.data = lines.pop()
            got = sum(1 for line in lines if b'"id":' in line and b'"method"' not in line)
            if got:
                return got

    def ask(self):
        self.send()
        self.answers()

    def rate(self, callers):
        for _ in range(callers):
            self.send()
        count, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < SECONDS:
            got = self.answers()
            count += got
            for _ in range(got):
                self.send()
        return count / elapsed

    def end(self):
        self.child.kill()
        self.child.wait()


def rate(address, request, callers):
    """Answers in a second to so many callers, each of whom waits for its answer."""
    selector = selectors.DefaultSelector()
    connections = [Http(address, request) for _ in range(callers)]
    for connection in connections:
        connection.ask()
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.send()
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < SECONDS:
        for key, _ in selector.select(1):
            if key.data.take() is not None:
                count += 1
                key.data.send()
    for connection in connections:
        connection.socket.close()
    return count / elapsed


def in_turns(*asks):
    """Times of each in milliseconds, sorted."""
    for ask in asks:
        for _ in range(50):
            ask()
    times = [[] for _ in asks]
    for _ in range(CALLS):
        for ask, mine in zip(asks, times):
            began = time.perf_counter()
            ask()
            mine.append((time.perf_counter() - began) * 1000)
    return [sorted(mine) for mine in times]


def at(times, share):
    return times[min(len(times) - 1, int(len(times) * share))]


def say(name, value, goal, good, beside=""):
    mark = "" if good is None else ("  met" if good else "  MISSED")
    print(f"{name:<44} {value:<22} goal {goal:<12}{mark}  {beside}", flush=True)


# ---------------------------------------------------------------- the servers


def of_npm(name, *args):
    folder = os.path.join(FOLDER, "servers", "node_modules", "@modelcontextprotocol", f"server-{name}")
    with open(os.path.join(folder, "package.json")) as file:
        entry = json.load(file)["bin"]
    entry = entry if isinstance(entry, str) else next(iter(entry.values()))
    return ["node", os.path.join(folder, entry), *args]


def of_pypi(name, *args):
    return [os.path.join(FOLDER, "servers-venv", "bin", f"mcp-server-{name}"), *args]


def eight(folder):
    repo = os.path.join(folder, "repo")
    subprocess.run(["git", "init", "-q", repo], check=True)
    return {
        "everything": of_npm("everything"), "files": of_npm("filesystem", folder), "more_files": of_npm("filesystem", repo),
        "memory": of_npm("memory"), "thinking": of_npm("sequential-thinking"), "git": of_pypi("git", "--repository", repo),
        "time": of_pypi("time", "--local-timezone", "UTC"), "fetch": of_pypi("fetch"),
    }


def daemon_with(entries):
    daemon = Daemon()
    os.makedirs(daemon.home, mode=0o700)
    with open(os.open(os.path.join(daemon.home, "config.toml"), os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        for name, entry in entries.items():
            file.write(f"[sources.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items()))
    return daemon


def command_of(command, **more):
    return {"command": command[0], "args": command[1:], "sharing": "shared", **more}


def connected(daemon, *names):
    for name in names:
        wait_for(lambda: daemon.rest("GET", f"/v1/sources/{name}")["state"] == "connected", f"{name} is connected", 120)


def request_through(daemon, tool):
    headers = {**daemon.headers, "Accept": "application/json"}
    return ("127.0.0.1", daemon.port), post(("127.0.0.1", daemon.port), "/mcp", tool_call(tool), headers)


# ---------------------------------------------------------------- the figures


OWN = [sys.executable, os.path.abspath(__file__)]


def added():
    port = free_port()
    web = subprocess.Popen([*OWN, "http-child", str(port)])
    daemon = daemon_with({
        "pipe": command_of([*OWN, "child"]), "web": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"},
        "everything": command_of(of_npm("everything")), "time": command_of(of_pypi("time", "--local-timezone", "UTC")),
    })
    children = []
    try:
        with daemon:
            connected(daemon, "pipe", "web", "everything", "time")
            direct = Pipes([*OWN, "child"], "echo")
            children.append(direct)
            address, request = request_through(daemon, "pipe__echo")
            through = Http(address, request)
            assert b'"content"' in through.ask()
            alone, ours = in_turns(direct.ask, through.ask)
            for name, share, most in (("p50", 0.5, 0.3), ("p99", 0.99, 2.0)):
                more = at(ours, share) - at(alone, share)
                say(f"stdio child, {name} above direct", f"{more:.3f} ms", f"≤ {most} ms", more <= most, f"direct {at(alone, share):.3f} ms")
            plain = post(("127.0.0.1", port), "/mcp", tool_call("echo"), {"Accept": "application/json", "Mcp-Session-Id": "one"})
            through = Http(*request_through(daemon, "web__echo"))
            assert b'"content"' in through.ask()
            alone, ours = in_turns(Http(("127.0.0.1", port), plain).ask, through.ask)
            for name, share, most in (("p50", 0.5, 0.5), ("p99", 0.99, None)):
                more = at(ours, share) - at(alone, share)
                good = None if most is None else more <= most
                say(f"HTTP child, {name} above direct", f"{more:.3f} ms", f"≤ {most} ms" if most else "-", good, f"direct {at(alone, share):.3f} ms")
            everything = Pipes(of_npm("everything"), "echo")
            clock = Pipes(of_pypi("time", "--local-timezone", "UTC"), "convert_time")
            children += [everything, clock]
            for name, child, tool in (
                ("server-time (Python)", clock, "time__convert_time"), ("server-everything (Node)", everything, "everything__echo"),
                ("a bare echo", direct, "pipe__echo"),
            ):
                rounds = [(child.rate(16), rate(*request_through(daemon, tool), 16)) for _ in range(1 if QUICK else 3)]
                own, ours = (statistics.median(column) for column in zip(*rounds))
                good = None if child is direct else ours / own >= 0.8
                say(f"16 callers, {name}", f"{ours / own:.2f} × ({ours:.0f}/s)", "≥ 0.8 ×" if good is not None else "-", good, f"its own {own:.0f}/s")
    finally:
        web.kill()
        web.wait()
        for child in children:
            child.end()


def proportional(pids):
    """Memory of processes in MiB: what several share counts once."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except OSError:
            pass
    return total / 1024


def descendants(root):
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    parents[int(entry)] = int(file.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def saved():
    folder = tempfile.mkdtemp(prefix="svc-eight-")
    commands = eight(folder)
    alone = []
    try:
        for _ in range(CLIENTS):
            alone += [Pipes(command, "none", folder) for command in commands.values()]
        without = proportional(pid for it in alone for pid in descendants(it.child.pid))
        for it in alone:
            it.end()
        with daemon_with({name: command_of(command) for name, command in commands.items()}) as daemon:
            connected(daemon, *commands)
            address, request = request_through(daemon, "everything__echo")
            clients = [Http(address, request) for _ in range(CLIENTS)]
            for client in clients:
                client.ask()
            pids = descendants(daemon.child.pid)
            sources = daemon.rest("GET", "/v1/sources")["sources"]
            servers = {source["pid"] for source in sources} | {it["pid"] for source in sources for it in source.get("instances", [])}
            ours = proportional(pids)
            say(f"{CLIENTS} clients, 8 servers: servers", str(len(servers)), "8", len(servers) == 8, f"without {len(alone)}")
            less = 1 - ours / without
            say(f"{CLIENTS} clients, 8 servers: memory", f"{less:.0%} less ({ours:.0f} MiB)", "≥ 80 % less", less >= 0.8, f"without {without:.0f} MiB; the daemon's own is in ours")
    finally:
        for it in alone:
            it.end()
        shutil.rmtree(folder, ignore_errors=True)


def gateways(port):
    """The gateways of others that are installed, and how each passes on the calls of one server."""
    port, child = str(port), [*OWN, "child"]
    python = os.path.join(FOLDER, "gateways-venv", "bin", "mcp-proxy")
    node = os.path.join(FOLDER, "gateways", "node_modules", ".bin", "mcp-proxy")
    return {
        "mcp-proxy (PyPI)": [python, "--port", port, "--stateless", "--", *child],
        "mcp-proxy (npm)": [node, "--port", port, "--host", "127.0.0.1", "--server", "stream", "--stateless", "--", *child],
    }


def beside():
    for name in gateways(0):
        port = free_port()
        command = gateways(port)[name]
        if not os.access(command[0], os.X_OK):
            print(f"not run: {name} (its package is not there)")
            continue
        beside_one(name, command, port)


def beside_one(name, command, port):
    log = open(os.path.join(tempfile.gettempdir(), "gateway.log"), "w")
    proxy = subprocess.Popen(command, stdout=log, stderr=log)
    address = ("127.0.0.1", port)
    request = post(address, "/mcp", tool_call("echo"), {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"})
    try:
        def answers():
            try:
                return b'"content"' in Http(address, request).ask()
            except (OSError, EOFError):
                return False
        wait_for(answers, f"{name} answers", 60)
        with daemon_with({"pipe": command_of([*OWN, "child"])}) as daemon:
            connected(daemon, "pipe")
            for callers in (1, 16):
                rounds = [(rate(address, request, callers), rate(*request_through(daemon, "pipe__echo"), callers)) for _ in range(1 if QUICK else 3)]
                theirs, ours = (statistics.median(column) for column in zip(*rounds))
                say(f"calls/s beside {name}, {callers} callers", f"{ours / theirs:.1f} × ({ours:.0f}/s)", "≥ 5 ×", ours / theirs >= 5, f"{theirs:.0f}/s")
    finally:
        proxy.kill()
        proxy.wait()


for figure in (added, beside, saved):
    if len(sys.argv) < 3 or sys.argv[2].startswith("--") or figure.__name__ in sys.argv[2:]:
        figure()
