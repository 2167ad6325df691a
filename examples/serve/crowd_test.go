//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/moe/checkpoint/safetensors"
)

// dialer returns a dialer with one of many addresses, because the ports of one address would not last
// a minute. Only Linux has these addresses.
func dialer() *net.Dialer {
	if runtime.GOOS != "linux" {
		return &net.Dialer{}
	}
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, byte(1+rand.IntN(100)), 1)}}
}

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	return dialer().DialContext(ctx, network, address)
}

// crowd is many clients of one service, and a record of what became of their requests.
type crowd struct {
	soaked
	url, host string
	web       *http.Client
	bodies    [seeds][2][]byte // the valid requests of each seed, as JSON and as safetensors
	right     [][]float32      // output for the request of each seed, computed when it was sent alone

	mu       sync.Mutex
	statuses map[int]int
	kinds    map[string]int
	took     []time.Duration // latencies of the right answers
	wrong    []string
	ending   bool // the service got the signal to stop, and may refuse connections
}

const seeds = 20

// input returns the numbers of a seed's request.
func (c *crowd) input(seed int) []float32 {
	x := make([]float32, c.tokens*c.hidden)
	for i := range x {
		x[i] = float32((i*i+i/c.hidden+7*seed)%13-6) / 4
	}
	return x
}

