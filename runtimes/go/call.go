package klambda

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// call is a delivery in the handler, and the handler's context. The handler runs where the request was read: a goroutine
// and a timer of its own per call would cost as much as the rest.
type call struct {
	context.Context
	info *Info
	out  http.ResponseWriter

	mutex sync.Mutex
	// over is set by whoever answers first: the handler's result or the watch.
	over   bool
	timed  context.Context
	cancel context.CancelFunc
}

func (c *call) Deadline() (time.Time, bool) { return c.info.Deadline, true }

func (c *call) Value(key any) any {
	if key == (infoKey{}) {
		return c.info
	}
	return c.Context.Value(key)
}

// Done makes the timer when a handler first asks for it; most never do.
func (c *call) Done() <-chan struct{} { return c.withTimer().Done() }

func (c *call) Err() error { return c.withTimer().Err() }

func (c *call) withTimer() context.Context {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.timed == nil {
		c.timed, c.cancel = context.WithDeadline(c.Context, c.info.Deadline)
		if c.over {
			c.cancel()
		}
	}
	return c.timed
}

// end reports whether the caller is the first to end the call, and so the one to answer.
func (c *call) end() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	first := !c.over
	c.over = true
	if c.cancel != nil {
		c.cancel()
	}
	return first
}

// watch answers in place of handlers that do not. Nobody else uses the answer's writer until the handler returns.
type watch struct {
	timeout time.Duration
	mutex   sync.Mutex
	open    map[*call]struct{}
}

func newWatch(timeout time.Duration) *watch {
	w := &watch{timeout: timeout, open: map[*call]struct{}{}}
	go func() {
		for range time.Tick(min(time.Second, max(25*time.Millisecond, timeout/4))) {
			for _, late := range w.late(time.Now()) {
				w.giveUp(late)
			}
		}
	}()
	return w
}

func (w *watch) add(c *call) {
	w.mutex.Lock()
	w.open[c] = struct{}{}
	w.mutex.Unlock()
}

func (w *watch) remove(c *call) {
	w.mutex.Lock()
	delete(w.open, c)
	w.mutex.Unlock()
}

func (w *watch) late(now time.Time) []*call {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	var late []*call
	for c := range w.open {
		if now.After(c.info.Deadline) {
			late = append(late, c)
		}
	}
	return late
}

func (w *watch) giveUp(c *call) {
	w.remove(c)
	// The lock is held over the answer: the handler's goroutine must not leave ServeHTTP in the middle of it.
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.over {
		return
	}
	c.over = true
	if c.cancel != nil {
		c.cancel()
	}
	c.out.Header().Set("Connection", "close")
	problem(c.out, http.StatusGatewayTimeout, "Timeout", fmt.Sprintf("no answer in %d ms", w.timeout.Milliseconds()), "")
	_ = http.NewResponseController(c.out).Flush()
}
