#!/usr/bin/env python3
"""Coding agents against the real daemon: Claude Code, Codex, Gemini CLI and opencode, headless, with a scripted model.

    SVC_BIN=... SVC_AGENTS=FOLDER[:FOLDER...] agents.py [--clients a,b] [--cases x,y] [--jobs 2] [--long] [--keep DIR] [--fixtures DIR]

SVC_AGENTS names folders with the executables claude, codex, gemini, opencode (and node, if that of the PATH is too old
for them); a folder with another version of one of them is tried, too. --long adds what takes minutes. --keep puts what each client sent and got, and what its model was told, into DIR; --fixtures writes what it sent, scrubbed, as tests/it/mcp_agents.rs sends it again.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request

sys.dont_write_bytecode = True
import mock_llm  # noqa: E402
from daemon import BIN, Checks, Daemon, wait_for  # noqa: E402

PROMPT = "do it"
END = {"text": "all done"}


# What a session's client lists. Every other tool is called by one of these.
LISTED = {"ToolCall", "ToolSearch", "TaskWait", "peer_inbox", "peer_list", "peer_send", "resolve_ghap", "search_experiences", "start_ghap"}


def tool(name, **args):
    if name not in LISTED:
        name, args = "ToolCall", {"name": name, "arguments": args}
    return {"tool": f"mcp:svc/{name}", "args": args}


# ---------------------------------------------------------------- the model


class Model:
    """The scripted model. Steps are what it answers, one after the other."""

    def __init__(self, steps):
        self.log = tempfile.NamedTemporaryFile(prefix="model-", suffix=".jsonl", delete=False)
        self.server = mock_llm.serve(0, steps, self.log.name)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def entries(self):
        return list(self.server.recent)

    def calls(self):
        """The model calls that took a step."""
        return [it for it in self.entries() if "api" in it and it["entry"] != "side"]

    def saw(self):
        """What the model was told after each of its answers but the last."""
        return [it["last"] for it in self.calls()[1:]]

    def failures(self):
        return [it["failure"] for it in self.entries() if "failure" in it]

    def asked(self, step, timeout=60):
        """Waits until the answer `step` (from 0) was given."""
        wait_for(lambda: len(self.calls()) > step, f"step {step}", timeout)

    def holding(self, name, timeout=60):
        wait_for(lambda: any(it.get("holding") == name for it in self.entries()), f"hold {name}", timeout)

    def release(self, name):
        self.server.script.event(name).set()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        os.unlink(self.log.name)


# ---------------------------------------------------------------- what is between client and daemon


class Tap:
    """Passes bytes on and writes them down; drop() cuts all connections."""

    def __init__(self, port, log=None):
        self.target, self.log, self.lock = port, log, threading.Lock()
        self.open, self.started, self.count = set(), time.time(), 0
        # Per connection: what the client sent, piece by piece with its time, and what it got.
        self.sent, self.got = {}, {}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                reset(client)
                continue
            self.count += 1
            pair = (client, server)
            self.open.add(pair)
            for source, sink, name in ((client, server, ">>>"), (server, client, "<<<")):
                threading.Thread(target=self.pass_on, args=(source, sink, pair, name, self.count), daemon=True).start()

    def pass_on(self, source, sink, pair, name, number):
        kept = (self.sent if name == ">>>" else self.got).setdefault(number, [])
        name = f"{name} {number}"
        try:
            while data := source.recv(65536):
                kept.append((time.time(), data))
                self.write(name, data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for it in pair:
                reset(it)
        self.write(name, b"(closed)")
        self.open.discard(pair)

    def write(self, name, data):
        if self.log and not self.log.closed:
            text = data.decode("utf-8", "replace").replace("\r\n", "\n")
            with self.lock:
                self.log.write(f"### {name}  {time.time() - self.started:.3f}s\n{text}\n")

    def drop(self):
        for pair in list(self.open):
            for it in pair:
                reset(it)

    def close(self):
        self.listener.close()
        self.drop()


def messages(pieces):
    """The HTTP messages in a stream of bytes: time, first line, headers, body."""
    ends, data = [], b""
    for at, piece in pieces:
        data += piece
        ends.append((len(data), at))
    found, place = [], 0
    while (end := data.find(b"\r\n\r\n", place)) > 0:
        at = next(at for stop, at in ends if stop > place)
        first, *lines = data[place:end].decode().split("\r\n")
        headers = [tuple(line.split(": ", 1)) for line in lines]
        by_name = {name.lower(): value for name, value in headers}
        place = end + 4
        if "chunked" in by_name.get("transfer-encoding", ""):
            stop = data.find(b"\r\n0\r\n\r\n", place - 2)
            place, body = (len(data), data[place:]) if stop < 0 else (stop + 7, data[place:stop])
        else:
            length = int(by_name.get("content-length", 0))
            body, place = data[place : place + length], place + length
        found.append((at, first, headers, body.decode("utf-8", "replace")))
    return found


# Headers that a connection makes, or that say nothing of the client.
LEFT_OUT = ("host", "connection", "content-length", "date")


def fixture(tap, scrub):
    """What a client sent, in its order, and in a line what it got: a file that a test can send again."""
    exchanges = []
    for number, pieces in tap.sent.items():
        answers = messages(tap.got.get(number, []))
        for (at, first, headers, body), answer in zip(messages(pieces), answers):
            got = {name.lower(): value for name, value in answer[2]}
            line = f"<<< {answer[1].split(' ')[1]} {got.get('content-type', '-')}"
            lines = [first] + [f"{name}: {value}" for name, value in headers if name.lower() not in LEFT_OUT]
            exchanges.append((at, "\n".join([*lines, "", body, line]) + "\n"))
    text = "###\n".join(text for _, text in sorted(exchanges))
    for secret, name in scrub.items():
        text = text.replace(secret, name)
    return text


def reset(connection):
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    connection.close()


# ---------------------------------------------------------------- the clients


class Server:
    """How a client reaches the daemon: by URL and token, or by a command."""

    def __init__(self, kind, url="", token="", command=(), env=None):
        self.kind, self.url, self.token, self.command, self.env = kind, url, token, list(command), env or {}
        self.headers = {"Authorization": f"Bearer {token}"}


def claude(server, model, home, **_):
    if server.kind == "stdio":
        entry = {"type": "stdio", "command": server.command[0], "args": server.command[1:], "env": server.env}
    else:
        entry = {"type": server.kind, "url": server.url, "headers": server.headers}
    env = {"ANTHROPIC_BASE_URL": model, "ANTHROPIC_API_KEY": "sk-ant-dummy", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
           "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_ERROR_REPORTING": "1"}
    config = json.dumps({"mcpServers": {"svc": entry}})
    return ["claude", "-p", PROMPT, "--output-format", "json", "--allowedTools", "mcp__svc", "--strict-mcp-config", "--mcp-config", config], env


def codex(server, model, home, variant="", plain=False):
    os.makedirs(f"{home}/.codex", exist_ok=True)
    env = {"CODEX_HOME": f"{home}/.codex", "OPENAI_API_KEY": "sk-dummy", "MCP_TOKEN": server.token, "RUST_LOG": "error"}
    provider = f'{{name="mock", base_url="{model}/v1", wire_api="responses", env_key="OPENAI_API_KEY", request_max_retries=0, stream_max_retries=0}}'
    # With the first of these models all tools are called from JavaScript, with the second each by itself.
    settings = {"model_provider": '"mock"', "model": '"gpt-5"' if plain else '"gpt-6.1-sol"', "check_for_update_on_startup": "false",
                "model_providers.mock": provider, "mcp_servers.svc.default_tools_approval_mode": '"approve"'}
    if server.kind == "stdio":
        pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in server.env.items())
        settings |= {"mcp_servers.svc.command": json.dumps(server.command[0]), "mcp_servers.svc.args": json.dumps(server.command[1:]),
                     "mcp_servers.svc.env": f"{{{pairs}}}"}
    else:
        settings |= {"mcp_servers.svc.url": json.dumps(server.url), "mcp_servers.svc.bearer_token_env_var": '"MCP_TOKEN"'}
    args = ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
    for name, value in settings.items():
        args += ["-c", f"{name}={value}"]
    if variant == "modern":
        args += ["--enable", "mcp_2026_07_28", "--enable", "mcp_tool_list_changed"]
    return [*args, PROMPT], env


def gemini(server, model, home, **_):
    if server.kind == "stdio":
        entry = {"command": server.command[0], "args": server.command[1:], "env": server.env}
    else:
        entry = {"url" if server.kind == "sse" else "httpUrl": server.url, "headers": server.headers}
    settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": False},
                "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False}, "mcpServers": {"svc": {**entry, "trust": True}}}
    os.makedirs(f"{home}/.gemini", exist_ok=True)
    with open(f"{home}/.gemini/settings.json", "w") as f:
        json.dump(settings, f)
    env = {"GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": model, "GEMINI_CLI_TRUST_WORKSPACE": "true", "GEMINI_CLI_NO_RELAUNCH": "true"}
    return ["gemini", "-p", PROMPT, "-m", "gemini-2.5-pro", "--approval-mode", "yolo", "--output-format", "json"], env


def opencode(server, model, home, **_):
    if server.kind == "stdio":
        entry = {"type": "local", "command": server.command, "environment": server.env, "enabled": True}
    else:
        entry = {"type": "remote", "url": server.url, "headers": server.headers, "oauth": False, "enabled": True}
    models = {"mock-1": {"name": "mock-1", "tool_call": True, "limit": {"context": 200000, "output": 8000}}}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "mock", "options": {"baseURL": f"{model}/v1", "apiKey": "sk-dummy"}, "models": models}
    config = {"model": "mock/mock-1", "small_model": "mock/mock-1", "autoupdate": False, "share": "disabled", "enabled_providers": ["mock"],
              "provider": {"mock": provider}, "mcp": {"svc": entry}}
    env = {"OPENCODE_CONFIG_CONTENT": json.dumps(config), "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
           "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1", "XDG_CONFIG_HOME": f"{home}/.config",
           "XDG_DATA_HOME": f"{home}/.local/share", "XDG_STATE_HOME": f"{home}/.local/state", "XDG_CACHE_HOME": f"{home}/.cache"}
    return ["opencode", "run", "--auto", "--format", "json", "--", PROMPT], env


CLIENTS = {"claude": claude, "codex": codex, "gemini": gemini, "opencode": opencode}


class Client:
    def __init__(self, name, folder, version, variant=""):
        self.name, self.folder, self.version, self.variant = name, folder, version, variant
        self.label = f"{name} {version}" + (f" {variant}" if variant else "")

    def numbers(self):
        return tuple(int(it) for it in self.version.split("."))

    def start(self, server, model, home, plain=False):
        args, extra = CLIENTS[self.name](server, model, home, **({"variant": self.variant, "plain": plain} if self.name == "codex" else {}))
        for folder in ("work", "tmp"):
            os.makedirs(os.path.join(home, folder), exist_ok=True)
        args[0] = os.path.join(self.folder, args[0])
        env = {"HOME": home, "PATH": PATHS + os.environ["PATH"], "LANG": "C.UTF-8", "TERM": "dumb", "TMPDIR": f"{home}/tmp",
               "GIT_CONFIG_GLOBAL": f"{home}/.gitconfig", "NO_PROXY": "127.0.0.1,localhost", **extra}
        return subprocess.Popen(args, env=env, cwd=f"{home}/work", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, start_new_session=True)


def find_clients():
    found = {}
    for folder in FOLDERS:
        for name in CLIENTS:
            path = os.path.join(folder, name)
            if not os.access(path, os.X_OK):
                continue
            with tempfile.TemporaryDirectory() as home:
                env = {"HOME": home, "PATH": PATHS + os.environ["PATH"], "CODEX_HOME": home}
                ran = subprocess.run([path, "--version"], env=env, capture_output=True, text=True, timeout=60)
            version = re.search(r"\d+\.\d+\.\d+", ran.stdout)
            version = version[0] if version else "?"
            found[name, version, ""] = Client(name, folder, version)
            if name == "codex":
                found[name, version, "modern"] = Client(name, folder, version, "modern")
    return list(found.values())


FOLDERS = [os.path.abspath(it) for it in os.environ.get("SVC_AGENTS", "").split(os.pathsep) if it]
PATHS = "".join(folder + os.pathsep for folder in FOLDERS)


# ---------------------------------------------------------------- a run


class Run:
    """One client, one daemon, one case."""

    def __init__(self, client, case, keep, fixtures):
        self.client, self.case, self.keep, self.fixtures = client, case, keep, fixtures
        self.scrub = {}
        self.dir = tempfile.mkdtemp(prefix="svc-agents-")
        self.home = os.path.join(self.dir, "home")
        self.project = os.path.join(self.home, "work")
        os.makedirs(self.project)
        self.daemon = Daemon()
        self.note = ""

    def query(self, sql, *args):
        db = sqlite3.connect(f"file:{self.daemon.home}/svc.db?mode=ro", uri=True)
        try:
            return db.execute(sql, args).fetchall()
        finally:
            db.close()

    def sessions(self):
        return self.query("select count(*) from mcp_session")[0][0]

    def task(self):
        """A task of the project in which the client works: its session may read it."""
        peer = {"display_name": "worker", "backend": "codex", "path": self.project}
        return self.daemon.task(self.daemon.rest("POST", "/v1/peers/register", peer)["peer_id"])

    def asked_for(self, method):
        """How often the daemon of now was asked for something, by its metrics."""
        request = urllib.request.Request(self.daemon.url + "/metrics", headers=self.daemon.headers)
        with urllib.request.urlopen(request, timeout=10) as r:
            lines = r.read().decode().splitlines()
        pattern = re.compile(rf'svc_mcp_requests_total\{{[^}}]*method="{re.escape(method)}"[^}}]*\}} (\S+)')
        return sum(float(m[1]) for m in map(pattern.match, lines) if m)

    def go(self, steps, meanwhile=None, kind="http", tap=False, timeout=90, plain=False, started=True):
        """Runs the client to its end; gives what its model was told."""
        if kind == "stdio":
            server = Server("stdio", command=[BIN, "stdio"], env={"SVC_HOME": self.daemon.home})
        else:
            token = self.daemon.rest("POST", "/v1/tokens", {"session": "agent", "project": self.project})["token"]
            server = Server(kind, token=token)
        log = open(os.path.join(self.keep, f"{self.client.label}-{self.case}.http".replace(" ", "-")), "w") if self.keep else None
        self.tap = Tap(self.daemon.port, log) if tap or log or self.fixtures else None
        server.url = (self.tap or self.daemon).url + ("/sse" if kind == "sse" else "/mcp")
        self.model = model = Model(steps)
        process = self.client.start(server, model.url, self.home, plain)
        errors = []

        def beside():
            try:
                meanwhile(model)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=beside, daemon=True)
        try:
            if meanwhile:
                thread.start()
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired as late:
                raise AssertionError(f"the client is not done after {timeout} s; its model was told {model.saw()}") from late
            if meanwhile:
                thread.join(10)
        finally:
            # What it started may outlive it.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            if self.tap:
                self.tap.close()
            if log:
                self.tap.log = None
                json.dump({"model was told": model.saw(), "failures": model.failures()}, log, indent=1)
                log.close()
            saw, failures = model.saw(), model.failures()
            model.close()
        if self.fixtures and kind != "stdio":
            scrub = {server.token: "{token}", self.home: "/home/user", **self.scrub}
            scrub |= {session: "{session}" for (session,) in self.query("select session_id from mcp_session")}
            name = f"{self.client.label}-{self.case}.http".replace(" ", "-")
            with open(os.path.join(self.fixtures, name), "w") as f:
                f.write(fixture(self.tap, scrub))
        if errors:
            raise errors[0]
        assert process.returncode == 0, f"exit {process.returncode}\n{out[-2000:]}\n{err[-2000:]}\nits model was told {saw}"
        assert not failures, f"{failures}\nits model was told {saw}"
        assert len(saw) == len(steps) - 1, f"its model was told {saw}"
        return saw

    def legacy(self):
        return self.sessions() > 0


def says(text, *patterns):
    """A result in any of the forms that clients make of it: quotes may be escaped, spaces may be there or not."""
    for pattern in patterns:
        pattern = pattern.replace(":", r'[\\" ]*:[\\" ]*')
        assert re.search(pattern, text), f"{pattern!r} is not in {text!r}"


# ---------------------------------------------------------------- the cases


def base(run, kind="http"):
    bob = run.daemon.rest("POST", "/v1/peers/register", {"display_name": "bob", "backend": "codex", "path": "/repo"})["peer_id"]
    task = run.task()
    run.daemon.finish(task)
    run.scrub[task] = "{task}"
    saw = run.go([
        tool("peer_register", display_name="ada", backend=run.client.name, path="/repo"),
        tool("peer_list"),
        tool("peer_send", to="bob", text="is main green?", type="query"),
        tool("TaskList", limit=5),
        tool("TaskWait", task_id=task, timeout_s=30),
        tool("events_read", stream="team", limit=3),
        tool("TaskGet", task_id="nope"),
        tool("TaskGet", task_id=task, frames="many"),
        END,
    ], kind=kind)
    says(saw[0], "display_name:ada")
    says(saw[1], "display_name:ada", "display_name:bob")
    says(saw[2], "is main green")
    says(saw[3], f"task_id:{task}")
    says(saw[4], "status:done", "timed_out:false")
    says(saw[5], "next_after:")
    # A failure arrives as what it is, and not as a fault of the schema.
    says(saw[6], "type:not_found", "there is no task")
    # Gemini checks arguments itself.
    assert re.search("validation_error|must be integer", saw[7]), saw[7]
    if kind != "stdio":
        inbox = run.daemon.rest("GET", f"/v1/peers/{bob}/messages")
        assert [it["text"] for it in inbox["messages"]] == ["is main green?"], inbox
    if run.client.name == "claude" and not run.legacy():
        run.note = "2026-07-28"


def parallel(run):
    saw = run.go([{"tools": [tool("peer_list"), tool("TaskList"), tool("events_read", limit=3)]}, END])
    assert len(saw) == 1, saw
    says(saw[0], "as_of:", "tasks:", "next_after:")


def restart(run):
    """kill -9 between two calls of one session."""

    def meanwhile(model):
        model.holding("x")
        run.daemon.crash()
        time.sleep(2.5)
        model.release("x")

    before = tool("peer_list")
    saw = run.go([before, {**tool("TaskList", limit=7), "hold": "x"}, {**tool("peer_list", limit=9)}, END], meanwhile)
    says(saw[0], "as_of:")
    says(saw[1], "tasks:")
    says(saw[2], "as_of:")
    if run.legacy():
        assert run.sessions() == 1, f"{run.sessions()} sessions"


def restart_in_call(run, kind="http", down=0.0, timeout=200, politely=False):
    """kill -9 while the client waits in a call; the task ends after the restart."""
    task = run.task()

    def meanwhile(model):
        model.asked(0)
        time.sleep(2)
        if politely:
            run.daemon.restart()
        else:
            run.daemon.crash(down)
        time.sleep(1)
        run.daemon.finish(task)
        model.holding("x", timeout)
        if down and is_patient(run.client):
            # It has taken the server for lost, and comes back by itself.
            wait_for(lambda: run.asked_for("tools/list"), "the client", 30)
            time.sleep(0.5)
        model.release("x")

    steps = [tool("TaskWait", task_id=task, timeout_s=60), {**tool("TaskWait", task_id=task, timeout_s=50), "hold": "x"}, END]
    saw = run.go(steps, meanwhile, kind=kind, timeout=timeout)
    resumed = re.search(r'status[\\" ]*:[\\" ]*done', saw[0])
    says(saw[1], "status:done")
    run.note = "the call went on" if resumed else f"failed ({saw[0][:160]!r}), and went well when it was repeated"
    assert resumed or not (run.legacy() or kind == "stdio"), f"the call did not go on: {saw[0]!r}"


def down(run):
    """A call while nobody is there fails; the next one, with the daemon back, does not."""

    def meanwhile(model):
        model.holding("x")
        run.daemon.kill9()
        model.release("x")
        model.holding("y")
        run.daemon.start()
        time.sleep(2.5)
        model.release("y")

    saw = run.go([tool("peer_list"), {**tool("TaskList", limit=7), "hold": "x"}, {**tool("TaskList", limit=9), "hold": "y"}, END], meanwhile)
    assert not re.search("next_cursor|tasks", saw[1]) or "rror" in saw[1], saw[1]
    says(saw[2], "tasks:")
    run.note = f"told while it was down: {saw[1][:120]!r}"


def drop(run):
    """All connections are cut while the client waits in a call, and once more while it does nothing."""
    task = run.task()

    def meanwhile(model):
        model.asked(0)
        time.sleep(2)
        run.tap.drop()
        time.sleep(2)
        run.daemon.finish(task)
        model.holding("x", 200)
        run.tap.drop()
        time.sleep(2.5)
        model.release("x")

    steps = [tool("TaskWait", task_id=task, timeout_s=60), {**tool("TaskWait", task_id=task, timeout_s=50), "hold": "x"}, END]
    saw = run.go(steps, meanwhile, tap=True, timeout=200)
    resumed = re.search(r'status[\\" ]*:[\\" ]*done', saw[0])
    says(saw[1], "status:done")
    run.note = "the call went on" if resumed else f"failed ({saw[0][:160]!r}), and went well when it was repeated"
    assert resumed or not run.legacy(), f"the call did not go on: {saw[0]!r}"


def list_changed(run):
    """The daemon comes back with other tools, and the client looks again by itself."""

    def meanwhile(model):
        model.holding("x")
        run.daemon.kill9()
        db = sqlite3.connect(f"{run.daemon.home}/svc.db")
        with db:
            db.execute("update mcp_session set tools = 1 where tools is not null")
        db.close()
        run.daemon.start()
        try:
            wait_for(lambda: run.asked_for("tools/list"), "tools/list", 6)
            run.note = "listed again"
        except TimeoutError:
            run.note = "did not list again"
        model.release("x")

    saw = run.go([tool("peer_list"), {**tool("TaskList"), "hold": "x"}, END], meanwhile)
    says(saw[1], "tasks:")
    if run.legacy():
        # Codex does so only where it is told to, and to Gemini a server whose stream has once broken is as good as gone.
        assert run.note == "listed again" or run.client.name in ("codex", "gemini"), run.note


def slow(run, seconds=20, plain=True):
    """A call that is silent but for what the daemon says of itself."""
    task = run.task()
    started = []

    def meanwhile(model):
        model.asked(0)
        started.append(time.time())
        time.sleep(seconds)
        run.daemon.finish(task)

    saw = run.go([tool("TaskWait", task_id=task, timeout_s=seconds + 60), END], meanwhile, timeout=seconds + 60, plain=plain)
    says(saw[0], "status:done")


def child(run, kind="http"):
    """A tool of a child server is found and called, also after kill -9 of the daemon, which ends and starts the server."""
    server = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "it", "sources", "toy_server.py")
    subprocess.run([BIN, "mcp", "add", "toy", "--", "python3", server], env=run.daemon.env, check=True, capture_output=True)

    def works():
        """The server's processes: that which learns its lists, and those of projects."""
        def pids():
            source = run.daemon.rest("GET", "/v1/sources/toy")
            return source["state"] == "connected" and {source["pid"], *(it["pid"] for it in source.get("instances", []))}

        return wait_for(pids, "the server works", 60)

    works()
    pids = []

    def meanwhile(model):
        model.holding("x")
        pids.append(works())
        run.daemon.crash()
        pids.append(works())
        time.sleep(2.5)
        model.release("x")

    again = {**tool("toy__odd", value="2"), "hold": "x"}
    saw = run.go([tool("ToolSearch", query="toy cwd"), tool("toy__cwd"), tool("toy__a_b", value="1"), again, tool("toy__cwd", value="3"), END], meanwhile, kind=kind)
    says(saw[0], "name:toy__cwd")
    for folder in (saw[1], saw[4]):
        says(folder, "/[a-z]+")
    says(saw[2], "called a.b")
    # The text, or the number, which clients read as their language does.
    assert re.search(r"\bA\b|1\.?2345678", saw[3]), saw[3]
    before, after = pids
    assert before and not before & after, pids
    for pid in before:
        assert not os.path.exists(f"/proc/{pid}"), f"{pid} of before the kill is left"


