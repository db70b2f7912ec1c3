#!/usr/bin/env python3
"""Coding agents whose hooks tell the daemon of their sessions: what comes of it, for them and for those who work beside them.

    SVC_BIN=... SVC_AGENTS=FOLDER[:FOLDER...] hooks.py [--clients a,b] [--cases x,y] [--jobs 2]

Each case has a home of its own in which `svc install` was run, and a scripted model, as in install.py. What a client was
told is read from the requests that its model got.
"""

import contextlib
import copy
import glob
import html
import json
import os
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.dont_write_bytecode = True
import agents  # noqa: E402
from agents import tool  # noqa: E402
from daemon import free_port, wait_for  # noqa: E402
from install import COMMANDS, NAMES, SHELL, THEIRS, Person, no_hook_errors, quiet, run_cases  # noqa: E402

END = {"text": "all done"}
RECORD = {
    "domain": "debugging",
    "strategy": "root-cause-analysis",
    "goal": "Stop cart totals from differing by one cent between the basket and the invoice",
    "hypothesis": "Line items are rounded before they are summed because LineItem.total() calls toFixed(2) on each row",
    "action": "Sum in integer minor units in computeCartTotal and round once at the end",
    "prediction": "The fixtures in test_cart.py agree with the invoice to the cent",
}
LESSON = "Never round per line; money is an integer until it is shown"


class Model(agents.Model):
    """A scripted model that keeps each request as it came."""

    def __init__(self, steps):
        self.bodies = tempfile.TemporaryDirectory(prefix="model-bodies-")
        super().__init__(steps)
        self.server.bodies = self.bodies.name

    def body(self, call):
        """The request of a model call (from 0), as text in which quotes and line ends are themselves."""
        return "\n".join(texts(json.loads(self.raw(call))))

    def raw(self, call):
        number = self.calls()[call]["n"]
        [path] = glob.glob(f"{self.bodies.name}/*{number:04d}*.json")
        with open(path) as f:
            return f.read()

    def close(self):
        super().close()
        self.bodies.cleanup()


def texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for it in value.values():
            yield from texts(it)
    elif isinstance(value, list):
        for it in value:
            yield from texts(it)


