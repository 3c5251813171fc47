package main

import "klambda"

func handler(event klambda.Event) (any, error) {
	var data struct{ Name string }
	err := event.Decode(&data)
	return map[string]string{"hello": data.Name}, err
}
