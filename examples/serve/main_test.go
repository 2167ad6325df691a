package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	neturl "net/url"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	naming "github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver/emulated"
	"sonicmoe/internal/outside"
)

// rig is a server with one layer.
type rig struct {
	*server
	*batcher
}

// load returns the layer that the server offers.
func (r rig) load(context.Context) ([]*batcher, error) { return []*batcher{r.batcher}, nil }

// onDevice returns a server on an emulated device. Its passes run only after working or serve
// was called.
func onDevice(t *testing.T, queue int) rig {
	t.Helper()
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	load := loader(dev, []source{randomSource(emulatedRow.Config)}, cache.Open(cache.Options{Dir: "off"}), batching{8, queue, time.Millisecond})
	list, err := load(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, closeBatchers(list))
		require.NoError(t, dev.Close())
	})
	s := newServer(dev, defaultLimits)
	s.layers.Store(&list)
	return rig{s, list[0]}
}

// working runs the passes of a rig until the test ends.
func working(t *testing.T, b rig) {
	done := make(chan error, 1)
	go func() { done <- b.work() }()
	t.Cleanup(func() {
		b.stop()
		require.NoError(t, <-done)
	})
}

func token(b rig, seed int) []float32 {
	x := make([]float32, b.width())
	for i := range x {
		x[i] = float32((i*i+7*seed)%13-6) / 4
	}
	return x
}

func post(t *testing.T, url string, list ...[]float32) (int, [][]float32) {
	t.Helper()
	body, err := json.Marshal(tokens{list})
	assert.NoError(t, err)
	resp, err := http.Post(url+"/forward", "application/json", bytes.NewReader(body))
	if !assert.NoError(t, err) {
		return 0, nil
	}
	defer resp.Body.Close()
	var out tokens
	if resp.StatusCode == http.StatusOK {
		assert.NoError(t, json.NewDecoder(resp.Body).Decode(&out))
	}
	return resp.StatusCode, out.Tokens
}

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	return string(text)
}

// TestBatches checks that requests at the same time share passes. Each must get the same bits
// as alone, and /metrics and /stats must count the requests.
func TestBatches(t *testing.T) {
	b := onDevice(t, 64)
	web := httptest.NewServer(b.handler())
	defer web.Close()
	working(t, b)
	const clients = 12
	var alone [clients][][]float32
	for i := range clients {
		code, o := post(t, web.URL, token(b, i), token(b, 2*i))
		require.Equal(t, http.StatusOK, code)
		require.Len(t, o, 2)
		alone[i] = o
	}
	require.NotEqual(t, alone[0], alone[1])
	before := b.snapshot()
	require.EqualValues(t, clients, before.Passes)
	b.window = 100 * time.Millisecond
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			code, o := post(t, web.URL, token(b, i), token(b, 2*i))
			assert.Equal(t, http.StatusOK, code)
			assert.Equal(t, alone[i], o, "client %d", i)
		})
	}
	all.Wait()
	after := b.snapshot()
	require.Less(t, after.Passes-before.Passes, int64(clients), "requests share passes")
	require.EqualValues(t, 2*2*clients, after.Tokens)

	parser := expfmt.NewTextParser(naming.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(get(t, web.URL+"/metrics")))
	require.NoError(t, err)
	rows := 0.
	for _, m := range families["sonicmoe_expert_rows_total"].Metric {
		rows += m.Counter.GetValue()
	}
	require.EqualValues(t, 2*2*clients*emulatedRow.Config.TopK, rows)
	require.EqualValues(t, 4*clients, families["sonicmoe_tokens_total"].Metric[0].Counter.GetValue())
	require.EqualValues(t, 2*clients, families["sonicmoe_answers_total"].Metric[0].Counter.GetValue())
	require.EqualValues(t, 2*clients, families["sonicmoe_latency_seconds"].Metric[0].Histogram.GetSampleCount())
	require.EqualValues(t, 1, families["sonicmoe_ready"].Metric[0].Gauge.GetValue())
	for _, name := range []string{"sonicmoe_device_memory_free_bytes", "sonicmoe_device_info", "go_goroutines", "process_open_fds", "go_build_info"} {
		require.Contains(t, families, name)
	}
	var o overview
	require.NoError(t, json.Unmarshal([]byte(get(t, web.URL+"/stats")), &o))
	require.Equal(t, "ready", o.State)
	require.Positive(t, o.Layers[0].P50)
	require.GreaterOrEqual(t, o.Layers[0].P99, o.Layers[0].P50)
}

// TestBusyAndGone checks that a request that finds the queue full gets 503 at once, and that a
// request whose client has closed its connection causes no pass.
func TestBusyAndGone(t *testing.T) {
	b := onDevice(t, 2)
	web := httptest.NewServer(b.handler())
	defer web.Close()
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	for i := range 2 {
		go func() {
			_, err := b.submit(ctx, token(b, i))
			errs <- err
		}()
	}
	require.Eventually(t, func() bool { return len(b.waitlist) == 2 }, time.Minute, time.Millisecond)
	code, _ := post(t, web.URL, token(b, 5))
	require.Equal(t, http.StatusServiceUnavailable, code)
	cancel()
	for range 2 {
		require.ErrorIs(t, <-errs, context.Canceled)
	}
	working(t, b)
	require.Eventually(t, func() bool { return len(b.waitlist) == 0 }, time.Minute, time.Millisecond)
	code, _ = post(t, web.URL, token(b, 5))
	require.Equal(t, http.StatusOK, code)
	s := b.snapshot()
	require.Equal(t, []int64{2, 1, 1}, []int64{s.Dropped, s.Passes, s.Tokens})
	require.EqualValues(t, 1, s.Answers[http.StatusServiceUnavailable])
}

