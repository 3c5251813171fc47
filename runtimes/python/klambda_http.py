"""A small HTTP/1.1 server with keep-alive, chunked bodies, `Expect`, and limits on everything that a client controls.

Each connection has a thread. `http.server` does the same, but starts later and is several times slower.
"""

import os
import select
import signal
import socket
import struct
import sys
import threading
from time import monotonic

# Enough for all attributes of the largest accepted event, with every byte percent-encoded.
HEAD_BYTES_MAX = 1024 * 1024
LINE_BYTES_MAX = 1024
TRAILER_BYTES_MAX = 8 * 1024
BODY_BYTES_MAX = int(os.environ.get("KLAMBDA_BODY_BYTES_MAX") or 16 * 1024 * 1024)
CONNECTIONS_MAX = int(os.environ.get("KLAMBDA_CONNECTIONS_MAX") or 256)
# Handlers that timed out but continue. A thread cannot be ended, so at this limit the process ends.
ABANDONED_MAX = int(os.environ.get("KLAMBDA_ABANDONED_MAX") or 256)
RECEIVE_SECONDS_MAX = 30
IDLE_SECONDS_MAX = 300
READ_BYTES = 64 * 1024
REASONS = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    417: "Expectation Failed",
    422: "Unprocessable Content",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
}
TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Refusal(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Closed(Exception):
    """The client is gone or too slow."""


def listener():
    """Returns the listening socket: the inherited one, else a new one."""
    handed = os.environ.get("KLAMBDA_LISTEN_FD")
    if not handed:
        return socket.create_server(("127.0.0.1", int(os.environ.get("PORT") or 8080)), backlog=512)
    fd = int(handed)
    own = socket.socket(fileno=os.dup(fd))
    # Programs that a handler starts would inherit this descriptor as their standard input.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, fd, inheritable=True)
    os.close(null)
    return own


class Server:
    """`serve(method, target, headers, body)` returns status, content type and body."""

    def __init__(self, listener, serve, timeout):
        self.listener = listener
        self.serve = serve
        self.timeout = timeout
        self.connections = set()
        self.abandoned = set()
        self.draining = False

    def run(self):
        waker, wake = socket.socketpair()
        waker.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._stop)
        # Another process that shares the socket may change its blocking mode. With a timeout, ours does not depend on it.
        self.listener.settimeout(0.05)
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        poll.register(waker, select.POLLIN)
        tick = int(min(5.0, max(0.05, self.timeout / 4)) * 1000)
        while not self.draining:
            ready = [fd for fd, _ in poll.poll(tick)]
            self._expire()
            if self.listener.fileno() in ready and not self.draining:
                self._accept()
        self._drain()

    def _stop(self, _signal, _frame):
        self.draining = True

    def _accept(self):
        if len(self.connections) >= CONNECTIONS_MAX:
            threading.Event().wait(0.01)
            return
        try:
            self._start(self.listener.accept()[0])
        except socket.timeout:  # another process that shares the socket accepted first
            pass
        except OSError:
            threading.Event().wait(0.05)  # probably out of file descriptors

    def _start(self, peer):
        connection = Connection(self, peer)
        self.connections.add(connection)
        threading.Thread(target=connection.run, daemon=True).start()

    def _expire(self):
        now = monotonic()
        for connection in list(self.connections):
            if connection.busy_since and now - connection.busy_since > self.timeout:
                connection.give_up()
        if len(self.abandoned) > ABANDONED_MAX and not self.draining:
            give_up_all(len(self.abandoned))

    def _drain(self):
        self.listener.settimeout(0)
        try:
            while True:
                self._start(self.listener.accept()[0])
        except OSError:
            pass
        self.listener.close()
        for connection in list(self.connections):
            connection.end_if_idle()
        while self.connections:
            self._expire()
            threading.Event().wait(0.005)
        sys.stdout.flush()
        os._exit(0)  # threads of the handler would keep the process alive


