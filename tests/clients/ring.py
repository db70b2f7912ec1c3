#!/usr/bin/env python3
"""Messages that go around between real coding agents of different vendors, while the daemon is killed with -9 at random: none is lost
and none doubled, by what their models were asked.

    SVC_BIN=... SVC_AGENTS=FOLDER[:FOLDER...] ring.py [--messages 3000] [--where terminals|hosts] [--clients a,b,c] [--kill-clients] [--seed N]

In terminals, as persons have them, messages come by the clients' own ways and wake them when they are idle. On hosts, the daemon
runs the agents. Each message names a number. Whoever reads it passes a later number on to its neighbour; a call that fails is made
again with the same key, as a model would. SO_MANY messages are under way at a time, so that they find a client idle, or in a turn.
Conversations grow, so in terminals the ring begins anew in another home after each ROUND; Ctrl-C ends it, and the whole rounds count.
With --kill-clients the clients are killed, too, and their persons go on with the conversations.
The last lines say what was measured; exit 1 if a message was lost or came twice.
"""
import argparse
import collections
import copy
import json
import os
import random
import re
import sqlite3
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
OPTIONS = sys.argv[1:]
# What hosts are run by takes program and folders from the words of the command line.
sys.argv = [sys.argv[0], os.environ.get("SVC_BIN", ""), os.environ.get("SVC_AGENTS", ""), "none"]
import hosting  # noqa: E402
import mock_llm  # noqa: E402
import picture  # noqa: E402
from agents import find_clients  # noqa: E402
from daemon import Daemon, wait_for  # noqa: E402
from install import NAMES, THEIRS  # noqa: E402
from terminals import TMUX  # noqa: E402

SO_MANY = 6
ROUND = 300
KILLS_CLIENTS = "--kill-clients" in OPTIONS
# By which words a client goes on with a conversation.
GOES_ON = {"claude": ["--resume"], "codex": ["resume"], "opencode": ["--session"]}
# Nothing arrives any more after so long, in seconds.
STALLED = 120
# Bounds against agents that answer each other for ever.
UNBOUND = {"SVC_SESSION_SENDS": "1000000", "SVC_WAKES": "1000000"}
# A text in its stamp, as hooks of Codex show it, too. What a model itself said has no such lines.
HOP = re.compile(r"^(?:>|&gt;) hop-(\d+)-of-the-ring", re.M)


# What was accepted, and when.
SENT = "select text, at from message where text like 'hop-%-of-the-ring'"

# What became of one.
STATES = "select s.* from message_state s join message using (message_id) where text = ? order by s.at"


class Ring(mock_llm.Script):
    """The model of all of them: it passes on what it was told, and tries again what failed. It notes what it was asked, and when."""

    def __init__(self, members, last, send, log):
        super().__init__([], log)
        self.members, self.end, self.send = members, last, send
        # By number: who was asked with it first, and when; and how often it was in one conversation at most.
        self.asked, self.most, self.again = {}, collections.Counter(), collections.Counter()
        self.passed, self.seen_by = set(), {name: set() for name in members}
        self.tries, self.calls, self.latest = collections.Counter(), collections.Counter(), {}

    def pick(self, req):
        lane, now = req["lane"], time.time()
        has_tool = self.has_tool(req["offered"])
        if not req["offered"]:
            return None, "side"
        with self.lock:
            self.latest[lane] = now
            self.calls[lane] += 1
            counted = collections.Counter(int(number) for number in HOP.findall(req["flat"]))
            for hop, times in counted.items():
                if hop in self.asked and hop not in self.seen_by[lane]:
                    self.again[hop] += 1
                self.asked.setdefault(hop, (lane, now))
                self.most[hop] = max(self.most[hop], times)
            self.seen_by[lane] = set(counted)
            self.passed |= {hop for hop in self.unpassed(lane) if self.is_taken(hop, req)}
            hop = min(self.unpassed(lane), default=None)
            if hop is None or not has_tool or self.tries[hop] > 1000:
                return {"text": "passed on"}, "ring"
            self.tries[hop] += 1
        time.sleep(0 if self.tries[hop] == 1 else 0.5)
        return {"tool": f"mcp:svc/{self.send}", "args": self.arguments(lane, hop + SO_MANY, self.tries[hop])}, "ring"

    def unpassed(self, lane):
        return {hop for hop in self.seen_by[lane] if hop not in self.passed and hop + SO_MANY <= self.end}

    def has_tool(self, _offered):
        return True

    def arguments(self, lane, hop, tries):
        raise NotImplementedError

    def is_taken(self, hop, req):
        """Whether a result of a call says that what follows a number was sent."""
        raise NotImplementedError

    def rests(self, lane, seconds):
        """Whether a model that has something to pass on was not asked for so long: its turn was cut, or it had no tools in it."""
        with self.lock:
            return bool(self.unpassed(lane)) and time.time() - self.latest.get(lane, 0) > seconds


