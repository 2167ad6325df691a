//go:build unix

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	naming "github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/child"
	"sonicmoe/moe/checkpoint"
)

var soakModel = flag.String("model", "", "a model's `folder` for TestSoak, in place of random weights on the emulated device")

// soaked is a service for TestSoak, and the requests that it gets.
type soaked struct {
	args, env            []string
	hidden, most, tokens int // the width of a token, the tokens of a pass, and of a valid request
}

// soakOf returns the service for a model. Without a model it returns the service for a layer that is
// so slow on the emulated device that clients easily overload it. A model on a GPU is overloaded
// because its requests are large and its service has few threads.
func soakOf(t *testing.T, model string) soaked {
	if model == "" {
		return soaked{[]string{"-device", "emulated", "-cache", "off", "-shape", "128,512,8,4", "-tokens", "4", "-queue", "16"}, nil, 128, 4, 1}
	}
	text, err := os.ReadFile(filepath.Join(model, "config.json"))
	require.NoError(t, err)
	m, err := checkpoint.Read(text)
	require.NoError(t, err)
	device := cmp.Or(os.Getenv("SONICMOE_DEVICE"), "emulated")
	return soaked{[]string{"-device", device, "-model", model, "-tokens", "64", "-queue", "64"}, []string{"GOMAXPROCS=4"}, m.Config.Hidden, 64, 16}
}

// TestMain runs the service instead of the tests in the process that TestSoak starts.
func TestMain(m *testing.M) {
	if child.Role() == "" {
		os.Exit(m.Run())
	}
	defaultLimits.body = time.Second
	program.Main(run)
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
	switch {
	case os.Getenv("SONICMOE_LONG") != "":
		length = time.Minute
	case testing.Short():
		length = time.Second
	}
	self, err := os.Executable()
	require.NoError(t, err)
	c := &crowd{soaked: soakOf(t, *soakModel), statuses: map[int]int{}, kinds: map[string]int{}}
	c.makeBodies(t)
	service := exec.CommandContext(t.Context(), self, append(c.args, "-listen", "127.0.0.1:0")...)
	service.Env = append(child.Env("serve"), c.env...)
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
	c.url, c.host, c.web = "http://"+host, host, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DialContext: dial}}
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
		require.Len(t, o, c.tokens*c.hidden)
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
	c.web = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
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
