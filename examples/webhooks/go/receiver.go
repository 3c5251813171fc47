// A webhook receiver that processes every event once, in order, and reads from the feed what it missed.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"sync"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

type event struct {
	EventID         string          `json:"eventId,omitempty"`
	SequenceNumber  uint64          `json:"sequenceNumber,omitempty"`
	WorkflowID      string          `json:"workflowId,omitempty"`
	PreviousEventID *string         `json:"previousEventId,omitempty"`
	ID              string          `json:"id,omitempty"`
	Type            string          `json:"type,omitempty"`
	Data            json.RawMessage `json:"data,omitempty"`
	// A line with this member is not an event: it tells how far the feed was read.
	Cursor string `json:"cursor,omitempty"`
}

// The events so far, one JSON line each, and how far the feed was read. A real receiver uses its database.
type journal struct {
	sync.Mutex
	file   *os.File
	last   map[string]event // by workflow
	cursor string
}

func open(path string) (*journal, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	journal := &journal{file: file, last: map[string]event{}}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var line event
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, err
		}
		journal.remember(line)
	}
	return journal, lines.Err()
}

func (j *journal) remember(line event) {
	if line.Cursor != "" {
		j.cursor = line.Cursor
	} else {
		j.last[line.WorkflowID] = line
	}
}

func (j *journal) write(line event) error {
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	if _, err := j.file.Write(append(text, '\n')); err != nil {
		return err
	}
	j.remember(line)
	return nil
}

// take returns false if an event before this one is missing.
func (j *journal) take(e event) (bool, error) {
	last := j.last[e.WorkflowID]
	if e.SequenceNumber <= last.SequenceNumber {
		return true, nil // known
	}
	previous := ""
	if e.PreviousEventID != nil {
		previous = *e.PreviousEventID
	}
	if e.SequenceNumber != last.SequenceNumber+1 || previous != last.EventID {
		return false, nil
	}
	return true, j.write(e)
}

// takeAnyway is for an event whose predecessors are gone everywhere.
func (j *journal) takeAnyway(e event) error {
	taken, err := j.take(e)
	if taken || err != nil {
		return err
	}
	log.Printf("lost: events before %s of %s", e.EventID, e.WorkflowID)
	return j.write(e)
}

// catchUp reads the feed to its end.
func (j *journal) catchUp() error {
	for {
		items, next, err := readFeed(j.cursor)
		if err != nil {
			return err
		}
		for _, e := range items {
			if err := j.takeAnyway(e); err != nil {
				return err
			}
		}
		if next != j.cursor {
			if err := j.write(event{Cursor: next}); err != nil {
				return err
			}
		}
		if len(items) == 0 {
			return nil
		}
	}
}

func readFeed(cursor string) ([]event, string, error) {
	address := os.Getenv("WEBHOOK_FEED")
	if cursor != "" {
		address += "&since=" + url.QueryEscape(cursor)
	}
	request, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		return nil, "", err
	}
	if token := os.Getenv("WEBHOOK_TOKEN"); token != "" {
		request.Header.Set("authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusGone && cursor != "" {
		return readFeed("") // Retention has removed events after the cursor.
	}
	if answer.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("the feed answers %s", answer.Status)
	}
	var page struct {
		Items []event `json:"items"`
		Next  string  `json:"next"`
	}
	err = json.NewDecoder(answer.Body).Decode(&page)
	return page.Items, page.Next, err
}

func (j *journal) receive(e event) error {
	j.Lock()
	defer j.Unlock()
	taken, err := j.take(e)
	if taken || err != nil {
		return err
	}
	if err := j.catchUp(); err != nil {
		return err
	}
	return j.takeAnyway(e)
}

func main() {
	webhook, err := standardwebhooks.NewWebhook(os.Getenv("WEBHOOK_SECRET"))
	if err != nil {
		log.Fatal(err)
	}
	journal, err := open(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	if err := journal.catchUp(); err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if err := webhook.Verify(body, r.Header); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		if !bytes.HasPrefix(body, []byte("[")) { // An endpoint with `batch` sends an array of events.
			body = append(append([]byte("["), body...), ']')
		}
		var events []event
		if err := json.Unmarshal(body, &events); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		// The answer is 200 only when the events are stored.
		for _, e := range events {
			if err := journal.receive(e); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
