// Package report is what bench has measured, as others can read it too: the
// report and its file, its tables and pictures, and the cost model's constants
// fitted to it. How it is measured is the command's.
package report

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"sonicmoe/internal/disk"
	"sonicmoe/jit/gemm"
)

// Schema is the version of [Report]: a field that changes its meaning or goes
// raises it, a new field does not.
const Schema = 4

// Report is everything one run measured; -json writes it.
type Report struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"`
	// Device and Driver name what ran; times on an emulated device are the
	// host's and mean nothing.
	Device   string `json:"device"`
	Driver   string `json:"driver"`
	Emulated bool   `json:"emulated"`
	SMs      int    `json:"sms"`
	// Section is the pass that was measured, of -pass both forward; Backward is
	// the backward pass of -pass both.
	Section
	Backward *Section `json:"backward,omitempty"`
	// WarmMS and Repeats are the rule of the times: so long a warm-up, so many
	// back-to-back passes.
	WarmMS  float64 `json:"warm_ms"`
	Repeats int     `json:"repeats"`
	// RooflineTFLOPS and RooflineTBps are the rates of the roofline.
	RooflineTFLOPS float64  `json:"roofline_tflops"`
	RooflineTBps   float64  `json:"roofline_tbps"`
	Fit            *Fit     `json:"fit,omitempty"`
	Warnings       []string `json:"warnings,omitempty"`
}

// Section is one pass at all sizes.
type Section struct {
	// Pass is "forward", "inference" or "backward".
	Pass string `json:"pass"`
	Rows []Row  `json:"rows"`
	// Sonic is the geometric mean of our speed after WarmMS of load over
	// SonicMoE's, of the rows that have one.
	Sonic float64 `json:"sonic_geomean,omitempty"`
	// SonicRested is the same of our speed on a rested chip.
	SonicRested float64 `json:"sonic_rested_geomean,omitempty"`
}

// Sections are the report's passes in their order.
func (r *Report) Sections() []*Section {
	list := []*Section{&r.Section}
	if r.Backward != nil {
		list = append(list, r.Backward)
	}
	return list
}

