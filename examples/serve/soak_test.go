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
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	naming "github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/child"
	"sonicmoe/internal/num"
	"sonicmoe/moe/checkpoint/safetensors"
)

// soakShape is a layer that is slow on the emulated device, so that the clients of the test can
// easily overload the service. soakWidth is the width of its tokens.
const (
	soakShape = "128,512,8,4"
	soakWidth = 128
)

// TestMain runs the service instead of the tests in the process that TestSoak starts.
func TestMain(m *testing.M) {
	if child.Role() == "" {
		os.Exit(m.Run())
	}
	defaultLimits.body = time.Second
	program.Main(func(ctx context.Context, _ []string, stdout, stderr io.Writer) error {
		return run(ctx, []string{"-device", "emulated", "-cache", "off", "-shape", soakShape, "-tokens", "4", "-queue", "16", "-listen", "127.0.0.1:0"}, stdout, stderr)
	})
}

// crowd is many clients of one service, and a record of what became of their requests.
type crowd struct {
	url, host string
	web       *http.Client
	right     [][]float32 // output for the token of each seed, computed when it was sent alone

	mu       sync.Mutex
	statuses map[int]int
	kinds    map[string]int
	took     []time.Duration // latencies of the right answers
	wrong    []string
	ending   bool // the service got the signal to stop, and may refuse connections
}

const seeds = 20

func soakToken(seed int) []float32 {
	x := make([]float32, soakWidth)
	for i := range x {
		x[i] = float32((i*i+7*seed)%13-6) / 4
	}
	return x
}

func (c *crowd) failf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

