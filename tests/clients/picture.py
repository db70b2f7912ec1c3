#!/usr/bin/env python3
"""Coding agents in terminals, as a person has them: whether what svc says of them is what stands on their screens.

    SVC_BIN=... SVC_AGENTS=FOLDER[:FOLDER...] picture.py [--clients a,b] [--cases x,y] [--jobs 2]

Each case has a home of its own in which `svc install` was run, and a scripted model, as in install.py. It needs tmux.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
import hooks  # noqa: E402
from agents import tool  # noqa: E402
from daemon import wait_for  # noqa: E402
from hooks import Model, only  # noqa: E402
from install import BIN, COMMANDS, quiet, run_cases  # noqa: E402
from terminals import TMUX, Terminal, end_all_below  # noqa: E402

# A machine that is busy with tests is slow.
SOON = 30
# A peer that nobody hears of for so long is offline, unless its process lives.
SILENT = 60
KEY = "sk-ant-dummy"
# What stands on the screen when a prompt can be typed, and when a person is asked for permission.
READY = {"claude": "❯", "codex": "Ask Codex", "gemini": "Type your message", "opencode": r"Ask anything|ctrl\+p commands"}
DIALOG = {"claude": r"Do you want to proceed\?", "codex": "Would you like to", "gemini": "Allow execution|Allow once|Apply this change", "opencode": "Permission required|Allow once"}


def command(client, line, ask=False):
    """A step that runs a command; `ask`: in a way that needs the person's permission."""
    if client.name == "codex":
        more = {"sandbox_permissions": "require_escalated", "justification": "May I?"} if ask else {}
        return {"tool": "exec_command", "args": {"cmd": line, "yield_time_ms": 120000, **more}}
    name = {"claude": "Bash", "gemini": "run_shell_command", "opencode": "bash"}[client.name]
    return {"tool": name, "args": {"command": line, **({} if client.name == "gemini" else {"description": "x"})}}


