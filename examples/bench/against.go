package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"text/tabwriter"
	"time"

	"sonicmoe/examples/bench/report"
	"sonicmoe/internal/peers"
)

// This file measures -against: this program and another build of it, each in a process of its own, in
// turns in steady load. A build runs passes with -turns whenever it is asked to.

const (
	// turnTime is the time of a turn of one build, and turnLoad is the load before the first turn.
	turnTime = time.Second
	turnLoad = 2 * time.Second
	// turnPairs is the number of turns of each build. The order of the two changes from pair to pair.
	turnPairs = 6
)

// contender is a process of a build that runs passes on demand.
type contender struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *json.Decoder
	ms      float64 // of a pass, approximately
}

// startContender starts a build of this program for one row and pass.
func (b *bench) startContender(ctx context.Context, file string, row peers.Row) (*contender, error) {
	c := row.Config
	cmd := exec.CommandContext(ctx, file, "-turns", "-device", b.device, "-cache", b.cache, "-pass", b.pass.name, "-timeout", b.timeout.String(), "-type", b.element.String(),
		"-shape", fmt.Sprintf("%d,%d,%d,%d", c.Hidden, c.Intermediate, c.NumExperts, c.TopK), "-tokens", fmt.Sprint(row.Tokens))
	cmd.Stderr = b.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	of := &contender{cmd: cmd, in: in, answers: json.NewDecoder(out)}
	for _, n := range []int{1, 4} { // the first call waits until the layer is made
		e, err := of.run(nil, n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, errors.Join(err, of.close()))
		}
		of.ms = e.MS
	}
	return of, nil
}

// run lets the process run n passes and waits for them. Unless m is nil, it measures their energy.
func (c *contender) run(m meter, n int) (*report.Energy, error) {
	end := func() (float64, error) { return 0, nil }
	if m != nil {
		end = watch(m)
	}
	start := time.Now()
	_, err := fmt.Fprintln(c.in, n)
	if err == nil {
		var microseconds []float64 // the host's times, which are not used here
		err = c.answers.Decode(&microseconds)
	}
	e := &report.Energy{Passes: n, MS: report.Milliseconds(time.Since(start)) / float64(n)}
	watts, noWatts := end()
	e.Watts, e.Joules = watts, watts*e.MS/1e3
	return e, errors.Join(err, noWatts)
}

// close ends the process.
func (c *contender) close() error { return errors.Join(c.in.Close(), c.cmd.Wait()) }

// against measures each row in each pass with this program and with another build.
func (b *bench) against() error {
	rows, err := b.sizes(b.gpu)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "row\tpass\tms\tms of %s\tits time over this\tmJ\tmJ of it\tits energy over this\tW\tW of it\n", b.other)
	for _, b.pass = range b.passes {
		for _, row := range rows {
			all, err := b.pairs([2]string{self, b.other}, row)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", row.Name, b.pass.name, err)
			}
			var mean [2]report.Energy
			for _, pair := range all {
				for i, e := range pair {
					mean[i].MS += e.MS / turnPairs
					mean[i].Joules += e.Joules / turnPairs
				}
			}
			fmt.Fprintf(w, "%s\t%s\t%.4f\t%.4f\t%s\t%.1f\t%.1f\t%s\t%.0f\t%.0f\n", row.Name, b.pass.name, mean[0].MS, mean[1].MS,
				spreadOf(all, func(e *report.Energy) float64 { return e.MS }), 1e3*mean[0].Joules, 1e3*mean[1].Joules,
				spreadOf(all, func(e *report.Energy) float64 { return e.Joules }), 1e3*mean[0].Joules/mean[0].MS, 1e3*mean[1].Joules/mean[1].MS)
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// pairs runs two builds in turns and returns the energy and the time of a pass in each turn.
func (b *bench) pairs(files [2]string, row peers.Row) (all [][2]*report.Energy, err error) {
	ctx, cancel := context.WithTimeout(b.ctx, b.timeout)
	defer cancel()
	var both [2]*contender
	for i, file := range files {
		if both[i], err = b.startContender(ctx, file, row); err != nil {
			return nil, err
		}
		defer func() {
			if e := both[i].close(); err == nil {
				err = e
			}
		}()
	}
	load, turn := turnLoad, turnTime
	if !b.gpu {
		load, turn = 0, 0
	}
	passes := func(c *contender, d time.Duration) int { return max(1, int(report.Milliseconds(d)/c.ms)) }
	if _, err := both[0].run(nil, passes(both[0], load)); err != nil {
		return nil, err
	}
	for n := range turnPairs {
		var pair [2]*report.Energy
		for j := range both {
			i := (j + n) % 2
			if pair[i], err = both[i].run(b.meter, passes(both[i], turn)); err != nil {
				return nil, err
			}
		}
		all = append(all, pair)
	}
	return all, nil
}

// spreadOf returns the geometric mean of the ratios of the second build's value to this build's,
// over the pairs, and the least and the largest ratio.
func spreadOf(all [][2]*report.Energy, of func(*report.Energy) float64) string {
	least, most, sum := math.Inf(1), math.Inf(-1), 0.0
	for _, pair := range all {
		r := of(pair[1]) / of(pair[0])
		least, most, sum = min(least, r), max(most, r), sum+math.Log(r)/float64(len(all))
	}
	if math.IsNaN(sum) {
		return "not measured"
	}
	return fmt.Sprintf("%.3f (%.3f to %.3f)", math.Exp(sum), least, most)
}
