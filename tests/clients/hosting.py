#!/usr/bin/env python3
"""Agents by others below `svc agent host`, against the scripted model: turns, a tool, a permission, an interrupt, resuming, and a
daemon that is killed in the middle of a turn.

    python3 hosting.py SVC BIN [NAME...]      BIN: folders (a:b) with the agents' executables

NAME is of claude, codex, gemini, opencode, the adapters claude-acp and codex-acp, or `one` (a hosted Claude Code that runs its hooks,
too). One line for each check; exit 1 if one failed.
"""
import glob, json, os, shutil, signal, socket, subprocess, sys, tempfile, threading, time, urllib.error, urllib.request

import daemon

HERE = os.path.dirname(os.path.abspath(__file__))
SVC, BIN = sys.argv[1:3]
daemon.BIN = SVC
BACKENDS = sys.argv[3:] or ["claude", "codex", "gemini", "opencode", "claude-acp", "codex-acp"]
# Adapters of the Agent Client Protocol: their programs, and whose tools their models have.
ADAPTERS = {"claude-acp": ("claude-agent-acp", "claude"), "codex-acp": ("codex-acp", "codex")}
FAILED = []
# What the daemon shows when it answers a request of an agent.
KEY = os.urandom(32).hex()
SLEEP = "python3 -c 'import time; time.sleep(30.0471)'"
LONG = "python3 -c 'import time; time.sleep(4.0471)'; echo TOOL-SAID-THIS"


def check(name, right, seen=""):
    print(f"{'ok   ' if right else 'FAIL '} {name}{'' if right else f': {seen}'}", flush=True)
    if not right:
        FAILED.append(name)


class Model:
    """The scripted model, with one script."""

    def __init__(self, folder, steps):
        self.folder = tempfile.mkdtemp(dir=folder)
        os.makedirs(os.path.join(self.folder, "bodies"))
        steps_file, ready = os.path.join(self.folder, "steps.json"), os.path.join(self.folder, "ready")
        with open(steps_file, "w") as file:
            json.dump(steps, file)
        self.log = os.path.join(self.folder, "log")
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "mock_llm.py"), "--port", "0", "--steps", steps_file,
                                         "--log", self.log, "--ready-file", ready, "--bodies", os.path.join(self.folder, "bodies")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: os.path.exists(ready) and open(ready).read().strip(), "the model is ready")
        self.url = open(ready).read().strip().rstrip("/")


def kind(backend):
    """Whose tools it has."""
    return ADAPTERS.get(backend, (None, backend))[1]


def program(name):
    """The first of the folders that has it."""
    name = ADAPTERS.get(name, (name,))[0]
    found = (os.path.join(folder, name) for folder in BIN.split(":"))
    return next((path for path in found if os.path.exists(path)), None)


def until(condition, what, seconds=60):
    end = time.time() + seconds
    while time.time() < end:
        if condition():
            return True
        time.sleep(0.02)
    raise TimeoutError(what)


def shell(command, backend):
    """A call of each agent's own tool for commands."""
    if backend == "codex-acp":
        # Its Codex runs in its sandbox, without a question, what does not want more.
        more = {"sandbox_permissions": "require_escalated", "justification": "because"}
        return {"tool": "exec_command", "args": {"cmd": command, "yield_time_ms": 60000, **more}}
    backend = kind(backend)
    if backend == "codex":
        return {"tool": "exec_command", "args": {"cmd": command}}
    if backend == "gemini":
        return {"tool": "run_shell_command", "args": {"command": command, "description": "x"}}
    return {"tool": "Bash" if backend == "claude" else "bash", "args": {"command": command, "description": "x"}}


def told(words, entry):
    """What the model answers to this prompt. What else it is asked, such as for a title, takes no step from it."""
    return {"when": rf"\b{words}\s*$", **entry}


# What it takes five seconds to say.
LINES = [f"line {number}" for number in range(6)]
SPEECH = {"text": "\n".join(LINES), "pace": 1}

