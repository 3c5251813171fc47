package klambda

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"
)

// Info describes a delivery, in addition to the event.
type Info struct {
	Function, Namespace string
	// Attempt counts from 1.
	Attempt int
	// LaneSequence is the number of the event in its lane, or 0 if it has none.
	LaneSequence            uint64
	PreviousID, OrderStatus string
	Traceparent, Tracestate string
	Deadline                time.Time
	eventID                 string
}

type infoKey struct{}

// From returns the Info from the context of a handler.
func From(ctx context.Context) *Info {
	if info, ok := ctx.Value(infoKey{}).(*Info); ok {
		return info
	}
	return &Info{Function: function, Namespace: namespace, Attempt: 1}
}

// Log returns a logger that writes JSON lines with the ids of this delivery.
func (i *Info) Log() *slog.Logger {
	log := logs
	if i.eventID != "" {
		log = log.With("event_id", i.eventID)
	}
	if parts := strings.Split(i.Traceparent, "-"); len(parts) > 2 {
		log = log.With("trace_id", parts[1], "span_id", parts[2])
	}
	return log
}

// Log returns the logger from the context of a handler.
func Log(ctx context.Context) *slog.Logger { return From(ctx).Log() }

func (i *Info) read(event *Event, request *request, deadline time.Time) {
	*i = Info{
		Function: function, Namespace: namespace, Attempt: 1, Deadline: deadline, eventID: event.ID,
		PreviousID: event.Extensions["previousid"], OrderStatus: event.Extensions["orderstatus"],
		// The context of this call. The attribute of the event is that of the producer.
		Traceparent: request.get("traceparent"), Tracestate: request.get("tracestate"),
	}
	if attempt, err := strconv.Atoi(request.get("klambda-attempt")); err == nil && attempt > 0 {
		i.Attempt = attempt
	}
	i.LaneSequence, _ = strconv.ParseUint(event.Extensions["lanesequence"], 10, 64)
	if i.Traceparent == "" {
		i.Traceparent = event.Extensions["traceparent"]
		i.Tracestate = event.Extensions["tracestate"]
	}
}

var (
	function  = setting("KLAMBDA_FUNCTION", "function")
	namespace = setting("KLAMBDA_NAMESPACE", "default")
	logs      = newLogs()
)

func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func number(name string, otherwise int) int {
	if value, err := strconv.Atoi(os.Getenv(name)); err == nil && value > 0 {
		return value
	}
	return otherwise
}

func newLogs() *slog.Logger {
	options := slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) > 0 {
			return a
		}
		switch a.Key {
		case slog.TimeKey:
			return slog.String("time", a.Value.Time().UTC().Format("2006-01-02T15:04:05.000Z"))
		case slog.LevelKey:
			return slog.String("level", strings.ToLower(a.Value.String()))
		case slog.MessageKey:
			a.Key = "message"
		}
		return a
	}}
	var out io.Writer = os.Stderr
	return slog.New(slog.NewJSONHandler(out, &options)).With("function", function, "namespace", namespace)
}
