package function

import (
	"context"
	"reflect"
	"testing"
)

func TestGreetsByName(t *testing.T) {
	got, err := Handler(context.Background(), Order{Name: "Ada"})
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"hello": "Ada"}; !reflect.DeepEqual(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}
