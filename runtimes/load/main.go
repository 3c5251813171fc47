// Command load calls an address over keep-alive connections for a while and prints the calls per second.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const request = "POST / HTTP/1.1\r\nhost: localhost\r\nce-specversion: 1.0\r\nce-id: 0195f0a0-1\r\nce-source: /shop\r\n" +
	"ce-type: order.placed\r\nce-lanesequence: 17\r\nce-previousid: 0195f0a0-0\r\n" +
	"content-type: application/json\r\ncontent-length: 16\r\n\r\n{\"name\":\"world\"}"

func main() {
	connections, _ := strconv.Atoi(os.Args[2])
	seconds, _ := strconv.ParseFloat(os.Args[3], 64)
	until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	var calls atomic.Int64
	var all sync.WaitGroup
	started := time.Now()
	for range connections {
		all.Add(1)
		go func() {
			defer all.Done()
			run(os.Args[1], until, &calls)
		}()
	}
	all.Wait()
	fmt.Printf("%.0f\n", float64(calls.Load())/time.Since(started).Seconds())
}

func run(address string, until time.Time, calls *atomic.Int64) {
	peer, err := net.Dial("tcp", address)
	check(err)
	defer peer.Close()
	reader := bufio.NewReader(peer)
	for time.Now().Before(until) {
		_, err := io.WriteString(peer, request)
		check(err)
		response, err := http.ReadResponse(reader, nil)
		check(err)
		body, err := io.ReadAll(response.Body)
		check(err)
		if response.StatusCode != 200 || string(body) != `{"hello":"world"}` {
			fmt.Fprintln(os.Stderr, response.Status, string(body))
			os.Exit(1)
		}
		calls.Add(1)
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