class Desk(hooks.Agent):
    """A person's home with two projects, `api` and `web`, and terminals in them."""

    def __init__(self, client, steps, ask=False):
        super().__init__(client)
        self.steps, self.ask, self.terminals, self.opened = steps, ask, [], 0
        self.api, self.web = (os.path.join(self.home, name) for name in ("api", "web"))
        for folder in (self.api, self.web):
            os.makedirs(folder)

    def write(self, name, text):
        path = os.path.join(self.home, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)

    def furnish(self):
        """What else the client would ask at its first start, and whether its tools need permission."""
        folders = (self.api, self.web)
        if self.client.name == "claude":
            trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True, "projectOnboardingSeenCount": 5}
            answers = {"approved": [KEY[-20:]], "rejected": []}
            self.write(".claude.json", json.dumps({"hasCompletedOnboarding": True, "theme": "dark", "lastOnboardingVersion": "9.9.9", "numStartups": 5,
                                                   "customApiKeyResponses": answers, "projects": {folder: trusted for folder in folders},
                                                   "hasSeenAutoDefaultNudge": True, "hasSeenAutoDefaultNotice": True}))
            allowed = [] if self.ask else ["Bash", "mcp__svc"]
            self.write(".claude/settings.json", json.dumps({"permissions": {"defaultMode": "default", "allow": allowed}}))
        if self.client.name == "codex":
            # Words on the command line would keep it from the app-server that all its terminals share.
            policy = 'approval_policy = "on-request"\nsandbox_mode = "read-only"' if self.ask else 'approval_policy = "never"\nsandbox_mode = "danger-full-access"'
            trusted = "".join(f'[projects.{json.dumps(folder)}]\ntrust_level = "trusted"\n' for folder in folders)
            self.write(".codex/config.toml", f'model = "gpt-5"\nmodel_provider = "mock"\ncheck_for_update_on_startup = false\n{policy}\n{trusted}'
                       f'[model_providers.mock]\nname = "mock"\nbase_url = "{self.model.url}/v1"\nwire_api = "responses"\nenv_key = "OPENAI_API_KEY"\n'
                       "request_max_retries = 0\nstream_max_retries = 0\n")

    def __enter__(self):
        self.model = Model(self.steps)
        self.furnish()
        return super().__enter__()

    def __exit__(self, *error):
        for terminal in self.terminals:
            terminal.__exit__()
        self.svc("stop", check=False)
        end_all_below(self.dir)
        self.model.close()
        super().__exit__(*error)

    def open(self, folder, words=()):
        """The client in a terminal, ready for a prompt; `words` are for its command line."""
        name = self.client.name
        extra = {}
        if name == "opencode":
            config = json.loads(COMMANDS[name](self.model.url)[1]["OPENCODE_CONFIG_CONTENT"])
            config["permission"] = {"bash": "ask" if self.ask else "allow"}
            extra["OPENCODE_CONFIG_CONTENT"] = json.dumps(config)
        more = {"codex": ["--no-alt-screen"], "gemini": ["-m", "gemini-2.5-pro", *([] if self.ask else ["--approval-mode", "yolo"])]}.get(name, [])
        argv = [os.path.join(self.client.folder, name), *words, *more]
        terminal = Terminal(argv, folder, {**self.env, **quiet(self.model.url), **extra}).__enter__()
        self.terminals.append(terminal)
        self.opened += 1
        # opencode fetches a package at its first start.
        terminal.wait(READY[name], 240)
        self.await_tools()
        return terminal

    def await_tools(self):
        if self.client.name in ("claude", "opencode"):
            # Their models are asked without the tools of a server that is not there yet.
            wait_for(lambda: self.lists_of_tools() >= self.opened, "the client has the tools of svc", 60)

    def lists_of_tools(self):
        """How often clients have asked for them."""
        with open(os.path.join(self.data, "daemon.json")) as file:
            url = json.load(file)["url"]
        request = urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {self.svc('token', 'show').strip()}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            counted = re.findall(r'svc_mcp_requests_total\{method="tools/list",[^}]*\} (\d+)', answer.read().decode())
        return sum(int(count) for count in counted)

    def say(self, terminal, text, calls=1):
        """Types a prompt; the model has been asked when it is back."""
        before = len(self.model.calls())
        terminal.say(text, lambda: len(self.model.calls()) >= before + calls, 120, self.takes_prompts())

    def hold(self, terminal, text, name):
        """Types a prompt; the model is asked and does not answer before it is released."""
        terminal.say(text, lambda: any(it.get("holding") == name for it in self.model.entries()), 120, self.takes_prompts())

    def takes_prompts(self):
        """Whether a prompt was taken since now, though its model may not have been asked: on a busy machine that takes long."""
        before = [it["session_id"] for it in self.peers()]
        # A session of opencode begins with its first prompt.
        begins = lambda it: self.client.name == "opencode" and it["session_id"] not in before  # noqa: E731
        return lambda: any(it["status"] == "busy" or begins(it) for it in self.peers())

    def close(self, terminal):
        """Its person closes the terminal."""
        terminal.__exit__()
        self.terminals.remove(terminal)

    def rest(self, path, body=None):
        """A request to the daemon, by its person; gives status and answer."""
        with open(os.path.join(self.data, "daemon.json")) as file:
            url = json.load(file)["url"]
        headers = {"Authorization": f"Bearer {self.svc('token', 'show').strip()}", "Content-Type": "application/json"}
        request = urllib.request.Request(url + path, body and json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def requests(self, query):
        """What clients ask their persons, the latest first."""
        status, answer = self.rest(f"/v1/requests{query}")
        assert status == 200, answer
        return answer["requests"]

    def late(self, request, option):
        """The status of an answer to a request."""
        return self.rest(f"/v1/requests/{request['request_id']}/answer", {"option_id": option})[0]

    def peers(self):
        """The client's sessions, as `svc peer list` has them."""
        listed = json.loads(self.svc("peer", "list", "--json"))["peers"]
        return [it for it in listed if it["backend"] == self.name]

    def peer(self):
        return only(self.peers())

    def status(self):
        return self.peer()["status"]

    def until(self, status, what):
        try:
            wait_for(lambda: self.status() == status, f"{what}: {status}", SOON)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.peers()}\n{self.terminals[-1].screen()}") from None


