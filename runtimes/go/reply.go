package klambda

import (
	"bytes"
	"encoding/json"
	"reflect"
)

const (
	jsonType  = "application/json"
	oneType   = "application/cloudevents+json"
	batchType = "application/cloudevents-batch+json"
)

// outgoing encodes a value as JSON and returns its kind; no kind means no value. The JSON text shows whether it is an
// event or a list of events, regardless of the Go types.
func outgoing(value any, info *Info) ([]byte, string, error) {
	if value == nil {
		return nil, "", nil
	}
	text, err := json.Marshal(withBytes(value))
	if err != nil || string(text) == "null" {
		return nil, "", err
	}
	if bytes.Contains(text, []byte(`"specversion"`)) {
		switch text[0] {
		case '{':
			var one fields
			if json.Unmarshal(text, &one) == nil && one.isEvent() {
				return info.traced(oneType, one)
			}
		case '[':
			var list []fields
			if json.Unmarshal(text, &list) == nil && allEvents(list) {
				return info.traced(batchType, list...)
			}
		}
	}
	return text, jsonType, nil
}

// withBytes moves binary data to the member that the JSON format uses for it. An Event does this itself.
func withBytes(value any) any {
	switch value := pointedTo(value).(type) {
	case map[string]any:
		return encoded(value)
	case []map[string]any:
		return each(value)
	case []*map[string]any:
		return each(value)
	case []any:
		return each(value)
	}
	return value
}

// pointedTo returns the map or the list behind a pointer.
func pointedTo(value any) any {
	if of := reflect.ValueOf(value); of.Kind() == reflect.Pointer {
		switch of.Elem().Kind() {
		case reflect.Map, reflect.Slice:
			return of.Elem().Interface()
		}
	}
	return value
}

func each[In any](values []In) []any {
	if values == nil {
		return nil
	}
	out := make([]any, len(values))
	for i := range values {
		out[i] = pointedTo(values[i])
		if event, ok := out[i].(map[string]any); ok {
			out[i] = encoded(event)
		}
	}
	return out
}

func encoded(event map[string]any) map[string]any {
	data, ok := event["data"].([]byte)
	if _, version := event["specversion"].(string); !ok || !version {
		return event
	}
	out := map[string]any{}
	for name, value := range event {
		out[name] = value
	}
	delete(out, "data")
	out["data_base64"] = data
	return out
}

// fields returns the members of a JSON object.
type fields map[string]json.RawMessage

func (f fields) isEvent() bool {
	for _, name := range [...]string{"specversion", "type", "source"} {
		if !bytes.HasPrefix(f[name], []byte(`"`)) {
			return false
		}
	}
	return true
}

func allEvents(list []fields) bool {
	for _, one := range list {
		if !one.isEvent() {
			return false
		}
	}
	return len(list) > 0
}

// traced encodes events. Events without a trace get the trace of the event that caused them.
func (i *Info) traced(kind string, events ...fields) ([]byte, string, error) {
	for _, event := range events {
		if event["traceparent"] != nil || i.Traceparent == "" {
			continue
		}
		event["traceparent"], _ = json.Marshal(i.Traceparent)
		if i.Tracestate != "" {
			event["tracestate"], _ = json.Marshal(i.Tracestate)
		}
	}
	var value any = events
	if kind == oneType {
		value = events[0]
	}
	text, err := json.Marshal(value)
	return text, kind, err
}