# What it answers to the result of its call.
SAID = {"when": "TOOL-SAID-THIS", "text": "second answer"}


def environment(backend, home, model):
    common = {"HOME": home, "PATH": f"{BIN}:{os.environ['PATH']}", "LANG": "C.UTF-8", "TMPDIR": os.path.join(home, "tmp"),
              "NO_PROXY": "127.0.0.1,localhost", "NODE_NO_WARNINGS": "1"}
    if backend == "codex-acp":
        mock = {"name": "mock", "base_url": model.url + "/v1", "wire_api": "responses", "env_key": "OPENAI_API_KEY",
                "request_max_retries": 0, "stream_max_retries": 0}
        config = {"model_provider": "mock", "model": "gpt-6.1-sol", "check_for_update_on_startup": False, "model_providers": {"mock": mock}}
        common |= {"CODEX_CONFIG": json.dumps(config), "MODEL_PROVIDER": "mock", "NO_BROWSER": "1", "INITIAL_AGENT_MODE": "workspace-write"}
    backend = kind(backend)
    if backend == "claude":
        return {**common, "ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "sk-ant-dummy", "IS_SANDBOX": "1",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1"}
    if backend == "codex":
        return {**common, "CODEX_HOME": os.path.join(home, ".codex"), "OPENAI_API_KEY": "sk-dummy", "RUST_LOG": "error"}
    if backend == "gemini":
        return {**common, "GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": model.url, "GEMINI_CLI_TRUST_WORKSPACE": "true",
                "GEMINI_CLI_NO_RELAUNCH": "true"}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "mock", "options": {"baseURL": model.url + "/v1", "apiKey": "sk-dummy"},
                "models": {"mock-1": {"name": "mock-1", "tool_call": True, "limit": {"context": 200000, "output": 8000}}}}
    config = {"model": "mock/mock-1", "small_model": "mock/mock-1", "autoupdate": False, "share": "disabled",
              "enabled_providers": ["mock"], "provider": {"mock": provider}, "permission": {"bash": "ask", "edit": "ask"}}
    return {**common, "OPENCODE_CONFIG_CONTENT": json.dumps(config), "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1"}


def command(backend, model):
    file = program(backend)
    if backend in ADAPTERS:
        return [file]
    if backend == "codex":
        provider = f'{{name="mock", base_url="{model.url}/v1", wire_api="responses", env_key="OPENAI_API_KEY", request_max_retries=0, stream_max_retries=0}}'
        return [file, "-c", "model_provider=mock", "-c", 'model="gpt-6.1-sol"', "-c", f"model_providers.mock={provider}",
                "-c", "check_for_update_on_startup=false"]
    if backend == "gemini":
        return [file, "-m", "gemini-2.5-pro"]
    return [file]


def furnish(backend, home):
    """The folders and files that a client wants in its home."""
    os.makedirs(os.path.join(home, "tmp"), exist_ok=True)
    os.makedirs(os.path.join(home, "work"), exist_ok=True)
    if kind(backend) == "codex":
        os.makedirs(os.path.join(home, ".codex"), exist_ok=True)
    if kind(backend) == "codex":
        # As `svc install codex` leaves it.
        with open(os.path.join(home, ".codex/config.toml"), "w") as file:
            file.write(f'[mcp_servers.svc]\ncommand = "{SVC}"\nargs = ["stdio"]\n')
    if backend == "gemini":
        os.makedirs(os.path.join(home, ".gemini"), exist_ok=True)
        with open(os.path.join(home, ".gemini/settings.json"), "w") as file:
            json.dump({"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": False},
                       "general": {"enableAutoUpdate": False}}, file)