def receiver(number, members):
    """Whom a number is for: SO_MANY of them are under way, and each goes round by itself."""
    begun, steps = (number - 1) % SO_MANY, (number - 1) // SO_MANY
    return members[(begun + steps) % len(members)]


def neighbour(lane, members):
    return members[(members.index(lane) + 1) % len(members)]


def serve(script_of):
    """The model's server, with the script that this gives for its log."""
    server = mock_llm.serve(0, [], os.devnull)
    server.script = script_of(lambda **_: None)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


class Outcome:
    """What was measured."""

    def __init__(self):
        self.messages, self.seconds = 0, 0.0
        self.lost, self.doubled, self.strayed, self.again = [], [], [], 0
        self.kills, self.ways, self.took = collections.Counter(), collections.Counter(), []

    def add(self, script, messages, sent):
        """Takes in one ring. `sent`: when each message was accepted, by its key."""
        numbers = [hop for hop in range(1, messages + 1) if f"hop-{hop}" in sent]
        self.messages += len(numbers)
        self.lost += [hop for hop in numbers if hop not in script.asked]
        self.doubled += [hop for hop in numbers if script.most[hop] > 1]
        self.strayed += [hop for hop, (lane, _) in script.asked.items() if receiver(hop, script.members) != lane]
        self.again += sum(script.again.values())
        self.took += [script.asked[hop][1] - sent[f"hop-{hop}"] for hop in numbers if hop in script.asked]

    def say(self, where, members):
        took = sorted(self.took)
        at = lambda share: took[min(len(took) - 1, int(len(took) * share))] if took else float("nan")  # noqa: E731
        name = f"ring of {', '.join(members)} ({where})"
        kills = ", ".join(f"{count} times kill -9 of {whose}" for whose, count in sorted(self.kills.items()))
        print(f"      {name}: {self.messages} messages in {self.seconds:.0f} s, {kills}")
        print(f"      {name}: time from the acknowledged write to the model's request: p50 {at(0.5):.2f} s, p99 {at(0.99):.1f} s, longest {at(1):.1f} s")
        if self.ways:
            print(f"      {name}: {', '.join(f'{count} by {way}' for way, count in self.ways.most_common())}")
        if self.again:
            print(f"      {name}: {self.again} were read again by a client that was killed before it kept them")
        hosting.check(f"{name}: lost {len(self.lost)}", not self.lost, self.lost)
        hosting.check(f"{name}: doubled {len(self.doubled)}", not self.doubled, self.doubled)
        hosting.check(f"{name}: none came to another", not self.strayed, self.strayed)
        hosting.check(f"{name}: something was killed", self.kills.total() > 0)


# ---------------------------------------------------------------- in terminals


class TerminalRing(Ring):
    def __init__(self, members, last, log):
        super().__init__(members, last, "peer_send", log)
        self.peers = {}

    def has_tool(self, offered):
        # A client that lists the tool later takes calls of it all the same.
        return ("ToolSearch", None) in offered or mock_llm.tool_choice_name(f"mcp:svc/{self.send}", offered)

    def arguments(self, lane, hop, tries):
        # By its id or its name: opencode asks its person after the same call three times.
        return {"to": self.peers[neighbour(lane, self.members)][tries % 2], "text": f"hop-{hop}-of-the-ring", "idempotency_key": f"hop-{hop}"}


    def is_taken(self, hop, req):
        return re.search(rf'hop-{hop + SO_MANY}-of-the-ring\\*"[^\n]{{0,600}}?delivery', req["flat"])


class Lane:
    """The part of the model that one client asks."""

    def __init__(self, server, name):
        self.server, self.name = server, name
        self.url = f"http://127.0.0.1:{server.server_address[1]}/lane/{name}"

    def calls(self):
        return range(self.server.script.calls[self.name])

    def close(self):
        """The others still ask."""


