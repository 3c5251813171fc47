"""Starts wrappers like the platform: with the open listening socket as standard input."""

import os
import shutil
import socket
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
RUNTIMES = os.path.dirname(HERE)
LANGUAGES = ("nodejs", "python", "go")


def python():
    """The interpreter itself, because the first match in PATH may be a wrapper script. `PYTHON` overrides it."""
    return os.environ.get("PYTHON") or run_python("import sys; print(sys.executable)")


def run_python(text):
    return subprocess.check_output(["python3", "-c", text], text=True).strip()


class Built:
    """Prepares a handler folder in a temporary folder, ready to start."""

    def __init__(self, language, source, handler="index.handler"):
        self.language = language
        self.handler = handler
        self.folder = tempfile.mkdtemp(prefix="klambda-runtimes-")
        self.code = os.path.join(self.folder, "code")
        shutil.copytree(source, self.code)
        self.command = getattr(self, "_" + language)()

    def _nodejs(self):
        return ["node", os.path.join(RUNTIMES, "nodejs", "main.js")]

    def _python(self):
        # Compiled next to the copy, like in a build.
        wrapper = os.path.join(self.folder, "wrapper")
        shutil.copytree(os.path.join(RUNTIMES, "python"), wrapper)
        subprocess.run([python(), "-m", "compileall", "-q", wrapper], check=True)
        return [python(), "-S", "-s", os.path.join(wrapper, "main.py")]

    def _go(self):
        wrapper = os.path.join(RUNTIMES, "go")
        with open(os.path.join(self.code, "go.mod"), "w") as file:
            file.write("module handler\n\ngo 1.21\n\nrequire klambda v0.0.0\n\nreplace klambda => %s\n" % wrapper)
        with open(os.path.join(self.code, "klambda_main.go"), "w") as file:
            file.write('package main\n\nimport "klambda"\n\nfunc main() { klambda.Serve(%s) }\n' % self.handler.split(".")[1])
        binary = os.path.join(self.folder, "function")
        subprocess.run(["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "."], cwd=self.code, check=True)
        return [binary]

    def start(self, family=socket.AF_UNIX, **settings):
        return Process(self, settings, family)

    def remove(self):
        shutil.rmtree(self.folder)


class Process:
    def __init__(self, built, settings, family):
        self.listener = socket.socket(family)
        # The kernel chooses a name or a port.
        self.listener.bind("" if family == socket.AF_UNIX else ("127.0.0.1", 0))
        self.listener.listen(512)
        self.address = self.listener.getsockname()
        env = dict(
            os.environ,
            KLAMBDA_LISTEN_FD="0",
            KLAMBDA_HANDLER=built.handler,
            KLAMBDA_CODE=built.code,
            KLAMBDA_FUNCTION="probe",
            KLAMBDA_NAMESPACE="tests",
        )
        env.update({name: str(value) for name, value in settings.items()})
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(built.command, env=env, stdin=self.listener, stdout=pipe, stderr=pipe, text=True)

    def connect(self):
        peer = socket.socket(self.listener.family)
        peer.settimeout(20)
        peer.connect(self.address)
        if peer.family != socket.AF_UNIX:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Peer(peer)

    def end(self):
        """Sends SIGTERM. Returns the output and the exit code of the process."""
        self.child.terminate()
        return self.ended()

    def ended(self):
        out, err = self.child.communicate(timeout=20)
        self.listener.close()
        return self.child.returncode, out + err

    def kill(self):
        if self.child.poll() is None:
            self.child.kill()
            self.child.communicate()
        self.listener.close()


class Peer:
    """A connection. Responses are read byte by byte as they arrive."""

    def __init__(self, peer):
        self.peer = peer
        self.buffer = b""

    def send(self, data):
        self.peer.sendall(data)

    def more(self):
        data = self.peer.recv(65536)
        if not data:
            raise ConnectionError("closed")
        self.buffer += data

    def head(self):
        while b"\r\n\r\n" not in self.buffer:
            self.more()
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        return int(lines[0].split(" ")[1]), headers

    def answer(self):
        status, headers = self.head()
        length = int(headers.get("content-length", 0))
        while len(self.buffer) < length:
            self.more()
        body, self.buffer = self.buffer[:length], self.buffer[length:]
        return status, headers, body

    def is_closed(self):
        try:
            return self.peer.recv(1) == b""
        except ConnectionError:
            return True

    def close(self):
        self.peer.close()