class Host:
    """A host, and one connection to it."""

    def __init__(self, folder, backend, model, home, **spec):
        furnish(backend, home)
        self.id = f"ag_{os.urandom(6).hex()}"
        document = {"agent_id": self.id, "folder": os.path.join(folder, "agents"), "instance": backend, "session_key": f"agent:{backend}:main",
                    "backend": "acp" if backend in ADAPTERS else backend, "command": command(backend, model), "cwd": os.path.join(home, "work"),
                    "env": environment(backend, home, model), "linger_ms": 500, "answer_key": KEY, **spec}
        started = subprocess.run([SVC, "agent", "host"], input=json.dumps(document).encode(), stdout=subprocess.PIPE, timeout=60)
        self.started = json.loads(started.stdout)
        if "error" in self.started:
            raise RuntimeError(self.started["error"])
        self.events, self.replies, self.deltas = [], [], []
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(self.started["socket_path"])
        self.lines = b""
        self.ask("host.attach")

    def read(self, seconds):
        self.socket.settimeout(seconds)
        try:
            self.lines += self.socket.recv(1 << 20)
        except TimeoutError:
            return
        *whole, self.lines = self.lines.split(b"\n")
        for line in map(json.loads, whole):
            # What is being said has no offset: its finished entry has all of it.
            (self.replies if "success" in line else self.events if "offset" in line else self.deltas).append(line)

    def ask(self, kind, **payload):
        if kind == "host.answer":
            payload["key"] = KEY
        self.socket.sendall(json.dumps({"type": kind, "payload": payload}).encode() + b"\n")
        until(lambda: self.read(0.05) or self.replies, kind)
        return self.replies.pop(0)

    def wait(self, condition, after=0, seconds=60):
        """The first event with a larger offset for which the condition holds."""
        def find():
            self.read(0.05)
            return next((event for event in self.events if event["offset"] > after and condition(event)), None)
        try:
            until(find, "an event", seconds)
        except TimeoutError:
            print("      last events:", *[json.dumps(event)[:300] for event in self.events[-12:]], sep="\n        ")
            raise
        return find()

    def last(self):
        return self.events[-1]["offset"] if self.events else 0

    def turn(self, after=0):
        return self.wait(lambda event: event["type"] == "state" and "turn" in event, after)

    def entries(self, **like):
        return [event["chat_entry"] for event in self.events if event["type"] == "chat_entry"
                and all(event["chat_entry"].get(name) == value for name, value in like.items())]

    def states(self):
        return [event["state"] for event in self.events if event["type"] == "state"]

    def stop(self):
        return self.ask("host.stop", timeout=10)["payload"]


def sleepers(words=b"sleep(30.0471)"):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = open(f"/proc/{pid}/cmdline", "rb").read()
        except OSError:
            continue
        if words in line and b"agent" not in line and b"outlived" not in line:
            found.append(pid)
    return found


