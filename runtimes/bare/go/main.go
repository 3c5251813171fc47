package main

import (
	"net/http"
	"os"
)

func main() {
	http.HandleFunc("/", func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "application/json")
		out.Write([]byte(`{"hello":"world"}`))
	})
	http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil)
}
