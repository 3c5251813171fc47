package klambda

import (
	"context"
	"sync"
	"time"
)

// call is a delivery that the handler processes, and the handler's context. The handler runs on the goroutine that read
// the request, because a separate goroutine and timer per call would double the cost.
type call struct {
	event Event
	info  Info

	mutex  sync.Mutex
	over   bool
	timed  context.Context
	cancel context.CancelFunc
}

func newCall(request *request, deadline time.Time) (*call, error) {
	c := &call{}
	if err := c.event.read(request); err != nil {
		return nil, err
	}
	c.info.read(&c.event, request, deadline)
	return c, nil
}

func (c *call) Deadline() (time.Time, bool) { return c.info.Deadline, true }

// Value delegates to the timer if there is one, so that a derived context finds it and needs no goroutine.
func (c *call) Value(key any) any {
	if key == (infoKey{}) {
		return &c.info
	}
	c.mutex.Lock()
	timed := c.timed
	c.mutex.Unlock()
	if timed == nil {
		return nil
	}
	return timed.Value(key)
}

// Done creates the timer on the first use. Most handlers never use it.
func (c *call) Done() <-chan struct{} { return c.withTimer().Done() }

func (c *call) Err() error { return c.withTimer().Err() }

func (c *call) withTimer() context.Context {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.timed == nil {
		c.timed, c.cancel = context.WithDeadline(context.Background(), c.info.Deadline)
		if c.over {
			c.cancel()
		}
	}
	return c.timed
}

// end is called when the handler has returned.
func (c *call) end() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.over = true
	if c.cancel != nil {
		c.cancel()
	}
}