def scenario(backend, folder):
    home = os.path.join(folder, "home")
    model = Model(folder, [told("one", {"text": "first answer"}), told("two", shell("touch made-by-tool; echo TOOL-SAID-THIS", backend)),
                           told("three", shell(SLEEP, backend)), told("four", {"text": "after the interrupt"}), SAID])
    host = Host(folder, backend, model, home, prompt={"input": "one", "message_id": "msg_1"}, permission="ask")
    end = host.turn()
    check(f"{backend}: a turn ends with its text", end["turn"] == {"message_id": "msg_1", "outcome": "completed", "result": "first answer"}, end)
    check(f"{backend}: states of a turn", host.states()[0] == "starting" and "running" in host.states() and host.states()[-1] == "idle", host.states())
    check(f"{backend}: the vendor's session is known", host.ask("host.status")["payload"]["agent"].get("session_id"))
    after = host.last()
    host.ask("host.send", input="two")
    request = host.wait(lambda event: event["type"] == "request", after)
    check(f"{backend}: a permission is asked for", request["kind"] == "permission" and "made-by-tool" in request["title"], request)
    check(f"{backend}: it waits", host.states()[-1] == "requires_action", host.states())
    allow = next(option["option_id"] for option in request["options"] if option["kind"] == "allow_once")
    answered = host.ask("host.answer", request_id=request["request_id"], option_id=allow)
    check(f"{backend}: it is answered", answered["success"], answered)
    again = host.ask("host.answer", request_id=request["request_id"], option_id=allow)
    check(f"{backend}: and not twice", again.get("error") == "already answered", again)
    end = host.turn(after)
    check(f"{backend}: the tool's turn ends", end["turn"].get("result") == "second answer", end)
    calls = [entry for entry in host.entries(role="tool") if entry.get("tool_input")]
    # Gemini CLI keeps what a command printed to itself.
    results = [entry for entry in host.entries(role="tool") if "tool_result" in entry
               and (backend == "gemini" or "TOOL-SAID-THIS" in entry["tool_result"])]
    check(f"{backend}: call and result are linked", len(calls) == 1 and any(it["tool_use_id"] == calls[0]["tool_use_id"] for it in results),
          host.entries(role="tool"))
    check(f"{backend}: usage", any(event["type"] == "usage" for event in host.events))
    after = host.last()
    host.ask("host.send", input="three")
    request = host.wait(lambda event: event["type"] == "request", after)
    host.ask("host.answer", request_id=request["request_id"], option_id=allow if any(it["option_id"] == allow for it in request["options"])
             else next(it["option_id"] for it in request["options"] if it["kind"] == "allow_once"))
    until(sleepers, "the tool runs")
    check(f"{backend}: an interrupt is taken", host.ask("host.interrupt")["success"])
    end = host.turn(after)
    check(f"{backend}: the turn is interrupted", end["turn"]["outcome"] == "interrupted", end)
    try:
        until(lambda: not sleepers(), "", 5)
    except TimeoutError:
        pass
    check(f"{backend}: the tool is gone", not sleepers())
    after = host.last()
    host.ask("host.send", input="four")
    end = host.turn(after)
    check(f"{backend}: the agent goes on after it", end["turn"]["outcome"] == "completed", end)
    session = host.ask("host.status")["payload"]["agent"]["session_id"]
    stopped = host.stop()
    check(f"{backend}: it is stopped", stopped["final_state"] == "done" and stopped["stopped"], stopped)
    offsets = [event["offset"] for event in host.events]
    check(f"{backend}: offsets are dense", offsets == list(range(1, len(offsets) + 1)))
    if backend != "gemini":
        model = Model(folder, [told("five", {"text": "resumed answer"})])
        host = Host(folder, backend, model, home, prompt={"input": "five"}, resume=session)
        end = host.turn()
        check(f"{backend}: a conversation is resumed", end["turn"].get("result") == "resumed answer", end)
        check(f"{backend}: it is the same one", host.ask("host.status")["payload"]["agent"]["session_id"] == session)
        sent = open(model.log).read()
        check(f"{backend}: the model gets what was said before", "first answer" in sent or "TOOL-SAID" in sent, sent[-500:])
        host.stop()
    model = Model(folder, [told("six", shell(SLEEP, backend))])
    host = Host(folder, backend, model, home, prompt={"input": "six"}, permission="ask")
    request = host.wait(lambda event: event["type"] == "request")
    host.ask("host.answer", request_id=request["request_id"], option_id=next(it["option_id"] for it in request["options"] if it["kind"] == "allow_once"))
    until(sleepers, "the tool runs")
    os.kill(host.started["host_pid"], 9)
    try:
        until(lambda: not sleepers() and not os.path.exists(f"/proc/{host.started['pid']}"), "", 5)
    except TimeoutError:
        pass
    check(f"{backend}: nothing is left when the host is killed", not sleepers() and not os.path.exists(f"/proc/{host.started['pid']}"))


