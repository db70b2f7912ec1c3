#!/usr/bin/env python3
"""Coding agents that `svc install` has told of the daemon: what they list, what their hooks tell, what they show when nobody is there.

    SVC_BIN=... SVC_AGENTS=FOLDER[:FOLDER...] install.py [--clients a,b] [--cases x,y] [--jobs 2]

Each case has a home of its own with a space in its name, a file of the person's in place of each that is changed, and a
scripted model, as in agents.py, which says what SVC_AGENTS is.
"""

import argparse
import concurrent.futures
import glob
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

sys.dont_write_bytecode = True
from agents import PATHS, CLIENTS, Model, find_clients, tool  # noqa: E402
from daemon import BIN, Checks, free_port, wait_for  # noqa: E402

NAMES = {"claude": "claude-code"}
SHELL = {
    "claude": {"tool": "Bash", "args": {"command": "echo one", "description": "x"}},
    "codex": {"tool": "exec_command", "args": {"cmd": "echo one"}},
    "gemini": {"tool": "run_shell_command", "args": {"command": "echo one"}},
    "opencode": {"tool": "bash", "args": {"command": "echo one", "description": "x"}},
}
# What a person has already, in the client's own file.
THEIRS = {
    "claude": {".claude/settings.json": json.dumps({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}}, indent=4)},
    "codex": {".codex/config.toml": '# mine\ncheck_for_update_on_startup = false\n'},
    "gemini": {".gemini/settings.json": json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": False},
                                                    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False}})},
    "opencode": {".config/opencode/opencode.jsonc": '{\n\t// mine\n\t"autoupdate": false,\n}\n'},
}


