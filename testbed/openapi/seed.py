"""Resources that requests can find: one of each kind. The examples in the description create others."""

import json
import os
import time
import urllib.error
import urllib.request

URL = os.environ["KLAMBDA_URL"]
TOKEN = os.environ["KLAMBDA_TOKEN"]
# No server listens there, so an event becomes a dead letter.
NOWHERE = os.environ["KLAMBDA_NOWHERE"]
# Events of each subscription. After a few more failures, the breaker would delay the rest.
SENT = 2
VERSION = "lambda.knative.io/v1alpha1"

# The values of path parameters that exist.
NAMES = {
    "subscriptions": {"name": "orders"},
    "lanes": {"subscription": "orders", "key": "order-42"},
    "events": {"id": "orders-1"},
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


def subscribe(name):
    retry = {"attempts": 1, "backoff": "10ms", "timeout": "1s"}
    spec = {"target": {"url": NOWHERE}, "ordering": "ordered", "retry": retry, "filters": [{"prefix": {"source": f"/{name}"}}]}
    ask("PUT", f"/api/v1/subscriptions/{name}",
        {"apiVersion": VERSION, "kind": "Subscription", "metadata": {"name": name}, "spec": spec})


def send(source, number):
    event = {"specversion": "1.0", "id": f"{source}-{number}", "source": f"/{source}", "type": "order.placed",
             "partitionkey": f"order-{41 + number}", "subject": f"order-{41 + number}", "data": {"total": 7}}
    ask("POST", "/api/v1/events", event, "application/cloudevents+json")


def seed():
    """Creates missing resources. Existing ones stay."""
    for name in ["orders", "parcels"]:
        subscribe(name)
    ask("POST", "/api/v1/webhooks/endpoints", {"name": "supplier", "url": NOWHERE, "types": ["refund.*"]})
    ask("PUT", "/api/v1/secrets/db", {"data": {"password": "hush"}})
    ask("PUT", "/api/v1/namespaces/shop", {})
    ask("POST", "/api/v1/tokens", {"name": "reader", "role": "viewer", "namespaces": "*"})
    source = {"type": "folder", "folder": {"path": os.path.dirname(os.path.abspath(__file__))}}
    for kind, name in [("functions", "greeter"), ("agents", "helper")]:
        ask("POST", f"/api/v1/lambda/{kind}",
            {"metadata": {"name": name}, "spec": {"source": source, "runtime": {"language": "python"}}})


def dead_letters(subscription):
    """Waits until each event that was sent is one."""
    until = time.monotonic() + 30
    while True:
        items = ask("GET", f"/api/v1/dlq?subscription={subscription}")[1]["items"]
        if len(items) == SENT:
            return [item["id"] for item in items]
        assert time.monotonic() < until, items
        time.sleep(0.05)


if __name__ == "__main__":
    seed()
    for number in range(1, SENT + 1):
        send("orders", number)
        send("parcels", number)
    [first, *_] = dead_letters("orders")
    dead_letters("parcels")
    ask("POST", "/api/v1/dlq/replays", {"selector": {"ids": [first]}})
    for path in ["subscriptions/orders", "lanes/orders/order-42", "events/orders-1", "webhooks/endpoints/supplier",
                 "secrets/db", "tokens/reader", "namespaces/shop", "lambda/functions/greeter", "lambda/agents/helper", "dlq/replays/r1"]:
        status, answer = ask("GET", f"/api/v1/{path}")
        assert status == 200, (path, status, answer)