class Connection:
    __slots__ = ("server", "peer", "buffer", "busy_since", "idle", "abandoned", "lock")

    def __init__(self, server, peer):
        self.server = server
        self.peer = peer
        self.buffer = b""
        self.busy_since = 0.0
        self.idle = False
        self.abandoned = False
        self.lock = threading.Lock()

    def run(self):
        try:
            self._set_up()
            while self._exchange():
                pass
        except (Closed, OSError):
            pass
        finally:
            with self.lock:
                self.busy_since = 0.0
                self.server.connections.discard(self)
                self.server.abandoned.discard(self)
            self.peer.close()

    def _set_up(self):
        # The kernel enforces these timeouts. A timeout in Python costs an additional call per read.
        limit = struct.pack("ll", RECEIVE_SECONDS_MAX, 0)
        self.peer.setblocking(True)
        if self.peer.family != socket.AF_UNIX:
            self.peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def _exchange(self):
        """Handles one request and its response. Returns whether another may follow."""
        try:
            head, deadline = self._read_head()
            method, target, version, headers = parse_head(head)
            keep = self._keeps(version, headers)
            body = self._read_body(headers, deadline)
        except Refusal as refusal:
            self._refuse(refusal)
            return False
        self.busy_since = monotonic()
        status, kind, data = self.server.serve(method, target, headers, body)
        with self.lock:
            if self.abandoned:
                return False
            self.busy_since = 0.0
        keep = keep and not self.server.draining and len(self.server.connections) < CONNECTIONS_MAX
        self.peer.sendall(answer(status, kind, data, keep))
        return keep

    def _keeps(self, version, headers):
        connection = headers.get("connection")
        if version == "HTTP/1.0":
            return connection is not None and "keep-alive" in connection.lower()
        return connection is None or "close" not in connection.lower()

    def _read_head(self):
        if not self.buffer:
            self._wait_for_first()
        deadline = monotonic() + RECEIVE_SECONDS_MAX
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            end = self._read_long_head(deadline)
        head = self.buffer[:end].decode("latin-1")
        self.buffer = self.buffer[end + 4 :]
        return head, deadline

    def _read_long_head(self, deadline):
        """Finds the end of a head that arrives in several pieces."""
        parts = bytearray(self.buffer)
        checked = 0
        while True:
            if parts.count(b"\n", checked) != parts.count(b"\r\n", max(0, checked - 1)):
                raise Refusal(400, "a line ends without a carriage return")
            checked = len(parts)
            searched = max(0, len(parts) - 3)
            parts += self._receive(deadline)
            end = parts.find(b"\r\n\r\n", searched)
            if end > HEAD_BYTES_MAX or (end < 0 and len(parts) > HEAD_BYTES_MAX):
                raise Refusal(431, "the head is larger than %d bytes" % HEAD_BYTES_MAX)
            if end >= 0:
                self.buffer = bytes(parts)
                return end

    def _wait_for_first(self):
        self.idle = True
        for _ in range(IDLE_SECONDS_MAX // RECEIVE_SECONDS_MAX):
            if self.server.draining:
                # Requests that arrived before the shutdown get a response.
                self.peer.setblocking(False)
            try:
                data = self.peer.recv(READ_BYTES)
            except BlockingIOError:
                if self.server.draining:
                    raise Closed
                continue
            self.idle = False
            if not data:
                raise Closed
            if self.server.draining:
                self.peer.setblocking(True)
            self.buffer = data
            return
        raise Closed

    def _receive(self, deadline):
        if monotonic() > deadline:
            raise Refusal(408, "the request took too long to arrive")
        try:
            data = self.peer.recv(READ_BYTES)
        except BlockingIOError:
            raise Refusal(408, "the request took too long to arrive")
        if not data:
            raise Closed
        return data

    def _read_body(self, headers, deadline):
        expect = headers.get("expect")
        if expect is not None and expect.lower() != "100-continue":
            raise Refusal(417, "the only expectation taken is 100-continue")
        coding = headers.get("transfer-encoding")
        length = headers.get("content-length")
        if coding is not None:
            if length is not None:
                raise Refusal(400, "content-length and transfer-encoding exclude each other")
            if coding.lower() != "chunked":
                raise Refusal(501, "the only transfer-encoding taken is chunked")
            self._continue(expect)
            return self._read_chunks(deadline)
        if length is None:
            return b""
        if not (length.isascii() and length.isdigit()) or len(length) > 15:
            raise Refusal(400, "content-length is not a number")
        count = int(length)
        if count > BODY_BYTES_MAX:
            raise Refusal(413, "the body is larger than %d bytes" % BODY_BYTES_MAX)
        if len(self.buffer) < count:
            self._continue(expect)
        return self._read_exactly(count, deadline)

    def _continue(self, expect):
        if expect is not None and not self.buffer:
            self.peer.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _read_exactly(self, count, deadline):
        buffer = self.buffer
        if len(buffer) < count:
            parts = bytearray(buffer)
            while len(parts) < count:
                parts += self._receive(deadline)
            buffer = bytes(parts)
        self.buffer = buffer[count:]
        return buffer[:count]

    def _read_line(self, deadline):
        while True:
            feed = self.buffer.find(b"\n")
            if feed == 0 or (feed > 0 and self.buffer[feed - 1] != 13):
                raise Refusal(400, "a line ends without a carriage return")
            end = feed - 1 if feed > 0 else -1
            if end > LINE_BYTES_MAX or (end < 0 and len(self.buffer) > LINE_BYTES_MAX + 1):
                raise Refusal(400, "a line of the chunked body is too long")
            if end >= 0:
                line = self.buffer[:end]
                self.buffer = self.buffer[end + 2 :]
                return line
            self.buffer += self._receive(deadline)

    def _read_chunks(self, deadline):
        body = bytearray()
        while True:
            line = self._read_line(deadline)
            digits = line.split(b";", 1)[0].rstrip(b" \t")
            if has_control(line.decode("latin-1")) or not digits or len(digits) > 8 or digits.strip(b"0123456789abcdefABCDEF"):
                raise Refusal(400, "a chunk has no valid size")
            size = int(digits, 16)
            if len(body) + size > BODY_BYTES_MAX:
                raise Refusal(413, "the body is larger than %d bytes" % BODY_BYTES_MAX)
            if size == 0:
                self._skip_trailers(deadline)
                return bytes(body)
            body += self._read_exactly(size, deadline)
            if self._read_exactly(2, deadline) != b"\r\n":
                raise Refusal(400, "a chunk does not end where its size says")

    def _skip_trailers(self, deadline):
        left = TRAILER_BYTES_MAX
        while line := self._read_line(deadline):
            split_header(line.decode("latin-1"))
            left -= len(line)
            if left < 0:
                raise Refusal(400, "the trailers are too long")

    def _refuse(self, refusal):
        kind, data = problem(REASONS[refusal.status].replace(" ", ""), str(refusal))
        self.peer.sendall(answer(refusal.status, kind, data, False))
        # A reset could destroy the response for a client that is still sending, so its rest is read for a moment.
        self.peer.shutdown(socket.SHUT_WR)
        until = monotonic() + RECEIVE_SECONDS_MAX
        while monotonic() < until and self.peer.recv(READ_BYTES):
            pass

    def give_up(self):
        """Responds in place of a handler that takes too long. Its thread continues until it ends."""
        with self.lock:
            if self.abandoned or not self.busy_since:
                return
            self.abandoned = True
            self.busy_since = 0.0
            self.server.connections.discard(self)
            self.server.abandoned.add(self)
        kind, data = problem("Timeout", "no answer in %d ms" % (self.server.timeout * 1000))
        try:
            self.peer.sendall(answer(504, kind, data, False))
            self.peer.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def end_if_idle(self):
        if self.idle:
            try:
                self.peer.shutdown(socket.SHUT_RD)  # wakes the thread; the received bytes are still read
            except OSError:
                pass


def give_up_all(count):
    import klambda

    klambda.write_log("error", "%d calls were given up and hang" % count, fields={"reason": "HandlersHang"})
    os._exit(1)


def problem(kind, message):
    import klambda

    return klambda.problem(kind, message)


def answer(status, kind, data, keep):
    head = "HTTP/1.1 %d %s\r\n" % (status, REASONS[status])
    if not keep:
        head += "connection: close\r\n"
    if status == 204:
        return (head + "\r\n").encode()
    return (head + "content-type: %s\r\ncontent-length: %d\r\n\r\n" % (kind, len(data))).encode() + data


def split_header(line):
    name, colon, value = line.partition(":")
    name = name.lower()
    value = value.strip(" \t")
    if not colon or not name or not TOKEN.issuperset(name) or has_control(value):
        raise Refusal(400, "a header is malformed")
    return name, value


def has_control(text):
    return not text.isprintable() and any(c < " " and c != "\t" or c == "\x7f" for c in text)


def parse_head(head):
    lines = head.split("\r\n")
    start = lines[0].split(" ")
    if len(start) != 3 or not TOKEN.issuperset(start[0]) or not start[0]:
        raise Refusal(400, "the request line is malformed")
    method, target, version = start
    if version != "HTTP/1.1" and version != "HTTP/1.0":
        raise Refusal(505, "speak HTTP/1.1")
    headers = {}
    del lines[0]
    for line in lines:
        name, value = split_header(line)
        if name in headers:
            if name in ("content-length", "host") or name.startswith("ce-"):
                raise Refusal(400, "the header %s is given twice" % name)
            value = headers[name] + ", " + value
        headers[name] = value
    if version == "HTTP/1.1" and "host" not in headers:
        raise Refusal(400, "the header host is missing")
    if version == "HTTP/1.0" and "transfer-encoding" in headers:
        raise Refusal(400, "HTTP/1.0 has no transfer-encoding")
    return method, target, version, headers
