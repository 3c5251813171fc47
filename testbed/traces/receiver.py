"""A receiver of OTLP traces over gRPC and HTTP, with the official protobuf definitions. Prints each span as a JSON line.

With `--hang`, it takes requests and never answers them.
"""

import gzip
import http.server
import json
import sys
import threading
import time
from concurrent import futures

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as rpc

HANGS = "--hang" in sys.argv
PRINTING = threading.Lock()


def print_line(line):
    with PRINTING:
        print(json.dumps(line), flush=True)


def value_of(value):
    return getattr(value, value.WhichOneof("value"))


def attributes(pairs):
    return {pair.key: value_of(pair.value) for pair in pairs}


def take(request, protocol, headers):
    if HANGS:
        time.sleep(3600)
    for of_resource in request.resource_spans:
        resource = attributes(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                print_line(
                    {
                        "protocol": protocol,
                        "authorization": headers.get("authorization"),
                        "resource": resource,
                        "scope": of_scope.scope.name,
                        "name": span.name,
                        "kind": span.kind,
                        "trace": span.trace_id.hex(),
                        "span": span.span_id.hex(),
                        "parent": span.parent_span_id.hex(),
                        "start": span.start_time_unix_nano,
                        "end": span.end_time_unix_nano,
                        "attributes": attributes(span.attributes),
                        "links": [{"trace": link.trace_id.hex(), "span": link.span_id.hex()} for link in span.links],
                        "status": span.status.code,
                        "message": span.status.message,
                    }
                )


class Grpc(rpc.TraceServiceServicer):
    def Export(self, request, context):
        take(request, "grpc", dict(context.invocation_metadata()))
        return service.ExportTraceServiceResponse()


class Http(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        is_traces = self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
        if is_traces:
            take(service.ExportTraceServiceRequest.FromString(body), "http", self.headers)
        answer = service.ExportTraceServiceResponse().SerializeToString()
        self.send_response(200 if is_traces else 404)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def main():
    grpc_server = grpc.server(futures.ThreadPoolExecutor(4))
    rpc.add_TraceServiceServicer_to_server(Grpc(), grpc_server)
    grpc_port = grpc_server.add_insecure_port("127.0.0.1:0")
    grpc_server.start()
    http_server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Http)
    print_line({"grpc": grpc_port, "http": http_server.server_port})
    http_server.serve_forever()


main()
