package klambda

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A small HTTP/1.1 server with keep-alive, chunked bodies, Expect, and limits on everything that a client controls.
// net/http does the same, but costs 50% more per call and dominates the time of the first compilation.

const (
	connectionsMax = 1024
	receiveMax     = 30 * time.Second
	idleMax        = 300 * time.Second
	// drainPause is how long a shutdown still accepts connections that are already waiting.
	drainPause  = 20 * time.Millisecond
	bufferBytes = 4 * 1024
	// Larger buffers are not reused for the next request.
	bufferBytesKept = 64 * 1024
)

var reasons = map[int]string{
	200: "OK", 204: "No Content", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
	408: "Request Timeout", 413: "Content Too Large", 417: "Expectation Failed", 422: "Unprocessable Content",
	431: "Request Header Fields Too Large", 500: "Internal Server Error", 501: "Not Implemented",
	504: "Gateway Timeout", 505: "HTTP Version Not Supported",
}

// response is a response. Without a kind it has no body.
type response struct {
	status int
	kind   string
	text   []byte
	// sent, if not nil, is called if the response was sent in time.
	sent func()
}

// listener and peer are implemented by TCP and by Unix sockets.
type listener interface {
	net.Listener
	SetDeadline(time.Time) error
}

type peer interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
}

type server struct {
	listener     listener
	serve        func(*request, time.Time) response
	timeout      time.Duration
	bodyBytesMax int

	draining atomic.Bool
	// room contains a token for each connection.
	room  chan struct{}
	mutex sync.Mutex
	open  map[*connection]struct{}
}

// run serves until drain is called and all open requests have ended.
func (s *server) run() {
	s.room = make(chan struct{}, connectionsMax)
	s.open = map[*connection]struct{}{}
	go s.watch()
	for {
		accepted, err := s.listener.Accept()
		if err == nil {
			s.start(accepted.(peer))
		} else if s.draining.Load() {
			break
		} else {
			time.Sleep(50 * time.Millisecond) // probably out of file descriptors
		}
	}
	s.listener.Close()
	for s.expire(time.Now()) > 0 {
		time.Sleep(drainPause / 4)
	}
}

// drain makes run return. Connections that are waiting to be accepted are served first.
func (s *server) drain() {
	s.draining.Store(true)
	_ = s.listener.SetDeadline(time.Now().Add(drainPause))
}

func (s *server) start(peer peer) {
	s.room <- struct{}{}
	c := &connection{server: s, peer: peer, buffer: make([]byte, bufferBytes)}
	s.mutex.Lock()
	s.open[c] = struct{}{}
	s.mutex.Unlock()
	go c.run()
}

func (s *server) remove(c *connection) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if _, there := s.open[c]; there {
		delete(s.open, c)
		<-s.room
	}
}

// watch checks all connections periodically, because a timer per request would cost more than the request itself.
func (s *server) watch() {
	for now := range time.Tick(min(time.Second, max(25*time.Millisecond, s.timeout/4))) {
		s.expire(now)
	}
}

// expire ends requests and handlers that take too long. It returns the number of connections.
func (s *server) expire(now time.Time) int {
	draining := s.draining.Load()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for c := range s.open {
		c.expire(now, draining)
	}
	return len(s.open)
}

type state int

const (
	idle state = iota
	receiving
	overdue // the request took too long to arrive
	serving
	abandoned // the handler took too long; the watch responds, and the goroutine no longer owns the connection
	answering
	lingering
)

// connection has a goroutine, which reads requests, calls the handler and responds.
type connection struct {
	server  *server
	peer    peer
	request request
	out     []byte
	// The received but unread bytes are buffer[start:end].
	buffer     []byte
	start, end int
	// deadline is the deadline of the call. It is set before serving begins.
	deadline time.Time

	mutex sync.Mutex
	state state
	// since is when the watch first saw the state, or the zero time if it has not.
	since time.Time
}

// enter changes the state. It returns false if the watch has already ended the request.
func (c *connection) enter(next state) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.state == abandoned || c.state == overdue && next != answering {
		return false
	}
	if c.state != next {
		c.state, c.since = next, time.Time{}
	}
	return true
}

