package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"time"
)

// Content types of requests and answers.
const (
	typeJSON    = "application/json"
	typeForm    = "application/x-www-form-urlencoded" // curl -d without a header; read as JSON
	typeTensors = "application/safetensors"
)

// clientGone is the HTTP status that nginx logs for a client that went away.
const clientGone = 499

// refusal is an error whose cause is the request, with its HTTP status.
type refusal struct {
	status int
	text   string
}

func (e *refusal) Error() string { return e.text }

// refuse answers with an error as JSON: {"error": "…"}.
func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", typeJSON)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": text}) // the client may have gone away
}

// forward answers tokens with the layer's outputs in the same format, and returns the
// status.
func (s *server) forward(b *batcher, w http.ResponseWriter, r *http.Request) int {
	x, dtype, err := s.body(b, w, r)
	var o []float32
	if err == nil {
		o, err = b.submit(r.Context(), x)
	}
	if i := slices.IndexFunc(o, func(v float32) bool { return v-v != 0 }); i >= 0 && dtype == "" {
		err = &refusal{http.StatusUnprocessableEntity, fmt.Sprintf("output %d of token %d is %v, which JSON does not have: the token's values are too large", i%b.width(), i/b.width(), o[i])}
	}
	if err == nil {
		if dtype != "" {
			_ = writeTensor(w, o, b.width(), dtype) // the client may have gone away
		} else {
			write(w, o, b.width())
		}
		return http.StatusOK
	}
	status := http.StatusInternalServerError
	var wrong *refusal
	switch {
	case errors.Is(err, errBusy), errors.Is(err, errStopped):
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	case errors.As(err, &wrong):
		status = wrong.status
	case r.Context().Err() != nil:
		return clientGone
	}
	refuse(w, status, err.Error())
	return status
}

// body reads a request's tokens. It waits for one of the few slots first, so that
// the bodies in memory are bounded. dtype is the type of the tensor, "" for JSON.
func (s *server) body(b *batcher, w http.ResponseWriter, r *http.Request) (x []float32, dtype string, err error) {
	kind, err := contentType(r)
	if err != nil {
		return nil, "", err
	}
	late := time.NewTimer(s.limits.body)
	defer late.Stop()
	select {
	case s.bodies <- struct{}{}:
		defer func() { <-s.bodies }()
	case <-r.Context().Done():
		return nil, "", r.Context().Err()
	case <-s.draining.Done():
		return nil, "", errStopped
	case <-late.C:
		return nil, "", errBusy
	}
	connection := http.NewResponseController(w)
	until := func(limit time.Duration) { _ = connection.SetReadDeadline(time.Now().Add(limit)) } // no error: TCP connections have deadlines
	until(s.limits.body)
	stop := context.AfterFunc(s.draining, func() { until(s.limits.drainBody) })
	defer stop()
	numbers := int64(b.most * b.width())
	want := fmt.Sprintf(`want {"tokens": [[%d numbers], …]}, up to %d tokens: `, b.width(), b.most)
	if kind == typeTensors {
		want = ""
		x, dtype, err = readTensor(http.MaxBytesReader(w, r.Body, 4*numbers+maxHeader), b.layer.Config(), b.most)
	} else {
		// A number in JSON has at most about 25 characters.
		x, err = readTokens(http.MaxBytesReader(w, r.Body, 32*numbers+1024), b.width(), b.most)
	}
	if err == nil {
		stop()
		_ = connection.SetReadDeadline(time.Time{}) // without a deadline from here on: one that passes would end the context as if the client were gone
		return x, dtype, nil
	}
	return nil, "", s.why(r, want, err)
}

// contentType returns the format of a request's body. Without a header it is JSON.
func contentType(r *http.Request) (string, error) {
	header := r.Header.Get("Content-Type")
	if header == "" {
		return typeJSON, nil
	}
	kind, _, err := mime.ParseMediaType(header)
	if err != nil || !slices.Contains([]string{typeJSON, typeForm, typeTensors}, kind) {
		return "", &refusal{http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type is %q, want %s or %s", header, typeJSON, typeTensors)}
	}
	return kind, nil
}

// why returns the error of a body that could not be read. want says what would be right.
func (s *server) why(r *http.Request, want string, err error) error {
	var wrong *refusal
	var large *http.MaxBytesError
	switch {
	case s.draining.Err() != nil:
		return errStopped
	case errors.As(err, &wrong):
		return err
	case errors.As(err, &large):
		return &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", large.Limit)}
	case isTimeout(err): // the time-out of the connection also ends the request's context
		return &refusal{http.StatusRequestTimeout, fmt.Sprintf("the body took longer than %v", s.limits.body)}
	case r.Context().Err() != nil:
		return r.Context().Err()
	}
	return &refusal{http.StatusBadRequest, want + err.Error()}
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// write writes an answer as JSON, token by token.
func write(w http.ResponseWriter, o []float32, width int) {
	w.Header().Set("Content-Type", typeJSON)
	before := `{"tokens":[`
	for token := range slices.Chunk(o, width) {
		text, err := json.Marshal(token)
		if err != nil {
			panic(err) // cannot happen, because all numbers are finite
		}
		if _, err := fmt.Fprintf(w, "%s%s", before, text); err != nil {
			return // the client went away
		}
		before = ","
	}
	_, _ = io.WriteString(w, "]}")
}
