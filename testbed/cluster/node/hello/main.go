// A function for tests: it answers with the text of /message.
package main

import (
	"log"
	"net/http"
	"os"
)

func main() {
	message, err := os.ReadFile("/message")
	if err != nil {
		log.Fatal(err)
	}
	answer := func(w http.ResponseWriter, _ *http.Request) { w.Write(message) }
	log.Fatal(http.ListenAndServe(":"+os.Getenv("PORT"), http.HandlerFunc(answer)))
}
