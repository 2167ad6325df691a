package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// bounds are the upper bounds of the latency histogram's buckets, in seconds.
var bounds = []float64{0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5}

// recent is the number of latencies in the page's quantiles.
const recent = 512

// metrics counts requests and passes. It is safe for concurrent use.
type metrics struct {
	mu                      *sync.Mutex
	answers                 map[int]int64 // by HTTP status
	passes, tokens, dropped int64
	requests                int64     // in all passes
	experts                 []int64   // rows that each expert has had
	latency                 []int64   // number of answers in each bucket of bounds; the last bucket is above all bounds
	seconds                 float64   // sum of latencies
	last                    []float64 // ring buffer of the latest latencies
	at                      int       // its next place
}

func newMetrics(experts int) metrics {
	return metrics{mu: new(sync.Mutex), answers: map[int]int64{}, experts: make([]int64, experts), latency: make([]int64, len(bounds)+1)}
}

// answered counts an answer by its status and, if it succeeded, its latency.
func (m *metrics) answered(status int, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answers[status]++
	if status != 200 {
		return
	}
	s := took.Seconds()
	i, _ := slices.BinarySearch(bounds, s)
	m.latency[i]++
	m.seconds += s
	if len(m.last) < recent {
		m.last = append(m.last, s)
		return
	}
	m.last[m.at] = s
	m.at = (m.at + 1) % recent
}

// drop counts a request whose client went away before its pass.
func (m *metrics) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropped++
}

// passed counts a pass and the rows of each expert by their ids.
func (m *metrics) passed(requests, tokens int, ids []int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.passes++
	m.requests += int64(requests)
	m.tokens += int64(tokens)
	for _, id := range ids {
		m.experts[id]++
	}
}

// snapshot is the metrics at one time, as the page shows them.
type snapshot struct {
	Answers  map[int]int64 `json:"answers"`
	Passes   int64         `json:"passes"`
	Requests int64         `json:"requests"`
	Tokens   int64         `json:"tokens"`
	Dropped  int64         `json:"dropped"`
	Waiting  int           `json:"waiting"`
	Experts  []int64       `json:"experts"`
	// P50 and P99 are quantiles of the latest latencies, in milliseconds.
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

func (m *metrics) snapshot(waiting int) snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := snapshot{maps.Clone(m.answers), m.passes, m.requests, m.tokens, m.dropped, waiting, slices.Clone(m.experts), 0, 0}
	if n := len(m.last); n > 0 {
		sorted := slices.Sorted(slices.Values(m.last))
		s.P50, s.P99 = 1e3*sorted[n/2], 1e3*sorted[n*99/100]
	}
	return s
}

// write writes all metrics in Prometheus's text format.
func (m *metrics) write(w io.Writer, waiting int) {
	s := m.snapshot(waiting)
	m.mu.Lock()
	defer m.mu.Unlock()
	head := func(name, kind, help string) { fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	for _, c := range []struct {
		name, kind, help string
		value            int64
	}{
		{"sonicmoe_passes_total", "counter", "Forward passes.", s.Passes},
		{"sonicmoe_batched_requests_total", "counter", "Requests in those passes.", s.Requests},
		{"sonicmoe_tokens_total", "counter", "Tokens in those passes.", s.Tokens},
		{"sonicmoe_dropped_requests_total", "counter", "Requests whose client went away before their pass.", s.Dropped},
		{"sonicmoe_waiting_requests", "gauge", "Requests that are waiting.", int64(s.Waiting)},
	} {
		head(c.name, c.kind, c.help)
		fmt.Fprintf(w, "%s %d\n", c.name, c.value)
	}
	head("sonicmoe_answers_total", "counter", "Answers by HTTP status.")
	for _, status := range slices.Sorted(maps.Keys(s.Answers)) {
		fmt.Fprintf(w, "sonicmoe_answers_total{status=\"%d\"} %d\n", status, s.Answers[status])
	}
	head("sonicmoe_expert_rows_total", "counter", "Rows of each expert.")
	for e, n := range s.Experts {
		fmt.Fprintf(w, "sonicmoe_expert_rows_total{expert=\"%d\"} %d\n", e, n)
	}
	head("sonicmoe_latency_seconds", "histogram", "Time from a request to its answer.")
	var sum int64
	for i, bound := range bounds {
		sum += m.latency[i]
		fmt.Fprintf(w, "sonicmoe_latency_seconds_bucket{le=\"%g\"} %d\n", bound, sum)
	}
	sum += m.latency[len(bounds)]
	fmt.Fprintf(w, "sonicmoe_latency_seconds_bucket{le=\"+Inf\"} %d\nsonicmoe_latency_seconds_sum %g\nsonicmoe_latency_seconds_count %[1]d\n", sum, m.seconds)
}