class Person:
    """A home in which svc is installed for one client, and its daemon."""

    def __init__(self, client):
        self.client = client
        self.dir = tempfile.mkdtemp(prefix="svc install ")
        self.home = os.path.join(self.dir, "home")
        self.work = os.path.join(self.home, "work")
        os.makedirs(self.work)
        # Codex has its helpers nowhere below the folder for temporary files.
        os.makedirs(os.path.join(self.dir, "tmp"))
        self.env = {"HOME": self.home, "PATH": os.path.join(self.client.folder) + os.pathsep + PATHS + os.environ["PATH"], "LANG": "C.UTF-8", "TERM": "dumb",
                    "TMPDIR": os.path.join(self.dir, "tmp"), "GIT_CONFIG_GLOBAL": os.path.join(self.home, ".gitconfig"), "NO_PROXY": "127.0.0.1,localhost",
                    # A machine that is busy with tests is slow.
                    "SVC_HOOK_DEADLINE_MS": "3000"}
        self.theirs = THEIRS[client.name]
        for name, text in self.theirs.items():
            path = os.path.join(self.home, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(text)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.svc("stop", check=False)
        shutil.rmtree(self.dir, ignore_errors=True)

    def svc(self, *args, check=True):
        ran = subprocess.run([BIN, *args], env=self.env, cwd=self.work, capture_output=True, text=True, timeout=60)
        assert not check or ran.returncode == 0, f"svc {args}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
        return ran.stdout

    def install(self):
        trust = ["--trust-hooks"] if self.client.name == "codex" else []
        self.svc("install", NAMES.get(self.client.name, self.client.name), *trust)

    def start(self):
        self.svc("start", "--listen", f"127.0.0.1:{free_port()}")

    def popen(self, args, extra):
        args[0] = os.path.join(self.client.folder, args[0])
        return subprocess.Popen(args, env={**self.env, **extra}, cwd=self.work, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, start_new_session=True)

    def finish(self, process, timeout=90):
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return out, err

    def listed(self):
        """What the client says of its servers."""
        args = [self.client.name, "mcp", "list"] + (["--json"] if self.client.name == "codex" else [])
        process = self.popen(args, quiet("http://127.0.0.1:9"))
        out, err = self.finish(process)
        assert process.returncode == 0, (out, err)
        return out + err

    def run(self, steps, meanwhile=None):
        """One session; gives what the model was told, and all that the client printed."""
        model = Model(steps)
        try:
            args, extra = COMMANDS[self.client.name](model.url)
            process = self.popen(args, {**quiet(model.url), **extra})
            if meanwhile:
                meanwhile(model)
            out, err = self.finish(process)
            saw, failures = model.saw(), model.failures()
            told = json.dumps([it.get("new") for it in model.entries()], ensure_ascii=False)
        finally:
            model.close()
        assert process.returncode == 0, f"exit {process.returncode}\n{out[-3000:]}\n{err[-3000:]}"
        assert not failures, f"{failures}\n{saw}"
        assert len(saw) == len(steps) - 1, f"its model was told {saw}"
        return saw, told, out + err

    def sessions(self):
        return json.loads(self.svc("session", "list", "--json"))["sessions"]


def quiet(model):
    return {"ANTHROPIC_BASE_URL": model, "ANTHROPIC_API_KEY": "sk-ant-dummy", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1",
            "DISABLE_AUTOUPDATER": "1", "DISABLE_ERROR_REPORTING": "1", "OPENAI_API_KEY": "sk-dummy", "RUST_LOG": "error", "GEMINI_API_KEY": "dummy",
            "GOOGLE_GEMINI_BASE_URL": model, "GEMINI_CLI_TRUST_WORKSPACE": "true", "GEMINI_CLI_NO_RELAUNCH": "true", "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1"}


def claude(model):
    return ["claude", "-p", "do it", "--output-format", "stream-json", "--verbose", "--allowedTools", "Bash,mcp__svc"], {}


def codex(model):
    provider = f'{{name="mock", base_url="{model}/v1", wire_api="responses", env_key="OPENAI_API_KEY", request_max_retries=0, stream_max_retries=0}}'
    settings = {"model_provider": '"mock"', "model": '"gpt-5"', "model_providers.mock": provider}
    args = ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
    for name, value in settings.items():
        args += ["-c", f"{name}={value}"]
    return [*args, "do it"], {}


def gemini(model):
    return ["gemini", "-p", "do it", "-m", "gemini-2.5-pro", "--approval-mode", "yolo", "--output-format", "json"], {}


def opencode(model):
    models = {"mock-1": {"name": "mock-1", "tool_call": True, "limit": {"context": 200000, "output": 8000}}}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "mock", "options": {"baseURL": f"{model}/v1", "apiKey": "sk-dummy"}, "models": models}
    config = {"model": "mock/mock-1", "small_model": "mock/mock-1", "share": "disabled", "enabled_providers": ["mock"], "provider": {"mock": provider}}
    return ["opencode", "run", "--auto", "--format", "json", "--", "do it"], {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}


COMMANDS = {"claude": claude, "codex": codex, "gemini": gemini, "opencode": opencode}
CONNECTED = {"claude": "svc stdio - ✔ Connected", "codex": '"name": "svc"', "gemini": "✓ svc:", "opencode": "✓ svc"}


# ---------------------------------------------------------------- the cases


def listed(person):
    """The client's own list shows the server connected, and after uninstall no more; the person's file is as it was."""
    name = person.client.name
    person.install()
    person.start()
    assert CONNECTED[name] in person.listed(), person.listed()
    status = json.loads(person.svc("install", "status", NAMES.get(name, name), "--json"))
    assert status["ok"], status
    person.svc("uninstall")
    text = person.listed()
    assert "svc" not in text.replace(person.dir, ""), text
    for file, before in person.theirs.items():
        with open(os.path.join(person.home, file)) as f:
            now = f.read()
        # opencode adds this line to any file that does not have it.
        now = now.replace('  "$schema": "https://opencode.ai/config.json",\n', "")
        assert now == before, f"{file}: {now}"
    assert not glob.glob(person.home + "/**/*.svc-*", recursive=True, include_hidden=True)