CASES = {
    "base": base,
    "child server": child,
    "child server (stdio)": lambda run: child(run, "stdio"),
    "sse": lambda run: base(run, "sse"),
    "stdio": lambda run: base(run, "stdio"),
    "parallel": parallel,
    "restart": restart,
    "restart in a call": restart_in_call,
    "restart in a call (down for 3 s)": lambda run: restart_in_call(run, down=3),
    "restart in a call (stdio)": lambda run: restart_in_call(run, "stdio"),
    "polite restart in a call": lambda run: restart_in_call(run, politely=True, timeout=60),
    "call while it is down": down,
    "connections cut": drop,
    "list_changed": list_changed,
    "slow call": slow,
}
LONG = {"slow call (75 s)": lambda run: slow(run, 75)}


# Cases that cut off a call.
CUT = ("restart in a call", "connections cut")


def applies(client, case):
    # Codex has never had the transport of 2024-11-05, and its other era changes nothing on stdio.
    return not (client.name == "codex" and case == "sse") and not (client.variant == "modern" and "stdio" in case)


def is_patient(client):
    """Claude Code in its newer era notices only after two minutes that a call is lost, if the server is still there."""
    return client.name == "claude" and tuple(map(int, client.version.split("."))) > (2, 1, 300)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", default="")
    parser.add_argument("--cases", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--keep")
    parser.add_argument("--fixtures")
    options = parser.parse_args()
    cases = {**CASES, **(LONG if options.long else {})}
    if options.cases:
        cases = {name: it for name, it in {**CASES, **LONG}.items() if name in options.cases.split(",")}
    clients = find_clients()
    missing = set(CLIENTS) - {it.name for it in clients}
    if missing:
        print(f"not run: {', '.join(sorted(missing))} (SVC_AGENTS names no folder that has them)", flush=True)
    if options.clients:
        clients = [it for it in clients if any(it.label.startswith(name) for name in options.clients.split(","))]
    for folder in filter(None, (options.keep, options.fixtures)):
        os.makedirs(folder, exist_ok=True)
    checks = Checks()

    def one(client, case):
        started = time.time()
        run = Run(client, case, options.keep, options.fixtures)
        try:
            with run.daemon:
                cases[case](run)
            checks.say(f"{client.label}: {case}" + (f": {run.note}" if run.note else ""), started)
        except BaseException as error:  # noqa: BLE001  a check may fail in any way
            checks.say(f"{client.label}: {case}", started, "".join(traceback.format_exception(error)))
        finally:
            shutil.rmtree(run.dir, ignore_errors=True)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for case in cases:
            for client in clients:
                if not applies(client, case):
                    continue
                if is_patient(client) and case in CUT and not options.long:
                    print(f"not run: {client.label}: {case} (it takes two minutes; --long runs it)", flush=True)
                    continue
                pool.submit(one, client, case)
    checks.exit()


if __name__ == "__main__":
    main()
