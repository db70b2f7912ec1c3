# Claude Code 2.1.330 as svc sees it: an entry in its registry, an inbox, a record of the conversation, and hooks.
# Commands come as lines of JSON and are answered when they are done.
import json, os, signal, socket, subprocess, sys, threading, time

svc, session, version, home = sys.argv[-1], "s", os.environ.get("FAKE_VERSION", "2.1.330"), os.environ["HOME"]
folder = os.path.join(home, ".claude")
sockets = os.path.join(home, "socks")
for path in (os.path.join(folder, "sessions"), os.path.join(folder, "projects", "p"), sockets):
    os.makedirs(path, mode=0o700, exist_ok=True)
inbox = os.path.join(sockets, f"{os.getpid()}.sock")
record = os.path.join(folder, "projects", "p", session + ".jsonl")
mode = {"permission": "default", "seen": True, "reads": True, "dies": None}
server = socket.socket(socket.AF_UNIX)
server.bind(inbox)
os.chmod(inbox, 0o600)
lock = threading.RLock()

def started():
    with open("/proc/self/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[19]

def register(status, **more):
    entry = {"pid": os.getpid(), "sessionId": session, "cwd": os.getcwd(), "procStart": started(), "version": version, "kind": "interactive",
             "entrypoint": "cli", "name": "alpha", "status": status, "statusUpdatedAt": int(time.time() * 1000), "messagingSocketPath": inbox, **more}
    path = os.path.join(folder, "sessions", f"{os.getpid()}.json")
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(entry, file)
    os.rename(path + ".new", path)

def write(**entry):
    with open(os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
        file.write(json.dumps({**entry, "sessionId": session}) + "\n")

def hook(event, **more):
    payload = {"session_id": session, "hook_event_name": event, "cwd": os.getcwd(), "transcript_path": record, "permission_mode": mode["permission"], **more}
    return subprocess.run([svc, "hook", "claude"], input=json.dumps(payload), text=True, capture_output=True).stdout

def turn(text, queued):
    with lock:
        if queued:
            write(type="queue-operation", operation="enqueue", content=text)
            write(type="queue-operation", operation="dequeue")
        register("busy")
        if mode["seen"]:
            hook("UserPromptSubmit", prompt=text)
        # It keeps a prompt when the hooks of that are done.
        if mode["dies"] == "early":
            os.kill(os.getpid(), signal.SIGKILL)
        write(type="user", message={"role": "user", "content": text})
        with open("given.jsonl", "a") as file:
            file.write(json.dumps(text) + "\n")
        if mode["dies"] == "late":
            os.kill(os.getpid(), signal.SIGKILL)
        if mode["seen"]:
            hook("Stop", last_assistant_message="words", stop_hook_active=False)
        register("idle")

def read(connection):
    for line in connection.makefile():
        message = json.loads(line)
        if message.get("type") != "user":
            continue
        text = message["message"]["content"]
        if mode["permission"] == "bypassPermissions" or not mode["reads"]:
            continue
        turn(text, True)

def listen():
    server.listen(8)
    while True:
        threading.Thread(target=read, args=(server.accept()[0],), daemon=True).start()

full = []
def deaf():
    # Nobody else gets through: the queue of the socket is full.
    server.listen(0)
    while True:
        one = socket.socket(socket.AF_UNIX)
        one.setblocking(False)
        try:
            one.connect(inbox)
            full.append(one)
        except BlockingIOError:
            return

commands = {
    "begin": lambda: (register("idle"), hook("SessionStart", source="startup")),
    "resume": lambda: (register("idle"), hook("SessionStart", source="resume")),
    "dieEarly": lambda: mode.update(dies="early"),
    "dieLate": lambda: mode.update(dies="late"),
    "listen": lambda: (full.clear(), threading.Thread(target=listen, daemon=True).start()),
    "deaf": deaf,
    "prompt": lambda: turn("a person's prompt", False),
    "unseen": lambda: mode.update(seen=False),
    "bypass": lambda: (mode.update(permission="bypassPermissions"), turn("x", False)),
    "lost": lambda: mode.update(reads=False),
    "elsewhere": lambda: register("idle", messagingSocketPath=os.environ["FAKE_SOCKET"]),
    "open": lambda: os.chmod(os.path.join(folder, "sessions", f"{os.getpid()}.json"), 0o666),
    "register": lambda: register("idle"),
}
def wait():
    payload = {"session_id": session, "hook_event_name": "Stop", "cwd": os.getcwd()}
    ran = subprocess.run([svc, "hook", "wait"], input=json.dumps(payload), text=True, capture_output=True)
    print(json.dumps({"woken": ran.stderr if ran.returncode == 2 else None}), flush=True)

for line in sys.stdin:
    word = line.strip()
    if word == "wait":
        threading.Thread(target=wait, daemon=True).start()
    else:
        commands[word]()
    print(json.dumps(word), flush=True)