class Agent(Person):
    """A home with an installed client and a daemon whose port stays the same."""

    def __init__(self, client):
        super().__init__(client)
        self.name = NAMES.get(client.name, client.name)
        self.data = os.path.join(self.home, ".local/share/svc")
        config = os.path.join(self.home, ".config/svc")
        os.makedirs(config)
        with open(os.path.join(config, "config.toml"), "w") as f:
            f.write(f'listen = ["127.0.0.1:{free_port()}"]\n')
        # What a hook could not tell is taken in soon.
        self.env["SVC_MAINTENANCE_MS"] = "200"
        # Of Codex: with another, tools are called from JavaScript, and there are sub-agents.
        self.model = "gpt-5"

    def __enter__(self):
        self.install()
        self.svc("start")
        return self

    def beside(self, client):
        """Another client of the same person."""
        other = copy.copy(self)
        other.client, other.name, other.theirs = client, NAMES.get(client.name, client.name), THEIRS[client.name]
        other.env = {**self.env, "PATH": client.folder + os.pathsep + self.env["PATH"]}
        for name, text in other.theirs.items():
            path = os.path.join(other.home, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(text)
        other.install()
        return other

    def call(self, name, **args):
        return json.loads(self.svc("tools", "call", name, "--json", "--args", json.dumps(args)))

    def query(self, sql, *args):
        db = sqlite3.connect(f"file:{self.data}/svc.db?mode=ro", uri=True)
        try:
            return db.execute(sql, args).fetchall()
        finally:
            db.close()

    def own(self):
        """The client's sessions."""
        return [it for it in self.sessions() if it.get("client") == self.name]

    def crash(self):
        with open(os.path.join(self.data, "daemon.json")) as f:
            pid = json.load(f)["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not is_alive(pid), "the daemon's end")

    def spawn(self, model, prompt, resume=False, stdin=None):
        args, extra = COMMANDS[self.client.name](model.url)
        args = [prompt if it == "do it" else "Bash,Task,Agent,mcp__svc" if it == "Bash,mcp__svc" else it for it in args]
        args = [it.replace('"gpt-5"', json.dumps(self.model)) for it in args]
        if resume:
            at = {"claude": 1, "gemini": 1, "codex": 2, "opencode": 2}[self.client.name]
            args[at:at] = {"claude": ["--continue"], "gemini": ["--resume", "latest"], "codex": ["resume", "--last"], "opencode": ["--continue"]}[self.client.name]
        return self.popen(args, {**quiet(model.url), **extra})

    @contextlib.contextmanager
    def talk(self, steps, prompt="do it", resume=False, meanwhile=None, rules=()):
        """One run of the client to its end; gives the model, which can be asked what it was told. `rules` answer a sub-agent."""
        model = Model([*steps, END, *rules])
        try:
            process = self.spawn(model, prompt, resume)
            try:
                if meanwhile:
                    meanwhile(model)
            finally:
                out, err = self.finish(process)
            said = f"{model.saw()}\n{out[-3000:]}\n{err[-3000:]}"
            assert process.returncode == 0, f"exit {process.returncode}\n{said}"
            assert not model.failures(), f"{model.failures()}\n{said}"
            own = [it for it in model.calls() if it["entry"].startswith("step")]
            assert len(own) == len(steps) + 1, f"{len(own)} calls of the model\n{said}"
            nothing_shown(self, out + err)
            yield model
        finally:
            model.close()


def nothing_shown(agent, printed):
    """No hook went wrong, as far as the client lets anybody know."""
    others = []
    for line in printed.splitlines():
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict) and said.get("subtype") == "hook_response":
                # What wakes a session does so by a status of 2.
                fine = said["outcome"] == "success" and not said["stderr"] or said["exit_code"] == 2
                assert fine, line
                continue
        others.append(line)
    no_hook_errors(agent, "\n".join(others))


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def shell(client, command):
    """A step that runs a command."""
    return json.loads(json.dumps(SHELL[client.name]).replace('"echo one"', json.dumps(command)))


def only(items):
    assert len(items) == 1, items
    return items[0]


# ---------------------------------------------------------------- the cases


def context(agent):
    """What was learned comes with a prompt that has to do with it, once in a session, and with no other."""
    agent.call("start_session", session_id="before", cwd=agent.work)
    agent.call("start_ghap", session_id="before", **RECORD)
    lesson = {"what_worked": "Keeping amounts as integers of minor units everywhere", "takeaway": LESSON}
    agent.call("resolve_ghap", session_id="before", status="confirmed", result="All fixtures pass", lesson=lesson)
    agent.call("end_session", session_id="before")
    with agent.talk([], "please write a haiku about autumn leaves") as model:
        assert LESSON not in model.body(0), model.body(0)
    prompt = "cart totals differ by one cent between the basket and the invoice, debug the rounding of line items"
    with agent.talk([shell(agent.client, "echo one")], prompt) as model:
        assert model.body(0).count(LESSON) == 1, model.body(0)
        assert model.body(1).count(LESSON) == 1, model.body(1)
    with agent.talk([], f"again: {prompt}", resume=True) as model:
        # What the client keeps of the first turn is all there is.
        assert model.body(0).count(LESSON) <= 1, model.body(0)
        return "kept by the client" if LESSON in model.body(0) else "not kept by the client"


def check_in(agent):
    """A record that the model begins is its session's, and it is asked about it once in ten calls."""
    steps = [tool("start_ghap", **RECORD)] + [shell(agent.client, f"echo {n}") for n in range(15)]
    with agent.talk(steps) as model:
        session = only(agent.own())
        [(owner,)] = agent.query("select session_id from ghap")
        assert owner == session["session_id"], (owner, session)
        reminder = "since the active GHAP record"
        first = next(n for n in range(len(steps) + 1) if reminder in model.body(n))
        assert first == 11, f"after call {first - 1} since the record began"
        assert model.body(16).count(reminder) == 1, model.body(16)
        assert session["tool_calls"] == 16, session


def sub_agent(agent):
    """What a sub-agent does is counted apart, and it hears of no record."""
    about = {"description": "look around", "prompt": "look around"}
    start = {"tool": "task", "args": {**about, "subagent_type": "general"}}
    if agent.client.name == "claude":
        start = {"tool": "Agent", "args": {**about, "subagent_type": "general-purpose", "run_in_background": False}}
    beneath = [*(shell(agent.client, f"echo beneath {n}") for n in range(12)), {"text": "looked around"}]
    above = [shell(agent.client, f"echo {n}") for n in range(3)]
    if agent.client.name == "codex":
        # Both are at work at the same time: rules answer the one, steps the other.
        agent.model = "gpt-6.1-sol"
        start = [{"tool": "spawn_agent", "args": {"task_name": "sub", "message": "LOOK around", "fork_turns": "none"}}, {"tool": "wait_agent", "args": {"timeout_ms": 30000}}]
        rules = [{**it, "when_body": "LOOK around", "when_system": "You are an agent in a team", "times": 1} for it in beneath]
        steps, calls = [tool("start_ghap", **RECORD), *start, *above], 6
    else:
        steps, rules, calls = [tool("start_ghap", **RECORD), start, *beneath, *above], [], 5
    with agent.talk(steps, rules=rules) as model:
        session = only(agent.own())
        assert session["tool_calls"] == calls, session
        assert not any("since the active GHAP record" in model.body(n) for n in range(len(model.calls())))
        counted = agent.query("select agent_id, sum(count) from tool_use where session_id = ? group by agent_id", session["session_id"])
        assert sorted(count for _, count in counted) == [calls, 12], counted


def outcomes(agent):
    """Test runs are outcomes; the model is asked, and cites one."""
    test = "import unittest\n\n\nclass Cart(unittest.TestCase):\n    def test_total(self):\n        self.assertEqual(1 + 1, WANT)\n"
    # Of another length: Python takes what it has compiled for a file of the same second and length.
    for name, want in (("test_cart.py", "3"), ("right.txt", "1 + 1")):
        with open(os.path.join(agent.work, name), "w") as f:
            f.write(test.replace("WANT", want))
    run = "python3 -m unittest test_cart"
    steps = [
        tool("start_ghap", **RECORD),
        shell(agent.client, run),
        shell(agent.client, "cp right.txt test_cart.py"),
        {**shell(agent.client, run + " -v")},
        {**tool("resolve_ghap", status="confirmed", result="the test passes", outcome_id="${outcome}"), "capture": {"outcome": r"confirm it\? resolve_ghap with outcome_id (\S+)"}},
    ]
    with agent.talk(steps) as model:
        rows = agent.query("select outcome_id, verdict, session_id from outcome order by at, outcome_id")
        assert [verdict for _, verdict, _ in rows] == ["fail", "pass"], rows
        session = only(agent.own())
        assert {owner for _, _, owner in rows} == {session["session_id"]}, rows
        assert f"outcome_id {rows[0][0]}" in model.body(2) and "falsify" in model.body(2), model.body(2)
        assert f"outcome_id {rows[1][0]}" in model.body(4), model.body(4)
        entry = only(agent.call("list_ghap_entries")["results"])
        assert entry["confidence_tier"] == "gold", entry


def message(agent, others):
    """Codex asks this client something in the middle of its turn; it gets exactly these words, and answers by the call that they name."""
    sender = next((it for it in others if it.name == "codex"), None)
    assert sender, "there is no Codex to write"
    codex = agent.beside(sender)
    sent = []

    def meanwhile(model):
        model.holding("x")
        [(own,)] = agent.query("select display_name from peer where session_id <> ''")
        with codex.talk([tool("peer_send", to=own, type="query", text="is the schema\nat version nine")], "write to it") as theirs:
            sent.append(only(agent.query("select message_id, from_peer from message")))
            assert sent[0][0] in theirs.body(1), theirs.body(1)
        model.release("x")

    answer = tool("peer_send", to="${to}", type="response", correlation_id="${question}", text="it is")
    answer["capture"] = {"to": r"Answer: peer_send to=(\w+) type=response", "question": r"type=response correlation_id=(\w+)"}
    steps = [shell(agent.client, "echo one"), {**shell(agent.client, "echo two"), "hold": "x"}, answer]
    with agent.talk(steps, meanwhile=meanwhile) as model:
        told = model.body(2)
        while "\\" in told:
            told = re.sub(r"\\(.)", lambda escaped: "\n" if escaped[1] == "n" else escaped[1], told)
        # Gemini escapes what a hook says.
        told = html.unescape(told)
        [(theirs, name)] = agent.query("select session_id, display_name from peer where peer_id = ?", sent[0][1])
        question, asker = sent[0]
        words = [
            f"[Inter-session message] sourceSession=agent:codex:{theirs} sourceChannel=codex sourceTool=peer_send isUser=false",
            f"Agent 1 (requester) session: agent:codex:{theirs}.",
            f'From another agent, not your user: "{name}" asks. messageId {question}.',
            "> is the schema",
            "> at version nine",
            f"Answer: peer_send to={asker} type=response correlation_id={question}; only this",
        ]
        assert told.count("\n".join(words)) == 1, told
        assert told.count("at version nine") == 1, told
        [(reply, reply_type)] = agent.query("select text, type from message where correlation_id = ? and to_peer = ?", question, asker)
        assert (reply, reply_type) == ("it is", "response"), (reply, reply_type)
        detail = json.loads(agent.svc("message", "show", sent[0][0], "--json"))
        states = [it["state"] for it in detail["states"]]
        assert states == ["accepted", "queued", "offered", "injected", "acked"], detail


def reply(agent):
    """What the model says last in the turn that a question began is the answer, if it gave none by a tool: here the turn with which it goes on.
    A run of opencode ends with its turn: to it the question comes with a tool's result, and only a tool answers it."""
    is_within = agent.client.name == "opencode"
    sent = []

    def meanwhile(model):
        model.holding("x")
        [(own,)] = agent.query("select display_name from peer where session_id <> ''")
        sent.append(agent.call("peer_send", to=own, type="query", text="is it nine")["id"])
        model.release("x")

    second = shell(agent.client, "echo two") if is_within else {"text": "one is echoed"}
    with agent.talk([shell(agent.client, "echo one"), {**second, "hold": "x"}], meanwhile=meanwhile) as model:
        assert "is it nine" in model.body(2), model.body(2)
        assert ("; only this" in model.body(2)) == is_within, model.body(2)
        if is_within:
            assert not agent.query("select 1 from message where correlation_id = ?", sent[0])
            return
        words = wait_for(lambda: agent.query("select text, type from message where correlation_id = ?", sent[0]), "the answer")
        assert words == [(END["text"], "response")], words


@contextlib.contextmanager
def opened(agent, model):
    """A session of Claude Code that a program keeps open; it ends well."""
    args, _ = COMMANDS["claude"](model.url)
    args[args.index("do it")] = "--input-format=stream-json"
    args[0] = os.path.join(agent.client.folder, args[0])
    # It says more than a pipe holds.
    printed = open(os.path.join(agent.dir, "printed"), "w+")
    process = subprocess.Popen(args, env={**agent.env, **quiet(model.url)}, cwd=agent.work, stdin=subprocess.PIPE, stdout=printed, stderr=printed, text=True,
                               start_new_session=True)
    try:
        yield process
        process.stdin.close()
        if waiters(agent):
            # It would wait for the waiter: who has told that to stay ends the session.
            process.terminate()
        process.wait(20)
        printed.seek(0)
        out = printed.read()
        assert process.returncode in (0, 143, -signal.SIGTERM), (process.returncode, out[-2000:])
        assert not model.failures(), model.failures()
        nothing_shown(agent, out)
        wait_for(lambda: not waiters(agent), "no waiter is left")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        printed.close()
        model.close()


def say(process, text):
    process.stdin.write(json.dumps({"type": "user", "message": {"role": "user", "content": text}}) + "\n")
    process.stdin.flush()


WAKES = 20


def wake(agent):
    """An idle session that a program keeps open is woken by a message, again and again."""
    model = Model([{"text": f"turn {n}"} for n in range(WAKES + 1)])
    agent.env["SVC_HOOKS_WAKE"] = "always"
    with opened(agent, model) as process:
        say(process, "hello")
        model.asked(0)
        with open(os.path.join(agent.data, "daemon.json")) as f:
            url = json.load(f)["url"]
        with open(os.path.join(agent.data, "token")) as f:
            headers = {"Authorization": f"Bearer {f.read().strip()}", "Content-Type": "application/json"}

        def rest(path, body=None):
            data = None if body is None else json.dumps(body).encode()
            with urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=10) as r:
                return json.load(r)

        peer = only(rest("/v1/peers")["peers"])["peer_id"]
        waits = lambda: len(waiters(agent)) == 1  # noqa: E731
        to_model, to_offered, sent = [], [], []
        for n in range(WAKES):
            wait_for(lambda: only(rest("/v1/peers")["peers"])["status"] == "idle" and waits(), "an idle session with a waiter")
            time.sleep(0.3)
            started = time.time()
            sent.append(rest(f"/v1/peers/{peer}/messages", {"text": f"the news number {n} is here"})["id"])
            model.asked(n + 1, 20)
            to_model.append(model.calls()[n + 1]["t"] - started)
            assert f"the news number {n} is here" in model.body(n + 1), model.body(n + 1)
        wait_for(lambda: all(rest(f"/v1/messages/{it}")["state"] == "injected" for it in sent), "all injected")
        for it in sent:
            states = {state["state"]: state["at"] for state in rest(f"/v1/messages/{it}")["states"]}
            assert list(states) == ["accepted", "queued", "offered", "injected"], states
            to_offered.append(millis(states["offered"]) - millis(states["accepted"]))
    assert not waiters(agent), "a waiter is left"
    figure = lambda values: f"p50 {statistics.median(values):.0f} ms, worst of {len(values)} {max(values):.0f} ms"  # noqa: E731
    assert max(to_offered) < 2000, to_offered
    return f"offered {figure(to_offered)}; model called {figure([it * 1000 for it in to_model])}"


