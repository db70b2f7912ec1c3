"""Runs the daemon as the client that the MCP conformance suite tests: conformance_client.py SVC URL

The suite starts its server, and this starts a daemon of its own that has the server at URL as a child, logs in where it is
asked to, and calls every tool that the daemon shows.
"""
import fcntl
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

SVC, URL = sys.argv[1], sys.argv[-1]
SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
HOME = tempfile.mkdtemp(prefix="svc-conformance-")
ENV = {**os.environ, "SVC_HOME": HOME, "HOME": HOME}


def wait_for_turn():
    """Holds one of four locks until this process ends: the suite starts forty clients at once, which starve its servers."""
    while True:
        for number in range(4):
            lock = open(os.path.join(tempfile.gettempdir(), f"svc-conformance-{os.getuid()}.{number}.lock"), "a")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except OSError:
                lock.close()
        time.sleep(0.1)


TURN = wait_for_turn()


class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args, **kwargs):
        return None


def daemon_request(method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
    own = {"Authorization": "Bearer " + TOKEN, "Content-Type": "application/json", **(headers or {})}
    connection.request(method, path, None if body is None else json.dumps(body), own)
    return connection.getresponse()


def rest(method, path, body=None):
    reply = daemon_request(method, path, body)
    text = reply.read().decode()
    print(method, path, reply.status, text[:600], flush=True)
    return json.loads(text) if text else {}


def settled():
    """The server, when it is not about to start any more."""
    end = time.time() + 20
    while True:
        source = rest("GET", "/v1/sources/s")
        if source["state"] not in ("pending", "connecting") or time.time() > end:
            return source
        time.sleep(0.2)


def browse(url):
    """The redirect that a browser would follow."""
    try:
        urllib.request.build_opener(Stay).open(url, timeout=20)
    except urllib.error.HTTPError as redirect:
        return redirect.headers["Location"]
    raise SystemExit("no redirect from " + url)


def log_in():
    begun = rest("POST", "/v1/sources/s/login", {})
    if "authorization_url" not in begun:
        return False
    back = browse(begun["authorization_url"])
    rest("POST", "/v1/sources/s/login/wait", {"redirect": back, "wait_ms": 20000})
    end = time.time() + 2
    while rest("GET", "/v1/sources/s")["state"] == "needs_auth" and time.time() < end:
        time.sleep(0.2)
    return settled()["state"] == "connected"


def defaults(schema):
    return {
        name: field["default"]
        for name, field in schema.get("properties", {}).items()
        if "default" in field
    }


def call(session, tool, arguments, number):
    """Calls a tool in a session, and answers what its server asks."""
    headers = {"Accept": "application/json, text/event-stream", "Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}
    params = {"name": tool, "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    reply = daemon_request("POST", "/mcp", message, headers)
    if "event-stream" not in (reply.getheader("Content-Type") or ""):
        return json.loads(reply.read())
    for line in reply:
        line = line.decode().rstrip("\r\n")
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        if event.get("id") == number and "method" not in event:
            return event
        if event.get("method") == "elicitation/create":
            content = defaults(event["params"].get("requestedSchema", {}))
            answer = {"jsonrpc": "2.0", "id": event["id"], "result": {"action": "accept", "content": content}}
            daemon_request("POST", "/mcp", answer, headers).read()
    return {}


def sample(schema):
    values = {"string": "text", "number": 5, "integer": 5, "boolean": True, "array": [], "object": {}}
    fields = schema.get("properties", {})
    return {name: values.get(fields.get(name, {}).get("type"), "text") for name in fields}


def wants_login(answer):
    return "login" in json.dumps(answer.get("result", {}).get("structuredContent", {}))


entry = {"type": "http", "url": URL, "startup_timeout": 15000}
if "client_id" in CONTEXT:
    entry["oauth"] = {"clientId": CONTEXT["client_id"]}
if SCENARIO == "auth/basic-cimd":
    entry["oauth"] = {"clientMetadataUrl": "https://conformance-test.local/client-metadata.json"}
if "client_secret" in CONTEXT:
    command = [SVC, "mcp", "secret", "set", "s", "OAUTH_CLIENT_SECRET"]
    subprocess.run(command, input=CONTEXT["client_secret"].encode(), env=ENV, check=True)
document = json.dumps({"mcpServers": {"s": entry}})
daemon = subprocess.Popen([SVC, "serve", "--listen", "127.0.0.1:0", "--mcp-config", document], env=ENV, stdout=subprocess.PIPE)
try:
    daemon.stdout.readline()
    with open(os.path.join(HOME, "daemon.json")) as file:
        PORT = urllib.parse.urlparse(json.load(file)["url"]).port
    with open(os.path.join(HOME, "token")) as file:
        TOKEN = file.read().strip()
    source = settled()
    # Its issuer may change in between.
    if source["state"] == "needs_auth" and not log_in() and not log_in():
        raise SystemExit("no login")
    if settled()["state"] != "connected":
        raise SystemExit("not connected")
    hello = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "driver", "version": "1"},
             "capabilities": {"elicitation": {}, "sampling": {}, "roots": {}}}
    accept = {"Accept": "application/json, text/event-stream"}
    opened = daemon_request("POST", "/mcp", {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}, accept)
    session = opened.getheader("Mcp-Session-Id")
    opened.read()
    listed = daemon_request("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
                            {"Svc-Expose": "all"})
    tools = [tool for tool in json.loads(listed.read())["result"]["tools"] if tool["name"].startswith("s__")]
    print("tools", [tool["name"] for tool in tools], flush=True)
    wanted = [("s__" + each["name"], each.get("arguments", {})) for each in CONTEXT.get("toolCalls", [])]
    wanted = wanted or [(tool["name"], sample(tool["inputSchema"])) for tool in tools]
    if SCENARIO == "json-schema-2020-12-preservation":
        # The suite is told how clients see the schema.
        seen = next(tool["inputSchema"] for tool in tools if tool["name"] == "s__json_schema_2020_12_tool")
        wanted = [(tool, {"schema": seen} if "schema" in arguments else arguments) for tool, arguments in wanted]
    for number, (tool, arguments) in enumerate(wanted, 2):
        for attempt in range(3):
            answer = call(session, tool, arguments, number * 10 + attempt)
            print(tool, json.dumps(answer)[:600], flush=True)
            if not wants_login(answer) or not log_in():
                break
finally:
    daemon.terminate()
    daemon.wait(20)