// TestRun checks that the program's own clients get answers, and that the program ends when its
// context does.
func TestRun(t *testing.T) {
	b := onDevice(t, 64)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, l, b.server, b.load, 3) }()
	url := "http://" + l.Addr().String()
	require.Eventually(t, func() bool {
		resp, err := http.Get(url + "/stats")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		var o overview
		return json.NewDecoder(resp.Body).Decode(&o) == nil && len(o.Layers) > 0 && o.Layers[0].Passes > 2
	}, 2*time.Minute, 20*time.Millisecond)
	t.Run("browser", func(t *testing.T) { inBrowser(t, url) })
	cancel()
	require.NoError(t, <-done)
	_, err = b.submit(t.Context(), token(b, 1))
	require.ErrorIs(t, err, errStopped)

	var out, errs bytes.Buffer
	require.ErrorContains(t, run(t.Context(), []string{"-queue", "0"}, &out, &errs), "-queue 0")
	require.ErrorContains(t, run(t.Context(), []string{"-shape", "128,64,4,2"}, &out, &errs), "-tokens")
}

// first is a writer that calls a function with each text.
type first func(text string)

func (f first) Write(b []byte) (int, error) {
	f(string(b))
	return len(b), nil
}

// TestTokensOfTheDefaultLayer checks that -tokens without a size sets the largest batch of the
// device's default layer.
func TestTokensOfTheDefaultLayer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said := ""
	require.NoError(t, run(ctx, []string{"-device", "emulated", "-cache", "off", "-tokens", "17", "-listen", "127.0.0.1:0"}, first(func(text string) {
		said = text
		cancel()
	}), io.Discard))
	require.Contains(t, said, "up to 17 tokens a pass")
}

// frame is a page that shows the service's page in a frame, because no window of Chromium is narrower
// than 500 pixels. It has the text of the framed page, after its measures: the width of the frame, the
// width of the page, and the lower edge of the state.
const frame = `<!DOCTYPE html><iframe id="page" src="/page" width="%d" height="%d" style="border: 0"></iframe><pre id="text" hidden></pre><script>
setInterval(() => {
	const of = page.contentDocument, state = of.getElementById("state").getBoundingClientRect()
	text.textContent = ["measures", page.contentWindow.innerWidth, of.documentElement.scrollWidth, Math.ceil(state.bottom), of.documentElement.outerHTML].join(" ")
}, 100)</script>`

// inBrowser checks the page in headless Chromium, on a telephone and on a wide screen. The page must
// show numbers and a bar for each expert, must not be wider than the screen, and must show its state
// at the top.
func inBrowser(t *testing.T, url string) {
	bin := outside.Chromium(t)
	service, err := neturl.Parse(url)
	require.NoError(t, err)
	for width, height := range map[int]int{420: 800, 1400: 900} {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			t.Parallel() // Chromium mostly waits
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			mux := http.NewServeMux()
			proxy := httputil.NewSingleHostReverseProxy(service)
			mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(100 * time.Millisecond) // Chromium's virtual time waits for answers, and passes need real time
				proxy.ServeHTTP(w, r)
			})
			mux.HandleFunc("/page", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(page) })
			mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, frame, width, height) })
			web := httptest.NewServer(mux)
			defer web.Close()
			var dom, errs bytes.Buffer
			c := exec.CommandContext(ctx, bin, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir="+t.TempDir(),
				"--virtual-time-budget=8000", fmt.Sprintf("--window-size=%d,%d", width+100, height+100), "--dump-dom", web.URL)
			c.Stdout, c.Stderr = &dom, &errs
			require.NoError(t, c.Run(), errs.String())
			text := html.UnescapeString(dom.String())
			bars := regexp.MustCompile(`data-expert="\d+" data-rows="(\d+)"`).FindAllStringSubmatch(text, -1)
			require.Len(t, bars, emulatedRow.Config.NumExperts)
			rows := 0
			for _, m := range bars {
				rows += number(t, m[1])
			}
			require.Positive(t, rows)
			for _, want := range []string{`<polyline class="p50" points="[\d.,]+`, `id="p50">[\d.]+&nbsp;ms<`, `id="batch">[\d.]+<`, `class="ready">ready<`} {
				require.Regexp(t, want, text)
			}
			got := regexp.MustCompile(`measures (\d+) (\d+) (\d+)`).FindStringSubmatch(text)
			require.NotNil(t, got, text)
			require.Equal(t, width, number(t, got[1]))
			require.Equal(t, width, number(t, got[2]), "the page is as wide as its frame")
			require.Less(t, number(t, got[3]), 100, "the state is at the top of the page")
		})
	}
}

func number(t *testing.T, text string) int {
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}