class Member(picture.Desk):
    """A client in a terminal. All share one home, and one daemon."""

    def __init__(self, client, server):
        super().__init__(client, [])
        self.model = Lane(server, client.name)
        self.place, self.session, self.prompts = self.api, None, 0
        self.env |= UNBOUND

    def __enter__(self):
        self.furnish()
        return super(picture.Desk, self).__enter__()

    def beside(self, client):
        """Another client of the same person, in a folder of its own."""
        other = copy.copy(self)
        other.client, other.name = client, NAMES.get(client.name, client.name)
        other.model, other.terminals, other.opened, other.session = Lane(self.model.server, client.name), [], 0, None
        other.place = os.path.join(self.home, client.name)
        other.env = {**self.env, "PATH": client.folder + os.pathsep + self.env["PATH"]}
        os.makedirs(other.place)
        for name, text in THEIRS[client.name].items():
            other.write(name, text)
        # Its folder is one of those that it trusts.
        other.web = other.place
        other.furnish()
        other.install()
        return other

    def install(self):
        """On a machine that is busy, Codex may not answer in time which hooks it trusts."""
        for left in (2, 1, 0):
            try:
                return super().install()
            except AssertionError:
                if not left:
                    raise

    def await_tools(self):
        """A model that has none of them yet is asked again."""

    def begin(self):
        terminal = self.open(self.place)
        self.speak(terminal)
        self.session = wait_for(lambda: [it["session_id"] for it in self.peers()], f"{self.name} is here", 60)[0]

    def speak(self, terminal):
        """What its person says first, and when a turn was cut."""
        self.prompts += 1
        self.say(terminal, f"go on, please ({self.name} {self.prompts})")

    def kill(self):
        """Ends the client, as a lack of memory would: its process, or the app-server that its terminals share."""
        [terminal] = self.terminals
        for pid in {terminal.pid(), *(it["pid"] for it in self.peers())} - {None}:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        self.close(terminal)

    def again(self):
        """Its person opens the conversation again, and goes on."""
        self.speak(self.open(self.place, [*GOES_ON[self.client.name], self.session]))


def in_terminals(members, messages, chance, outcome):
    clients = {it.name: it for it in sorted(find_clients(), key=lambda it: it.numbers()) if not it.variant}
    server = serve(lambda log: TerminalRing(members, messages, log))
    script, began, kills = server.script, time.time(), collections.Counter()
    try:
        with Member(clients[members[0]], server) as first:
            desks = {members[0]: first}
            for name in members[1:]:
                desks[name] = first.beside(clients[name])
            try:
                for desk in desks.values():
                    desk.begin()
                go_round(desks, script, messages, chance, kills)
            except BaseException:
                for desk in desks.values():
                    for terminal in desk.terminals:
                        print(f"{desk.name}:\n{terminal.screen()}", flush=True)
                raise
            finally:
                for desk in desks.values():
                    for terminal in list(desk.terminals):
                        desk.close(terminal)
            sent = {text.removesuffix("-of-the-ring"): at / 1000 for text, at in first.query(SENT)}
            outcome.ways.update(dict(first.query("select via, count(*) from message_state join message using (message_id) "
                                                 "where message_state.state = 'offered' and via is not null and idempotency_key is not null group by 1")))
            for hop in [hop for hop in range(1, messages + 1) if f"hop-{hop}" in sent and hop not in script.asked]:
                print(f"      hop-{hop} was not read:", *first.query(STATES, f"hop-{hop}-of-the-ring"), flush=True)
    finally:
        server.shutdown()
        server.server_close()
    outcome.add(script, messages, sent)
    outcome.kills += kills
    outcome.seconds += time.time() - began


def go_round(desks, script, messages, chance, kills):
    members = list(desks)
    first = desks[members[0]]
    script.peers.update({name: [desk.peer()["peer_id"], desk.peer()["display_name"]] for name, desk in desks.items()})
    for number in range(1, min(SO_MANY, messages) + 1):
        first.call("peer_send", to=script.peers[receiver(number, members)][0], text=f"hop-{number}-of-the-ring", idempotency_key=f"hop-{number}")
    seen, since = -1, time.time()
    next_client = time.time() + chance.uniform(15, 30)
    while True:
        now = len(script.asked)
        if now != seen:
            seen, since = now, time.time()
        if now >= messages or time.time() - since > STALLED:
            break
        end = time.time() + chance.uniform(3, 12)
        while time.time() < end and len(script.asked) < messages:
            for name, desk in desks.items():
                if script.rests(name, 5):
                    desk.speak(desk.terminals[-1])
            time.sleep(0.2)
        if KILLS_CLIENTS and time.time() > next_client:
            victim = desks[chance.choice([name for name in members if name in GOES_ON])]
            victim.kill()
            kills[victim.name] += 1
            time.sleep(chance.uniform(0, 2))
            victim.again()
            next_client = time.time() + chance.uniform(15, 30)
        else:
            first.crash()
            kills["the daemon"] += 1
            time.sleep(chance.uniform(0, 1))
            first.svc("start")
    # Whatever would come twice comes now.
    first.crash()
    first.svc("start")
    for desk in desks.values():
        desk.speak(desk.terminals[-1])
    time.sleep(8)
    wait_for(lambda: all(desk.status() == "idle" for desk in desks.values()), "all are idle", 60)


# ---------------------------------------------------------------- on hosts


class HostRing(Ring):
    def __init__(self, members, last, log):
        super().__init__(members, last, "sessions_send", log)

    def arguments(self, lane, hop, tries):
        return {"sessionKey": f"agent:{neighbour(lane, self.members)}:main", "mode": "notify", "message": f"hop-{hop}-of-the-ring",
                "idempotencyKey": f"hop-{hop}", "timeoutSeconds": tries % 60}

    def is_taken(self, hop, req):
        return self.tries[hop] and re.search(r'accepted|\\*"ok\\*"', req["last"])


