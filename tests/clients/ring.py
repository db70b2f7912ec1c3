#!/usr/bin/env python3
"""Messages that go around between real coding agents of different vendors, hosted by a daemon that is killed at random: none is
lost and none doubled. The judges are the clients' own transcripts.

    ring.py SVC BIN [--messages 30] [--clients claude,codex,gemini]      BIN: folders (a:b) with the agents' executables

Each message names a number. Whoever gets it passes the next number on to its neighbour by the tool `sessions_send`; a call that
fails is made again with the same key, as a model would. Several messages are under way at a time. SVC_RING_MESSAGES says how many.
One line for each check; exit 1 if one failed.
"""
import argparse, collections, glob, json, os, random, re, shutil, sqlite3, sys, tempfile, threading, time

sys.argv, ARGV = [sys.argv[0], *sys.argv[1:3], "none"], sys.argv[3:]
import hosting  # noqa: E402  it takes the program and the folders from the words of the command line
import mock_llm  # noqa: E402
from daemon import Daemon, wait_for  # noqa: E402

# So many are under way at a time.
STRIDE = 3
HOP = re.compile(r"hop-(\d+)-of-the-ring")


class Ring(mock_llm.Script):
    """The model of all of them: it passes on what it was told, and tries again what failed."""

    def __init__(self, members, last, log):
        super().__init__([], log)
        self.members, self.end, self.hops, self.tries = members, last, {}, collections.Counter()

    def pick(self, req):
        if not req["offered"]:
            return None, "side"
        lane, last = req["lane"], req["last"]
        stamped = HOP.search(last) if "[Inter-session message]" in last else None
        with self.lock:
            if stamped:
                self.hops[lane] = int(stamped[1])
            hop = self.hops.get(lane)
            if hop is None or hop + STRIDE > self.end or self.tries[hop] > 100 or (not stamped and re.search(r'accepted|\\"ok\\"|"ok"', last)):
                return {"text": "passed on"}, "ring"
            self.tries[hop] += 1
            tries = self.tries[hop]
        time.sleep(0 if tries == 1 else 0.5)
        place = self.members.index(lane)
        arguments = {"sessionKey": f"agent:{self.members[(place + 1) % len(self.members)]}:main", "mode": "notify",
                     "message": f"hop-{hop + STRIDE}-of-the-ring", "idempotencyKey": f"hop-{hop + STRIDE}", "timeoutSeconds": tries % 60}
        return {"tool": "mcp:svc/sessions_send", "args": arguments}, "ring"


def told_claude(home):
    for name in glob.glob(f"{home}/.claude/projects/*/*.jsonl"):
        for line in map(json.loads, open(name)):
            if line.get("type") == "user" and not line.get("isMeta"):
                content = line["message"]["content"]
                yield from [content] if isinstance(content, str) else [it.get("text", "") for it in content if it.get("type") == "text"]


def told_codex(home):
    for name in glob.glob(f"{home}/.codex/sessions/**/rollout-*.jsonl", recursive=True):
        for line in map(json.loads, open(name)):
            said = line.get("payload") or {}
            if line.get("type") == "response_item" and said.get("type") == "message" and said.get("role") == "user":
                yield from [it.get("text", "") for it in said["content"]]


def told_gemini(home):
    for name in glob.glob(f"{home}/.gemini/tmp/*/chats/*.json*"):
        text = open(name).read()
        entries = [json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text)["messages"]
        by_id = {entry.get("id", place): entry for place, entry in enumerate(entries)}
        for entry in by_id.values():
            if entry.get("type") == "user":
                content = entry["content"]
                yield from [content] if isinstance(content, str) else [it.get("text", "") for it in content]


def told_opencode(home):
    for name in glob.glob(f"{home}/.local/share/opencode/*.db"):
        with sqlite3.connect(f"file:{name}?mode=ro", uri=True) as db:
            users = {row[0] for row in db.execute("select id from message where json_extract(data, '$.role') = 'user'")}
            for message, data in db.execute("select message_id, data from part"):
                part = json.loads(data)
                if message in users and part.get("type") == "text":
                    yield part["text"]


TOLD = {"claude": told_claude, "codex": told_codex, "gemini": told_gemini, "opencode": told_opencode}