class Hosting(daemon.Daemon):
    """A daemon with one instance, and its agents."""

    def __init__(self, folder, backend, model):
        super().__init__()
        self.backend, self.user = backend, os.path.join(folder, "outlived")
        furnish(backend, self.user)
        os.makedirs(self.home)
        os.chmod(self.home, 0o700)
        with open(os.path.join(self.home, "config.toml"), "w") as file:
            file.write(instance(backend, command(backend, model), environment(backend, self.user, model)))

    def __exit__(self, *_):
        self.kill9()
        leave(self.dir)

    def agent(self, at="agent:%s:main", way="", body=None):
        path = "/v1/hosts/" + (at % self.backend if "%s" in at else at) + way
        return self.rest("GET" if body is None else "POST", path, body)

    def said(self, words, seconds=60):
        return until(lambda: words in json.dumps(self.agent(way="/history?limit=0")), words, seconds)

    def allow(self):
        """Answers each request that is open; gives how many there were."""
        open_ones = self.rest("GET", "/v1/requests?open=true")["requests"]
        for request in open_ones:
            once = next(it["option_id"] for it in request["options"] if it["kind"].startswith("allow"))
            self.rest("POST", f"/v1/requests/{request['request_id']}/answer", {"option_id": once})
        return len(open_ones)

    def events(self, agent):
        return self.rest("GET", f"/v1/events?stream=agent/{agent}&limit=500")["events"]


def instance(name, words, variables, more=""):
    """An entry of the configuration."""
    table = ", ".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in variables.items())
    backend = "acp" if name in ADAPTERS else name
    return f'[agents.{name}]\nbackend = "{backend}"\ncommand = {json.dumps(words)}\nenv = {{ {table} }}\n{more}'


def outlives(backend, folder):
    """The daemon is killed while the agent is in a tool; the turn goes on, ends once, and its conversation can be gone on with."""
    model = Model(folder, [told("one", {"text": "first answer"}), told("two", shell(LONG, backend)), told("three", {"text": "resumed answer"}), SAID])
    with Hosting(folder, backend, model) as own:
        started = own.rest("POST", "/v1/hosts", {"instance": backend, "name": "main", "cwd": os.path.join(own.user, "work"), "prompt": "one"})
        own.said("first answer")
        sent = own.agent(way="/send", body={"input": "two"})["message_id"]
        until(own.allow, "a permission is asked for")
        until(lambda: sleepers(b"sleep(4.0471)"), "the tool runs")
        own.crash()
        own.said("second answer")
        after = own.agent()
        check(f"{backend}: it works on while the daemon is killed", after["pid"] == started["pid"] and after["host_pid"] == started["host_pid"], after)
        until(lambda: own.agent()["state"] == "idle", "it is idle")
        events = own.events(started["id"])
        check(f"{backend}: the log has each event once", [it["seq"] for it in events] == list(range(1, len(events) + 1)))
        ends = [it["data"]["turn"]["outcome"] for it in events if it["kind"] == "state" and (it["data"].get("turn") or {}).get("message_id") == sent]
        inputs = [it for it in events if it["kind"] == "input" and it["data"]["message_id"] == sent]
        check(f"{backend}: the prompt has one turn and one end", ends == ["completed"] and len(inputs) == 1, (ends, inputs))
        own.crash()
        stopped = own.agent(way="/stop", body={"timeout": 10})
        check(f"{backend}: the next daemon stops it", stopped["final_state"] == "done", stopped)
        if backend == "gemini":
            return
        work = {"instance": backend, "prompt": "three", "opts": {"async": True, "session": f"agent:{backend}:main", "cwd": os.path.join(own.user, "work")}}
        task = own.rest("POST", "/v1/send_message", work)["task_id"]
        until(lambda: own.rest("GET", f"/v1/tasks/{task}").get("closed_at"), "the resumed turn ends")
        task = own.rest("GET", f"/v1/tasks/{task}")
        check(f"{backend}: a dispatch goes on with the conversation", task["status"] == "done" and task["result"] == "resumed answer", task)
        asked = [line["n"] for line in map(json.loads, open(model.log)) if (line.get("answer") or {}).get("text") == "resumed answer"]
        bodies = [open(path).read() for number in asked for path in glob.glob(os.path.join(model.folder, "bodies", f"{number:04d}-*"))]
        check(f"{backend}: its model has what was said before", bodies and all("first answer" in body for body in bodies), asked)