// note counts an answer and checks it. The status must be one of statuses. With 200 the answer
// must have the outputs of the seed, and otherwise an error text.
func (c *crowd) note(kind string, start time.Time, resp *http.Response, err error, seed int, statuses ...int) {
	var body []byte
	var o []float32
	if err != nil {
		resp = nil
	} else {
		body, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	took := time.Since(start)
	if err == nil && resp.StatusCode == http.StatusOK {
		o, err = outputs(resp.Header.Get("Content-Type"), body) // takes long, and so does not hold the lock
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds[kind]++
	fail := func(format string, args ...any) { c.wrong = append(c.wrong, kind+": "+fmt.Sprintf(format, args...)) }
	switch {
	case resp == nil && c.ending && refusedConnection(err):
		c.statuses[0]++
	case err != nil:
		fail("%v", err)
	case !slices.Contains(statuses, resp.StatusCode):
		fail("status %d, want one of %v: %.200s", resp.StatusCode, statuses, body)
	case resp.StatusCode == http.StatusOK:
		if !slices.Equal(o, c.right[seed]) {
			fail("seed %d has other outputs", seed)
		}
		c.took = append(c.took, took)
		c.statuses[resp.StatusCode]++
	default:
		var e struct{ Error string }
		if json.Unmarshal(body, &e) != nil || e.Error == "" || resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") == "" {
			fail("status %d without an error in words: %.200s", resp.StatusCode, body)
		}
		c.statuses[resp.StatusCode]++
	}
}

// refusedConnection reports whether a request got no answer because the service no longer
// accepts connections.
func refusedConnection(err error) bool {
	for _, known := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, net.ErrClosed, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// outputs reads the outputs from an answer in either format.
func outputs(kind string, body []byte) ([]float32, error) {
	if kind == typeTensors {
		f, err := safetensors.New(bytes.NewReader(body), int64(len(body)))
		if err != nil {
			return nil, err
		}
		o := make([]float32, f.Tensors()[0].Shape[0]*f.Tensors()[0].Shape[1])
		_, err = f.ReadAt("o", num.Bytes(o), 0)
		return o, err
	}
	var t tokens
	err := json.Unmarshal(body, &t)
	return slices.Concat(t.Tokens...), err
}

// makeBodies makes the valid requests.
func (c *crowd) makeBodies(t *testing.T) {
	for seed := range c.bodies {
		x := c.input(seed)
		var rows [][]float32
		for row := range slices.Chunk(x, c.hidden) {
			rows = append(rows, row)
		}
		text, err := json.Marshal(tokens{rows})
		require.NoError(t, err)
		var b bytes.Buffer
		require.NoError(t, safetensors.Write(&b, nil, source32("x", x, int64(c.tokens), int64(c.hidden))))
		c.bodies[seed] = [2][]byte{text, b.Bytes()}
	}
}

// body returns a valid request of a seed.
func (c *crowd) body(tensors bool, seed int) (kind string, body []byte) {
	if tensors {
		return typeTensors, c.bodies[seed][1]
	}
	return typeJSON, c.bodies[seed][0]
}

// late returns the statuses of a whole request that the service was too busy for. A large body may
// take too long to arrive if the clients overload the machine.
func (c *crowd) late() []int {
	if c.tokens > 1 {
		return []int{http.StatusServiceUnavailable, http.StatusRequestTimeout}
	}
	return []int{http.StatusServiceUnavailable}
}

// good sends a valid request.
func (c *crowd) good(random *rand.Rand) {
	seed := random.IntN(seeds)
	kind, body := c.body(random.IntN(4) == 0, seed)
	start := time.Now()
	resp, err := c.web.Post(c.url+"/forward", kind, bytes.NewReader(body))
	c.note("good", start, resp, err, seed, append(c.late(), 200)...)
}

// bad sends a request that the service must refuse.
func (c *crowd) bad(random *rand.Rand) {
	long := `{"tokens": [` + strings.Repeat("["+strings.Repeat("1,", c.hidden-1)+"1],", c.most+1) + "[1]]}"
	list := []struct {
		path, kind, body string
		status           int
	}{
		{"/forward", typeJSON, `{"tokens": [[null]]}`, 400}, {"/forward", typeJSON, "{", 400}, {"/forward", typeJSON, long, 413},
		{"/forward", typeTensors, "12345678", 400}, {"/forward", "text/html", "x", 415}, {"/layers/9/forward", typeJSON, "{}", 404},
		{"/nothing", typeJSON, "", 404}, {"/metrics", typeJSON, "", 405},
	}
	ask := list[random.IntN(len(list))]
	resp, err := c.web.Post(c.url+ask.path, ask.kind, strings.NewReader(ask.body))
	c.note("bad", time.Now(), resp, err, 0, append(c.late(), ask.status)...)
}

// dial opens a connection. It sends the header of a valid request, and then its body in pieces,
// with a pause after each.
func (c *crowd) dial(body []byte, pieces int, pause time.Duration) (net.Conn, error) {
	conn, err := dial(context.Background(), "tcp", c.host)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(conn, "POST /forward HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", typeJSON, len(body))
	go func() {
		for piece := range slices.Chunk(body, len(body)/10+1) {
			if pieces--; pieces < 0 {
				return
			}
			_, _ = conn.Write(piece) // the service may have refused the request and closed the connection
			time.Sleep(pause)
		}
	}()
	return conn, err
}

// slow sends a body piece by piece, either all of it or a part.
func (c *crowd) slow(random *rand.Rand) {
	seed, pieces, statuses := random.IntN(seeds), 10, []int{200, 408, 503}
	if random.IntN(2) == 0 {
		pieces, statuses = random.IntN(9), statuses[1:]
	}
	_, body := c.body(false, seed)
	start := time.Now()
	conn, err := c.dial(body, pieces, 30*time.Millisecond)
	if err != nil {
		c.note("slow", start, nil, err, seed)
		return
	}
	defer conn.Close()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	c.note("slow", start, resp, err, seed, statuses...)
}

// hangUp sends a request or a part of it, and closes the connection.
func (c *crowd) hangUp(random *rand.Rand) {
	_, body := c.body(false, random.IntN(seeds))
	if conn, err := c.dial(body, random.IntN(11), 0); err == nil {
		time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
		conn.Close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds["hangs up"]++
}

// capacity returns how many requests per second the service answers if a few clients send valid
// requests.
func (c *crowd) capacity(length time.Duration) float64 {
	var all sync.WaitGroup
	end := time.Now().Add(length)
	for i := range 16 {
		all.Go(func() {
			for random := rand.New(rand.NewPCG(uint64(i), 1)); time.Now().Before(end); {
				c.good(random)
			}
		})
	}
	all.Wait()
	return float64(len(c.took)) / length.Seconds()
}

// load sends requests at a rate until ctx ends, and then waits for all answers.
func (c *crowd) load(ctx context.Context, rate float64) {
	var all sync.WaitGroup
	defer all.Wait()
	random := rand.New(rand.NewPCG(1, 2))
	start := time.Now()
	for sent := 0; ctx.Err() == nil; {
		for due := int(time.Since(start).Seconds() * rate); sent < due; sent++ {
			kind, own := random.IntN(100), rand.New(rand.NewPCG(random.Uint64(), 0))
			all.Go(func() {
				switch {
				case kind < 70:
					c.good(own)
				case kind < 80:
					c.bad(own)
				case kind < 90:
					c.hangUp(own)
				default:
					c.slow(own)
				}
			})
		}
		time.Sleep(time.Millisecond)
	}
}
