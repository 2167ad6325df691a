package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
)

// blanks is a reader that repeats text. It counts the bytes read, and ends after more bytes than
// any reader may read.
type blanks struct {
	text string
	read int
}

func (b *blanks) Read(p []byte) (int, error) {
	if b.read > 65<<20 {
		return 0, io.EOF
	}
	for i := range p {
		p[i] = b.text[(b.read+i)%len(b.text)]
	}
	b.read += len(p)
	return len(p), nil
}

// TestBodyIsCountedWhileItIsRead checks that a body with too many tokens is refused at the
// first token above the limit, and that it takes no more memory than the tokens before.
func TestBodyIsCountedWhileItIsRead(t *testing.T) {
	for name, text := range map[string]string{"numbers": "1,", "empty tokens": "[],", "tokens": "[1,2],", "digits": "1", "a string": "a"} {
		endless := &blanks{text: text}
		_, err := readTokens(io.MultiReader(strings.NewReader(`{"tokens":[`+map[bool]string{true: "["}[name == "numbers" || name == "digits"]), endless), 2, 100)
		require.Error(t, err, name)
		require.Less(t, endless.read, 1<<16, name)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := readTokens(io.MultiReader(strings.NewReader(`{"tokens":[`), io.LimitReader(&blanks{text: "[],"}, 64<<20)), 128, 4096)
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "token 0 has 0 numbers")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

// TestOverflow checks that outputs that JSON cannot hold get the status 422, and that the
// metrics count this status.
func TestOverflow(t *testing.T) {
	s := onDevice(t, 2)
	web := httptest.NewServer(s.handler())
	defer web.Close()
	working(t, s)
	x := token(s, 0)
	for i := range x {
		x[i] = 3e38
	}
	code, _ := post(t, web.URL, x)
	require.Equal(t, http.StatusUnprocessableEntity, code)
	got := s.snapshot()
	require.Equal(t, map[int]int64{http.StatusUnprocessableEntity: 1}, got.Answers)
}

// TestQueueIsBoundedInTokens checks that the waiting requests never hold more tokens than 16
// full passes.
func TestQueueIsBoundedInTokens(t *testing.T) {
	s := onDevice(t, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	full := make([]float32, s.most*s.width())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range maxWaiting {
		all.Go(func() { _, _ = s.submit(ctx, full) })
	}
	require.Eventually(t, func() bool { return len(s.waitlist) == maxWaiting }, time.Minute, time.Millisecond)
	_, err := s.submit(ctx, full[:s.width()])
	require.ErrorIs(t, err, errBusy)
}

// send opens a connection and sends a request that is not complete.
func send(t *testing.T, url, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	_, err = io.WriteString(c, text)
	require.NoError(t, err)
	return c
}

const slowBody = "POST /forward HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"tokens\""

// TestSlowBodies checks that the bytes of bodies that are read at the same time are limited. A
// body waits for room, a slow body has a time limit, and a small slow body leaves room for
// others.
func TestSlowBodies(t *testing.T) {
	s := onDevice(t, 2)
	s.limits.body = time.Second
	web := httptest.NewServer(s.handler())
	defer web.Close()
	defer web.CloseClientConnections() // closes a connection even if its body has no time limit
	working(t, s)
	send(t, web.URL, slowBody)
	require.Eventually(t, func() bool { return s.inside.Load() == 1 }, time.Minute, time.Millisecond)
	code, _ := post(t, web.URL, token(s, 1))
	require.Equal(t, http.StatusOK, code)
	require.EqualValues(t, 1, s.inside.Load(), "the slow body is still read")

	s.reading = semaphore.NewWeighted(1500) // room for one body
	slow := send(t, web.URL, slowBody)
	require.Eventually(t, func() bool {
		return !s.reading.TryAcquire(1000) || func() bool { s.reading.Release(1000); return false }()
	}, time.Minute, time.Millisecond)
	s.limits.body = time.Minute // the time limit of the next body
	code, _ = post(t, web.URL, token(s, 1))
	require.Equal(t, http.StatusOK, code)
	answer, err := io.ReadAll(slow)
	require.NoError(t, err)
	require.Contains(t, string(answer), "408 Request Timeout")

	s.limits.body = 10 * time.Millisecond
	require.True(t, s.reading.TryAcquire(1500))
	code, _ = post(t, web.URL, token(s, 1))
	require.Equal(t, http.StatusServiceUnavailable, code)
}

// TestDrain checks that the stop signal ends the service soon, whatever slow and idle clients
// do.
func TestDrain(t *testing.T) {
	s := onDevice(t, 2)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, l, s.server, s.load, 0) }()
	url := "http://" + l.Addr().String()
	code, _ := post(t, url, token(s, 1)) // this client keeps its connection open and idle
	require.Equal(t, http.StatusOK, code)
	for range 5 {
		send(t, url, "")
		send(t, url, "GET / HT")
		send(t, url, slowBody)
	}
	require.Eventually(t, func() bool { return s.inside.Load() == 5 }, time.Minute, time.Millisecond)
	start := time.Now()
	cancel()
	require.NoError(t, <-done)
	require.Less(t, time.Since(start), 3*time.Second)
}

// TestDrainIsBounded checks that a request without an answer does not keep the service from
// ending.
func TestDrainIsBounded(t *testing.T) {
	s := onDevice(t, 2) // no pass runs, so requests are never answered
	s.limits.drain = 100 * time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	web := &http.Server{Handler: s.handler()}
	go web.Serve(l)
	body, err := json.Marshal(tokens{[][]float32{token(s, 1)}})
	require.NoError(t, err)
	c := send(t, "http://"+l.Addr().String(), fmt.Sprintf("POST /forward HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	require.Eventually(t, func() bool { return len(s.waitlist) == 1 }, time.Minute, time.Millisecond)
	done := make(chan error, 1)
	go func() { done <- s.shutdown(web) }()
	select {
	case err := <-done:
		require.EqualError(t, err, "1 requests were still in progress after 100ms")
	case <-time.After(10 * time.Second):
		c.Close()
		t.Fatal("the service waits for the request")
	}
}

// TestIdleConnections checks the time limits of headers and of idle connections.
func TestIdleConnections(t *testing.T) {
	s := onDevice(t, 2)
	s.limits.header, s.limits.idle = 50*time.Millisecond, 50*time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, l, s.server, s.load, 0) }()
	url := "http://" + l.Addr().String()
	for _, text := range []string{"", "GET / HT", "GET /stats HTTP/1.1\r\nHost: x\r\n\r\n"} {
		c := send(t, url, text)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err := io.ReadAll(c)
		require.NoError(t, err, fmt.Sprintf("%q: the connection must be closed", text))
	}
	cancel()
	require.NoError(t, <-done)
}
