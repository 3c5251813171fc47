// Package klambda serves one handler: CloudEvents over HTTP in, the handler's value, events or error out.
package klambda

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"reflect"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"
)

const (
	headBytesMax = 64 * 1024
	receiveMax   = 30 * time.Second
	idleMax      = 300 * time.Second
	exitConfig   = 78
)

// Serve calls the handler for each event until SIGTERM, and ends the process.
func Serve(handler any) {
	call, err := adapt(handler)
	if err != nil {
		giveUp("HandlerNotFound", err)
	}
	listener, err := listen()
	if err != nil {
		giveUp("ListenError", err)
	}
	timeout := time.Duration(number("KLAMBDA_TIMEOUT_MS", 30_000)) * time.Millisecond
	server := &http.Server{
		Handler:           &front{call: call, watch: newWatch(timeout), bodyBytesMax: int64(number("KLAMBDA_BODY_BYTES_MAX", 16<<20))},
		ReadHeaderTimeout: receiveMax,
		ReadTimeout:       receiveMax,
		WriteTimeout:      timeout + receiveMax,
		IdleTimeout:       idleMax,
		MaxHeaderBytes:    headBytesMax,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	ended := drainOnTerm(server)
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		giveUp("ListenError", err)
	}
	<-ended
	os.Exit(0)
}

// standardInput keeps its descriptor taken; a file opened later must not become the standard input.
var standardInput *os.File

func listen() (net.Listener, error) {
	fd := os.Getenv("KLAMBDA_LISTEN_FD")
	if fd == "" {
		return net.Listen("tcp", "127.0.0.1:"+setting("PORT", "8080"))
	}
	number, err := strconv.Atoi(fd)
	if err != nil {
		return nil, fmt.Errorf("KLAMBDA_LISTEN_FD is no number: %w", err)
	}
	handed := os.NewFile(uintptr(number), "listener")
	listener, err := net.FileListener(handed) // a copy of its own
	handed.Close()
	standardInput, _ = os.Open(os.DevNull) // gets the lowest free descriptor, the one just closed
	return listener, err
}

func drainOnTerm(server *http.Server) <-chan struct{} {
	ended := make(chan struct{})
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		<-term
		_ = server.Shutdown(context.Background())
		close(ended)
	}()
	return ended
}

func giveUp(reason string, err error) {
	logs.Error(err.Error(), "reason", reason)
	os.Exit(exitConfig)
}

type front struct {
	call         Func
	watch        *watch
	bodyBytesMax int64
}

type result struct {
	value any
	err   error
	stack string
}

func (f *front) ServeHTTP(out http.ResponseWriter, request *http.Request) {
	switch {
	case request.URL.Path == "/healthz" && request.Method == http.MethodGet:
		write(out, http.StatusOK, "text/plain", []byte("ok"))
	case request.URL.Path != "/" && request.URL.Path != "/healthz":
		problem(out, http.StatusNotFound, "NotFound", "events are taken at /", "")
	case request.URL.Path != "/" || request.Method != http.MethodPost:
		problem(out, http.StatusMethodNotAllowed, "MethodNotAllowed", "POST events to /", "")
	default:
		f.serveEvent(out, request)
	}
}

func (f *front) serveEvent(out http.ResponseWriter, request *http.Request) {
	body, err := f.readBody(out, request)
	if err != nil {
		return
	}
	event, err := readEvent(request.Header, body)
	if err != nil {
		problem(out, http.StatusBadRequest, "BadRequest", err.Error(), "")
		return
	}
	call := &call{Context: request.Context(), info: newInfo(event, request.Header, time.Now().Add(f.watch.timeout)), out: out}
	f.watch.add(call)
	result := f.run(call, event)
	f.watch.remove(call)
	if call.end() {
		answer(out, call.info, result)
	}
}

func (f *front) readBody(out http.ResponseWriter, request *http.Request) ([]byte, error) {
	if request.ContentLength == 0 {
		return nil, nil
	}
	body, err := f.readAll(out, request)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		out.Header().Set("Connection", "close")
		problem(out, http.StatusRequestEntityTooLarge, "ContentTooLarge", fmt.Sprintf("the body is larger than %d bytes", f.bodyBytesMax), "")
	case err != nil:
		out.Header().Set("Connection", "close")
		problem(out, http.StatusBadRequest, "BadRequest", "the body did not arrive: "+err.Error(), "")
	}
	return body, err
}

func (f *front) readAll(out http.ResponseWriter, request *http.Request) ([]byte, error) {
	length := request.ContentLength
	if length > f.bodyBytesMax {
		return nil, &http.MaxBytesError{Limit: f.bodyBytesMax}
	}
	if length < 0 {
		return io.ReadAll(http.MaxBytesReader(out, request.Body, f.bodyBytesMax))
	}
	body := make([]byte, length)
	_, err := io.ReadFull(request.Body, body)
	return body, err
}

func (f *front) run(ctx context.Context, event *Event) (ended result) {
	defer func() {
		if reason := recover(); reason != nil {
			ended = result{err: fmt.Errorf("panic: %v", reason), stack: string(debug.Stack())}
		}
	}()
	value, err := f.call(ctx, event)
	return result{value: value, err: err}
}

func answer(out http.ResponseWriter, info *Info, ended result) {
	if ended.err != nil {
		answerError(out, info, ended)
		return
	}
	value, kind := outgoing(ended.value, info)
	if value == nil {
		out.WriteHeader(http.StatusNoContent)
		return
	}
	text, err := json.Marshal(value)
	if err != nil {
		answerError(out, info, result{err: fmt.Errorf("the handler returned what is no JSON: %w", err)})
		return
	}
	write(out, http.StatusOK, kind, text)
}

func answerError(out http.ResponseWriter, info *Info, ended result) {
	status := http.StatusInternalServerError
	if isFinal(ended.err) {
		status = http.StatusUnprocessableEntity
	}
	kind := errorKind(ended.err)
	info.Log().Error(ended.err.Error(), "error", map[string]string{"type": kind, "stack": ended.stack}, "retry", status == 500)
	problem(out, status, kind, ended.err.Error(), ended.stack)
}

func errorKind(err error) string {
	var final doNotRetry
	if errors.As(err, &final) {
		err = final.error
	}
	return reflect.TypeOf(err).String()
}

func problem(out http.ResponseWriter, status int, kind, message, stack string) {
	fields := map[string]string{"type": kind, "message": message}
	if stack != "" {
		fields["stack"] = stack
	}
	text, _ := json.Marshal(map[string]any{"error": fields})
	write(out, status, "application/problem+json", text)
}

func write(out http.ResponseWriter, status int, kind string, text []byte) {
	header := out.Header()
	header["Content-Type"] = []string{kind}
	header["Content-Length"] = []string{strconv.Itoa(len(text))}
	header["Date"] = nil
	out.WriteHeader(status)
	_, _ = out.Write(text)
}
