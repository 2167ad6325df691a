package main

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// bounds are the upper bounds of the latency histogram's buckets, in seconds.
var bounds = []float64{0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5}

// recent is the number of latencies from which the page's quantiles are computed.
const recent = 512

// stats counts a layer's requests and passes. It is safe for concurrent use.
type stats struct {
	mu *sync.Mutex
	// now holds the counters. Its fields Waiting, P50 and P99 are not used.
	now     snapshot
	latency []uint64  // number of answers in each bucket of bounds
	last    []float64 // ring buffer of the latest latencies in seconds
	at      int       // next index in last
}

// snapshot holds the counters at one time, as the page shows them.
type snapshot struct {
	Answers  map[int]int64 `json:"answers"` // by HTTP status
	Passes   int64         `json:"passes"`
	Requests int64         `json:"requests"` // in all passes
	Tokens   int64         `json:"tokens"`
	Dropped  int64         `json:"dropped"`
	Waiting  int           `json:"waiting"`
	Experts  []int64       `json:"experts"` // number of rows that each expert has had
	// P50 and P99 are quantiles of the latest latencies, in milliseconds.
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`

	count   uint64             // successful answers
	seconds float64            // sum of their latencies
	below   map[float64]uint64 // for each latency in bounds, the number of answers that took at most that long
}

func newStats(experts int) stats {
	return stats{mu: new(sync.Mutex), now: snapshot{Answers: map[int]int64{}, Experts: make([]int64, experts)}, latency: make([]uint64, len(bounds)+1)}
}

// answered counts an answer by its status. If the request succeeded, it also records the
// latency.
func (m *stats) answered(status int, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Answers[status]++
	if status != 200 {
		return
	}
	s := took.Seconds()
	i, _ := slices.BinarySearch(bounds, s)
	m.latency[i]++
	m.now.count++
	m.now.seconds += s
	if len(m.last) < recent {
		m.last = append(m.last, s)
		return
	}
	m.last[m.at] = s
	m.at = (m.at + 1) % recent
}

// drop counts a request whose client closed the connection before its pass.
func (m *stats) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Dropped++
}

// passed counts a pass, and the rows of each expert, given the expert ids.
func (m *stats) passed(requests, tokens int, ids []int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Passes++
	m.now.Requests += int64(requests)
	m.now.Tokens += int64(tokens)
	for _, id := range ids {
		m.now.Experts[id]++
	}
}

// snapshot returns the layer's counters.
func (b *batcher) snapshot() snapshot {
	m := &b.stats
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.now
	s.Waiting = len(b.waitlist)
	s.Answers, s.Experts, s.below = maps.Clone(s.Answers), slices.Clone(s.Experts), map[float64]uint64{}
	var sum uint64
	for i, bound := range bounds {
		sum += m.latency[i]
		s.below[bound] = sum
	}
	if n := len(m.last); n > 0 {
		sorted := slices.Sorted(slices.Values(m.last))
		s.P50, s.P99 = 1e3*sorted[n/2], 1e3*sorted[n*99/100]
	}
	return s
}
