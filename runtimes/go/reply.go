package klambda

import "reflect"

const (
	jsonType  = "application/json"
	oneType   = "application/cloudevents+json"
	batchType = "application/cloudevents-batch+json"
)

// outgoing tells events from other values, gives events the trace of their cause, and nil for nothing.
func outgoing(value any, info *Info) (any, string) {
	switch value := value.(type) {
	case nil:
		return nil, ""
	case Event:
		return info.traced(value), oneType
	case *Event:
		if value == nil {
			return nil, ""
		}
		return info.traced(*value), oneType
	case []Event:
		return batch(value, func(event Event) Event { return info.traced(event) })
	case []*Event:
		return batch(value, func(event *Event) Event { return info.traced(*event) })
	case map[string]any:
		if isEvent(value) {
			return info.tracedMap(value), oneType
		}
	case []map[string]any:
		if len(value) > 0 && allEvents(value) {
			return batch(value, info.tracedMap)
		}
	}
	if isNil(value) {
		return nil, ""
	}
	return value, jsonType
}

// No events at all is an empty list, a value like any other.
func batch[In, Out any](events []In, each func(In) Out) (any, string) {
	out := make([]Out, len(events))
	for i, event := range events {
		out[i] = each(event)
	}
	if len(out) == 0 {
		return out, jsonType
	}
	return out, batchType
}

func (i *Info) traced(event Event) Event {
	if i.Traceparent == "" || event.Extensions["traceparent"] != "" {
		return event
	}
	extensions := map[string]string{"traceparent": i.Traceparent}
	if i.Tracestate != "" {
		extensions["tracestate"] = i.Tracestate
	}
	for name, value := range event.Extensions {
		extensions[name] = value
	}
	event.Extensions = extensions
	return event
}

func (i *Info) tracedMap(event map[string]any) map[string]any {
	out := map[string]any{}
	if i.Traceparent != "" {
		out["traceparent"] = i.Traceparent
	}
	if i.Tracestate != "" {
		out["tracestate"] = i.Tracestate
	}
	for name, value := range event {
		out[name] = value
	}
	return out
}

func isEvent(value map[string]any) bool {
	for _, name := range [...]string{"specversion", "type", "source"} {
		if _, ok := value[name].(string); !ok {
			return false
		}
	}
	return true
}

func allEvents(values []map[string]any) bool {
	for _, value := range values {
		if !isEvent(value) {
			return false
		}
	}
	return true
}

func isNil(value any) bool {
	switch of := reflect.ValueOf(value); of.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return of.IsNil()
	default:
		return false
	}
}
