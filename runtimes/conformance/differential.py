"""Valid and invalid requests of all kinds, and the responses of a wrapper."""

import json
import socket

START = (
    b"POST / HTTP/1.1\r\nhost: t\r\nce-specversion: 1.0\r\nce-id: %d\r\nce-source: /s\r\nce-type: echo\r\n"
    b"content-type: application/json\r\n"
)
PIECES = [
    b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\n\n", b" ", b"\t", b"\0", b":", b";", b",", b"x", b"1", b"\xe9", b"\x0b", b"\x85",
    b"content-length: 2\r\n", b"content-length: 2", b"Content-Length:\t2 \r\n", b"content-length: 02\r\n", b"content-length: +2\r\n",
    b"content-length : 2\r\n", b"content-length: 0\r\n", b"content-length: 2, 2\r\n", b"content-length:\r\n", b"content-length: \xb2\r\n",
    b"transfer-encoding: chunked\r\n", b"Transfer-Encoding: Chunked\r\n", b"transfer-encoding: gzip, chunked\r\n",
    b"transfer-encoding: chunked, chunked\r\n", b"transfer-encoding: identity\r\n", b"transfer-encoding:\x0bchunked\r\n",
    b"connection: close\r\n", b"connection: keep-alive\r\n", b"expect: 100-continue\r\n", b"ce-subject: a%20b\r\n", b" folded\r\n",
    b"x: y\r\n", b"x : y\r\n", b"x\r\n", b": y\r\n",
    b"12", b"2\r\n12\r\n", b"2;a=b\r\n12\r\n", b"2 \r\n12\r\n", b" 2\r\n12\r\n", b"2;a\nb\r\n12\r\n", b"0x2\r\n12\r\n", b"2_\r\n12\r\n",
    b"000000002\r\n12\r\n", b"0\r\n\r\n", b"0\r\nt: u\r\n\r\n", b"0\r\n t: u\r\n\r\n", b"0\r\nt\r\n\r\n", b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n",
    b"GET /healthz HTTP/1.0\r\n\r\n",
]
FRAMES = [b"content-length: 2\r\n\r\n12", b"transfer-encoding: chunked\r\n\r\n2\r\n12\r\n0\r\n\r\n", b"\r\n"]


def some_bytes(choose):
    """A few requests, most of them with an insertion, a deletion or a duplication."""
    data = b""
    for number in range(choose.randint(1, 3)):
        data += START % number + b"".join(choose.choices(PIECES, k=choose.choice([0, 0, 1, 2, 4]))) + choose.choice(FRAMES)
    for _ in range(choose.choice([0, 0, 1, 2])):
        at = choose.randrange(len(data) + 1)
        data = data[:at] + choose.choice([choose.choice(PIECES), b"", data[at : at + 9] * 2]) + data[at + choose.choice([0, 0, 1, 5]) :]
    return data


def read(process, data):
    """The responses, each with its status and what the wrapper understood. Ends at the first refusal or the end of the input."""
    peer = process.connect()
    answers = []
    try:
        peer.send(data)
        peer.peer.shutdown(socket.SHUT_WR)
        while True:
            status, headers, body = peer.answer()
            if status == 100:
                continue
            understood = None
            if status == 200 and headers.get("content-type") == "application/json":
                value = json.loads(body)
                # Each language prints bytes differently.
                data = None if value["bytes"] else value.get("data")
                understood = [value["id"], value.get("subject"), value.get("lanesequence"), data]
            answers.append((status, understood))
    except OSError:
        return answers
    finally:
        peer.close()


def agree(one, other):
    """Both have read the same, up to the first refusal by either of them."""
    for a, b in zip(one, other):
        if a[0] >= 400 or b[0] >= 400:
            return True
        if a[:1] != b[:1] or not alike(a[1], b[1]):
            return False
    return True


def alike(one, other):
    """Data whose content type is not JSON is printed differently in each language and is not compared."""
    if one is None or other is None:
        return one == other
    (*event, data), (*other_event, other_data) = one, other
    return event == other_event and (data is None or other_data is None or data == other_data)
