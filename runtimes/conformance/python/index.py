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
}


def handler(event, context):
    return ACTS[event.type](event, context)
