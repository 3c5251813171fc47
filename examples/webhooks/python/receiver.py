"""A webhook receiver that processes every event once, in order, and reads from the feed what it missed."""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from standardwebhooks import Webhook, WebhookVerificationError

FEED = os.environ["WEBHOOK_FEED"]
TOKEN = os.environ.get("WEBHOOK_TOKEN")
webhook = Webhook(os.environ["WEBHOOK_SECRET"])


class Journal:
    """The events so far, one JSON line each, and how far the feed was read. A real receiver uses its database."""

    def __init__(self, path):
        self.last = {}  # workflow: the number and id of its last event
        self.cursor = None
        self.file = open(path, "a+b", buffering=0)
        self.file.seek(0)
        for line in self.file:
            self.remember(json.loads(line))

    def remember(self, line):
        if "cursor" in line:
            self.cursor = line["cursor"]
        else:
            self.last[line["workflowId"]] = (line["sequenceNumber"], line["eventId"])

    def write(self, line):
        self.file.write(json.dumps(line).encode() + b"\n")
        self.remember(line)

    def take(self, event):
        """Returns False if an event before this one is missing."""
        number, last_id = self.last.get(event["workflowId"], (0, None))
        if event["sequenceNumber"] <= number:
            return True  # known
        if event["sequenceNumber"] != number + 1 or event["previousEventId"] != last_id:
            return False
        self.write(event)
        return True

    def take_anyway(self, event):
        """For an event whose predecessors are gone everywhere."""
        if not self.take(event):
            print("lost: events before", event["eventId"], "of", event["workflowId"], file=sys.stderr)
            self.write(event)

    def catch_up(self):
        """Reads the feed to its end."""
        while True:
            page = read_feed(self.cursor)
            for event in page["items"]:
                self.take_anyway(event)
            if page["next"] != self.cursor:
                self.write({"cursor": page["next"]})
            if not page["items"]:
                return


def read_feed(cursor):
    url = FEED + (f"&since={quote(cursor)}" if cursor else "")
    headers = {"authorization": f"Bearer {TOKEN}"} if TOKEN else {}
    try:
        with urlopen(Request(url, headers=headers)) as answer:
            return json.load(answer)
    except HTTPError as error:
        if error.code == 410 and cursor:  # Retention has removed events after the cursor.
            return read_feed(None)
        raise


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            received = webhook.verify(body, dict(self.headers))
        except WebhookVerificationError as error:
            return self.answer(401, str(error))
        # An endpoint with `batch` sends an array of events.
        for event in received if isinstance(received, list) else [received]:
            with lock:
                if not journal.take(event):
                    journal.catch_up()
                    journal.take_anyway(event)
        self.answer(200, "")  # Not earlier: the events are stored.

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


lock, journal = Lock(), Journal(sys.argv[2])
journal.catch_up()
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
