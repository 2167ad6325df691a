// Package report holds the results of the command bench, and is also for other programs. It has
// the report and its file, tables, pictures, and the fit of the cost model's constants. The
// command itself measures.
package report

import (
	"encoding/json"
	"io"
	"math"
	"slices"
	"time"

	"sonicmoe/internal/disk"
	"sonicmoe/jit/gemm"
)

// Schema is the version of [Report]. It rises when a field changes its meaning or is removed,
// but not when a field is added.
const Schema = 4

// Report holds all measurements of one run. The flag -json writes it to a file.
type Report struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"`
	// Device and Driver name the device. Times on an emulated device mean nothing.
	Device   string `json:"device"`
	Driver   string `json:"driver"`
	Emulated bool   `json:"emulated"`
	SMs      int    `json:"sms"`
	// Section is the measured pass. With -pass both, it is the forward pass, and Backward is
	// the backward pass. Otherwise Backward is nil.
	Section
	Backward *Section `json:"backward,omitempty"`
	// WarmMS is the time of the warm-up before each measurement, and Repeats is the number of
	// back-to-back passes of a measurement.
	WarmMS  float64 `json:"warm_ms"`
	Repeats int     `json:"repeats"`
	// RooflineTFLOPS and RooflineTBps are the rates with which rooflines are computed.
	RooflineTFLOPS float64  `json:"roofline_tflops"`
	RooflineTBps   float64  `json:"roofline_tbps"`
	Fit            *Fit     `json:"fit,omitempty"`
	Warnings       []string `json:"warnings,omitempty"`
}

// Section holds one pass at all sizes.
type Section struct {
	// Pass is "forward", "inference" or "backward".
	Pass string `json:"pass"`
	Rows []Row  `json:"rows"`
	// Sonic is the geometric mean, over the rows with a figure of SonicMoE, of our speed after
	// WarmMS of load divided by SonicMoE's speed.
	Sonic float64 `json:"sonic_geomean,omitempty"`
	// SonicRested is like Sonic, but for our speed on a rested chip.
	SonicRested float64 `json:"sonic_rested_geomean,omitempty"`
}

// Sections returns the report's passes in their order.
func (r *Report) Sections() []*Section {
	list := []*Section{&r.Section}
	if r.Backward != nil {
		list = append(list, r.Backward)
	}
	return list
}

