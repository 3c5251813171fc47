// Package klambda serves one handler: it receives CloudEvents over HTTP and returns the handler's value, events or error.
package klambda

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const exitConfig = 78

// Serve calls the handler for each event until SIGTERM, then ends the process.
func Serve(handler any) {
	call, err := adapt(handler)
	if err != nil {
		giveUp("HandlerNotFound", err)
	}
	listener, err := listen()
	if err != nil {
		giveUp("ListenError", err)
	}
	server := &server{
		listener:     listener,
		serve:        call.serve,
		timeout:      time.Duration(number("KLAMBDA_TIMEOUT_MS", 30_000)) * time.Millisecond,
		bodyBytesMax: number("KLAMBDA_BODY_BYTES_MAX", 16<<20),
	}
	drainOnTerm(server)
	server.run()
	os.Exit(0)
}

// standardInput keeps its descriptor in use, so that a file opened later does not become the standard input.
var standardInput *os.File

func listen() (listener, error) {
	var opened net.Listener
	var err error
	if fd := os.Getenv("KLAMBDA_LISTEN_FD"); fd != "" {
		opened, err = handedOver(fd)
	} else {
		opened, err = net.Listen("tcp", "127.0.0.1:"+setting("PORT", "8080"))
	}
	if err != nil {
		return nil, err
	}
	return opened.(listener), nil
}

func handedOver(fd string) (net.Listener, error) {
	number, err := strconv.Atoi(fd)
	if err != nil {
		return nil, fmt.Errorf("KLAMBDA_LISTEN_FD is not a number: %w", err)
	}
	handed := os.NewFile(uintptr(number), "listener")
	listener, err := net.FileListener(handed) // duplicates the descriptor
	handed.Close()
	standardInput, _ = os.Open(os.DevNull) // gets the lowest free descriptor, which was just closed
	return listener, err
}

func drainOnTerm(server *server) {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		<-term
		server.drain()
	}()
}

func giveUp(reason string, err error) {
	logs.Error(err.Error(), "reason", reason)
	os.Exit(exitConfig)
}

func (f Func) serve(request *request, deadline time.Time) response {
	path, _, _ := strings.Cut(request.target, "?")
	switch {
	case path == "/healthz" && request.method == "GET":
		return response{status: 200, kind: "text/plain", text: []byte("ok")}
	case path != "/" && path != "/healthz":
		return problem(404, "NotFound", "events are taken at /", "")
	case path != "/" || request.method != "POST":
		return problem(405, "MethodNotAllowed", "POST events to /", "")
	}
	call, err := newCall(request, deadline)
	if err != nil {
		return problem(400, "BadRequest", err.Error(), "")
	}
	defer call.end()
	return f.run(call)
}

// run contains all calls of the handler's own code. Its result may panic too, when it is encoded as JSON.
func (f Func) run(call *call) (out response) {
	defer func() {
		if reason := recover(); reason != nil {
			out = failed(&call.info, fmt.Errorf("panic: %v", reason), string(debug.Stack()))
		}
	}()
	value, err := f(call, &call.event)
	if err != nil {
		return failed(&call.info, err, "")
	}
	text, kind, err := outgoing(value, &call.info)
	if err != nil {
		return failed(&call.info, fmt.Errorf("the handler returned a value that is not JSON: %w", err), "")
	}
	if kind == "" {
		return response{status: 204}
	}
	return response{status: 200, kind: kind, text: text}
}

func failed(info *Info, err error, stack string) response {
	status := 500
	if isFinal(err) {
		status = 422
	}
	kind, message := errorKind(err), err.Error()
	out := problem(status, kind, message, stack)
	out.sent = func() {
		info.Log().Error(message, "error", map[string]string{"type": kind, "stack": stack}, "retry", status == 500)
	}
	return out
}

func errorKind(err error) string {
	var final doNotRetry
	if errors.As(err, &final) {
		err = final.error
	}
	return reflect.TypeOf(err).String()
}

func problem(status int, kind, message, stack string) response {
	fields := map[string]string{"type": kind, "message": message}
	if stack != "" {
		fields["stack"] = stack
	}
	text, _ := json.Marshal(map[string]any{"error": fields})
	return response{status: status, kind: "application/json", text: text}
}