def clear(agent):
    """A conversation that a person clears is over; the one that follows in the same process has its own calls, and hears of what was left."""
    adopt = {**tool("adopt_ghap", id="${ghap}"), "capture": {"ghap": r"left a GHAP record open in this project, (\w+)"}}
    model = Model([tool("start_ghap", **RECORD), END, adopt, END])
    with opened(agent, model) as process:
        say(process, "hello")
        model.asked(1)
        wait_for(lambda: agent.query("select 1 from peer where status = 'idle'"), "the end of the turn")
        say(process, "/clear")
        wait_for(lambda: len(agent.own()) == 2, "another session")
        say(process, "hello again")
        model.asked(3)
        sources = {it["session_id"]: it["source"] for it in agent.own()}
        [(owner,)] = agent.query("select session_id from ghap")
        assert sources[owner] == "clear" and len(sources) == 2, (owner, agent.own())


def millis(time_text):
    from datetime import datetime

    return datetime.fromisoformat(time_text.replace("Z", "+00:00")).timestamp() * 1000


def waiters(agent):
    """Processes `svc hook wait` of this home."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as f:
                words = f.read().split(b"\0")
            if words[1:3] != [b"hook", b"wait"]:
                continue
            with open(path.replace("cmdline", "environ"), "rb") as f:
                if f"HOME={agent.home}".encode() in f.read().split(b"\0"):
                    found.append(path)
        except OSError:
            pass
    return found


def crash(agent):
    """The daemon is killed in the middle and comes back some calls later: nobody sees it, and every call is counted."""

    def meanwhile(model):
        model.holding("x")
        agent.crash()
        model.release("x")
        model.holding("y")
        assert os.path.exists(os.path.join(agent.data, "hooks.spool")), "nothing waits"
        agent.svc("start")
        model.release("y")

    run = lambda n: shell(agent.client, f"echo {n}")  # noqa: E731
    steps = [tool("peer_list"), run(1), {**run(2), "hold": "x"}, run(3), run(4), run(5), {**tool("peer_list", limit=9), "hold": "y"}, run(6), tool("peer_list", limit=8)]
    with agent.talk(steps, meanwhile=meanwhile) as model:
        saw = model.saw()
        assert all("as_of" in saw[n] for n in (0, 6, 8)), saw
        count = lambda: only(agent.own())["tool_calls"]  # noqa: E731
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: count() >= len(steps), "all calls")
        wait_for(lambda: not glob.glob(agent.data + "/hooks.spool*"), "an empty spool")
        assert count() == len(steps), (count(), agent.svc("session", "list", "--json"))


def again(agent):
    """A session that goes on is the same, with its record; another one of the project hears of it, and takes it over."""
    with agent.talk([tool("start_ghap", **RECORD)]):
        first = only(agent.own())
        assert first["source"] == "startup", first
        [(ghap, owner)] = agent.query("select ghap_id, session_id from ghap")
        assert owner == first["session_id"]
    with agent.talk([shell(agent.client, "echo one")], "go on", resume=True) as model:
        same = only(agent.own())
        assert same["session_id"] == first["session_id"], (first, same)
        assert same["source"] == "resume", same
        assert f"This session has an open GHAP record, {ghap}" in model.body(0), model.body(0)
    if agent.client.name == "opencode":
        # It never says that a session is over; one that is silent for half an hour counts as left.
        agent.call("end_session", session_id=first["session_id"])
    with agent.talk([tool("adopt_ghap", id=ghap)], "something new") as model:
        assert f"left a GHAP record open in this project, {ghap}" in model.body(0), model.body(0)
        other = [it for it in agent.own() if it["session_id"] != first["session_id"]]
        [(owner,)] = agent.query("select session_id from ghap where ghap_id = ?", ghap)
        assert owner == only(other)["session_id"], (owner, other)


CASES = {"context": context, "check-in": check_in, "sub-agent": sub_agent, "outcomes": outcomes, "message": message, "reply": reply, "wake": wake, "clear": clear, "crash": crash, "again": again}


def applies(client, case):
    """Only Claude Code can be woken, or takes further prompts without a terminal. Gemini has no sub-agent that could be scripted."""
    without = {"wake": ("codex", "gemini", "opencode"), "clear": ("codex", "gemini", "opencode"), "sub-agent": ("gemini",)}
    return client.name not in without.get(case, ())


def perform(client, case, everyone):
    with Agent(client) as agent:
        return case(agent, everyone) if case is CASES["message"] else case(agent)


if __name__ == "__main__":
    run_cases("hooks", CASES, applies, perform)