// note counts an answer and checks it. The status must be one of statuses. With 200 the answer
// must have the outputs of the seed, and otherwise an error text.
func (c *crowd) note(kind string, start time.Time, resp *http.Response, err error, seed int, statuses ...int) {
	var body []byte
	if err != nil {
		resp = nil
	} else {
		body, err = io.ReadAll(resp.Body)
		resp.Body.Close()
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
		o, err := outputs(resp.Header.Get("Content-Type"), body)
		if err != nil || !slices.Equal(o, c.right[seed]) {
			fail("seed %d has other outputs: %v", seed, err)
		}
		c.took = append(c.took, time.Since(start))
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

// body returns a valid request for the token of a seed.
func (c *crowd) body(tensors bool, seed int) (kind string, body []byte) {
	if tensors {
		var b bytes.Buffer
		x := soakToken(seed)
		if err := safetensors.Write(&b, nil, source32("x", x, 1, int64(len(x)))); err != nil {
			c.failf("%v", err)
		}
		return typeTensors, b.Bytes()
	}
	body, err := json.Marshal(tokens{[][]float32{soakToken(seed)}})
	if err != nil {
		c.failf("%v", err)
	}
	return typeJSON, body
}

// good sends a valid request.
func (c *crowd) good(random *rand.Rand) {
	seed := random.IntN(seeds)
	kind, body := c.body(random.IntN(4) == 0, seed)
	start := time.Now()
	resp, err := c.web.Post(c.url+"/layers/0/forward", kind, bytes.NewReader(body))
	c.note("good", start, resp, err, seed, 200, 503)
}

// bad sends a request that the service must refuse.
func (c *crowd) bad(random *rand.Rand) {
	long := `{"tokens": [` + strings.Repeat("["+strings.Repeat("1,", 127)+"1],", 16) + "[1]]}"
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
	c.note("bad", time.Now(), resp, err, 0, ask.status, 503)
}

// dial opens a connection. It sends the header of a valid request, and then its body in pieces,
// with a pause after each.
func (c *crowd) dial(body []byte, pieces int, pause time.Duration) (net.Conn, error) {
	conn, err := net.Dial("tcp", c.host)
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

// scrape reads values from the service's metrics.
func scrape(t *testing.T, url string, names ...string) (values []float64) {
	t.Helper()
	one := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := one.Get(url + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(naming.LegacyValidation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	require.NoError(t, err)
	for _, name := range names {
		require.Contains(t, families, name)
		values = append(values, families[name].Metric[0].Gauge.GetValue())
	}
	return values
}

// TestSoak sends four times as many requests as the service can answer, from good, bad, slow
// and disappearing clients. Every answer must be right or an error text, nothing may leak, and
// after SIGTERM the requests in progress must finish. With $SONICMOE_LONG it takes a minute.
func TestSoak(t *testing.T) {
	length := 2 * time.Second
	if os.Getenv("SONICMOE_LONG") != "" {
		length = time.Minute
	}
	self, err := os.Executable()
	require.NoError(t, err)
	service := exec.CommandContext(t.Context(), self)
	service.Env = child.Env("serve")
	var errs bytes.Buffer
	service.Stderr = &errs
	out, err := service.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, service.Start())
	t.Cleanup(func() {
		_ = service.Process.Kill() // needed if the test has failed
		_ = service.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	_, host, _ := strings.Cut(strings.TrimSpace(line), "http://")
	c := &crowd{url: "http://" + host, host: host, web: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}, statuses: map[int]int{}, kinds: map[string]int{}}
	require.Eventually(t, func() bool {
		resp, err := c.web.Get(c.url + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, time.Minute, 10*time.Millisecond)
	for seed := range seeds {
		kind, body := c.body(false, seed)
		resp, err := c.web.Post(c.url+"/forward", kind, bytes.NewReader(body))
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		o, err := outputs(kind, text)
		require.NoError(t, err)
		require.Len(t, o, soakWidth)
		c.right = append(c.right, o)
	}
	rate := c.capacity(length / 4)
	require.Empty(t, c.wrong[:min(len(c.wrong), 20)], "%d in all", len(c.wrong))
	c.web.CloseIdleConnections()
	leaks := []string{"go_goroutines", "process_open_fds", "sonicmoe_device_memory_free_bytes"}
	time.Sleep(100 * time.Millisecond)
	before := scrape(t, c.url, leaks...)

	c.took, c.statuses, c.kinds = nil, map[int]int{}, map[string]int{}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var resident []float64
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.load(ctx, 4*rate)
	}()
	for at := time.Duration(1); at <= 3; at++ {
		time.Sleep(length / 4)
		resident = append(resident, scrape(t, c.url, "process_resident_memory_bytes")...)
	}
	<-done
	slices.Sort(c.took)
	require.NotEmpty(t, c.took)
	t.Logf("capacity %.0f requests/s, %v at 4 times as many: clients %v, answers %v, right ones %.0f/s, p50 %v, p99 %v, resident MB %.0f", rate, length, c.kinds, c.statuses,
		float64(len(c.took))/length.Seconds(), c.took[len(c.took)/2].Round(time.Millisecond), c.took[len(c.took)*99/100].Round(time.Millisecond), scaled(resident, 1e-6))
	require.Empty(t, c.wrong[:min(len(c.wrong), 20)], "%d in all", len(c.wrong))
	require.Positive(t, c.statuses[503], "the load is more than the service can do")
	require.Less(t, resident[2], 1.3*resident[1], "memory grows")
	c.web.CloseIdleConnections()
	var after []float64
	require.Eventually(t, func() bool {
		after = scrape(t, c.url, leaks...)
		return after[0] <= before[0]+2 && after[1] <= before[1]
	}, 15*time.Second, 100*time.Millisecond, "goroutines and files: %v before, %v after", before, &after)
	require.Equal(t, before[2], after[2], "device memory")

	// The service gets SIGTERM under load.
	c.web = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	time.AfterFunc(500*time.Millisecond, func() {
		c.mu.Lock()
		c.ending = true
		c.mu.Unlock()
		_ = service.Process.Signal(syscall.SIGTERM)
	})
	c.load(ctx, 4*rate)
	require.NoError(t, service.Wait(), errs.String())
	require.Empty(t, c.wrong[:min(len(c.wrong), 20)], "%d in all", len(c.wrong))
	t.Logf("and with SIGTERM: answers %v (0: connections refused)", c.statuses)
}

func scaled(list []float64, by float64) []float64 {
	out := slices.Clone(list)
	for i := range out {
		out[i] *= by
	}
	return out
}