def session(person):
    """Hooks make the session known, its tools counted, and a message that comes in the middle reaches the model."""
    name = NAMES.get(person.client.name, person.client.name)
    person.install()
    person.start()
    met = []

    def meanwhile(model):
        model.holding("x")
        met.extend(person.sessions())
        peers = json.loads(person.svc("peer", "list", "--json"))["peers"]
        mine = [it for it in peers if it["backend"] == name]
        assert len(mine) == 1, peers
        person.svc("message", "send", mine[0]["peer_id"], "the build is green")
        model.release("x")

    shell = SHELL[person.client.name]
    second = json.loads(json.dumps(shell).replace("echo one", "echo two"))
    saw, told, printed = person.run([shell, {**tool("peer_list"), "hold": "x"}, second, {"text": "all done"}], meanwhile)
    assert "one" in saw[0] and "as_of" in saw[1] and "two" in saw[2], saw
    mine = [it for it in met if it.get("client") == name]
    assert len(mine) == 1, met
    # Earlier versions give the model nothing of what a hook says after a tool.
    if person.client.name != "claude" or person.client.numbers() >= (2, 1, 0):
        assert "the build is green" in told, told
    after = [it for it in person.sessions() if it["session_id"] == mine[0]["session_id"]]
    assert after[0]["tool_calls"] >= 3, after
    no_hook_errors(person, printed)


def nobody(person):
    """The daemon does not run and cannot be started: the client works, and says nothing of hooks."""
    person.install()
    os.makedirs(os.path.join(person.home, ".config/svc"), exist_ok=True)
    with open(os.path.join(person.home, ".config/svc/config.toml"), "w") as f:
        f.write("this is no configuration\n")
    saw, _, printed = person.run([SHELL[person.client.name], {"text": "all done"}])
    assert "one" in saw[0], saw
    no_hook_errors(person, printed)