# ---------------------------------------------------------------- the cases


def two_projects(desk):
    """Two terminals in two projects are two sessions, each of its own folder, also if one process runs both; a name goes to whoever is alive."""
    opened = {}
    for folder in (desk.api, desk.web):
        terminal = opened[folder] = desk.open(folder)
        desk.say(terminal, f"work in {os.path.basename(folder)}", calls=2)

    def both():
        return sorted((it["display_name"], it.get("path")) for it in desk.peers())

    expected = [(f"{desk.name}@api", desk.api), (f"{desk.name}@web", desk.web)]
    wait_for(lambda: both() == expected, f"{expected} and not {desk.peers()}", SOON)
    if desk.client.name == "codex":
        assert len({it["pid"] for it in desk.peers()}) == 1, f"Codex has one app-server for all its terminals: {desk.peers()}"
    # What its model writes is in its own project's journal, and its model hears of no other session as itself.
    projects = desk.query("select project from ghap order by project")
    assert projects == [(desk.api,), (desk.web,)], (projects, desk.model.saw())
    second = desk.model.body(2) + desk.model.body(3)
    assert f"You are {desk.name}@api" not in second, second
    if desk.client.name == "codex":
        return
    # Closed and opened again it has its name again, and nobody else is shown.
    desk.close(opened[desk.web])
    again = desk.open(desk.web)
    desk.say(again, "and once more")
    wait_for(lambda: both() == expected, f"{expected} and not {desk.peers()}", SOON)


def long_tool(desk):
    """An agent is busy as long as a tool of its runs, and a message to it says so; Esc makes it idle."""
    terminal = desk.open(desk.api)
    desk.say(terminal, "build it")
    desk.until("busy", "its tool runs")
    started, seen = time.time(), set()
    while time.time() - started < SILENT + 8:
        seen.add(desk.status())
        time.sleep(1)
    assert seen == {"busy"}, f"while its tool ran: {seen}\n{terminal.screen()}"
    assert not any(it["answer"]["text"] for it in desk.model.calls()), f"its tool is over:\n{terminal.screen()}"
    sent = json.loads(desk.svc("tell", desk.peer()["display_name"], "the branch is frozen", "--json"))
    assert sent["delivery"] == "now", sent
    assert "in its present turn" in desk.svc("tell", desk.peer()["display_name"], "and the release"), sent
    terminal.press("Escape", *(["Escape"] if desk.client.name == "opencode" else []))
    return idle_after(desk, "Esc")


def idle_after(desk, key):
    """The turn was ended by its person, of which Claude Code and Gemini CLI tell by no hook."""
    before = time.time()
    desk.until("idle", f"after {key}")
    peer = desk.peer()
    assert "waiting_for" not in peer, peer
    return f"idle {time.time() - before:.1f} s after {key}"


def permission(desk):
    """An agent that asks its person is waiting, with what it asks; it works when it is allowed, and is idle after No."""
    terminal = desk.open(desk.api)
    desk.say(terminal, "make it")
    terminal.wait(DIALOG[desk.client.name])
    before = time.time()
    desk.until("waiting", "a dialog is on its screen")
    late = time.time() - before
    # Claude Code's registry tells that there is a prompt, its hook which.
    asked = wait_for(lambda: (it := desk.peer()["waiting_for"]).get("title") and it, "what is asked", SOON)
    assert asked["kind"] == "permission" and "touch first" in asked["title"] and asked["since"], asked
    assert "touch first" in desk.svc("peer", "list"), desk.svc("peer", "list")
    answer(desk, terminal, "Enter")
    # Its second tool asks, too: between them it works.
    terminal.wait("touch second")
    terminal.wait(DIALOG[desk.client.name])
    wait_for(lambda: "touch second" in desk.peer().get("waiting_for", {}).get("title", ""), "the second question is told", SOON)
    assert os.path.exists(os.path.join(desk.api, "first")), "it was allowed"
    answer(desk, terminal, "Escape")
    soon = idle_after(desk, "No")
    assert not os.path.exists(os.path.join(desk.api, "second")), "it was refused"
    return f"waiting {late:.1f} s after the dialog, {soon}"


