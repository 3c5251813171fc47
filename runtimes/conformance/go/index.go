package main

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"time"

	"klambda"
)

func echo(ctx context.Context, event klambda.Event) any {
	info := klambda.From(ctx)
	bytes := event.DataContentType == "application/octet-stream" || (event.DataContentType != "text/plain" && !json.Valid(event.Data) && event.Data != nil)
	var data any
	if event.DataContentType == "text/plain" {
		data = string(event.Data)
	} else if !bytes && event.Data != nil {
		data = json.RawMessage(event.Data)
	}
	out := map[string]any{
		"id": event.ID, "data": data, "bytes": bytes, "function": info.Function, "namespace": info.Namespace,
		"attempt": info.Attempt, "left": time.Until(info.Deadline) > 0,
	}
	for name, value := range map[string]string{
		"subject": event.Subject, "previousid": info.PreviousID, "orderstatus": info.OrderStatus, "traceparent": info.Traceparent,
	} {
		if value != "" {
			out[name] = value
		}
	}
	if info.LaneSequence > 0 {
		out["lanesequence"] = info.LaneSequence
	}
	return out
}

type reply struct {
	Version string         `json:"specversion"`
	Type    string         `json:"type"`
	Source  string         `json:"source"`
	ID      string         `json:"id"`
	Data    map[string]int `json:"data"`
}

// mixed returns the same two events as one of the possible list types.
func mixed(form string, first map[string]any, second klambda.Event) any {
	own := reply{"1.0", "reply", "/test", "own", map[string]int{"n": 1}}
	switch form {
	case `"maps"`:
		return []map[string]any{first, {"specversion": "1.0", "type": "reply", "source": "/test", "id": "own", "data": own.Data}}
	case `"pointers"`:
		return []any{&first, &second}
	case `"structs"`:
		return []any{klambda.NewEvent("reply", "/test", []byte{0, 255}), own}
	case `"pointer to a list"`:
		return &[]any{first, &own}
	case `"events"`:
		return []*klambda.Event{{Type: "reply", Source: "/test", Data: []byte{0, 255}, DataContentType: "a/b"}, &second}
	}
	return []any{first, second}
}

func handler(ctx context.Context, event klambda.Event) (any, error) {
	switch event.Type {
	case "echo":
		return echo(ctx, event), nil
	case "text":
		return "grüße", nil
	case "later":
		time.Sleep(10 * time.Millisecond)
		return map[string]bool{"later": true}, nil
	case "event":
		return klambda.NewEvent("reply", "/test", map[string]int{"n": 1}), nil
	case "events":
		first := klambda.Event{ID: "own", Type: "reply", Source: "/test"}
		first.SetExtension("traceparent", "00-ff-ff-01")
		return []klambda.Event{first, klambda.NewEvent("reply", "/test", []byte{0, 255})}, nil
	case "mixed":
		first := map[string]any{"specversion": "1.0", "type": "reply", "source": "/test", "data": []byte{0, 255}}
		second := klambda.NewEvent("reply", "/test", map[string]int{"n": 1})
		second.ID = "own"
		return mixed(string(event.Data), first, second), nil
	case "number":
		return map[string]float64{"n": math.NaN()}, nil
	case "exit":
		os.Exit(3)
	case "fail":
		return nil, errors.New("broken")
	case "final":
		return nil, klambda.DoNotRetry(errors.New("never"))
	case "log":
		klambda.Log(ctx).Info("seen", "n", 7)
	case "slow":
		var data struct{ MS int }
		if err := event.Decode(&data); err != nil {
			return nil, err
		}
		time.Sleep(time.Duration(data.MS) * time.Millisecond)
		return map[string]bool{"slow": true}, nil
	}
	return nil, nil
}
