package klambda

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Event is a CloudEvent.
type Event struct {
	// ID may be empty in an event that a handler returns. The server then derives it from the event that caused it.
	ID              string
	Source          string
	Type            string
	Subject         string
	Time            string
	DataContentType string
	DataSchema      string
	// Data is the payload as received: JSON text unless DataContentType says otherwise.
	Data []byte
	// Extensions contains all other attributes, by lower-case name.
	Extensions map[string]string
}

// NewEvent creates an event for a handler to return. It encodes data as JSON, except []byte and string.
func NewEvent(kind, source string, data any) Event {
	event := Event{Type: kind, Source: source}
	switch data := data.(type) {
	case nil:
	case []byte:
		event.Data, event.DataContentType = data, "application/octet-stream"
	case string:
		event.Data, event.DataContentType = []byte(data), "text/plain"
	default:
		text, err := json.Marshal(data)
		if err != nil {
			panic(fmt.Errorf("klambda: the data of %s is not JSON: %w", kind, err))
		}
		event.Data, event.DataContentType = text, "application/json"
	}
	return event
}

// Decode decodes JSON data into a value.
func (e *Event) Decode(into any) error {
	if len(e.Data) == 0 {
		return errors.New("the event has no data")
	}
	return json.Unmarshal(e.Data, into)
}

// Extension returns an extension attribute, or an empty string.
func (e *Event) Extension(name string) string { return e.Extensions[name] }

// SetExtension sets an extension attribute.
func (e *Event) SetExtension(name, value string) {
	if e.Extensions == nil {
		e.Extensions = map[string]string{}
	}
	e.Extensions[name] = value
}

// MarshalJSON writes the event in the CloudEvents JSON format.
func (e Event) MarshalJSON() ([]byte, error) {
	out := map[string]any{"specversion": "1.0", "source": e.Source, "type": e.Type}
	for name, value := range e.Extensions {
		out[name] = value
	}
	for name, value := range map[string]string{
		"id": e.ID, "subject": e.Subject, "time": e.Time, "dataschema": e.DataSchema, "datacontenttype": e.DataContentType,
	} {
		if value != "" {
			out[name] = value
		}
	}
	switch {
	case len(e.Data) == 0:
	case isJSON(e.DataContentType) && json.Valid(e.Data):
		out["data"] = json.RawMessage(e.Data)
	case strings.HasPrefix(e.DataContentType, "text/"):
		out["data"] = string(e.Data)
	default:
		out["data_base64"] = e.Data
	}
	return json.Marshal(out)
}

func (e *Event) set(name, value string) {
	switch name {
	case "id":
		e.ID = value
	case "source":
		e.Source = value
	case "type":
		e.Type = value
	case "subject":
		e.Subject = value
	case "time":
		e.Time = value
	case "dataschema":
		e.DataSchema = value
	case "datacontenttype":
		e.DataContentType = value
	case "specversion":
	default:
		e.SetExtension(name, value)
	}
}

// read creates the event from a request.
func (e *Event) read(request *request) error {
	kind := request.get("content-type")
	var version string
	var err error
	if isStructured(kind) {
		version, err = e.readStructured(kind, request.body)
	} else {
		version, err = e.readBinary(kind, request)
	}
	if err != nil {
		return err
	}
	if version != "1.0" {
		return errors.New("not a CloudEvent: specversion must be 1.0")
	}
	for _, required := range [...][2]string{{"id", e.ID}, {"source", e.Source}, {"type", e.Type}} {
		if required[1] == "" {
			return fmt.Errorf("not a CloudEvent: %s is missing", required[0])
		}
	}
	return nil
}

func isStructured(kind string) bool {
	const start = "application/cloudevents"
	return len(kind) >= len(start) && strings.EqualFold(kind[:len(start)], start)
}

func (e *Event) readBinary(kind string, request *request) (string, error) {
	version := ""
	for _, field := range request.fields {
		name, found := strings.CutPrefix(field.name, "ce-")
		switch {
		case !found || name == "":
		case name == "specversion":
			version = headerText(field.value)
		default:
			e.set(name, headerText(field.value))
		}
	}
	e.DataContentType, e.Data = kind, request.body
	if version == "" {
		return "", errors.New("not a CloudEvent: the header ce-specversion is missing")
	}
	if len(e.Data) > 0 && kind != "" && isJSON(kind) && !json.Valid(e.Data) {
		return "", errors.New("the data is not JSON")
	}
	return version, nil
}

func (e *Event) readStructured(kind string, body []byte) (string, error) {
	if media(kind) != "application/cloudevents+json" {
		return "", fmt.Errorf("%s is not supported; send one event as JSON", kind)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return "", fmt.Errorf("the event is not a JSON object: %w", err)
	}
	version := ""
	for name, raw := range fields {
		switch name {
		case "data", "data_base64":
		case "specversion":
			version = scalar(raw)
		default:
			e.set(name, scalar(raw))
		}
	}
	return version, e.readStructuredData(fields)
}

func (e *Event) readStructuredData(fields map[string]json.RawMessage) error {
	data, encoded := fields["data"], fields["data_base64"]
	if data != nil && encoded != nil {
		return errors.New("data_base64 must be the only data")
	}
	if encoded != nil {
		var text string
		if err := json.Unmarshal(encoded, &text); err != nil {
			return errors.New("data_base64 must be a string")
		}
		decoded, err := base64.StdEncoding.DecodeString(text)
		e.Data = decoded
		return err
	}
	e.Data = data
	if text := ""; e.DataContentType != "" && !isJSON(e.DataContentType) && json.Unmarshal(data, &text) == nil {
		e.Data = []byte(text)
	}
	return nil
}

// The text of an attribute: strings without quotes, numbers and booleans as written.
func scalar(raw json.RawMessage) string {
	text := ""
	if bytes.HasPrefix(raw, []byte(`"`)) && json.Unmarshal(raw, &text) == nil {
		return text
	}
	if string(raw) == "null" {
		return ""
	}
	return string(raw)
}

// Header values are percent-encoded UTF-8. A value with invalid encoding is used unchanged.
func headerText(value string) string {
	if !strings.Contains(value, "%") {
		return value
	}
	text := make([]byte, 0, len(value))
	for i := 0; i < len(value); i++ {
		if value[i] != '%' {
			text = append(text, value[i])
			continue
		}
		if i+2 >= len(value) {
			return value
		}
		code, err := strconv.ParseUint(value[i+1:i+3], 16, 8)
		if err != nil {
			return value
		}
		text = append(text, byte(code))
		i += 2
	}
	return string(text)
}

func media(kind string) string {
	kind, _, _ = strings.Cut(kind, ";")
	return strings.ToLower(strings.TrimSpace(kind))
}

// In the CloudEvents JSON format, no content type means JSON.
func isJSON(kind string) bool {
	kind = media(kind)
	return kind == "" || strings.HasSuffix(kind, "/json") || strings.HasSuffix(kind, "+json")
}