# By which words the options of a client are answered: yes once, and no.
YES = {"claude": "allow", "codex": "accept", "opencode": "once"}
NO = {"claude": "deny", "codex": "decline", "opencode": "reject"}


def held(desk, what):
    """The open request for a command, once it can be answered from elsewhere."""
    def find():
        asked = [it for it in desk.requests("?open=true") if it["options"] and what in json.dumps(it["tool"])]
        return asked and asked[0]

    try:
        return wait_for(find, f"a request for {what!r} with options", SOON)
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {desk.requests('')}\n{desk.terminals[-1].screen()}") from None


def closed(desk, request):
    """How a request ended."""
    def find():
        [it] = [it for it in desk.requests("") if it["request_id"] == request["request_id"]]
        return it.get("answer")

    try:
        return wait_for(find, f"the end of {request['title']!r}", SOON)
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {desk.requests('')}\n{desk.terminals[-1].screen()}") from None


def elsewhere(desk):
    """A prompt is answered from another terminal while the client's own dialog stands; of a denial its model is told why."""
    name = desk.client.name
    terminal = desk.open(desk.api)
    desk.say(terminal, "make it")
    terminal.wait(DIALOG[name])
    request = held(desk, "touch first")
    assert request["session_key"].split(":", 2)[2] == desk.peer()["session_id"], request
    assert request.get("cwd") == desk.api, request
    assert terminal.shows(DIALOG[name]), f"the dialog stands beside it:\n{terminal.screen()}"
    said = desk.svc("answer", "latest", YES[name])
    assert said.startswith("answered ") and "touch first" in said, said
    assert closed(desk, request) == {"option_id": YES[name], "by": "operator"}, desk.requests("")
    wait_for(lambda: os.path.exists(os.path.join(desk.api, "first")), "it was allowed", SOON)
    terminal.wait("touch second")
    request = held(desk, "touch second")
    # Codex has no words for a denial.
    words = [] if name == "codex" else ["use make instead"]
    desk.svc("answer", request["request_id"], NO[name], *words)
    desk.model.asked(2, SOON)
    assert all(it in desk.model.body(2) for it in words), desk.model.body(2)
    text = {"text": words[0]} if words else {}
    assert closed(desk, request) == {"option_id": NO[name], "by": "operator", **text}, desk.requests("")
    assert not os.path.exists(os.path.join(desk.api, "second")), "it was refused"
    desk.until("idle", "its turn is over")
    no_hook_left(desk)


def person_first(desk):
    """What the person answers in the terminal counts, and the record says so; nobody holds the prompt any more."""
    name = desk.client.name
    terminal = desk.open(desk.api)
    desk.say(terminal, "make it")
    terminal.wait(DIALOG[name])
    request = held(desk, "touch first")
    answer(desk, terminal, "Enter")
    assert closed(desk, request)["by"] == "terminal", desk.requests("")
    late = desk.late(request, YES[name])
    assert late == 409, late
    terminal.wait("touch second")
    request = held(desk, "touch second")
    answer(desk, terminal, "Escape")
    assert closed(desk, request)["by"] in ("terminal", "gone"), desk.requests("")
    desk.until("idle", "after No")
    assert os.path.exists(os.path.join(desk.api, "first")) and not os.path.exists(os.path.join(desk.api, "second"))
    no_hook_left(desk)


