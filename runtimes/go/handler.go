package klambda

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// Func is the common form of all handlers.
type Func func(context.Context, *Event) (any, error)

type doNotRetry struct{ error }

func (e doNotRetry) Unwrap() error { return e.error }

// DoNotRetry marks an error that a retry cannot fix. The event becomes a dead letter immediately.
func DoNotRetry(err error) error { return doNotRetry{err} }

func isFinal(err error) bool {
	var final doNotRetry
	return errors.As(err, &final)
}

var (
	contextType = reflect.TypeOf((*context.Context)(nil)).Elem()
	errorType   = reflect.TypeOf((*error)(nil)).Elem()
	eventType   = reflect.TypeOf(Event{})
)

// adapt converts any supported handler signature to a Func. Common signatures need no reflection.
func adapt(handler any) (Func, error) {
	switch handler := handler.(type) {
	case func(context.Context, *Event) (any, error):
		return handler, nil
	case func(context.Context, Event) (any, error):
		return func(ctx context.Context, e *Event) (any, error) { return handler(ctx, *e) }, nil
	case func(context.Context, Event) error:
		return func(ctx context.Context, e *Event) (any, error) { return nil, handler(ctx, *e) }, nil
	case func(Event) (any, error):
		return func(_ context.Context, e *Event) (any, error) { return handler(*e) }, nil
	case func(Event) error:
		return func(_ context.Context, e *Event) (any, error) { return nil, handler(*e) }, nil
	}
	return adaptByReflection(reflect.ValueOf(handler))
}

func adaptByReflection(handler reflect.Value) (Func, error) {
	if handler.Kind() != reflect.Func || handler.Type().IsVariadic() {
		return nil, fmt.Errorf("the handler is a %s, not a function", handler.Type())
	}
	kind := handler.Type()
	inputs := make([]func(context.Context, *Event) (reflect.Value, error), kind.NumIn())
	for i := range inputs {
		inputs[i] = input(kind.In(i))
	}
	withError := kind.NumOut() > 0 && kind.Out(kind.NumOut()-1) == errorType
	values := kind.NumOut()
	if withError {
		values--
	}
	if values > 1 || kind.NumIn() > 2 {
		return nil, fmt.Errorf("the handler is a %s; write func(context.Context, klambda.Event) (any, error)", kind)
	}
	return func(ctx context.Context, event *Event) (any, error) {
		arguments := make([]reflect.Value, len(inputs))
		for i, input := range inputs {
			argument, err := input(ctx, event)
			if err != nil {
				return nil, err
			}
			arguments[i] = argument
		}
		return outputs(handler.Call(arguments), values, withError)
	}, nil
}

// An argument is the context, the event, or the event data decoded into the type of the argument.
func input(kind reflect.Type) func(context.Context, *Event) (reflect.Value, error) {
	switch kind {
	case contextType:
		return func(ctx context.Context, _ *Event) (reflect.Value, error) { return reflect.ValueOf(ctx), nil }
	case eventType:
		return func(_ context.Context, e *Event) (reflect.Value, error) { return reflect.ValueOf(*e), nil }
	case reflect.PointerTo(eventType):
		return func(_ context.Context, e *Event) (reflect.Value, error) { return reflect.ValueOf(e), nil }
	}
	return func(_ context.Context, e *Event) (reflect.Value, error) {
		value := reflect.New(kind)
		if len(e.Data) == 0 {
			return value.Elem(), nil
		}
		if err := json.Unmarshal(e.Data, value.Interface()); err != nil {
			return value, DoNotRetry(fmt.Errorf("the data does not fit %s: %w", kind, err))
		}
		return value.Elem(), nil
	}
}

func outputs(results []reflect.Value, values int, withError bool) (any, error) {
	var value any
	if values == 1 {
		value = results[0].Interface()
	}
	if withError && !results[values].IsNil() {
		return nil, results[values].Interface().(error)
	}
	return value, nil
}
