"""Sends events in every mode with the CloudEvents SDK for Python, and reads them back with it.

    python send.py http://127.0.0.1:8080
"""

import json
import sys
import urllib.request
from datetime import datetime, timezone

from cloudevents.core.bindings.http import (
    HTTPMessage,
    from_structured_event,
    to_binary_event,
    to_structured_event,
)
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

SOURCE = "/sdk/python"
EVENTS = 30


def event(number: int) -> CloudEvent:
    """Alternates between keys. Values that need encoding in a header must survive binary mode."""
    attributes = {
        "id": f"python-{number}",
        "source": SOURCE,
        "type": "order.changed",
        "time": datetime(2026, 1, 1, 12, 0, number, tzinfo=timezone.utc),
        "subject": "Größe 50% \"neu\"",
        "datacontenttype": "application/json",
        "partitionkey": f"python-key-{number % 3}",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    return CloudEvent(attributes, {"number": number, "text": "schön", "nested": {"list": [1, None, True]}})


def binary_data(number: int) -> CloudEvent:
    attributes = {
        "id": f"python-{number}",
        "source": SOURCE,
        "type": "order.scanned",
        "datacontenttype": "application/octet-stream",
        "partitionkey": f"python-key-{number % 3}",
    }
    return CloudEvent(attributes, bytes(range(256)))


def batch(events: list[CloudEvent]) -> HTTPMessage:
    """The SDK does not support batches. A batch is an array of events in the JSON format."""
    body = b"[" + b",".join(JSONFormat().write(event) for event in events) + b"]"
    return HTTPMessage({"content-type": "application/cloudevents-batch+json"}, body)


def call(request: urllib.request.Request) -> dict:
    # No proxy between a test and the local server.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        return json.loads(answer.read())


def send(server: str, message: HTTPMessage, ids: list[str]) -> None:
    url = f"{server}/api/v1/events"
    answer = call(urllib.request.Request(url, data=message.body, headers=message.headers, method="POST"))
    told = [(result["id"], result["source"], result["status"]) for result in answer["results"]]
    assert told == [(id, SOURCE, "accepted") for id in ids], told


def check_kept(server: str, sent: CloudEvent) -> None:
    url = f"{server}/api/v1/events/{sent.get_id()}?source={SOURCE}"
    kept = call(urllib.request.Request(url))["event"]
    kept = from_structured_event(HTTPMessage({}, json.dumps(kept).encode()))
    assert kept.get_attributes() == sent.get_attributes(), (kept.get_attributes(), sent.get_attributes())
    assert kept.get_data() == sent.get_data(), (kept.get_data(), sent.get_data())


def main(server: str) -> None:
    made = [event(number) if number % 10 else binary_data(number) for number in range(EVENTS)]
    ids = [one.get_id() for one in made]
    for one in made[:10]:
        send(server, to_structured_event(one), [one.get_id()])
    for one in made[10:20]:
        send(server, to_binary_event(one), [one.get_id()])
    send(server, batch(made[20:]), ids[20:])
    for one in made:
        check_kept(server, one)
    print("\n".join(ids))


main(sys.argv[1])
