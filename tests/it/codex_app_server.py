"""An app-server of Codex that is none: it speaks what 0.169.0 was recorded to speak, and does what lines of JSON on its
standard input tell it to. The arguments are svc and the socket; hooks run in this process, as the client's do.

    {"hook": PAYLOAD}                  runs `svc hook codex`
    {"run": COMMAND}                   runs a command of the shell, as a tool of a session would
    {"status": [THREAD, STATUS]}       loads a thread, and tells everybody how it stands
    {"open": [THREAD, FOLDER]}         a person opens a terminal: a thread without a prompt
    {"ask": {id, method, params}}      asks the followers of params.threadId, and whoever follows it later
    {"resolve": ID}                    the person answers at the terminal
    {"tell": FRAME}                    tells the followers of params.threadId
    {"tell_all": FRAME}                tells everybody
    {"hang_up": true}                  ends all connections
    {"take": THREAD}                   a turn begins with what waits in the thread's queue
    {"forget": THREAD}                 what waits there is lost
    {"steers": TURN}                   this turn takes texts, or none does
Each is answered by {"done": OUTPUT}. What its clients do is told in lines as well: {"answered": {id, result}},
{"resumed": THREAD}, {"queued": {threadId, clientUserMessageId, input}}, {"steered": the same}, {"called": METHOD}, {"connected": true}.
"""

import base64
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading

SVC, PATH = sys.argv[1:3]
VERSION = sys.argv[3] if sys.argv[3:] else "0.169.0"
lock = threading.RLock()
threads, asked, clients, opened = {}, {}, [], {}
queues, turns, steers = {}, {}, [None]


def say(**line):
    with lock:
        print(json.dumps(line), flush=True)


class Client:
    def __init__(self, stream):
        self.stream, self.follows = stream, set()
        head = b""
        while b"\r\n\r\n" not in head:
            got = stream.recv(1)
            if not got:
                raise ConnectionError
            head += got
        fields = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line)
        raw = {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in head.decode().split("\r\n")[1:] if ": " in line}
        assert fields["upgrade"] == "websocket", head
        accept = hashlib.sha1((raw["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        stream.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
            + base64.b64encode(accept) + b"\r\n\r\n")

    def exactly(self, count):
        out = b""
        while len(out) < count:
            got = self.stream.recv(count - len(out))
            if not got:
                raise ConnectionError
            out += got
        return out

    def frames(self):
        while True:
            first, second = self.exactly(2)
            count = second & 127
            if count == 126:
                count = struct.unpack(">H", self.exactly(2))[0]
            elif count == 127:
                count = struct.unpack(">Q", self.exactly(8))[0]
            mask = self.exactly(4)
            data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.exactly(count)))
            if first & 15 == 8:
                return
            if first & 15 == 1:
                yield json.loads(data)

    def send(self, frame):
        data = json.dumps(frame).encode()
        count = len(data)
        head = bytes([129]) + (bytes([count]) if count < 126 else bytes([126]) + struct.pack(">H", count) if count < 65536
                               else bytes([127]) + struct.pack(">Q", count))
        with lock:
            try:
                self.stream.sendall(head + data)
            except OSError:
                pass

    def serve(self):
        for frame in self.frames():
            method, params, key = frame.get("method"), frame.get("params") or {}, frame.get("id")
            if method is None:
                # Told before anybody else learns of it.
                say(answered={"id": key, "result": frame.get("result")})
                resolve(key)
                continue
            say(called=method)
            thread = params.get("threadId")
            with lock:
                result = None
                if method == "initialize":
                    result = {"userAgent": f"svc/{VERSION} (test)"}
                elif method == "thread/loaded/list":
                    result = {"data": list(threads)}
                elif method == "thread/read":
                    result = {"thread": {"id": thread, "cwd": "/nowhere/p", "status": threads.get(thread, {"type": "notLoaded"}), **opened.get(thread, {})}}
                elif method == "thread/resume":
                    self.follows.add(thread)
                    result = {"thread": {"id": thread}}
                elif method == "thread/queue/add":
                    queues.setdefault(thread, []).append(params)
                    result = {"queuedSubmission": {"id": "q", "clientUserMessageId": params["clientUserMessageId"]}}
                    say(queued=params)
                elif method == "turn/steer" and params["expectedTurnId"] == steers[0]:
                    item = {"type": "userMessage", "clientId": params["clientUserMessageId"], "content": params["input"]}
                    turns.setdefault(thread, []).append({"id": steers[0], "items": [item]})
                    result = {"turnId": steers[0]}
                    say(steered=params)
                elif method == "turn/steer":
                    self.send({"id": key, "error": {"code": -32600, "message": "no active turn to steer"}})
                elif method == "thread/queue/list":
                    result = {"data": [{"id": "q", "clientUserMessageId": it["clientUserMessageId"]} for it in queues.get(thread, [])]}
                elif method == "thread/turns/list":
                    result = {"data": list(reversed(turns.get(thread, [])))}
                if result is not None:
                    self.send({"id": key, "result": result})
                if method == "thread/unsubscribe":
                    self.follows.discard(thread)
                    self.send({"id": key, "result": {"status": "unsubscribed"}})
                if method == "thread/resume":
                    for request in asked.values():
                        if request["params"]["threadId"] == thread:
                            self.send(request)
                    say(resumed=thread)


