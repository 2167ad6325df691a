package main

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"sonicmoe/internal/peers"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/tools"
)

// sampled is the least number of tokens that are compared with the reference.
const sampled = 256

func (j *job) forward() error {
	t := j.dev.Target()
	fmt.Fprintf(j.out, "device         %s, %d SMs, %s\n", t.Name, t.SMs, j.dev.Producer())
	fmt.Fprintf(j.out, "layer          T=%d %v\n", j.row.Tokens, j.row.Config)
	var x []uint16
	var weights reference.Weights
	var draw sync.WaitGroup
	if !j.tooLong() {
		draw.Go(func() { x, weights = trial.Draw(j.row.Config, j.row.Tokens, 1, j.boost) })
	}
	l, err := j.start("your cache", j.dir)
	draw.Wait()
	if err != nil {
		return err
	}
	j.tiles(l)
	if j.tooLong() {
		j.memory()
		j.roofline()
		fmt.Fprintln(j.out, "forward        not run: too large for the emulated device, try -tokens 48")
		return j.starts()
	}
	tr, err := trial.FromHost(j.dev, l, j.row.Tokens, x, weights)
	if err != nil {
		return err
	}
	defer tr.Close()
	if err := tr.Run(j.ctx, tr.Args); err != nil {
		return err
	}
	fmt.Fprintf(j.out, "first O        %v after the process started (with making the random weights)\n", since(started))
	if err := j.judge(tr); err != nil {
		return err
	}
	j.memory()
	if err := j.speed(tr); err != nil {
		return err
	}
	return j.starts()
}

// starts prints the time of moe.New with an empty cache and with a filled one.
func (j *job) starts() error {
	dir, err := os.MkdirTemp("", "quickstart")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, name := range []string{"moe.New cold", "moe.New warm"} {
		jit.Forget(j.dev) // drop the loaded kernels, as in a new process
		if _, err := j.start(name, dir); err != nil {
			return err
		}
	}
	return nil
}

// start makes the layer with the cache in dir and prints the time that it took.
func (j *job) start(name, dir string) (*moe.Layer, error) {
	before, began := jit.Of(j.dev).Stats(), time.Now()
	l, err := moe.New(j.ctx, j.dev, j.row.Config, moe.WithLogger(j.log), moe.WithCache(j.openCache(dir)), moe.WithoutBackward())
	if err != nil {
		return nil, err
	}
	took, s := since(began), jit.Of(j.dev).Stats()
	fmt.Fprintf(j.out, "%-14s %v: %d kernels compiled, %d from the cache\n", name, took, s.Compiled-before.Compiled, s.Cached-before.Cached)
	return l, nil
}

// tiles prints the tilings of the layer's products.
func (j *job) tiles(l *moe.Layer) {
	var tiles []string
	for _, p := range tools.Products() {
		if !p.Backward() {
			tiles = append(tiles, fmt.Sprintf("%v %s", p, l.Tilings()[p.String()]))
		}
	}
	fmt.Fprintf(j.out, "tiles          %s: rows x columns, s stages, p row tiles of a group, c CTAs of a cluster\n", strings.Join(tiles, ", "))
}

// judge compares the outputs with the float64 reference, and prints the error of each.
func (j *job) judge(tr *trial.Trial) error {
	r, err := tr.Results(true)
	if err != nil {
		return err
	}
	fmt.Fprintf(j.out, "bits           %s: the same on every run and through every driver\n", digest(r))
	rep, err := tr.Check(r, sampled)
	if err != nil {
		return err
	}
	fmt.Fprintf(j.out, "error          against float64, %d tokens, every expert: O %.2g relative (worst row %.2g), H %.2g, scores within %.2g\n",
		rep.Sampled, rep.O.Frobenius, rep.O.RowError, rep.H.Frobenius, rep.Score)
	return rep.Check()
}

// digest returns a hash of the results.
func digest(r trial.Results) string {
	h := sha256.New()
	for _, values := range []any{r.O, r.H, r.Scores, r.ExpertIDs} {
		_ = binary.Write(h, binary.LittleEndian, values) // writing to a hash returns no error
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// memory prints how many bytes this library and other implementations save for backward.
func (j *job) memory() {
	fmt.Fprintf(j.out, "saved for backward:\n")
	for i, s := range spec.SavedByMethod(j.row.Config, j.row.Tokens) {
		name := s.Method
		if i == 0 {
			name = "this (" + name + ")"
		}
		fmt.Fprintf(j.out, "               %-22s %9.2f MiB\n", name, float64(s.Bytes())/(1<<20))
	}
}

// roofline prints the time of a pass at the roofline.
func (j *job) roofline() {
	roofline := spec.H200.Roofline(spec.ForwardWork(j.row.Config, j.row.Tokens))
	fmt.Fprintf(j.out, "roofline       %v on an H200, %.0f TFLOPS\n", roofline.Round(time.Microsecond), spec.TFLOPS(j.row.Config.ForwardFLOPs(j.row.Tokens), roofline))
}

// speed prints the roofline and, on a GPU, the time of a pass.
func (j *job) speed(tr *trial.Trial) error {
	j.roofline()
	if !j.gpu {
		fmt.Fprintln(j.out, "forward        not timed: the emulated device's times mean nothing")
		return nil
	}
	flops := j.row.Config.ForwardFLOPs(j.row.Tokens)
	for _, pass := range []struct {
		name string
		args moe.ForwardArgs
	}{{"forward", tr.Args}, {"inference", tr.Inference()}} {
		d, err := trial.Measure(j.ctx, j.dev, tr.Stream(), 200*time.Millisecond, 20, func() error {
			return tr.Call().Forward(tr.Stream(), pass.args)
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(j.out, "%-14s %.3f ms (fastest %.3f, slowest %.3f), %.0f TFLOPS", pass.name, ms(d.Median), ms(d.Fastest), ms(d.Slowest), spec.TFLOPS(flops, d.Median))
		if sonic := j.row.SonicForwardMS; sonic > 0 {
			fmt.Fprintf(j.out, "; forward of %s took %.3f ms on a rested H200", peers.SonicVersion, sonic)
		}
		fmt.Fprintln(j.out)
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

func since(t time.Time) time.Duration { return time.Since(t).Round(100 * time.Microsecond) }
