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

// These are the content types of requests and answers.
const (
	typeJSON    = "application/json"
	typeForm    = "application/x-www-form-urlencoded" // sent by curl -d without a header, and read as JSON
	typeTensors = "application/safetensors"
)

// clientGone is the HTTP status that nginx logs if a client closed its connection before the
// answer.
const clientGone = 499

// refusal is an error that the request caused, with its HTTP status.
type refusal struct {
	status int
	text   string
}

func (e *refusal) Error() string { return e.text }

// refuse answers with an error as JSON: {"error": "…"}.
func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", typeJSON)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": text}) // the client may have closed its connection
}

// forward answers tokens with the layer's outputs, in the format of the request. It returns the
// HTTP status.
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
			_ = writeTensor(w, o, b.width(), dtype) // the client may have closed its connection
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

// body reads a request's tokens. It first waits until there is room for the body, because the
// bytes of all bodies in memory are limited. dtype is the type of the request's tensor, or ""
// for JSON.
func (s *server) body(b *batcher, w http.ResponseWriter, r *http.Request) (x []float32, dtype string, err error) {
	kind, err := contentType(r)
	if err != nil {
		return nil, "", err
	}
	limit := b.maxBody(kind)
	size := r.ContentLength
	switch {
	case size > limit:
		return nil, "", tooLarge(limit)
	case size < 0: // the client does not say the size
		size = limit
	}
	if b.full() { // refuse the request before its body is read, which costs less
		return nil, "", errBusy
	}
	if err := s.room(r, b, size); err != nil {
		return nil, "", err
	}
	defer b.reading.Release(size)
	connection := http.NewResponseController(w)
	until := func(limit time.Duration) { _ = connection.SetReadDeadline(time.Now().Add(limit)) } // no error: TCP connections have deadlines
	until(s.limits.body)
	stop := context.AfterFunc(s.draining, func() { until(s.limits.drainBody) })
	defer stop()
	body, want := http.MaxBytesReader(w, r.Body, limit), ""
	if kind == typeTensors {
		x, dtype, err = readTensor(body, b.layer.Config(), b.most)
	} else {
		want = fmt.Sprintf(`want {"tokens": [[%d numbers], …]}, up to %d tokens: `, b.width(), b.most)
		x, err = readTokens(body, b.width(), b.most)
	}
	if err == nil {
		stop()
		_ = connection.SetReadDeadline(time.Time{}) // remove the deadline, because a deadline that passes would end the context as if the client had closed the connection
		return x, dtype, nil
	}
	return nil, "", s.why(r, want, err)
}

// room waits until a body of the given size may be read.
func (s *server) room(r *http.Request, b *batcher, bytes int64) error {
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.body)
	defer cancel()
	stop := context.AfterFunc(s.draining, cancel)
	defer stop()
	err := b.reading.Acquire(ctx, bytes)
	switch {
	case err == nil:
		return nil
	case s.draining.Err() != nil:
		return errStopped
	case r.Context().Err() != nil:
		return r.Context().Err()
	}
	return errBusy
}

// maxBody returns the largest size of a body in bytes.
func (b *batcher) maxBody(kind string) int64 {
	numbers := int64(b.most * b.width())
	if kind == typeTensors {
		return 4*numbers + maxHeader
	}
	return maxDigits*numbers + 1024
}

// maxDigits is the number of characters that a number in JSON may have on average. An FP32
// number needs at most about 15, and a comma.
const maxDigits = 32

func tooLarge(limit int64) error {
	return &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", limit)}
}

// contentType returns the format of a request's body. It is JSON if there is no header.
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

// why returns the error for a body that could not be read. want is a text that says what would
// be right.
func (s *server) why(r *http.Request, want string, err error) error {
	var wrong *refusal
	var large *http.MaxBytesError
	switch {
	case s.draining.Err() != nil:
		return errStopped
	case errors.As(err, &wrong):
		return err
	case errors.As(err, &large):
		return tooLarge(large.Limit)
	case isTimeout(err): // the connection's time-out also ends the request's context
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
			return // the client closed its connection
		}
		before = ","
	}
	_, _ = io.WriteString(w, "]}")
}
