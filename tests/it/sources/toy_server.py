"""A small MCP server on standard input and output that does what tests need of one.

Arguments: words that change what it does (`hang`: it never answers; `quit`: it ends at once; `spill`: it prints its environment and crashes; `deaf`: it reads nothing
after it was introduced; `stuck`: it does not answer tools/list after `grow`; `many`: it has more tools than a list takes; `tasks`: it has a tool that it runs as a task alone; `asks`: it has
a tool that asks twice; `looks`: it has two tools that wait for a file, and one of them
changes nothing; `no:METHOD` and `mute:METHOD`: it refuses a method, or does not answer it).
"""
import json
import os
import subprocess
import sys
import threading
import time

WORDS = sys.argv[1:]
LOCK = threading.Lock()
# A result with spaces, an escape, a number that no double holds, and members that no revision knows.
ODD = r'{"content":[ {"type":"text","text":"\u0041","x":1.0} ],"structuredContent":{"z":1.0,"a":12345678901234567890123},"x-more":null}'
# A schema whose members have an order of their own, and numbers that a reader may write in another way.
SCHEMA = r'{"type": "object", "x-z": 1e5, "anyOf": [{}], "x-a": 12345678901234567890123}'
TOOLS = ["odd", "raw", "env", "pid", "sleep", "fail", "die", "grow", "leave", "ask", "step", "say", "cwd", "big", "a.b", "broken", "touch", "teach", "heard", "later", "wait"]
GROWN = []
PROMPTS = []
HEARD = []
WAITING = {}
LATER = []
INTERVIEWS = []
IS_LATER = threading.Event()
# What tasks are about, by their ids.
DUG = {}
NEXT = [0]