// Row holds the measurements of one size of layer and batch.
type Row struct {
	Name string `json:"name"`
	Size
	// Error is the reason why the row is incomplete, or empty.
	Error string `json:"error,omitempty"`
	// Tiles lists the tilings of the products in the pass.
	Tiles []Tiled `json:"tiles,omitempty"`
	// NewMS is the time of moe.New, and New is the number of kernels of the layer. Compiled is the
	// number of these kernels that were compiled. The other kernels came from the cache or were
	// already loaded.
	NewMS    float64 `json:"new_ms,omitempty"`
	New      int     `json:"new_kernels,omitempty"`
	Compiled int     `json:"new_compiled,omitempty"`
	// Startup holds times of moe.New for each kind of layer, measured with cache directories of
	// their own.
	Startup []Startup `json:"startup,omitempty"`
	// Eager is for single passes that are queued back to back. Graph is for replays of a CUDA
	// graph of the pass.
	Eager *Sample `json:"eager,omitempty"`
	Graph *Sample `json:"graph,omitempty"`
	// Flushed is for passes with a cold L2 cache. Cool is for series of five passes on a rested
	// chip, the way in which SonicMoE's figures were measured. Sustained is for passes after
	// two seconds of load.
	Flushed   *Sample `json:"flushed,omitempty"`
	Cool      *Sample `json:"cool,omitempty"`
	Sustained *Sample `json:"sustained,omitempty"`
	// Energy is the energy of passes in steady load: 3 seconds of passes after 2 seconds of
	// load.
	Energy *Energy `json:"energy,omitempty"`
	// TFLOPS is the speed that follows from the smaller median of Eager and Graph. Roofline is
	// the speed at the roofline.
	TFLOPS   float64 `json:"tflops,omitempty"`
	Roofline float64 `json:"roofline_tflops,omitempty"`
	// RooflineMS is the time of a pass at the roofline.
	RooflineMS float64 `json:"roofline_ms,omitempty"`
	Peers      []Peer  `json:"peers,omitempty"`
	// Kernels holds the time of each kernel, measured in runs of the whole pass by events
	// between the kernels.
	Kernels []Kernel `json:"kernels,omitempty"`
	// KernelSumMS is the sum of the median times of the kernels.
	KernelSumMS float64   `json:"kernel_sum_ms,omitempty"`
	Host        *Host     `json:"host,omitempty"`
	Routing     []Routing `json:"routing,omitempty"`
	// Points holds the measured tilings of each product, the fastest first.
	Points   []Point  `json:"points,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// Energy is the energy of a pass or of a kernel, read from the device's own counter.
type Energy struct {
	// Passes is the number of back-to-back repeats, and MS is the time of one by the host's
	// clock.
	Passes int     `json:"passes"`
	MS     float64 `json:"ms"`
	// Joules is the energy of one repeat, and Watts is the mean power.
	Joules float64 `json:"joules"`
	Watts  float64 `json:"watts"`
	// GHz is the mean SM clock, or 0 if it was not measured.
	GHz float64 `json:"ghz,omitempty"`
	// PicojoulesPerFLOP is the energy divided by the FLOPs of the products, or 0 for a kernel
	// without a product.
	PicojoulesPerFLOP float64 `json:"pj_per_flop,omitempty"`
}

// Tiled is a product with its tiling as text: "up", "128x256 s4 p8 c2".
type Tiled struct {
	Product string `json:"product"`
	Tiling  string `json:"tiling"`
}

// Sample summarises the device times of repeated passes.
type Sample struct {
	MedianMS  float64 `json:"median_ms"`
	FastestMS float64 `json:"fastest_ms"`
	SlowestMS float64 `json:"slowest_ms"`
	Repeats   int     `json:"repeats"`
	// Rounds are parts of the repeats, of equal size and in order.
	Rounds []Round `json:"rounds,omitempty"`
}

// SampleOf returns the summary of at least one time in milliseconds. It sorts ms.
func SampleOf(ms []float64) *Sample {
	return &Sample{MedianMS: Median(ms), FastestMS: slices.Min(ms), SlowestMS: slices.Max(ms), Repeats: len(ms)}
}

// Round summarises one part of the repeats.
type Round struct {
	MedianMS float64 `json:"median_ms"`
	// GHz is the mean SM clock during the round, or 0 if it was not measured.
	GHz float64 `json:"ghz"`
}

// Spread returns the difference between the slowest and the fastest repeat, divided by the
// median.
func (s Sample) Spread() float64 { return (s.SlowestMS - s.FastestMS) / s.MedianMS }

// GHz returns the mean SM clock over the repeats.
func (s Sample) GHz() float64 {
	var sum float64
	for _, r := range s.Rounds {
		sum += r.GHz
	}
	return sum / float64(max(1, len(s.Rounds)))
}

// Clocks returns the lowest and the highest clock of the rounds, or 0 if clocks were not
// measured.
func (s *Sample) Clocks() (low, high float64) {
	for i, r := range s.Rounds {
		if i == 0 {
			low, high = r.GHz, r.GHz
		}
		low, high = min(low, r.GHz), max(high, r.GHz)
	}
	return low, high
}

// Peer is the recorded speed of another implementation at the same size.
type Peer struct {
	Name   string  `json:"name"`
	TFLOPS float64 `json:"tflops"`
	// Ratio is our speed divided by the peer's speed.
	Ratio float64 `json:"ratio"`
}

// Kernel holds the measurement of one kernel in a run of the whole pass.
type Kernel struct {
	Name      string  `json:"name"`
	MedianMS  float64 `json:"median_ms"`
	FastestMS float64 `json:"fastest_ms"`
	SlowestMS float64 `json:"slowest_ms"`
	// RooflineMS is the roofline's time for the kernel's work, or 0 for a kernel that the
	// roofline does not count.
	RooflineMS float64 `json:"roofline_ms"`
	// TFLOPS and TBps are the kernel's operations and bytes divided by its time.
	TFLOPS float64 `json:"tflops"`
	TBps   float64 `json:"tbps"`
	// Alone is the energy of the kernel in steady load without the pass's other kernels, or nil.
	Alone *Energy `json:"alone,omitempty"`
}

// Host holds the host's time and allocations for a pass.
type Host struct {
	// EagerUS is the median time in microseconds until a call that queues a pass returns. GraphUS
	// is the median time until a graph launch returns. Both are measured over several batches of
	// calls. Batches is the number of batches, and Batch is the number of calls in a batch. The
	// stream is idle before each batch.
	EagerUS float64 `json:"eager_us"`
	GraphUS float64 `json:"graph_us"`
	Batches int     `json:"batches"`
	Batch   int     `json:"batch"`
	// Low and High are the 10th and the 90th percentile of the times whose medians are EagerUS and
	// GraphUS.
	EagerLowUS  float64 `json:"eager_low_us"`
	EagerHighUS float64 `json:"eager_high_us"`
	GraphLowUS  float64 `json:"graph_low_us"`
	GraphHighUS float64 `json:"graph_high_us"`
	// EagerAllocs and GraphAllocs are the numbers of objects that a call allocates on the Go
	// heap.
	EagerAllocs float64 `json:"eager_allocs"`
	GraphAllocs float64 `json:"graph_allocs"`
}

// Routing holds the speed of only the experts, without the router and its gradients, for one
// distribution of rows over experts.
type Routing struct {
	Kind string `json:"kind"`
	// Largest is the largest number of rows of an expert, divided by the mean number. Empty is
	// the number of experts without rows.
	Largest float64 `json:"largest"`
	Empty   int     `json:"empty"`
	Sample  Sample  `json:"sample"`
	// RowsPerSecond is the number of rows R = T·K divided by the time. Uniform is RowsPerSecond
	// divided by the RowsPerSecond of uniform routing.
	RowsPerSecond float64 `json:"rows_per_second"`
	Uniform       float64 `json:"uniform"`
}

// Point is the measurement of one tiling of a product.
type Point struct {
	Product string      `json:"product"`
	Point   gemm.Tiling `json:"point"`
	MS      float64     `json:"ms"`
	// EstimateMS is the cost model's estimate of the time. Chosen reports whether the model
	// chooses the tiling.
	EstimateMS float64 `json:"estimate_ms"`
	Chosen     bool    `json:"chosen"`
}

// Median returns the median of values, or 0 if there are none. It sorts v.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// geomean returns the geometric mean of values, or 0 if there are none.
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

// Failed returns the number of rows, over all passes, whose measurement ended with an error.
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

// Summarize computes the geometric means over the rows of the section.
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

// rested returns our speed on a rested chip divided by SonicMoE's figure, or 0 if either is
// unknown.
func (r Row) rested() float64 {
	for _, p := range r.Peers {
		if p.Name == "SonicMoE" && p.TFLOPS > 0 && r.Cool != nil {
			return r.Roofline * r.RooflineMS / r.Cool.MedianMS / p.TFLOPS
		}
	}
	return 0
}

// Write writes the report to a file. The file is replaced as a whole or not at all.
func (r *Report) Write(path string) error { return WriteJSON(path, r) }

// WriteJSON writes a value to a file as JSON. The file is replaced as a whole or not at all.
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

// CheckFile returns an error if no report can be written to the path. It changes nothing. A run
// that takes hours calls it at the start.
func CheckFile(path string) error {
	p, err := disk.Begin(disk.OS, path, 0o644)
	if err != nil {
		return err
	}
	return p.Discard()
}

// Startup holds times of moe.New.
type Startup struct {
	// What names the passes and gradients for which the layer has kernels.
	What    string `json:"what"`
	Kernels int    `json:"kernels"`
	// ColdMS is the time with an empty cache directory, when all kernels are compiled. WarmMS
	// is the time with a filled directory. AgainMS is the time in a process that has already
	// loaded the kernels.
	ColdMS  float64 `json:"cold_ms"`
	WarmMS  float64 `json:"warm_ms"`
	AgainMS float64 `json:"again_ms"`
}
