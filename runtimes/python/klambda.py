"""Serves one handler: it receives CloudEvents over HTTP and returns the handler's value, events or error.

Handlers import this module for `DoNotRetry` and `Event`.
"""

# Imports dominate the start time, so asyncio, traceback and others are imported on demand.
import json
import os
import sys
import time

FUNCTION = os.environ.get("KLAMBDA_FUNCTION") or "function"
NAMESPACE = os.environ.get("KLAMBDA_NAMESPACE") or "default"
TIMEOUT = int(os.environ.get("KLAMBDA_TIMEOUT_MS") or 30_000) / 1000
EXIT_CONFIG = 78
COROUTINE = 0x80  # inspect.CO_COROUTINE

# Rejects NaN and infinity, which Python supports but JSON does not.
_loads = json.JSONDecoder(parse_constant=lambda name: _no_number(name)).decode
_encode = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=lambda value: _plain(value)
).encode


class DoNotRetry(Exception):
    """Raise this when a retry cannot help. The event becomes a dead letter immediately."""


class Event(dict):
    """A CloudEvent: its attributes and `data`, as keys and as fields. Missing attributes are None."""

    __slots__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def __setattr__(self, name, value):
        self[name] = value


class Fault(Exception):
    """The request is not a valid event."""


class Context:
    """Describes this delivery, in addition to the event."""

    __slots__ = (
        "function",
        "namespace",
        "event_id",
        "attempt",
        "lanesequence",
        "previousid",
        "orderstatus",
        "traceparent",
        "tracestate",
        "deadline",
    )

    def __init__(self, event, headers):
        self.function = FUNCTION
        self.namespace = NAMESPACE
        self.event_id = event["id"]
        self.attempt = _integer(headers.get("klambda-attempt")) or 1
        self.lanesequence = _integer(event.get("lanesequence"))
        self.previousid = event.get("previousid")
        self.orderstatus = event.get("orderstatus")
        # The header is the context of this call; the attribute is that of the producer.
        trace = headers if headers.get("traceparent") else event
        self.traceparent = trace.get("traceparent")
        self.tracestate = trace.get("tracestate")
        self.deadline = time.time() + TIMEOUT

    def remaining(self):
        """Seconds until the call times out."""
        return max(0.0, self.deadline - time.time())

    @property
    def log(self):
        return Log(self)


class Log:
    __slots__ = ("context",)

    def __init__(self, context):
        self.context = context

    def debug(self, message, **fields):
        write_log("debug", message, self.context, fields)

    def info(self, message, **fields):
        write_log("info", message, self.context, fields)

    def warning(self, message, **fields):
        write_log("warn", message, self.context, fields)

    warn = warning

    def error(self, message, **fields):
        write_log("error", message, self.context, fields)


def write_log(level, message, context=None, fields=None):
    now = time.time()
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + ".%03dZ" % (now % 1 * 1000),
        "level": level,
        "message": str(message),
        "function": FUNCTION,
        "namespace": NAMESPACE,
    }
    if context is not None:
        line["event_id"] = context.event_id
        if context.traceparent:
            parts = context.traceparent.split("-") + ["", ""]
            line["trace_id"], line["span_id"] = parts[1], parts[2]
    if fields:
        line.update(fields)
    stream = sys.stderr if level in ("error", "warn") else sys.stdout
    # A single write, so that lines of several threads do not mix.
    stream.write(json.dumps(line, default=str) + "\n")
    stream.flush()


def _integer(text):
    try:
        return int(text)
    except (TypeError, ValueError):
        return None


def _no_number(name):
    raise ValueError("%s is not a number" % name)