def killed(desk):
    """A client that is killed leaves no hook behind, and its prompt is over; a daemon that is killed leaves the dialog to its person. That of Codex is
    taken up again."""
    name = desk.client.name
    terminal = desk.open(desk.api)
    desk.say(terminal, "make it")
    terminal.wait(DIALOG[name])
    before = held(desk, "touch first")
    desk.crash()
    if name == "claude":
        no_hook_left(desk)
    desk.svc("start")
    if name == "codex":
        request = held(desk, "touch first")
        assert request["request_id"] == before["request_id"], (before, request)
    else:
        request = wait_for(lambda: (it := desk.requests("?open=true")) and not it[0]["options"] and it[0], "nobody answers it from elsewhere", SOON)
    answer(desk, terminal, "Enter")
    assert closed(desk, request)["by"] == "terminal", desk.requests("")
    terminal.wait("touch second")
    request = held(desk, "touch second")
    # The process of a session of Codex is the app-server.
    os.kill(desk.peer()["pid"] if name == "codex" else terminal.pid(), signal.SIGKILL)
    assert closed(desk, request) == {"by": "gone"}, desk.requests("")
    no_hook_left(desk)


def printing(desk):
    """`claude -p` asks nobody, and nothing holds it up."""
    before = time.time()
    args = ["claude", "-p", "make it"]
    process = desk.popen(args, quiet(desk.model.url))
    out, err = desk.finish(process)
    assert process.returncode == 0 and not desk.requests("?open=true"), (process.returncode, out, err, desk.requests(""))
    assert not any(it["options"] for it in desk.requests("")), desk.requests("")
    assert not os.path.exists(os.path.join(desk.work, "first"))
    no_hook_left(desk)
    return f"{time.time() - before:.1f} s"


def no_hook_left(desk):
    """No hook of the client runs any more, but for the one that waits for messages."""
    def left():
        return [line for line in processes() if desk.dir in line[1] and " hook " in line[1] and " hook wait" not in line[1]]

    wait_for(lambda: not left(), "the end of its hooks", SOON)