class Own(Daemon):
    """A daemon that leaves no agent behind."""

    def __exit__(self, *_):
        self.kill9()
        hosting.leave(self.dir)


def run(members, messages, folder):
    model = type("Model", (), {})()
    log = open(os.path.join(folder, "model.jsonl"), "w")
    server = mock_llm.serve(0, [], log.name)
    server.script = Ring(members, messages, server.script.log)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    own = Own()
    own.env["SVC_SESSION_SENDS"] = "1000000"
    os.makedirs(own.home, mode=0o700)
    homes = {}
    with open(os.path.join(own.home, "config.toml"), "w") as file:
        for name in members:
            homes[name] = os.path.join(folder, name)
            hosting.furnish(name, homes[name])
            model.url = f"http://127.0.0.1:{server.server_address[1]}/lane/{name}"
            file.write(hosting.instance(name, hosting.command(name, model), hosting.environment(name, homes[name], model)))
    work = os.path.join(folder, "work")
    os.makedirs(work)
    kills = 0
    with own:
        for name in members:
            own.rest("POST", "/v1/hosts", {"instance": name, "name": "main", "cwd": work})
        for number in range(1, min(STRIDE, messages) + 1):
            call(own, "sessions_send", {"sessionKey": f"agent:{receiver(number, members)}:main", "mode": "notify",
                                        "message": f"hop-{number}-of-the-ring", "idempotencyKey": f"hop-{number}"})
        chance, began, seen, since = random.Random(), time.time(), -1, time.time()
        while True:
            now = sum(1 for hop in arrived(members, homes) if hop)
            if now != seen:
                seen, since = now, time.time()
            if now >= messages or time.time() - since > 90:
                break
            end = time.time() + chance.uniform(1.5, 5)
            while time.time() < end:
                answer_requests(own)
                time.sleep(0.2)
            own.crash()
            kills += 1
        # Whatever would come twice comes now.
        own.crash()
        for _ in range(15):
            answer_requests(own)
            time.sleep(0.2)
        wait_for(lambda: all(agent["state"] == "idle" for agent in own.rest("GET", "/v1/hosts?live=true")["hosts"]), "all are idle", 30)
        hops = arrived(members, homes)
        for agent in own.rest("GET", "/v1/hosts?live=true")["hosts"]:
            own.rest("POST", f"/v1/hosts/{agent['id']}/stop", {"force": True})
    server.shutdown()
    count = collections.Counter(number for number, _ in hops)
    lost = [number for number in range(1, messages + 1) if not count[number]]
    doubled = [number for number, times in count.items() if times > 1]
    strayed = [(number, name) for number, name in hops if receiver(number, members) != name]
    names = ", ".join(members)
    hosting.check(f"ring of {names}: {messages} messages, {kills} times kill -9, {time.time() - began:.0f} s", kills > 0)
    hosting.check(f"ring of {names}: none is lost", not lost, lost)
    hosting.check(f"ring of {names}: none is doubled", not doubled, doubled)
    hosting.check(f"ring of {names}: each came to whom it was for", not strayed, strayed)


def receiver(number, members):
    """Whom a number is for: STRIDE of them are under way, and each goes round by itself."""
    begun, steps = (number - 1) % STRIDE, (number - 1) // STRIDE
    return members[(begun + steps) % len(members)]


def arrived(members, homes):
    """The numbers in the clients' transcripts, with whose they are."""
    hops = []
    for name in members:
        for text in TOLD[name](homes[name]):
            if "[Inter-session message]" in text:
                hops += [(int(number), name) for number in HOP.findall(text)]
    return hops


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
    parser.add_argument("--messages", type=int, default=int(os.environ.get("SVC_RING_MESSAGES", 30)))
    parser.add_argument("--clients", default="claude,codex,gemini")
    options = parser.parse_args(ARGV)
    members = options.clients.split(",")
    missing = [name for name in members if not hosting.program(name)]
    if missing:
        print(f"not run: the ring of {', '.join(members)} ({', '.join(missing)}: not in {hosting.BIN})")
        return 0
    folder = tempfile.mkdtemp(prefix="svc-ring-")
    try:
        run(members, options.messages, folder)
    except (TimeoutError, RuntimeError, KeyError, OSError) as error:
        hosting.check("the ring to the end", False, repr(error))
    finally:
        hosting.leave(folder)
    return 1 if hosting.FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