class Own(Daemon):
    """A daemon that leaves no agent behind."""

    def __exit__(self, *_):
        self.kill9()
        hosting.leave(self.dir)


def on_hosts(members, messages, chance, outcome, folder):
    server, began = serve(lambda log: HostRing(members, messages, log)), time.time()
    own = Own()
    own.env |= UNBOUND
    os.makedirs(own.home, mode=0o700)
    with open(os.path.join(own.home, "config.toml"), "w") as file:
        for name in members:
            home = os.path.join(folder, name)
            hosting.furnish(name, home)
            model = Lane(server, name)
            file.write(hosting.instance(name, hosting.command(name, model), hosting.environment(name, home, model)))
    work = os.path.join(folder, "work")
    os.makedirs(work)
    with own:
        for name in members:
            own.rest("POST", "/v1/hosts", {"instance": name, "name": "main", "cwd": work})
        for number in range(1, min(SO_MANY, messages) + 1):
            call(own, "sessions_send", {"sessionKey": f"agent:{receiver(number, members)}:main", "mode": "notify",
                                        "message": f"hop-{number}-of-the-ring", "idempotencyKey": f"hop-{number}"})
        seen, since = -1, time.time()
        while True:
            now = len(server.script.asked)
            if now != seen:
                seen, since = now, time.time()
            if now >= messages or time.time() - since > STALLED:
                break
            end = time.time() + chance.uniform(1.5, 5)
            while time.time() < end:
                answer_requests(own)
                time.sleep(0.2)
            own.crash()
            outcome.kills["the daemon"] += 1
        # Whatever would come twice comes now.
        own.crash()
        for _ in range(15):
            answer_requests(own)
            time.sleep(0.2)
        wait_for(lambda: all(agent["state"] == "idle" for agent in own.rest("GET", "/v1/hosts?live=true")["hosts"]), "all are idle", 30)
        for agent in own.rest("GET", "/v1/hosts?live=true")["hosts"]:
            own.rest("POST", f"/v1/hosts/{agent['id']}/stop", {"force": True})
        with sqlite3.connect(f"file:{own.home}/svc.db?mode=ro", uri=True) as db:
            sent = {text.removesuffix("-of-the-ring"): at / 1000 for text, at in db.execute(SENT)}
    server.shutdown()
    outcome.add(server.script, messages, sent)
    outcome.seconds += time.time() - began


def answer_requests(own):
    for request in own.rest("GET", "/v1/requests?open=true")["requests"]:
        once = next(it["option_id"] for it in request["options"] if it["kind"].startswith("allow"))
        try:
            own.rest("POST", f"/v1/requests/{request['request_id']}/answer", {"option_id": once})
        except OSError:
            pass


def call(own, tool, arguments):
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    answer = own.rest("POST", "/mcp", body)["result"]
    if answer.get("isError"):
        raise RuntimeError(answer)
    return answer["structuredContent"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=3000)
    parser.add_argument("--where", choices=["terminals", "hosts"], default="terminals")
    parser.add_argument("--clients")
    parser.add_argument("--kill-clients", action="store_true")
    parser.add_argument("--seed", type=int, default=time.time_ns())
    options = parser.parse_args(OPTIONS)
    default = {"terminals": "claude,codex,opencode", "hosts": "claude,codex,gemini"}[options.where]
    members = (options.clients or default).split(",")
    missing = [name for name in members if not hosting.program(name)]
    if missing or options.where == "terminals" and not TMUX:
        why = f"{', '.join(missing)}: not in {hosting.BIN}" if missing else "tmux is not installed"
        print(f"not run: the ring of {', '.join(members)} ({why})")
        return 0
    folder = tempfile.mkdtemp(prefix="svc-ring-")
    chance, outcome = random.Random(options.seed), Outcome()
    try:
        if options.where == "hosts":
            on_hosts(members, options.messages, chance, outcome, folder)
        else:
            for begun in range(0, options.messages, ROUND):
                in_terminals(members, min(ROUND, options.messages - begun), chance, outcome)
                print(f"      {outcome.messages} messages, lost {len(outcome.lost)}, doubled {len(outcome.doubled)}, {outcome.seconds:.0f} s", flush=True)
    except KeyboardInterrupt:
        print("      ended early: whole rounds count")
    except (TimeoutError, RuntimeError, KeyError, OSError, AssertionError, sqlite3.Error) as error:
        hosting.check(f"the ring to the end (seed {options.seed})", False, repr(error))
    finally:
        hosting.leave(folder)
    outcome.say(options.where, members)
    return 1 if hosting.FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
