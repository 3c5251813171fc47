"""Resources that requests can find: one of each kind. The examples in the description create others."""

import json
import os
import time
import urllib.error
import urllib.request

URL = os.environ["KLAMBDA_URL"]
TOKEN = os.environ["KLAMBDA_TOKEN"]
# Nobody listens there, so that an event becomes a dead letter.
NOWHERE = os.environ["KLAMBDA_NOWHERE"]
VERSION = "lambda.knative.io/v1alpha1"

# The values of path parameters that exist.
NAMES = {
    "subscriptions": {"name": "orders"},
    "lanes": {"subscription": "orders", "key": "order-42"},
    "dead-letters": {"id": "orders.1"},
    "events": {"id": "e1"},
    "webhooks": {"name": "supplier"},
    "secrets": {"name": "db"},
    "tokens": {"name": "reader"},
    "namespaces": {"name": "shop"},
    "functions": {"name": "greeter"},
    "agents": {"name": "helper"},
}


def ask(method, path, body=None, content_type="application/json"):
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": content_type}
    request = urllib.request.Request(URL + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def seed():
    """Creates what is missing. What is there already stays."""
    retry = {"attempts": 1, "backoff": "10ms", "timeout": "1s"}
    spec = {"target": {"url": NOWHERE}, "ordering": "ordered", "retry": retry}
    ask("PUT", "/api/v1/subscriptions/orders",
        {"apiVersion": VERSION, "kind": "Subscription", "metadata": {"name": "orders"}, "spec": spec})
    ask("POST", "/api/v1/webhooks/endpoints", {"name": "supplier", "url": NOWHERE, "types": ["order.*"]})
    ask("PUT", "/api/v1/secrets/db", {"data": {"password": "hush"}})
    ask("PUT", "/api/v1/namespaces/shop", {})
    ask("POST", "/api/v1/tokens", {"name": "reader", "role": "viewer", "namespaces": "*"})
    source = {"type": "folder", "folder": {"path": os.path.dirname(os.path.abspath(__file__))}}
    for kind, name in [("functions", "greeter"), ("agents", "helper")]:
        ask("POST", f"/api/v1/lambda/{kind}",
            {"metadata": {"name": name}, "spec": {"source": source, "runtime": {"language": "python"}}})
    event = {"specversion": "1.0", "id": "e1", "source": "/shop", "type": "order.placed",
             "partitionkey": "order-42", "subject": "order-42", "data": {"total": 7}}
    ask("POST", "/api/v1/events", event, "application/cloudevents+json")


def wait_for_dead_letter():
    until = time.monotonic() + 30
    while ask("GET", "/api/v1/dlq/orders.1")[0] != 200:
        assert time.monotonic() < until, ask("GET", "/api/v1/events/e1")
        time.sleep(0.05)


if __name__ == "__main__":
    seed()
    wait_for_dead_letter()
    ask("POST", "/api/v1/dlq/replays", {"selector": {"subscription": "orders"}, "ratePerSecond": 1})
    for path in ["subscriptions/orders", "lanes/orders/order-42", "dlq/orders.1", "events/e1", "webhooks/endpoints/supplier",
                 "secrets/db", "tokens/reader", "namespaces/shop", "lambda/functions/greeter", "lambda/agents/helper", "dlq/replays/r1"]:
        status, answer = ask("GET", f"/api/v1/{path}")
        assert status == 200, (path, status, answer)
