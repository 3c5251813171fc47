package function

import (
	"context"
	"log/slog"
)

// Order is the data of an event.
type Order struct {
	Name string `json:"name"`
}

// Handler is called for every event, in order per key. It returns the answer, or an error to have the event tried again.
func Handler(ctx context.Context, order Order) (any, error) {
	slog.Info("order placed", "name", order.Name)
	return map[string]string{"hello": order.Name}, nil
}