def woken(person):
    """A message wakes a session of Claude Code that waits for its person."""
    person.install()
    person.start()
    model = Model([{"text": "first"}, {"text": "second"}])
    args, extra = COMMANDS["claude"](model.url)
    args[args.index("do it")] = "--input-format=stream-json"
    env = {**person.env, **quiet(model.url), **extra, "SVC_HOOKS_WAKE": "always"}
    process = subprocess.Popen([os.path.join(person.client.folder, args[0]), *args[1:]], env=env, cwd=person.work, stdin=subprocess.PIPE,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
    try:
        process.stdin.write(json.dumps({"type": "user", "message": {"role": "user", "content": "hello"}}) + "\n")
        process.stdin.flush()
        model.asked(0)

        def idle():
            peers = json.loads(person.svc("peer", "list", "--json"))["peers"]
            return [it["peer_id"] for it in peers if it["backend"] == "claude-code" and it["status"] == "idle"]

        peer = wait_for(idle, "the session to wait")[0]
        person.svc("message", "send", peer, "the build is green")
        model.asked(1, timeout=20)
        assert "the build is green" in json.dumps(model.calls()[1]["new"]), model.calls()[1]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        model.close()


def terminal(person):
    """A person's session in a terminal: no word of hooks, woken by a message, and /exit waits for no waiter."""
    person.install()
    person.start()
    path = os.path.join(person.home, ".claude.json")
    with open(path) as f:
        config = json.load(f)
    # What else it would ask at its first start.
    trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
    config |= {"hasCompletedOnboarding": True, "theme": "dark", "customApiKeyResponses": {"approved": ["sk-ant-dummy"], "rejected": []}, "projects": {person.work: trusted}}
    with open(path, "w") as f:
        json.dump(config, f)
    model = Model([SHELL["claude"], {"text": "first answer"}, {"text": "second answer"}])
    env = {**person.env, **quiet(model.url), "TERM": "xterm-256color"}
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(person.work)
        os.execve(os.path.join(person.client.folder, "claude"), ["claude", "--allowedTools", "Bash,mcp__svc"], env)
    shown = bytearray()

    def read():
        try:
            while chunk := os.read(screen, 65536):
                shown.extend(chunk)
        except OSError:
            pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()

    def type_in(text, until, what):
        # What is typed before the prompt is there is lost, and so is Enter that comes with the text.
        def there():
            os.write(screen, text.encode())
            time.sleep(0.5)
            os.write(screen, b"\r")
            # A busy machine takes long to ask the model.
            end = time.time() + 8
            while not (counts := until()) and time.time() < end:
                time.sleep(0.1)
            return counts

        wait_for(there, what, 60)

    try:
        wait_for(lambda: "❯".encode() in shown, "the prompt", 30)
        type_in("hello", lambda: model.calls(), "the first turn")
        model.asked(1)

        def idle():
            peers = json.loads(person.svc("peer", "list", "--json"))["peers"]
            return [it["peer_id"] for it in peers if it["backend"] == "claude-code" and it["status"] == "idle"]

        person.svc("message", "send", wait_for(idle, "the session to wait")[0], "the build is green")
        model.asked(2, timeout=20)
        assert "the build is green" in json.dumps(model.calls()[2]["new"]), model.calls()[2]
        wait_for(idle, "the session to wait again")
        started = time.time()
        type_in("/exit", lambda: os.waitpid(pid, os.WNOHANG)[0], "the end")
        pid = 0
        assert time.time() - started < 15, "it waited for something"
        assert b"hook error" not in shown.lower(), shown.decode("utf-8", "replace")
        no_hook_errors(person, "")
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        reader.join(5)
        os.close(screen)
        model.close()


def is_tool_call(line):
    """Whether a client printed here what came of a call: that names hooks, too, beside an error that is null."""
    try:
        item = json.loads(line)["item"]
    except (ValueError, KeyError, TypeError):
        return False
    return item.get("type") == "mcp_tool_call" and item["error"] is None


def no_hook_errors(person, printed):
    for line in printed.splitlines():
        if is_tool_call(line):
            continue
        low = line.lower()
        assert not ("hook" in low and ("error" in low or "fail" in low)) or '"type":"system","subtype":"init"' in line, line
    # Claude Code keeps what it shows of its hooks in the session's file.
    for path in glob.glob(person.home + "/.claude/projects/*/*.jsonl"):
        with open(path) as f:
            assert "hook_non_blocking_error" not in f.read(), path


def gone(person):
    """The program was removed without `svc uninstall`: the client works, and says nothing of hooks."""
    folder = os.path.join(person.dir, "it's here")
    os.makedirs(folder)
    link = os.path.join(folder, "svc")
    os.symlink(BIN, link)
    person.env["PATH"] = folder + os.pathsep + person.env["PATH"]
    person.install()
    os.unlink(link)
    saw, _, printed = person.run([SHELL[person.client.name], {"text": "all done"}])
    assert "one" in saw[0], saw
    no_hook_errors(person, printed)


CASES = {"gone": gone, "listed": listed, "session": session, "woken": woken, "in a terminal": terminal, "nobody there": nobody}


def applies(client, case):
    """The others have no way to be woken, and first starts that are less easily skipped."""
    if client.name != "claude":
        return case not in ("woken", "in a terminal")
    # Since when there is a waiter; since when it wakes a session without a terminal, and lists are worded as here.
    since = {"in a terminal": (2, 1, 64), "woken": (2, 1, 138), "listed": (2, 1, 138)}
    return client.numbers() >= since.get(case, (0, 0, 0))


def run_cases(what, cases, applies, perform):
    """Each case with each client that it applies to, each in a world of its own. `perform(client, case, everyone)` gives a remark, or raises."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", default="")
    parser.add_argument("--cases", default="")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    everyone = [it for it in find_clients() if not it.variant]
    missing = set(CLIENTS) - {it.name for it in everyone}
    if missing:
        print(f"not run: {what} for {', '.join(sorted(missing))} (SVC_AGENTS names no folder that has them)", flush=True)
    clients = [it for it in everyone if not options.clients or any(it.label.startswith(name) for name in options.clients.split(","))]
    checks = Checks()

    def one(client, case):
        started = time.time()
        try:
            remark = perform(client, cases[case], everyone)
            checks.say(f"{client.label}: {what}, {case}" + (f": {remark}" if remark else ""), started)
        except BaseException as error:  # noqa: BLE001  a check may fail in any way
            checks.say(f"{client.label}: {what}, {case}", started, "".join(traceback.format_exception(error)))

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for case in cases:
            for client in clients:
                if applies(client, case) and (not options.cases or case in options.cases.split(",")):
                    pool.submit(one, client, case)
    checks.exit()


def perform(client, case, _everyone):
    with Person(client) as person:
        case(person)


if __name__ == "__main__":
    run_cases("svc install", CASES, applies, perform)