func (c *connection) expire(now time.Time, draining bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.since.IsZero() {
		c.since = now
	}
	spent := now.Sub(c.since)
	switch {
	case c.state == serving:
		if now.After(c.deadline) {
			c.state, c.since = abandoned, now
			go c.giveUp()
		}
	case c.state == receiving:
		if spent > receiveMax {
			c.state = overdue
			_ = c.peer.SetReadDeadline(now) // wakes the reader
		}
	case c.state == idle && draining:
		_ = c.peer.CloseRead() // also wakes the reader, but the received bytes are still read
	case c.state == idle:
		c.closeAfter(idleMax, spent)
	case c.state == lingering && draining:
		c.peer.Close()
	default:
		c.closeAfter(receiveMax, spent)
	}
}

func (c *connection) closeAfter(limit, spent time.Duration) {
	if spent > limit {
		c.peer.Close()
	}
}

func (c *connection) run() {
	defer c.leave()
	for c.exchange() {
	}
}

// leave also runs when a handler ends its goroutine.
func (c *connection) leave() {
	c.mutex.Lock()
	mine := c.state != abandoned
	c.mutex.Unlock()
	if mine {
		c.close()
	}
}

func (c *connection) close() {
	c.peer.Close()
	c.server.remove(c)
}

// exchange handles a request and its response. It returns whether another request may follow.
func (c *connection) exchange() bool {
	if err := c.receive(); err != nil {
		c.refuse(err)
		return false
	}
	c.deadline = time.Now().Add(c.server.timeout)
	if !c.enter(serving) {
		c.refuse(errOverdue)
		return false
	}
	response := c.server.serve(&c.request, c.deadline)
	if !c.enter(answering) {
		return false
	}
	if response.sent != nil {
		response.sent()
	}
	return c.answer(response, c.keeps())
}

// keeps returns whether the connection stays open. During shutdown it does as long as further requests have arrived. When
// the limit of connections is reached, it is closed.
func (c *connection) keeps() bool {
	if c.server.draining.Load() && c.start == c.end {
		return false
	}
	return c.request.keepAlive && len(c.server.room) < connectionsMax
}

func (c *connection) answer(response response, keep bool) bool {
	if c.request.method == "HEAD" {
		c.out = appendHead(c.out[:0], response, keep)
	} else {
		c.out = append(appendHead(c.out[:0], response, keep), response.text...)
	}
	_, err := c.peer.Write(c.out)
	if cap(c.out) > bufferBytesKept {
		c.out = nil
	}
	return keep && err == nil
}

func appendHead(out []byte, response response, keep bool) []byte {
	out = append(out, "HTTP/1.1 "...)
	out = strconv.AppendInt(out, int64(response.status), 10)
	out = append(out, ' ')
	out = append(out, reasons[response.status]...)
	if !keep {
		out = append(out, "\r\nconnection: close"...)
	}
	if response.kind != "" {
		out = append(out, "\r\ncontent-type: "...)
		out = append(out, response.kind...)
		out = append(out, "\r\ncontent-length: "...)
		out = strconv.AppendInt(out, int64(len(response.text)), 10)
	}
	return append(out, "\r\n\r\n"...)
}

// refuse responds to a request that cannot be served. Other errors mean that the client is gone.
func (c *connection) refuse(err error) {
	refusal, ok := err.(*refusal)
	if !ok || !c.enter(answering) {
		return
	}
	kind := strings.ReplaceAll(reasons[refusal.status], " ", "")
	c.answer(problem(refusal.status, kind, refusal.message, ""), false)
	c.linger()
}

// linger continues to read for a while. Otherwise a reset could destroy the response for a client that is still sending.
func (c *connection) linger() {
	c.enter(lingering)
	_ = c.peer.SetReadDeadline(time.Time{})
	if c.peer.CloseWrite() != nil {
		return
	}
	for {
		if _, err := c.peer.Read(c.buffer); err != nil {
			return
		}
	}
}

// giveUp responds in place of a handler that takes too long. The handler continues, but its result is discarded.
func (c *connection) giveUp() {
	late := problem(504, "Timeout", fmt.Sprintf("no answer in %d ms", c.server.timeout.Milliseconds()), "")
	_, _ = c.peer.Write(append(appendHead(nil, late, false), late.text...))
	c.close()
}
