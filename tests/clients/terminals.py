"""A coding agent in a terminal of its own, as its person has it: tmux on a private socket. What is on the screen can be
read and waited for, and keys can be pressed."""

import os
import re
import shlex
import shutil
import subprocess
import time
import uuid

from daemon import wait_for

TMUX = shutil.which("tmux")


class Terminal:
    """A program in a terminal. At the end of the block the terminal is gone, and the program with it."""

    def __init__(self, argv, cwd, env, size=(130, 45)):
        self.name = "svc-" + uuid.uuid4().hex[:8]
        self.argv, self.cwd, self.env, self.size = argv, cwd, {**env, "TERM": "xterm-256color"}, size

    def tmux(self, *args, check=True):
        ran = subprocess.run([TMUX, "-L", self.name, "-f", "/dev/null", *args], capture_output=True, text=True, timeout=60)
        assert not check or ran.returncode == 0, f"tmux {args}: {ran.stderr}"
        return ran.stdout

    def __enter__(self):
        line = shlex.join(["env", "-i", *(f"{name}={value}" for name, value in self.env.items()), *self.argv])
        width, height = (str(it) for it in self.size)
        self.tmux("new-session", "-d", "-x", width, "-y", height, "-c", self.cwd, "exec " + line,
                  ";", "set", "-g", "remain-on-exit", "on", ";", "set", "-g", "focus-events", "on")
        return self

    def __exit__(self, *_):
        self.tmux("kill-server", check=False)

    def pid(self):
        return int(self.tmux("list-panes", "-F", "#{pane_pid}").split()[0])

    def screen(self):
        return self.tmux("capture-pane", "-p").rstrip()

    def shows(self, pattern):
        return re.search(pattern, self.screen(), re.S)

    def wait(self, pattern, timeout=60):
        try:
            wait_for(lambda: self.shows(pattern), f"the terminal shows {pattern!r}", timeout)
        except TimeoutError as error:
            raise TimeoutError(f"{error}:\n{self.screen()}") from None

    def press(self, *keys):
        for key in keys:
            self.tmux("send-keys", key)
            time.sleep(0.2)

    def say(self, text, until, timeout=60, is_taken=lambda: False):
        """Types a prompt. What is typed before the client listens is lost, and so is Enter that comes with the text: again, until it counts, or while
        `is_taken` does not say that the client works on it."""
        end = time.time() + timeout
        while not until():
            assert time.time() < end, f"the prompt {text!r} was not taken:\n{self.screen()}"
            if is_taken():
                time.sleep(0.1)
                continue
            if text not in self.screen():
                self.tmux("send-keys", "-l", text)
                time.sleep(0.5)
            self.press("Enter")
            again = time.time() + 5
            while not until() and time.time() < again:
                time.sleep(0.1)


def end_all_below(folder, patience=10):
    """Ends what was started in a folder and outlives its terminal: Codex' app-server, and what starts that one again. Nothing may
    begin for a second before it counts as ended."""
    end, quiet = time.time() + patience, time.time() + 1
    while time.time() < min(end, quiet):
        left = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != os.getpid() and works_below(pid, folder)]
        for pid in left:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        if left:
            quiet = time.time() + 1
        time.sleep(0.1)


def works_below(pid, folder):
    """Whether a process runs a program of this folder, or works in it."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read()
        return folder.encode() in words or os.readlink(f"/proc/{pid}/cwd").startswith(folder)
    except OSError:
        return False