def processes():
    """All processes: their number, and their arguments with their folder."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().replace(b"\0", b" ").decode(errors="replace")
            yield pid, f"{words} {os.readlink(f'/proc/{pid}/cwd')}"
        except OSError:
            continue


def answer(desk, terminal, key):
    """Presses a key at a dialog until the daemon or the screen shows that it counted: what comes too early is lost."""
    asked = desk.peer().get("waiting_for")

    def counted():
        terminal.press(key)
        end = time.time() + 3
        while time.time() < end:
            if desk.peer().get("waiting_for") != asked:
                return True
            time.sleep(0.1)
        return not terminal.shows(DIALOG[desk.client.name])

    wait_for(counted, f"{key} is taken at the dialog", SOON)


def told(desk):
    """What `svc tell` says of an idle agent is what happens: a message wakes it at once, or is read in its next turn and not before."""
    terminal = desk.open(desk.api)
    desk.say(terminal, "hello")
    desk.until("idle", "its turn is over")
    name = desk.peer()["display_name"]
    sent = json.loads(desk.svc("tell", name, "the branch is frozen", "--json"))
    if sent["delivery"] == "wakes":
        desk.model.asked(1, SOON)
    else:
        assert sent["delivery"] == "next_turn" and desk.client.name != "claude", sent
        assert "does not wake it" in desk.svc("tell", name, "and the release"), sent
        desk.say(terminal, "go on")
    told = desk.model.body(1)
    assert "the branch is frozen" in told, told
    return sent["delivery"]


def woken(desk):
    """A message wakes an idle session by its client's own way, and joins a turn of opencode with the next model call; the person's half-typed words
    stay. Over a daemon that is killed each is read once, and what is said of it is true."""
    terminal = desk.open(desk.api)
    desk.say(terminal, "hello")
    desk.until("idle", "its turn is over")
    way = {"opencode": "plugin", "claude": "inbox"}[desk.client.name]
    name = desk.peer()["display_name"]

    def states(sent):
        return {it["state"]: it for it in json.loads(desk.svc("message", "show", sent["id"], "--json"))["states"]}

    def read(sent, text, step):
        """The message is read once, in the model's call `step`, and that is known by the client's own proof."""
        try:
            wait_for(lambda: "injected" in states(sent), f"{text!r} is injected", SOON)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {states(sent)}\n{terminal.screen()}") from None
        # At the end of a turn its hook may be first.
        assert states(sent)["offered"].get("via") in (way, *(["hook"] if step == 3 else [])), states(sent)
        desk.model.asked(step, SOON)
        assert desk.model.body(step).count(text) == 1, desk.model.body(step)

    tell(desk, name, "words one", 1)
    read(json.loads(desk.svc("message", "list", "--json"))["messages"][0], "words one", 1)
    desk.until("idle", "a turn that a message began is over")
    terminal.tmux("send-keys", "-l", "half a")
    tell(desk, name, "words two", 2)
    desk.until("idle", "a turn that a message began is over")
    assert terminal.shows("half a"), terminal.screen()
    # The daemon is killed while the client has the text and its model has not.
    began = time.time()
    sent = json.loads(desk.svc("tell", name, "words three", "--json"))
    desk.crash()
    desk.svc("start")
    read(sent, "words three", 3)
    desk.until("idle", "a turn that a message began is over")
    return f"{way}, {time.time() - began:.1f} s over a crash"


def failed_turn(desk):
    """A question whose turn fails is told why and has no answer, and nothing of what was said before; its session is idle. One that a message wakes is
    woken by the next one, too, however the turn of the first ends. To Codex a question comes within the turn, whose end answers nobody: only its call
    does, in whichever turn."""
    terminal = desk.open(desk.api)
    desk.hold(terminal, "tidy up", "first")
    name = desk.peer()["display_name"]
    asking = subprocess.Popen([BIN, "ask", name, "is it green?"], env=desk.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        asked = wait_for(lambda: json.loads(desk.svc("message", "list", "--open", "--json"))["messages"], "the question is sent", SOON)
        if desk.client.name == "codex":
            wait_for(lambda: "offered" in desk.svc("message", "show", asked[0]["id"]), "it is given to the turn", SOON)
        desk.model.release("first")
        # Its turn goes on with the question.
        desk.model.asked(1)
        if desk.client.name == "codex":
            desk.until("idle", "its turn failed")
            assert asking.poll() is None, asking.communicate()
            assert "; only this" in desk.model.body(1), desk.model.body(1)
            tell(desk, name, "and now?", 2)
        out, said = asking.communicate(timeout=SOON)
    finally:
        asking.kill()
    if desk.client.name == "codex":
        assert (asking.returncode, out.strip()) == (0, "it is"), (asking.returncode, out, said)
        return None
    assert (asking.returncode, out) == (1, "") and "No answer to msg_" in said, (asking.returncode, out, said)
    if desk.client.name != "gemini":
        assert "scripted failure" in said, said
    desk.until("idle", "its turn failed")
    if desk.client.name != "claude":
        assert "does not wake it" in desk.svc("tell", name, "and now?")
        return None
    tell(desk, name, "news one", 2)
    desk.until("idle", "a turn that a message began failed")
    tell(desk, name, "news two", 3, held="second")
    terminal.press("Escape")
    desk.until("idle", "Esc in a turn that a message began")
    desk.model.release("second")
    tell(desk, name, "news three", 4)
    return None


def tell(desk, name, text, step, held=None):
    """Tells an idle session something that wakes it. The model's answer `step` (from 0) is to that."""
    sent = wait_for(lambda: (it := json.loads(desk.svc("tell", name, text, "--json")))["delivery"] == "wakes" and it, "a waiter", SOON)
    assert sent["delivery"] == "wakes", (sent, desk.terminals[-1].screen())
    if held:
        desk.model.holding(held, SOON)
        return
    desk.model.asked(step, SOON)
    assert text in desk.model.body(step), desk.model.body(step)