def send(text):
    with LOCK:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def answer(ident, result):
    send(json.dumps({"jsonrpc": "2.0", "id": ident, "result": result}).replace('"SCHEMA"', SCHEMA))


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def declare(name):
    if name == "dig":
        return {"name": name, "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
    if name == "broken":
        return {"name": name, "inputSchema": {"type": "array"}}
    return {
        "name": name,
        "description": "Toy " + name + {"big": " word" * 600, "say": "\nIts second line."}.get(name, ""),
        "inputSchema": "SCHEMA" if name == "odd" else {"type": "object", "properties": {"value": {"type": "string"}}, "anyOf": [{}]},
        "annotations": {"readOnlyHint": name in ("odd", "raw", "look"), "x-own": 7},
        "_meta": {"own": True},
    }


def request(method, params):
    NEXT[0] += 1
    ident = "q%d" % NEXT[0]
    done = threading.Event()
    WAITING[ident] = [done, None]
    send(json.dumps({"jsonrpc": "2.0", "id": ident, "method": method, "params": params}))
    done.wait(20)
    return WAITING.pop(ident)[1]


def ask_later(file):
    """It asks when the call has long ended."""
    while not os.path.exists(file):
        time.sleep(0.01)
    LATER.append(request("elicitation/create", {"message": "well?", "requestedSchema": {"type": "object", "properties": {}}}))
    IS_LATER.set()


def well():
    question = {"message": "well?", "requestedSchema": {"type": "object", "properties": {}}}
    return json.dumps(request("elicitation/create", question))


def step(token):
    for number in (1, 2):
        note = {"progressToken": token, "progress": number, "total": 2, "x-own": "kept"}
        send(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": note}))


def dig(ident, value):
    """The result of the task: it asks before it is there, or says how far it is, or never is."""
    if value == "forever":
        return
    if value.startswith("step "):
        step(json.loads(value[len("step "):]))
    answer(ident, text("dug " + (well() if value == "ask" else "deep")))


def get_prompt(ident):
    answer(ident, {"messages": [{"role": "user", "content": {"type": "text", "text": well()}}]})


def wait_with_prompt(ident, file):
    """The prompt comes when the file is there."""
    open(file + ".begun", "w").close()
    while not os.path.exists(file):
        time.sleep(0.01)
    answer(ident, {"messages": [{"role": "user", "content": {"type": "text", "text": "a secret word"}}]})


def read_resource(ident, uri):
    answer(ident, {"contents": [{"uri": uri, "text": well()}]})


def call(ident, params, line):
    name, arguments = params["name"], params.get("arguments") or {}
    value = arguments.get("value", "")
    if name == "odd":
        send('{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(ident), ODD))
    elif name == "raw":
        answer(ident, text(line))
    elif name == "env":
        answer(ident, text(json.dumps(dict(os.environ))))
    elif name == "pid":
        answer(ident, text(str(os.getpid())))
    elif name == "dig":
        if params.get("task") is None:
            error = {"code": -32601, "message": "this tool is run as a task"}
            send(json.dumps({"jsonrpc": "2.0", "id": ident, "error": error}))
            return
        token = (params.get("_meta") or {}).get("progressToken")
        # Steps are of the call, whose token stays while the task goes on.
        DUG["task-1"] = "step " + json.dumps(token) if value == "step" else value
        task = {"taskId": "task-1", "status": "working", "pollInterval": 20, "ttl": None}
        answer(ident, {"task": task})
    elif name == "heard":
        answer(ident, text(" ".join(HEARD)))
    elif name == "cwd":
        answer(ident, text(os.getcwd()))
    elif name == "sleep":
        time.sleep(float(value))
        answer(ident, text("slept"))
    elif name in ("look", "hold"):
        open(value + ".begun", "w").close()
        while not os.path.exists(value):
            time.sleep(0.01)
        answer(ident, text("looked"))
    elif name == "fail" and value == "as a result":
        answer(ident, {"content": [{"type": "text", "text": "no: " + os.environ.get("TOKEN", value)}], "isError": True})
    elif name == "fail":
        error = {"code": -32099, "message": "no: " + os.environ.get("TOKEN", value), "data": {"x": 1}}
        send(json.dumps({"jsonrpc": "2.0", "id": ident, "error": error}))
    elif name == "die" and value:
        # In the middle of its answer.
        with open(value, "a") as file:
            file.write("called\n")
        with LOCK:
            sys.stdout.write('{"jsonrpc":"2.0","id":%s,"result":{"content":[' % json.dumps(ident))
            sys.stdout.flush()
        os._exit(3)
    elif name == "die":
        os._exit(3)
    elif name == "grow":
        GROWN.append(value)
        send('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
        answer(ident, text("grown"))
    elif name == "touch":
        send(json.dumps({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": value}}))
        answer(ident, text("touched"))
    elif name == "teach":
        PROMPTS.append(value)
        send('{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}')
        answer(ident, text("taught"))
    elif name == "leave":
        subprocess.Popen(["sleep", "997"], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        subprocess.Popen(["sleep", "998"])
        answer(ident, text("left"))
    elif name == "ask":
        answer(ident, text(json.dumps(request(value, {"message": "well?", "requestedSchema": {"type": "object", "properties": {}}}))))
    elif name == "interview":
        INTERVIEWS.append(value)
        answers = [json.loads(well()) for _ in range(2)]
        answers = [given.get("result", given.get("error")) for given in answers]
        answer(ident, text(json.dumps({"calls": len(INTERVIEWS), "answers": answers})))
    elif name == "later":
        answer(ident, text("later"))
        ask_later(value)
    elif name == "wait":
        open(value, "w").close()
        IS_LATER.wait(20)
        answer(ident, text(json.dumps(LATER)))
    elif name == "step":
        step((params.get("_meta") or {}).get("progressToken"))
        answer(ident, text("stepped"))
    elif name == "say":
        sys.stderr.write(value + " " + os.environ.get("TOKEN", "") + "\n")
        sys.stderr.flush()
        answer(ident, text("said"))
    elif name == "big":
        answer(ident, text("x" * int(value)))
    elif name in GROWN or name == "a.b" or name.startswith("widget_"):
        answer(ident, text("called " + name))
    else:
        error = {"code": -32602, "message": "Unknown tool: " + name}
        send(json.dumps({"jsonrpc": "2.0", "id": ident, "error": error}))


def main():
    if "spill" in WORDS:
        # As a runtime that crashes may: all that it was given, and no end of the line.
        sys.stderr.write("crash " + json.dumps(dict(os.environ)) + " " + repr(dict(os.environ)))
        sys.stderr.flush()
        os.abort()
    if "quit" in WORDS:
        sys.stderr.write("cannot start " + os.environ.get("TOKEN", "") + "\n")
        sys.exit(4)
    for line in sys.stdin:
        line = line.rstrip("\n")
        if "hang" in WORDS:
            continue
        message = json.loads(line)
        ident, method = message.get("id"), message.get("method")
        if method is None:
            waiting = WAITING.get(ident)
            if waiting:
                waiting[1] = message
                waiting[0].set()
        elif "no:" + method in WORDS:
            send(json.dumps({"jsonrpc": "2.0", "id": ident, "error": {"code": -32601, "message": "Method not found"}}))
        elif "mute:" + method in WORDS:
            pass
        elif method == "initialize":
            capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "prompts": {}}
            info = {"name": "toy", "version": "1"}
            answer(ident, {"protocolVersion": message["params"]["protocolVersion"], "capabilities": capabilities, "serverInfo": info})
        elif method == "tools/list" and "stuck" in WORDS and GROWN:
            HEARD.append(method)
        elif method == "tools/list":
            names = ["widget_%d" % n for n in range(1100)] if "many" in WORDS else TOOLS + GROWN
            if "tasks" in WORDS:
                names = names + ["dig"]
            if "looks" in WORDS:
                names = names + ["look", "hold"]
            if "asks" in WORDS:
                names = names + ["interview"]
            if "odd" in WORDS or os.path.exists(os.environ.get("ODD_FILE", "/none")):
                answer(ident, {"tools": {"echo": {}}})
            # Two pages, and a cursor that comes again.
            elif not (message.get("params") or {}).get("cursor"):
                answer(ident, {"tools": [declare(name) for name in names[:5]], "nextCursor": "more"})
            else:
                answer(ident, {"tools": [declare(name) for name in names[5:]], "nextCursor": "more"})
        elif method == "resources/list":
            answer(ident, {"resources": [{"uri": "toy://one", "name": "one"}]})
        elif method == "resources/read":
            uri = message["params"]["uri"]
            if uri == "toy://item/ask":
                threading.Thread(target=read_resource, args=(ident, uri), daemon=True).start()
            elif uri == "toy://item/7":
                send('{"jsonrpc":"2.0","id":%s,"result":{"contents":[ {"uri":"toy://item/7","text":"\\u0041","x":1.0} ]}}' % json.dumps(ident))
            elif uri == "toy://one":
                contents = [{"uri": uri, "mimeType": "text/plain", "text": "first"}, {"uri": uri, "blob": "AAEC"}]
                answer(ident, {"contents": contents})
            else:
                send(json.dumps({"jsonrpc": "2.0", "id": ident, "error": {"code": -32002, "message": "no " + uri}}))
        elif method == "resources/templates/list":
            answer(ident, {"resourceTemplates": [{"uriTemplate": "toy://item/{id}", "name": "item", "x-own": 1}]})
        elif method in ("resources/subscribe", "resources/unsubscribe"):
            if message["params"]["uri"] == "toy://one":
                HEARD.append(method)
                answer(ident, {})
            else:
                send(json.dumps({"jsonrpc": "2.0", "id": ident, "error": {"code": -32002, "message": "no"}}))
        elif method == "prompts/list":
            answer(ident, {"prompts": [{"name": "greet", "x-own": 1}] + [{"name": name} for name in PROMPTS]})
        elif method == "tasks/result":
            threading.Thread(target=dig, args=(ident, DUG[message["params"]["taskId"]]), daemon=True).start()
        elif method == "tasks/cancel":
            HEARD.append(method)
            answer(ident, {"taskId": message["params"]["taskId"], "status": "cancelled"})
        elif method == "prompts/get" and "ask" in (message["params"].get("arguments") or {}):
            threading.Thread(target=get_prompt, args=(ident,), daemon=True).start()
        elif method == "prompts/get" and "file" in (message["params"].get("arguments") or {}):
            file = message["params"]["arguments"]["file"]
            threading.Thread(target=wait_with_prompt, args=(ident, file), daemon=True).start()
        elif method == "prompts/get":
            send('{"jsonrpc":"2.0","id":%s,"result":{"messages":[ ],"x":1.0,"y":%s}}' % (json.dumps(ident), json.dumps(line)))
        elif method == "completion/complete":
            send('{"jsonrpc":"2.0","id":%s,"result":{"completion":{"values":["a"],"total":1.0},"y":%s}}' % (json.dumps(ident), json.dumps(line)))
        elif method == "notifications/cancelled":
            HEARD.append("cancelled: %s" % message["params"].get("reason"))
        elif method == "tools/call":
            threading.Thread(target=call, args=(ident, message["params"], line), daemon=True).start()
        elif ident is not None:
            send(json.dumps({"jsonrpc": "2.0", "id": ident, "error": {"code": -32601, "message": "no " + method}}))


main()
