package klambda

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

const (
	// Enough for all attributes of the largest accepted event, with every byte percent-encoded.
	headBytesMax    = 1024 * 1024
	lineBytesMax    = 1024
	trailerBytesMax = 8 * 1024
	// Each field is compared with all previous fields.
	fieldsMax = 1000
	// The initial size of the body buffer. It grows as bytes arrive, regardless of the declared length.
	bodyBytesFirst = 256 * 1024
)

// refusal is the reason why a request is not served. The client gets a response, and the connection is closed.
type refusal struct {
	status  int
	message string
}

func (r *refusal) Error() string { return r.message }

func malformed(message string) error { return &refusal{400, message} }

func tooLarge(bytesMax int) error {
	return &refusal{413, fmt.Sprintf("the body is larger than %d bytes", bytesMax)}
}

var (
	errOverdue  = &refusal{408, "the request took too long to arrive"}
	errHeadSize = &refusal{431, fmt.Sprintf("the head is larger than %d bytes", headBytesMax)}
	errLineSize = &refusal{400, "a line of the chunked body is too long"}
)

type request struct {
	method, target string
	fields         []field
	body           []byte

	length    int
	chunked   bool
	expects   bool
	keepAlive bool
}

// field is a header with a lower-case name.
type field struct{ name, value string }

func (r *request) find(name string) *field {
	for i := range r.fields {
		if r.fields[i].name == name {
			return &r.fields[i]
		}
	}
	return nil
}

// get returns the value of a header, or an empty string.
func (r *request) get(name string) string {
	if field := r.find(name); field != nil {
		return field.value
	}
	return ""
}

// receive reads a request. An error that is not a refusal means that the client is gone.
func (c *connection) receive() error {
	c.request = request{fields: c.request.fields[:0]}
	head, err := c.readHead()
	if err != nil {
		return err
	}
	if err := c.request.parse(head, c.server.bodyBytesMax); err != nil {
		return err
	}
	if c.request.chunked {
		c.request.body, err = c.readChunks()
	} else {
		c.request.body, err = c.readBody(nil, c.request.length, c.request.length)
	}
	return err
}

// readHead returns the lines up to the empty one, as a single string, because most of its parts end up in the event.
func (c *connection) readHead() (string, error) {
	line, at := 0, 0
	for {
		end := bytes.IndexByte(c.buffer[c.start+at:c.end], '\n')
		if end < 0 {
			at = c.end - c.start
			if err := c.more(headBytesMax, errHeadSize); err != nil {
				return "", err
			}
			continue
		}
		end += at
		if end == 0 || c.buffer[c.start+end-1] != '\r' {
			return "", malformed("a line ends without a carriage return")
		}
		at = end + 1
		if end == line+1 {
			return c.takeHead(line, at)
		}
		line = at
	}
}

func (c *connection) takeHead(length, taken int) (string, error) {
	if length > headBytesMax {
		return "", errHeadSize
	}
	head := string(c.buffer[c.start : c.start+length])
	c.start += taken
	return head, nil
}

// more waits for further bytes, unless the limit is already reached.
func (c *connection) more(bytesMax int, tooMany error) error {
	waiting := receiving
	if c.start == c.end && c.request.method == "" {
		waiting = idle
	}
	if c.end-c.start > bytesMax {
		return tooMany
	}
	c.makeRoom()
	count, err := c.read(waiting, c.buffer[c.end:])
	c.end += count
	return err
}

func (c *connection) makeRoom() {
	held := c.end - c.start
	switch {
	case held == 0 && len(c.buffer) > bufferBytesKept:
		c.buffer = make([]byte, bufferBytes)
	case held == len(c.buffer):
		c.buffer = append(c.buffer, make([]byte, held)...)
	case held > 0 && c.end < len(c.buffer):
		return
	default:
		copy(c.buffer, c.buffer[c.start:c.end])
	}
	c.start, c.end = 0, held
}

func (c *connection) read(waiting state, into []byte) (int, error) {
	if !c.enter(waiting) {
		return 0, errOverdue
	}
	count, err := c.peer.Read(into)
	if count > 0 {
		return count, nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, errOverdue
	}
	return 0, err
}

// invite tells a client that waits for "100 Continue" to send the body.
func (c *connection) invite() error {
	if !c.request.expects {
		return nil
	}
	c.request.expects = false
	_, err := c.peer.Write([]byte("HTTP/1.1 100 Continue\r\n\r\n"))
	return err
}

// readBody appends this many bytes to the body. The body never exceeds the limit.
func (c *connection) readBody(body []byte, length, limit int) ([]byte, error) {
	if length == 0 {
		return body, nil
	}
	whole := len(body) + length
	if cap(body) == 0 {
		body = make([]byte, 0, min(length, bodyBytesFirst))
	}
	held := min(length, c.end-c.start)
	body = append(body, c.buffer[c.start:c.start+held]...)
	c.start += held
	for len(body) < whole {
		if err := c.invite(); err != nil {
			return nil, err
		}
		body = withRoom(body, limit)
		count, err := c.read(receiving, body[len(body):min(cap(body), whole)])
		if err != nil {
			return nil, err
		}
		body = body[:len(body)+count]
	}
	return body, nil
}

func withRoom(body []byte, limit int) []byte {
	if len(body) < cap(body) {
		return body
	}
	larger := make([]byte, len(body), min(limit, 2*len(body)))
	copy(larger, body)
	return larger
}

func (c *connection) readChunks() ([]byte, error) {
	bytesMax := c.server.bodyBytesMax
	var body []byte
	for {
		size, err := c.readSize()
		if err != nil {
			return nil, err
		}
		if size == 0 {
			return body, c.skipTrailers()
		}
		if size > uint64(bytesMax-len(body)) {
			return nil, tooLarge(bytesMax)
		}
		if body, err = c.readBody(body, int(size), bytesMax); err != nil {
			return nil, err
		}
		line, err := c.readLine()
		if err != nil {
			return nil, err
		}
		if line != "" {
			return nil, malformed("a chunk does not end where its size says")
		}
	}
}

