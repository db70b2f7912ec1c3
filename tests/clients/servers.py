"""Real MCP servers, called directly and through the daemon: what they give is the same, byte for byte."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from daemon import Checks, Daemon, wait_for

checks = Checks()
NPM = os.path.join(sys.argv[1], "servers", "node_modules")
PYTHON = os.path.join(sys.argv[1], "servers-venv", "bin")


class Direct:
    """A server on our own pipes."""

    def __init__(self, command, args, cwd):
        self.child = subprocess.Popen(
            [command, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=cwd, text=True
        )
        self.id = 0
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "svc", "version": "1"}}
        self.ask("initialize", params)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message):
        self.child.stdin.write(json.dumps(message) + "\n")
        self.child.stdin.flush()

    def ask(self, method, params):
        """The result as it is written."""
        self.id += 1
        self.send({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params})
        for line in self.child.stdout:
            message = json.loads(line)
            if message.get("id") == self.id and "method" not in message:
                return raw_result(line)
        raise RuntimeError("the server ended")

    def end(self):
        self.child.kill()
        self.child.wait()


def raw_result(text):
    """The member `result` or `error` of an answer, without reading its numbers and strings."""
    decoder = json.JSONDecoder()
    for member in ('"result":', '"error":'):
        at = text.find(member)
        if at >= 0:
            start = at + len(member)
            while text[start] == " ":
                start += 1
            _, end = decoder.raw_decode(text, start)
            return text[start:end]
    raise AssertionError(text)


def through(daemon, method, params):
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    headers = {**daemon.headers, "Content-Type": "application/json", "Accept": "application/json"}
    request = urllib.request.Request(daemon.url + "/mcp", body, headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return raw_result(reply.read().decode())


def node(package, entry, *args):
    return "node", [os.path.join(NPM, package, entry), *args]


def entry_of(package):
    with open(os.path.join(NPM, package, "package.json")) as file:
        entry = json.load(file)["bin"]
    return entry if isinstance(entry, str) else next(iter(entry.values()))


def servers(folder):
    repo = os.path.join(folder, "repo")
    subprocess.run(["git", "init", "-q", repo], check=True)
    page = f"http://127.0.0.1:{serve_page()}/"
    def official(name):
        return f"@modelcontextprotocol/server-{name}"
    def of_node(name, *args):
        return node(official(name), entry_of(official(name)), *args)
    def of_python(name, *args):
        return os.path.join(PYTHON, f"mcp-server-{name}"), list(args)
    with open(os.path.join(folder, "note.txt"), "w") as file:
        file.write("a note\nwith \u00fc and \u2028 in it\n")
    zone = {"timezone": "UTC", "source_timezone": "UTC", "target_timezone": "Asia/Tokyo", "time": "12:30"}
    return {
        "everything": (of_node("everything"), [
            ("echo", {"message": "h\u00e9llo"}), ("get-sum", {"a": 1, "b": 2.5}), ("get-tiny-image", {}),
            ("get-structured-content", {"location": "New York"}), ("get-annotated-message", {"messageType": "error"}),
        ]),
        "filesystem": (of_node("filesystem", folder), [
            ("read_text_file", {"path": os.path.join(folder, "note.txt")}), ("list_directory", {"path": folder}),
            ("read_text_file", {"path": "/etc/passwd"}),
        ]),
        "memory": (of_node("memory"), [("read_graph", {}), ("search_nodes", {"query": "x"})]),
        "thinking": (of_node("sequential-thinking"), [
            ("sequentialthinking", {"thought": "x", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}),
        ]),
        "git": (of_python("git", "--repository", repo), [("git_status", {"repo_path": repo}), ("git_branch", {"repo_path": repo, "branch_type": "local"})]),
        "time": (of_python("time", "--local-timezone", "UTC"), [("convert_time", {key: zone[key] for key in ("source_timezone", "target_timezone", "time")})]),
        "fetch": (of_python("fetch", "--ignore-robots-txt"), [("fetch", {"url": page})]),
    }


def serve_page():
    import http.server

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = b"<html><body><h1>Hi</h1><p>there</p></body></html>"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def compare(daemon, name, command, args, calls, folder):
    def state():
        return daemon.rest("GET", f"/v1/sources/{name}")["state"] == "connected"
    wait_for(state, f"{name} is connected", 60)
    direct = Direct(command, args, folder)
    try:
        for tool, arguments in calls:
            expected = direct.ask("tools/call", {"name": tool, "arguments": arguments})
            got = through(daemon, "tools/call", {"name": f"{name}__{tool}", "arguments": arguments})
            assert got == expected, f"{tool}:\n{got[:500]}\n{expected[:500]}"
        listed = json.loads(direct.ask("tools/list", {}))["tools"]
        shown = {tool["name"]: tool for tool in json.loads(listed_through(daemon))["tools"]}
        for tool in listed:
            ours = shown[f"{name}__{tool['name']}"]
            for member, value in tool.items():
                if member == "execution" and value.get("taskSupport") == "required":
                    # The daemon waits for the child's task itself, and answers a plain call.
                    value = {**value, "taskSupport": "forbidden"}
                if member not in ("name", "description"):
                    assert ours[member] == value, f"{tool['name']}.{member}"
    finally:
        direct.end()


def listed_through(daemon):
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
    headers = {**daemon.headers, "Content-Type": "application/json", "Accept": "application/json", "Svc-Expose": "all"}
    with urllib.request.urlopen(urllib.request.Request(daemon.url + "/mcp", body, headers), timeout=30) as reply:
        return raw_result(reply.read().decode())


def main():
    folder = tempfile.mkdtemp(prefix="svc-servers-")
    here = servers(folder)
    daemon = Daemon()
    os.makedirs(daemon.home, mode=0o700)
    with open(os.path.join(daemon.home, "config.toml"), "w") as file:
        for name, ((command, args), _) in here.items():
            file.write(f"[sources.{name}]\ncommand = {json.dumps(command)}\nargs = {json.dumps(args)}\ncwd = {json.dumps(folder)}\n")
    os.chmod(os.path.join(daemon.home, "config.toml"), 0o600)
    began = time.time()
    with daemon:
        checks.run("servers: readiness does not wait for them", lambda: (time.time() - began < 20) or 1 / 0)
        for name, ((command, args), calls) in here.items():
            checks.run(f"servers: {name} is the same", lambda: compare(daemon, name, command, args, calls, folder))
    checks.exit()


main()
