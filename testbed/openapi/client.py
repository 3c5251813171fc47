"""Generates a client from the description and calls every webhook route with it: client.py FOLDER"""

import importlib
import json
import pathlib
import subprocess
import sys

from seed import NOWHERE, TOKEN, URL, VERSION, ask

folder = pathlib.Path(sys.argv[1])


def generate():
    status, description = ask("GET", "/api/v1/openapi.json")
    assert status == 200
    file = folder / "openapi.json"
    file.write_text(json.dumps(description))
    config = folder / "config.json"
    config.write_text(json.dumps({"post_hooks": [], "package_name_override": "klambda_client"}))
    subprocess.run(
        [sys.executable, "-m", "openapi_python_client", "generate", "--path", file, "--config", config,
         "--output-path", folder / "client", "--meta", "none", "--overwrite"], check=True)
    (folder / "client").rename(folder / "klambda_client")
    sys.path.insert(0, str(folder))
    routes = [operation["operationId"] for methods in description["paths"].values()
              for operation in methods.values() if operation["tags"] == ["webhooks"]]
    return routes


def snake(name):
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name)


routes = {snake(name) for name in generate()}
called = set()
models = importlib.import_module("klambda_client.models")
client = importlib.import_module("klambda_client").AuthenticatedClient(base_url=URL, token=TOKEN)


def call(name, wanted, *path, **rest):
    module = importlib.import_module(f"klambda_client.api.webhooks.{name}")
    answer = module.sync_detailed(*path, client=rest.pop("client", client), **rest)
    assert answer.status_code == wanted, (name, answer.status_code, answer.content)
    assert answer.parsed is not None, (name, "the client has no type for this answer", answer.content)
    called.add(name)
    return answer.parsed


flat = {"name": "partner-2", "url": NOWHERE, "types": ["refund.*"], "workflowKey": "subject"}
created = call("create_webhook_endpoint", 201, body=models.NewWebhookEndpoint.from_dict(flat))
assert created.secret.startswith("whsec_") and created.token.startswith("klt_"), created
again = call("create_webhook_endpoint", 409, body=models.NewWebhookEndpoint.from_dict(flat))
assert again.title == "Conflict", again
names = [item.metadata.name for item in call("list_webhook_endpoints", 200).items]
assert "partner-2" in names, names
assert call("get_webhook_endpoint", 200, "partner-2").spec.url == NOWHERE
document = {"apiVersion": VERSION, "kind": "WebhookEndpoint", "spec": {"url": NOWHERE, "types": ["refund.*"], "concurrency": 7}}
document = models.WebhookEndpointDocument.from_dict(document)
call("put_webhook_endpoint", 200, "partner-2", body=document)
assert call("get_webhook_endpoint", 200, "partner-2").spec.concurrency == 7
assert call("put_webhook_endpoint", 200, "partner-2", body=document, dry_run=True).change == "unchanged"
rotated = call("rotate_webhook_secret", 200, "partner-2", overlap="1h")
assert rotated.secret.startswith("whsec_") and rotated.secret != created.secret
assert call("test_webhook_endpoint", 200, "partner-2").succeeded is False

action = lambda word: call("act_on_webhook_endpoint", 200, "partner-2", models.ActOnWebhookEndpointAction(word))
assert action("disable").status.phase == "Disabled"
assert action("enable").status.phase != "Disabled"
assert action("pause").status.phase == "Paused"
event = {"specversion": "1.0", "id": "r1", "source": "/shop", "type": "refund.made", "subject": "order-9"}
assert ask("POST", "/api/v1/events", event, "application/cloudevents+json")[0] == 202
receiver = importlib.import_module("klambda_client").AuthenticatedClient(base_url=URL, token=created.token)
feed = call("read_webhook_feed", 200, client=receiver, timeout="10s")
assert len(feed.items) == 1 and feed.items[0]["type"] == "refund.made", feed
ack = models.WebhookAck(through=feed.items[0]["eventId"])
assert call("acknowledge_webhook_events", 200, client=receiver, body=ack).events == 1
action("resume")
resent = call("resend_webhook_event", 200, "partner-2", body=models.WebhookResend(event_id=ack.through))
assert resent.succeeded is False, resent
attempts = call("list_webhook_deliveries", 200, "partner-2").items
assert attempts[0].resend is True and attempts[0].event_id == ack.through, attempts
since = {"since": "2026-01-01T00:00:00Z"}
recover = lambda wanted, **more: call(
    "recover_webhook_events", wanted, "partner-2", body=models.WebhookRecover.from_dict({**since, **more}))
assert recover(200, dryRun=True).dry_run is True
job = recover(202).id
assert call("get_webhook_recovery", 200, "partner-2", job).id == job
assert call("stop_webhook_recovery", 200, "partner-2", job).id == job
assert call("create_webhook_link", 201, "partner-2", expires="5m").role == "endpoint-admin"
call("delete_webhook_endpoint", 200, "partner-2", discard=True)
call("get_webhook_endpoint", 404, "partner-2")
assert called == routes, routes - called
print(f"{len(called)} routes")