func (c *connection) readSize() (uint64, error) {
	line, err := c.readLine()
	if err != nil {
		return 0, err
	}
	digits, _, _ := strings.Cut(line, ";")
	digits = strings.TrimRight(digits, " \t")
	size, err := strconv.ParseUint(digits, 16, 32)
	if err != nil || len(digits) > 8 || hasControl(line) {
		return 0, malformed("a chunk has no valid size")
	}
	return size, nil
}

func (c *connection) skipTrailers() error {
	for left := trailerBytesMax; left > 0; {
		line, err := c.readLine()
		if err != nil || line == "" {
			return err
		}
		if _, _, err := splitField(line); err != nil {
			return err
		}
		left -= len(line)
	}
	return malformed("the trailers are too long")
}

// readLine returns a line of the chunked coding, without its line end.
func (c *connection) readLine() (string, error) {
	for {
		held := c.buffer[c.start:c.end]
		end := bytes.IndexByte(held, '\n')
		if end > lineBytesMax {
			return "", errLineSize
		}
		if end == 0 || end > 0 && held[end-1] != '\r' {
			return "", malformed("a line ends without a carriage return")
		}
		if end > 0 {
			c.start += end + 1
			return string(held[:end-1]), nil
		}
		if err := c.invite(); err != nil {
			return "", err
		}
		if err := c.more(lineBytesMax, errLineSize); err != nil {
			return "", err
		}
	}
}

func (r *request) parse(head string, bodyBytesMax int) error {
	line, head := cutLine(head)
	method, line, _ := strings.Cut(line, " ")
	target, version, _ := strings.Cut(line, " ")
	if !isToken(method) || target == "" || version == "" || strings.Contains(version, " ") || hasControl(target) {
		return malformed("the request line is malformed")
	}
	if version != "HTTP/1.1" && version != "HTTP/1.0" {
		return &refusal{505, "speak HTTP/1.1"}
	}
	r.method, r.target = method, target
	for head != "" {
		line, head = cutLine(head)
		if err := r.addField(line); err != nil {
			return err
		}
	}
	return r.frame(version == "HTTP/1.1", bodyBytesMax)
}

// cutLine relies on readHead: each line ends with two characters.
func cutLine(head string) (string, string) {
	end := strings.IndexByte(head, '\n')
	if end < 1 {
		return head, ""
	}
	return head[:end-1], head[end+1:]
}

func (r *request) addField(line string) error {
	name, value, err := splitField(line)
	if err != nil {
		return err
	}
	earlier := r.find(name)
	switch {
	case earlier == nil && len(r.fields) == fieldsMax:
		return &refusal{431, fmt.Sprintf("there are more than %d headers", fieldsMax)}
	case earlier == nil:
		r.fields = append(r.fields, field{name, value})
	case name == "content-length" || name == "host" || strings.HasPrefix(name, "ce-"):
		return malformed("the header " + name + " is given twice")
	default:
		earlier.value += ", " + value
	}
	return nil
}

func splitField(line string) (name, value string, err error) {
	name, value, found := strings.Cut(line, ":")
	if !found || !isToken(name) || hasControl(value) {
		return "", "", malformed("a header is malformed")
	}
	return strings.ToLower(name), strings.Trim(value, " \t"), nil
}

// frame determines the length of the body and whether the connection stays open. current: HTTP/1.1, not 1.0.
func (r *request) frame(current bool, bodyBytesMax int) error {
	if current && r.find("host") == nil {
		return malformed("the header host is missing")
	}
	if !current && r.find("transfer-encoding") != nil {
		return malformed("HTTP/1.0 has no transfer-encoding")
	}
	if err := r.frameBody(bodyBytesMax); err != nil {
		return err
	}
	if expect := r.find("expect"); expect != nil {
		if !strings.EqualFold(expect.value, "100-continue") {
			return &refusal{417, "the only expectation taken is 100-continue"}
		}
		r.expects = current
	}
	connection := strings.ToLower(r.get("connection"))
	if current {
		r.keepAlive = !strings.Contains(connection, "close")
	} else {
		r.keepAlive = strings.Contains(connection, "keep-alive")
	}
	return nil
}

func (r *request) frameBody(bodyBytesMax int) error {
	coding, length := r.find("transfer-encoding"), r.find("content-length")
	switch {
	case coding != nil && length != nil:
		return malformed("content-length and transfer-encoding exclude each other")
	case coding != nil && !strings.EqualFold(coding.value, "chunked"):
		return &refusal{501, "the only transfer-encoding taken is chunked"}
	case coding != nil:
		r.chunked = true
	case length != nil:
		bytes, err := strconv.ParseUint(length.value, 10, 64)
		if err != nil || len(length.value) > 15 {
			return malformed("content-length is not a number")
		}
		if bytes > uint64(bodyBytesMax) {
			return tooLarge(bodyBytesMax)
		}
		r.length = int(bytes)
	}
	return nil
}

// tokens contains the characters of methods and header names.
var tokens = func() (tokens [256]bool) {
	for _, b := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		tokens[b] = true
	}
	return tokens
}()

func isToken(text string) bool {
	for i := 0; i < len(text); i++ {
		if !tokens[text[i]] {
			return false
		}
	}
	return text != ""
}

func hasControl(text string) bool {
	for i := 0; i < len(text); i++ {
		if b := text[i]; b < ' ' && b != '\t' || b == 0x7f {
			return true
		}
	}
	return false
}