// Row is one size.
type Row struct {
	Name string `json:"name"`
	Size
	// Error is why the row is not complete.
	Error string `json:"error,omitempty"`
	// Tiles are the tilings of the pass's products.
	Tiles []Tiled `json:"tiles,omitempty"`
	// NewMS is what moe.New took, for so many kernels, of which so many were
	// compiled; the others came from the cache or were loaded already.
	NewMS    float64 `json:"new_ms,omitempty"`
	New      int     `json:"new_kernels,omitempty"`
	Compiled int     `json:"new_compiled,omitempty"`
	// Startup is what it takes with caches of its own, for each kind of layer.
	Startup []Startup `json:"startup,omitempty"`
	// Eager are single passes, back to back; Graph the same as replays.
	Eager *Sample `json:"eager,omitempty"`
	Graph *Sample `json:"graph,omitempty"`
	// Flushed has the L2 cache overwritten before each pass; Cool is five passes
	// at a time on a rested chip, as SonicMoE's figures were taken; Sustained
	// follows two seconds of load.
	Flushed   *Sample `json:"flushed,omitempty"`
	Cool      *Sample `json:"cool,omitempty"`
	Sustained *Sample `json:"sustained,omitempty"`
	// TFLOPS is the speed of the faster of Eager's and Graph's medians, Roofline
	// the most that the roofline allows.
	TFLOPS   float64 `json:"tflops,omitempty"`
	Roofline float64 `json:"roofline_tflops,omitempty"`
	// RooflineMS is the roofline's time of a pass.
	RooflineMS float64 `json:"roofline_ms,omitempty"`
	Peers      []Peer  `json:"peers,omitempty"`
	// Kernels are the pass kernel by kernel, with events between them.
	Kernels []Kernel `json:"kernels,omitempty"`
	// KernelSumMS is the sum of the kernels' medians.
	KernelSumMS float64   `json:"kernel_sum_ms,omitempty"`
	Host        *Host     `json:"host,omitempty"`
	Routing     []Routing `json:"routing,omitempty"`
	// Points are product by product, the fastest of each first.
	Points   []Point  `json:"points,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// Tiled is a product with its tiling in words: "up", "128x256 s4 p8 c2".
type Tiled struct {
	Product string `json:"product"`
	Tiling  string `json:"tiling"`
}

// Sample is the device times of repeats.
type Sample struct {
	MedianMS  float64 `json:"median_ms"`
	FastestMS float64 `json:"fastest_ms"`
	SlowestMS float64 `json:"slowest_ms"`
	Repeats   int     `json:"repeats"`
	// Rounds are equal parts of the repeats, in their order.
	Rounds []Round `json:"rounds,omitempty"`
}

// SampleOf is the sample of these milliseconds, at least one, which it sorts.
func SampleOf(ms []float64) *Sample {
	return &Sample{MedianMS: Median(ms), FastestMS: slices.Min(ms), SlowestMS: slices.Max(ms), Repeats: len(ms)}
}

// Round is one part of the repeats.
type Round struct {
	MedianMS float64 `json:"median_ms"`
	// GHz is the mean SM clock over the round, 0 where there is none.
	GHz float64 `json:"ghz"`
}

// Spread is how far the slowest repeat lies from the fastest, in parts of the
// median.
func (s Sample) Spread() float64 { return (s.SlowestMS - s.FastestMS) / s.MedianMS }

// GHz is the mean SM clock over the repeats.
func (s Sample) GHz() float64 {
	var sum float64
	for _, r := range s.Rounds {
		sum += r.GHz
	}
	return sum / float64(max(1, len(s.Rounds)))
}

// Clocks are the lowest and highest clock of the rounds, 0 without clocks.
func (s *Sample) Clocks() (low, high float64) {
	for i, r := range s.Rounds {
		if i == 0 {
			low, high = r.GHz, r.GHz
		}
		low, high = min(low, r.GHz), max(high, r.GHz)
	}
	return low, high
}

// Peer is another implementation's recorded speed at the same size.
type Peer struct {
	Name   string  `json:"name"`
	TFLOPS float64 `json:"tflops"`
	// Ratio is our speed over it.
	Ratio float64 `json:"ratio"`
}

// Kernel is one kernel of a pass, in its place.
type Kernel struct {
	Name      string  `json:"name"`
	MedianMS  float64 `json:"median_ms"`
	FastestMS float64 `json:"fastest_ms"`
	SlowestMS float64 `json:"slowest_ms"`
	// RooflineMS is the least time of its work, 0 for work that the roofline
	// does not have.
	RooflineMS float64 `json:"roofline_ms"`
	// TFLOPS and TBps are its work over its time.
	TFLOPS float64 `json:"tflops"`
	TBps   float64 `json:"tbps"`
}

// Host is the time and memory that a pass takes of the host.
type Host struct {
	// EagerUS is one call, GraphUS one graph launch: the median of the
	// microseconds until it returns, of single calls. They are made in Batches
	// of Batch calls, with the stream idle before each batch.
	EagerUS float64 `json:"eager_us"`
	GraphUS float64 `json:"graph_us"`
	Batches int     `json:"batches"`
	Batch   int     `json:"batch"`
	// A tenth of the calls take at most Low, a tenth at least High.
	EagerLowUS  float64 `json:"eager_low_us"`
	EagerHighUS float64 `json:"eager_high_us"`
	GraphLowUS  float64 `json:"graph_low_us"`
	GraphHighUS float64 `json:"graph_high_us"`
	// EagerAllocs and GraphAllocs count objects on the Go heap for each call.
	EagerAllocs float64 `json:"eager_allocs"`
	GraphAllocs float64 `json:"graph_allocs"`
}

// Routing is the speed of the experts, without the router and what it learns by,
// with some distribution of rows.
type Routing struct {
	Kind string `json:"kind"`
	// Largest is the rows of the fullest expert over the mean, Empty the
	// experts without rows.
	Largest float64 `json:"largest"`
	Empty   int     `json:"empty"`
	Sample  Sample  `json:"sample"`
	// RowsPerSecond counts R = T·K rows; Uniform is the ratio to uniform's.
	RowsPerSecond float64 `json:"rows_per_second"`
	Uniform       float64 `json:"uniform"`
}

// Point is a measured tile point of a product.
type Point struct {
	Product string      `json:"product"`
	Point   gemm.Tiling `json:"point"`
	MS      float64     `json:"ms"`
	// EstimateMS is the model's, Chosen whether it picks the point.
	EstimateMS float64 `json:"estimate_ms"`
	Chosen     bool    `json:"chosen"`
}

// Median sorts the values.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// geomean is the geometric mean, 0 of nothing.
func geomean(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	var sum float64
	for _, x := range v {
		sum += math.Log(x)
	}
	return math.Exp(sum / float64(len(v)))
}

func Milliseconds(d time.Duration) float64 { return float64(d) / 1e6 }

// Failed is how many rows have an error.
func (r *Report) Failed() int {
	n := 0
	for _, s := range r.Sections() {
		for _, row := range s.Rows {
			if row.Error != "" {
				n++
			}
		}
	}
	return n
}

// Summarize computes what rows have together.
func (s *Section) Summarize() {
	var ratios, rested []float64
	for _, row := range s.Rows {
		if x := row.rested(); x > 0 {
			rested = append(rested, x)
		}
		for _, p := range row.Peers {
			if p.Name == "SonicMoE" && p.Ratio > 0 {
				ratios = append(ratios, p.Ratio)
			}
		}
	}
	s.Sonic, s.SonicRested = geomean(ratios), geomean(rested)
}

// rested is our speed over SonicMoE's as its figures were taken: on a rested
// chip, unscaled. 0 where either is unknown.
func (r Row) rested() float64 {
	for _, p := range r.Peers {
		if p.Name == "SonicMoE" && p.TFLOPS > 0 && r.Cool != nil {
			return r.Roofline * r.RooflineMS / r.Cool.MedianMS / p.TFLOPS
		}
	}
	return 0
}

// Write puts the report in a file, as a whole or not at all.
func (r *Report) Write(path string) error { return WriteJSON(path, r) }

// WriteJSON puts a value in a file, as a whole or not at all.
func WriteJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return disk.WriteFile(disk.OS, path, 0o644, func(w io.Writer) error {
		_, err := w.Write(append(b, '\n'))
		return err
	})
}

// CheckFile says why no report can be written to a path, before hours are spent
// on what is to be written. It changes nothing.
func CheckFile(path string) error {
	p, err := disk.Begin(disk.OS, path, 0o644)
	if err != nil {
		return err
	}
	return p.Discard()
}

// maxReport bounds a report, in bytes.
const maxReport = 64 << 20

// Read reads a report that Write wrote.
func Read(ctx context.Context, path string) (*Report, error) {
	b, err := disk.ReadFile(ctx, disk.OS, path, maxReport)
	if err != nil {
		return nil, err
	}
	r := new(Report)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if r.Schema != Schema {
		return nil, fmt.Errorf("%s is a report of schema %d, must be %d: measure again with this bench", path, r.Schema, Schema)
	}
	return r, nil
}

// Startup is what moe.New takes.
type Startup struct {
	// What is "forward" (moe.WithoutBackward) or "forward and backward".
	What    string `json:"what"`
	Kernels int    `json:"kernels"`
	// ColdMS is with an empty cache directory: all kernels are compiled. WarmMS
	// is as in a process that finds them there, AgainMS in one that has them
	// loaded.
	ColdMS  float64 `json:"cold_ms"`
	WarmMS  float64 `json:"warm_ms"`
	AgainMS float64 `json:"again_ms"`
}