def _plain(value):
    """Converts values that JSON does not support."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        import base64

        return base64.b64encode(value).decode()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, (set, frozenset)):
        return list(value)
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    raise TypeError("the handler returned a %s, which is not JSON" % type(value).__name__)


# ---- the event


def read_event(headers, body):
    kind = headers.get("content-type", "")
    lower = kind.lower()
    if lower.startswith("application/cloudevents"):
        event = _structured(lower, body)
    else:
        event = _binary(kind, headers, body)
    if event.get("specversion") != "1.0":
        raise Fault("not a CloudEvent: specversion must be 1.0")
    for name in ("id", "source", "type"):
        value = event.get(name)
        if not value or not isinstance(value, str):
            raise Fault("not a CloudEvent: %s is missing" % name)
    return event


def _structured(kind, body):
    if kind.split(";", 1)[0].strip() != "application/cloudevents+json":
        raise Fault("%s is not supported; send one event as JSON" % kind)
    value = _parse(body, "the event")
    if not isinstance(value, dict):
        raise Fault("the event is not a JSON object")
    event = Event(value)
    encoded = event.pop("data_base64", None)
    if encoded is not None:
        if not isinstance(encoded, str) or "data" in event:
            raise Fault("data_base64 must be the only data, a string")
        import base64

        try:
            event["data"] = base64.b64decode(encoded)
        except ValueError:
            raise Fault("data_base64 is not base64")
    return event


def _binary(kind, headers, body):
    event = Event()
    for name, value in headers.items():
        if name.startswith("ce-"):
            event[name[3:]] = _header_text(value)
    if "specversion" not in event:
        raise Fault("not a CloudEvent: the header ce-specversion is missing")
    event.pop("data", None)
    if kind:
        event["datacontenttype"] = kind
    if body:
        event["data"] = _data(kind, body)
    return event


def _data(kind, body):
    media = kind.split(";", 1)[0].strip().lower()
    if media.endswith("/json") or media.endswith("+json"):
        return _parse(body, "the data")
    if media.startswith("text/"):
        return bytes(body).decode("utf-8", "replace")
    return bytes(body)


def _parse(body, what):
    try:
        return _loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise Fault("%s is not JSON: %s" % (what, error))


def _header_text(value):
    """Header values are percent-encoded UTF-8. Some senders do not encode the UTF-8."""
    if "%" not in value and value.isascii():
        return value
    raw = value.encode("latin-1")
    out = bytearray()
    at = 0
    while at < len(raw):
        if raw[at] == 0x25:
            try:
                out.append(int(raw[at + 1 : at + 3].decode("ascii"), 16))
                at += 3
                continue
            except ValueError:
                pass
        out.append(raw[at])
        at += 1
    return out.decode("utf-8", "replace")


# ---- the response


def _is_event(value):
    return (
        isinstance(value, dict)
        and isinstance(value.get("specversion"), str)
        and isinstance(value.get("type"), str)
        and isinstance(value.get("source"), str)
    )


def _outgoing(event, context):
    out = dict(event)
    if context.traceparent and not out.get("traceparent"):
        out["traceparent"] = context.traceparent
        if context.tracestate:
            out["tracestate"] = context.tracestate
    if isinstance(out.get("data"), (bytes, bytearray)):
        out["data_base64"] = _plain(out.pop("data"))
    return out


def value_answer(value, context):
    if value is None:
        return 204, "", b""
    if _is_event(value):
        return 200, "application/cloudevents+json", _encode(_outgoing(value, context)).encode()
    if isinstance(value, (list, tuple)) and value and all(map(_is_event, value)):
        events = [_outgoing(event, context) for event in value]
        return 200, "application/cloudevents-batch+json", _encode(events).encode()
    return 200, "application/json", _encode(value).encode()


def error_answer(error, context):
    import traceback

    kind = type(error).__name__
    stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    retry = not isinstance(error, DoNotRetry)
    context.log.error(str(error), error={"type": kind, "stack": stack}, retry=retry)
    return (500 if retry else 422,) + problem(kind, str(error), stack)


def problem(kind, message, stack=None):
    error = {"type": kind, "message": message}
    if stack is not None:
        error["stack"] = stack
    return "application/json", json.dumps({"error": error}).encode()


class Function:
    """The handler. It can be called from any thread."""

    def __init__(self, handler):
        self.handler = handler
        self.loop = None
        code = getattr(handler, "__code__", None)
        if code is not None and code.co_flags & COROUTINE:
            self._start_loop()

    def serve(self, method, target, headers, body):
        if method != "POST":
            return self._serve_other(method, target)
        if target != "/" and not target.startswith("/?"):
            return (404,) + problem("NotFound", "events are taken at /")
        try:
            event = read_event(headers, body)
        except Fault as fault:
            return (400,) + problem("BadRequest", str(fault))
        context = Context(event, headers)
        try:
            value = self.handler(event, context)
            if hasattr(value, "__await__"):
                value = self._await(value)
            return value_answer(value, context)
        except BaseException as error:  # SystemExit in a handler must not end a thread without a response
            return error_answer(error, context)

    def _serve_other(self, method, target):
        if target == "/healthz":
            if method == "GET":
                return 200, "text/plain", b"ok"
            return (405,) + problem("MethodNotAllowed", "GET /healthz")
        return (405 if target == "/" else 404,) + problem("NotFound", "POST events to /")

    def _start_loop(self):
        """One event loop for all calls, so that handlers can share clients and locks."""
        import asyncio
        import threading

        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self._run_loop, name="klambda-loop", daemon=True).start()

    def _run_loop(self):
        while not self.loop.is_closed():
            try:
                self.loop.run_forever()
            except BaseException as error:  # SystemExit in a task; the other tasks must continue
                write_log("error", "a task ended with %r" % error, fields={"reason": "Uncaught"})

    def _await(self, value):
        import asyncio

        if self.loop is None:
            self._start_loop()

        # Such an error could end the whole loop if it left its task, or be lost.
        async def wait():
            try:
                return await value, None
            except BaseException as error:
                return None, error

        value, error = asyncio.run_coroutine_threadsafe(wait(), self.loop).result()
        if error is not None:
            raise error
        return value


# ---- the start


def give_up(reason, message):
    write_log("error", message, fields={"reason": reason})
    os._exit(EXIT_CONFIG)


def load(name, code):
    """Loads the handler `file.function` from a folder."""
    file, _, function = name.rpartition(".")
    module = file.replace("/", ".").strip(".")
    path = os.path.join(code, *module.split("."))
    if not module or not (os.path.isfile(path + ".py") or os.path.isdir(path)):
        give_up("HandlerNotFound", "the handler %s needs a file %s.py, which is not there" % (name, file))
    try:
        __import__(module)
    except SyntaxError as error:
        give_up("SyntaxError", "%s, line %s: %s" % (error.filename, error.lineno, error.msg))
    except BaseException:
        import traceback

        give_up("LoadError", traceback.format_exc())
    handler = getattr(sys.modules[module], function, None)
    if not callable(handler):
        give_up("HandlerNotFound", "%s.py has no function %s" % (file, function))
    return handler


def take_over_logging():
    """Handlers that use `logging` get JSON lines. Others do not pay for the import."""
    logging = sys.modules.get("logging")
    if logging is None or logging.root.handlers:
        return

    class Lines(logging.Handler):
        def emit(self, record):
            fields = {"logger": record.name}
            if record.exc_info:
                fields["error"] = {"stack": logging.Formatter().formatException(record.exc_info)}
            level = "warn" if record.levelname == "WARNING" else record.levelname.lower()
            write_log("error" if level == "critical" else level, record.getMessage(), fields=fields)

    logging.root.addHandler(Lines())
    logging.root.setLevel(logging.INFO)


def main():
    sys.stdout.reconfigure(line_buffering=True)
    import klambda_http

    # The user code precedes this wrapper in the path, because its files may have the same names, such as `main.py`.
    code = os.path.abspath(os.environ.get("KLAMBDA_CODE") or ".")
    packages = os.path.join(code, ".packages")
    sys.path[0:0] = [code, packages] if os.path.isdir(packages) else [code]
    listener = klambda_http.listener()
    handler = load(os.environ.get("KLAMBDA_HANDLER") or "index.handler", code)
    take_over_logging()
    klambda_http.Server(listener, Function(handler).serve, TIMEOUT).run()