def speaks(backend, folder):
    """What an agent says is on its feed, at its terminal and in the stream of its work while it says it, and once."""
    model = Model(folder, [told("one", {"text": "first answer"}), told("speak", SPEECH)])
    with Hosting(folder, backend, model) as own:
        started = own.rest("POST", "/v1/hosts", {"instance": backend, "name": "main", "cwd": os.path.join(own.user, "work"), "prompt": "one"})
        own.said("first answer")
        until(lambda: own.agent()["state"] == "idle", "it is idle")
        feed = Reader(own, "GET", f"/v1/events?stream=agent/{started['id']}&after=latest", {"Accept": "text/event-stream"})
        work = {"instance": f"agent:{backend}:main", "prompt": "speak"}
        words = Reader(own, "POST", "/v1/send_message", {"Content-Type": "application/json"}, work)
        terminal = Printed([SVC, "agent", "attach", f"agent:{backend}:main", "--json"], own.env)
        try:
            own.said(LINES[-1])
            until(lambda: own.agent()["state"] == "idle", "it is idle")
            until(lambda: words.over, "its work is over")
            until(lambda: all(any(LINES[-1] in line for _, line in it.lines) for it in (feed, terminal, words)), "all have its last line")
            for name, lines in (("feed", feed.lines), ("attach", terminal.lines), ("NDJSON", words.lines)):
                first = next((at for at, line in lines if LINES[0] in line), None)
                last = next((at for at, line in lines if LINES[-1] in line), None)
                check(f"{backend}: {name} has words while they are said", first and last and last - first > 2,
                      [(round(at, 1), line[:200]) for at, line in lines][-12:])
            items = [json.loads(line[5:]).get("data") or {} for _, line in feed.lines if line.startswith("data:")]
            deltas = [it for it in items if "of" in it and it.get("role") == "assistant"]
            spoken = "".join(it["text"] for it in deltas)
            # What comes with the end of the entry may be in the entry alone.
            check(f"{backend}: deltas are one entry, in its order", SPEECH["text"].startswith(spoken.strip()) and LINES[3] in spoken and len({it["of"] for it in deltas}) == 1, deltas)
            check(f"{backend}: NDJSON has each line once", all(sum(name in line for _, line in words.lines if '"frame"' in line) == 1 for name in LINES), words.lines)
        finally:
            terminal.end()


class Printed:
    """The lines of a program, each with the time at which it came."""

    def __init__(self, words, env):
        self.lines = []
        self.process = subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.time(), line))

    def end(self):
        self.process.kill()
        self.process.wait()


class Reader:
    """The lines of an answer that does not end at once, each with the time at which it came."""

    def __init__(self, own, method, path, headers, body=None):
        self.lines, self.over = [], False
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(own.url + path, data, {**own.headers, **headers}, method=method)
        self.answer = urllib.request.urlopen(request, timeout=120)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        try:
            for line in self.answer:
                self.lines.append((time.time(), line.decode()))
        except (OSError, ValueError):
            pass
        self.over = True


