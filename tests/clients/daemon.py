"""A daemon of its own for whoever asks, and checks that say one line each. SVC_BIN is the binary under test."""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request

BIN = os.environ.get("SVC_BIN", "")


def free_port():
    """Below the range that the kernel hands to clients: nobody's outgoing connection sits on it during a restart."""
    for _ in range(1000):
        port = random.randrange(10000, 30000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass
    raise RuntimeError("no free port")


class Daemon:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="svc-clients-")
        self.home = os.path.join(self.dir, "svc")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {"PATH": os.environ["PATH"], "HOME": self.dir, "SVC_HOME": self.home, "SVC_LIST_CHANGED_MS": "100"}
        self.log = open(os.path.join(self.dir, "stderr"), "ab")
        self.child = None

    def start(self):
        args = [BIN, "serve", "--listen", f"127.0.0.1:{self.port}"]
        self.child = subprocess.Popen(args, env=self.env, stdout=subprocess.PIPE, stderr=self.log, text=True)
        for line in self.child.stdout:
            if " ready at " in line:
                return self
        raise RuntimeError("the daemon did not start: " + open(self.log.name).read()[-2000:])

    def kill9(self):
        """Ends it as a power cut would."""
        self.child.kill()
        self.child.wait()
        self.child.stdout.close()

    def crash(self, down=0.0):
        """Killed and started again, on the same port and database."""
        self.kill9()
        time.sleep(down)
        self.start()

    def restart(self):
        """As a service manager would."""
        self.child.terminate()
        self.child.wait()
        self.child.stdout.close()
        self.start()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill9()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    @property
    def token(self):
        with open(os.path.join(self.home, "token")) as f:
            return f.read().strip()

    @property
    def headers(self):
        return {"Authorization": f"Bearer {self.token}"}

    def rest(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {**self.headers, "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers, method=method), timeout=10) as r:
            return json.load(r)

    def task(self, agent="tester"):
        """A task that `agent` is at work on: a session may read what is given to its peer."""
        task = self.rest("POST", "/v1/tasks", {"title": "slow work", "agent": agent})["task_id"]
        self.rest("POST", f"/v1/tasks/{task}/events", {"kind": "task", "data": {"status": "active"}})
        return task

    def finish(self, task):
        self.rest("POST", f"/v1/tasks/{task}/events", {"kind": "terminal", "data": {"status": "done", "exit_code": 0}})

    def later(self, seconds, do, *args):
        timer = threading.Timer(seconds, do, args)
        timer.daemon = True
        timer.start()


class Checks:
    """Counts what failed."""

    def __init__(self):
        self.failed, self.lock = 0, threading.Lock()

    def say(self, name, started, error=None):
        with self.lock:
            if error is None:
                print(f"ok    {name} ({int((time.time() - started) * 1000)} ms)", flush=True)
            else:
                self.failed += 1
                print(f"FAIL  {name}: {error}", flush=True)

    def run(self, name, run):
        started = time.time()
        try:
            run()
        except BaseException as error:  # noqa: BLE001  a check may fail in any way
            self.say(name, started, "".join(traceback.format_exception(error)))
        else:
            self.say(name, started)

    def exit(self):
        sys.exit(1 if self.failed else 0)


def wait_for(test, what, timeout=20):
    """test()'s first true value."""
    end = time.time() + timeout
    while time.time() < end:
        got = test()
        if got:
            return got
        time.sleep(0.02)
    raise TimeoutError(f"{what}: not within {timeout} s")