def tell(frame):
    with lock:
        for client in clients:
            if frame["params"]["threadId"] in client.follows:
                client.send(frame)


def resolve(key):
    with lock:
        request = asked.pop(key, None)
        if request:
            tell({"method": "serverRequest/resolved", "params": {"threadId": request["params"]["threadId"], "requestId": key}})


def accept(stream):
    client = None
    try:
        client = Client(stream)
        with lock:
            clients.append(client)
        say(connected=True)
        client.serve()
    except (ConnectionError, OSError):
        pass
    with lock:
        if client in clients:
            clients.remove(client)
    stream.close()


def listen():
    os.makedirs(os.path.dirname(PATH), mode=0o700, exist_ok=True)
    server = socket.socket(socket.AF_UNIX)
    if os.path.lexists(PATH):
        os.unlink(PATH)
    server.bind(PATH)
    os.chmod(PATH, 0o600)
    server.listen()
    say(listening=True)
    while True:
        threading.Thread(target=accept, args=(server.accept()[0],), daemon=True).start()


def do(order):
    if "hook" in order:
        return subprocess.run([SVC, "hook", "codex"], input=json.dumps(order["hook"]), text=True, capture_output=True).stdout
    if "run" in order:
        return subprocess.run(order["run"], shell=True, text=True, capture_output=True).stdout
    with lock:
        if "status" in order:
            thread, status = order["status"]
            threads[thread] = status
            for client in clients:
                client.send({"method": "thread/status/changed", "params": {"threadId": thread, "status": status}})
        if "open" in order:
            thread, folder = order["open"]
            threads[thread] = {"type": "idle"}
            opened[thread] = {"cwd": folder, "ephemeral": False, "parentThreadId": None, "threadSource": "user", "originator": "codex-tui", "preview": ""}
            for client in clients:
                client.send({"method": "thread/started", "params": {"thread": {"id": thread, **opened[thread]}}})
        if "ask" in order:
            asked[order["ask"]["id"]] = order["ask"]
            tell(order["ask"])
        if "resolve" in order:
            resolve(order["resolve"])
        if "tell" in order:
            tell(order["tell"])
        if "tell_all" in order:
            for client in clients:
                client.send(order["tell_all"])
        if "take" in order:
            for it in queues.pop(order["take"], []):
                item = {"type": "userMessage", "clientId": it["clientUserMessageId"], "content": it["input"]}
                turns.setdefault(order["take"], []).append({"id": "t", "items": [item]})
        if "forget" in order:
            queues.pop(order["forget"], None)
        if "steers" in order:
            steers[0] = order["steers"]
        if "hang_up" in order:
            for client in clients:
                client.stream.shutdown(socket.SHUT_RDWR)
    return ""


if PATH:
    threading.Thread(target=listen, daemon=True).start()
for line in sys.stdin:
    say(done=do(json.loads(line)))