def one(folder):
    """Claude Code, hosted by a daemon, with our hooks and our server in its own settings: one session, one peer, told once."""
    home = os.path.join(folder, "home")
    work = os.path.join(home, "work")
    os.makedirs(os.path.join(home, "tmp")), os.makedirs(work)
    model = Model(folder, [{"text": "first answer"}, {"tool": "mcp:svc/peer_send", "args": {"to": "operator", "text": "from the agent"}},
                           shell("echo TOOL-SAID-THIS", "claude"), {"text": "second answer"}, {"text": "third answer"}])
    own = {**os.environ, "HOME": home, "SVC_HOME": os.path.join(home, "svc"), "PATH": f"{BIN}:{os.path.dirname(SVC)}:{os.environ['PATH']}"}
    own.pop("CLAUDECODE", None)
    os.makedirs(own["SVC_HOME"])
    variables = ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in
                          {**environment("claude", home, model), "SVC_HOOK_DEADLINE_MS": "5000"}.items())
    with open(os.path.join(own["SVC_HOME"], "config.toml"), "w") as file:
        file.write(f'[agents.claude]\nbackend = "claude"\ncommand = [{json.dumps(program("claude"))}]\npermission = "bypass"\nenv = {{ {variables} }}\n')

    def svc(*args, parse=True):
        ran = subprocess.run([SVC, *args, *(["--json"] if parse else [])], env=own, cwd=work, capture_output=True, text=True, timeout=60)
        if ran.returncode:
            raise RuntimeError(f"{args}: {ran.stdout}{ran.stderr}")
        return json.loads(ran.stdout) if parse else ran.stdout

    svc("install", "claude-code", parse=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    svc("start", "--listen", f"127.0.0.1:{port}")
    try:
        def said(words):
            return until(lambda: words in json.dumps(svc("agent", "history", "agent:claude:main")), words)
        svc("agent", "start", "claude", "--cwd", work, "--prompt", "one")
        said("first answer")
        peers = [peer for peer in svc("peer", "list")["peers"] if peer["peer_id"] != "operator"]
        sessions = svc("session", "list")["sessions"]
        check("hooks and host: one session and one peer", len(sessions) == 1 and len(peers) == 1, (sessions, peers))
        vendor = svc("agent", "status", "agent:claude:main").get("session_id")
        check("hooks and host: it is the vendor's", sessions[0]["session_id"] == vendor == peers[0].get("session_id"), (sessions, vendor, peers))
        # `svc install` has tried its server before, as a client of its own.
        subjects = {token["session"] for token in svc("token", "list")["tokens"] if not token["session"].startswith("svc-")}
        check("hooks and host: one principal", subjects == {"agent:claude:main"}, subjects)
        svc("tell", "agent:claude:main", "MESSAGE-FOR-THE-AGENT")
        svc("agent", "send", "agent:claude:main", "two")
        said("second answer")
        svc("agent", "send", "agent:claude:main", "three")
        said("third answer")
        requests = [line for line in map(json.loads, open(model.log)) if "new" in line]
        told = sum(json.dumps(line["new"]).count("MESSAGE-FOR-THE-AGENT") for line in requests)
        check("hooks and host: a message is told once", told == 1, told)
        inbox = svc("inbox")
        check("hooks and host: its tools send as its peer", peers[0]["peer_id"] in json.dumps(inbox) and "from the agent" in json.dumps(inbox), inbox)
        svc("agent", "stop", "agent:claude:main")
        until(lambda: svc("session", "list")["sessions"][0].get("ended_at"), "the session ends with it", 10)
        check("hooks and host: the session ends with it", len(svc("session", "list")["sessions"]) == 1)
    finally:
        subprocess.run([SVC, "stop"], env=own, capture_output=True)


def main():
    if {"claude", "one"} & set(BACKENDS) and program("claude"):
        folder = tempfile.mkdtemp(prefix="svc-hosting-")
        try:
            one(folder)
        except (TimeoutError, RuntimeError, KeyError, StopIteration) as error:
            check("hooks and host: to the end", False, repr(error))
        finally:
            leave(folder)
    if BACKENDS == ["one"]:
        return 1 if FAILED else 0
    for backend in BACKENDS:
        if not program(backend):
            print(f"not run: {backend} (it is not in {BIN})")
            continue
        folder = tempfile.mkdtemp(prefix="svc-hosting-")
        for part in (scenario, outlives, speaks):
            try:
                part(backend, folder)
            except (TimeoutError, RuntimeError, KeyError, StopIteration, urllib.error.HTTPError) as error:
                said = error.read() if isinstance(error, urllib.error.HTTPError) else ""
                check(f"{backend}: {part.__name__} to the end", False, f"{error!r} {said}")
        leave(folder)
    return 1 if FAILED else 0


def leave(folder):
    """Ends what this began: what works in the folder, or has a file of it open, as hosts have their spools."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = open(f"/proc/{pid}/cmdline", "rb").read()
            places = [os.readlink(f"/proc/{pid}/cwd")]
            places += [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        if int(pid) != os.getpid() and (folder.encode() in line or any(it.startswith(folder) for it in places)):
            os.kill(int(pid), 9)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