def harmless_tools(desk):
    """`install status` names the tools before which the client asks its person; there it asks, and nowhere else."""
    [status] = json.loads(desk.svc("install", "status", desk.name, "--json"))["clients"]
    approvals = status.get("approvals", {"missing": []})
    asks = "peer_list" in approvals["missing"]
    # As far as it is known what they do, unless the person has other settings.
    assert asks == (desk.client.name in ("claude", "gemini")), status
    terminal = desk.open(desk.api)
    desk.say(terminal, "who is here")
    if asks:
        terminal.wait(DIALOG[desk.client.name] + "|Do you want|Allow execution of MCP")
        desk.until("waiting", "a dialog is on its screen")
        answer(desk, terminal, "Enter")
    desk.model.asked(1)
    assert "peer_id" in desk.model.saw()[0], desk.model.saw()
    desk.until("idle", "its turn is over")
    if not asks:
        return "it asks for none"
    # With the person's leave it asks no more.
    desk.close(terminal)
    desk.svc("install", desk.name, "--allow-tools")
    terminal = desk.open(desk.api)
    desk.say(terminal, "who is here now", calls=2)
    assert "peer_id" in desk.model.saw()[2], desk.model.saw()
    return f"it asks for {len(approvals['missing'])}, and for none when it may"


RECORD = tool("start_ghap", **hooks.RECORD)
DONE = {"text": "done"}


def slow(client):
    """Steps that run one command for a long time. Claude Code refuses a bare sleep; Codex has its model ask again."""
    first = command(client, f"python3 -c 'import time; time.sleep({SILENT + 60})'")
    if client.name != "codex":
        return [first]
    again = {"tool": "write_stdin", "args": {"session_id": "${id:int}", "chars": "", "yield_time_ms": 120000}}
    return [first, {**again, "capture": {"id": r"session ID (\d+)"}}]


def failing(client):
    """Steps of which one fails, to which a question came; that to Codex is answered in the next turn."""
    first, held = {"text": "for its person", "hold": "first"}, {**DONE, "hold": "second"}
    # Claude Code asks again in other forms what was refused as invalid.
    status, kind = (403, "permission_error") if client.name == "claude" else (400, "invalid_request_error")
    fails = {"error": {"status": status, "type": kind, "message": "scripted failure"}}
    if client.name == "codex":
        answer = tool("peer_send", to="operator", type="response", correlation_id="${question}", text="it is")
        return [first, fails, {**answer, "capture": {"question": r"type=response correlation_id=(\w+)"}}, DONE]
    return [first, fails, fails, held, DONE, DONE]


def asking(client):
    """Steps that ask for permission twice."""
    return [command(client, "touch first", True), command(client, "touch second", True), DONE, DONE]


CASES = {
    "two projects": (two_projects, lambda client: [*[RECORD, DONE] * 2, DONE], False),
    "a long tool": (long_tool, lambda client: [*slow(client), *[DONE] * 4], False),
    "a permission": (permission, asking, True),
    "answered from elsewhere": (elsewhere, asking, True),
    "the person first": (person_first, asking, True),
    "killed at a prompt": (killed, asking, True),
    "a prompt in print mode": (printing, asking, True),
    "told": (told, lambda client: [DONE] * 4, False),
    "woken": (woken, lambda client: [DONE] * 6, False),
    "a failed turn": (failed_turn, failing, False),
    "harmless tools": (harmless_tools, lambda client: [tool("peer_list"), DONE] * 2, True),
}


def applies(client, case):
    """An earlier Claude Code asks its model before it has the tools of a server. The turns of opencode do not go on with messages."""
    if case in ("answered from elsewhere", "the person first", "killed at a prompt") and client.name not in YES:
        return False
    if case == "a prompt in print mode":
        return client.name == "claude"
    if case == "a failed turn" and client.name == "opencode":
        return False
    if case == "woken":
        return client.name == "opencode" or client.name == "claude" and client.numbers() >= (2, 1, 224)
    return case not in ("two projects", "harmless tools") or client.name != "claude" or client.numbers() >= (2, 1, 300)


def perform(client, case, _everyone):
    run, steps, ask = case
    with Desk(client, steps(client), ask) as desk:
        return run(desk)


if __name__ == "__main__":
    if not TMUX:
        print("not run: coding agents in terminals (tmux is not installed)", flush=True)
        sys.exit(0)
    run_cases("in a terminal", CASES, applies, perform)
