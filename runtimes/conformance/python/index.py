import os
import sys
import time

import klambda


def echo(event, context):
    return {
        "id": event.id,
        "subject": event.subject,
        "data": None if isinstance(event.data, bytes) else event.data,
        "bytes": isinstance(event.data, bytes),
        "function": context.function,
        "namespace": context.namespace,
        "attempt": context.attempt,
        "lanesequence": context.lanesequence,
        "previousid": context.previousid,
        "orderstatus": context.orderstatus,
        "traceparent": context.traceparent,
        "left": context.remaining() > 0,
    }


async def wait():
    import asyncio

    await asyncio.sleep(0.01)
    return {"later": True}


def fail(_event, _context):
    raise TypeError("broken")


def final(_event, _context):
    raise klambda.DoNotRetry("never")


async def end_in_coroutine():
    sys.exit(3)


async def end_in_task():
    import asyncio

    await asyncio.create_task(end_in_coroutine())


async def end_in_generator():
    async def numbers():
        yield 1
        raise KeyboardInterrupt

    return [number async for number in numbers()]


async def cancel():
    import asyncio

    raise asyncio.CancelledError


async def stop_loop():
    import asyncio

    asyncio.get_running_loop().stop()
    asyncio.get_running_loop().call_soon(sys.exit)
    await asyncio.sleep(0.01)
    raise SystemExit("stopped")


def end(event, _context):
    if event.data == "thread":
        sys.exit()
    if event.data == "values":
        return list(sys.exit() for _ in range(1))
    return ENDS[event.data]()


ENDS = {"coroutine": end_in_coroutine, "task": end_in_task, "generator": end_in_generator, "cancel": cancel, "loop": stop_loop}


def slow(event, _context):
    time.sleep(event["data"]["ms"] / 1000)
    return {"slow": True}


ACTS = {
    "echo": echo,
    "nothing": lambda event, context: None,
    "text": lambda event, context: "grüße",
    "later": lambda event, context: wait(),
    "event": lambda event, context: {"specversion": "1.0", "type": "reply", "source": "/test", "data": {"n": 1}},
    "events": lambda event, context: [
        {"specversion": "1.0", "type": "reply", "source": "/test", "id": "own", "traceparent": "00-ff-ff-01"},
        klambda.Event(specversion="1.0", type="reply", source="/test", data=b"\x00\xff"),
    ],
    "fail": fail,
    "final": final,
    "log": lambda event, context: context.log.info("seen", n=7),
    "slow": slow,
    "end": end,
    "exit": lambda event, context: os._exit(3),
    "number": lambda event, context: {"n": float("nan")},
    "mixed": lambda event, context: (
        {"specversion": "1.0", "type": "reply", "source": "/test", "data": b"\x00\xff"},
        klambda.Event(specversion="1.0", type="reply", source="/test", id="own", data={"n": 1}),
    ),
}


def handler(event, context):
    return ACTS[event.type](event, context)
