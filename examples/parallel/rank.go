package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sonicmoe/driver"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/parallel"
)

// member is one rank. For the comparison it also has the whole layer, with the tokens of all
// ranks, on the same device.
type member struct {
	*job
	*parallel.Rank
	number int
	// alone is the whole layer with the tokens of all ranks. first is the index of the rank's
	// first token among them.
	alone *trial.Trial
	first int
	args  parallel.Args
	back  parallel.BackwardArgs
	// memory owns the buffers of the rank.
	memory *moe.Arena
	sizes  parallel.Sizes
}

// rank runs one rank. It joins the others, compares a pass with the same pass on one device,
// and measures both.
func (j *job) rank(ctx context.Context, dev driver.Device, connect func(ctx context.Context) (parallel.Transport, error)) (err error) {
	joining, cancel := context.WithTimeout(ctx, j.deadline)
	defer cancel()
	t, err := connect(joining)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	m := &member{job: j, number: t.Rank(), first: t.Rank() * j.row.Tokens, memory: moe.NewArena(dev)}
	defer func() { err = errors.Join(err, m.memory.Free()) }()
	options := []moe.Option{moe.WithCache(j.cache), moe.WithGradients(moe.BF16, false)}
	m.Rank, err = parallel.Join(ctx, dev, t, parallel.Options{Config: j.row.Config, MaxTokens: j.row.Tokens, Chunks: j.chunks, PartialSums: j.sums, Deadline: j.deadline, Layer: options})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Rank.Close()) }()
	whole, err := moe.New(ctx, dev, j.row.Config, options...)
	if err != nil {
		return err
	}
	if m.alone, err = trial.FromHost(dev, whole, len(j.weights.X)/j.row.Config.Hidden, j.weights.X, j.weights.Weights); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.alone.Close()) }()
	if err := m.allocate(); err != nil {
		return err
	}
	return m.run(ctx)
}

// allocate allocates the rank's buffers. The rank's tokens and weights are parts of the whole
// layer's tensors.
func (m *member) allocate() (err error) {
	if err := m.alone.PrepareBackward(7, moe.BF16); err != nil {
		return err
	}
	if m.sizes, err = m.Sizes(); err != nil {
		return err
	}
	s, one, back := m.Config.Shapes(m.row.Tokens), m.alone.Args, m.alone.Back
	m.args = parallel.Args{X: m.tokens(one.X), Weights: m.Part(one.Weights), Scores: m.memory.Tensor(s.Scores), ExpertIDs: m.memory.Tensor(s.ExpertIDs),
		O: m.memory.Tensor(s.O), Saved: &parallel.Saved{Buffer: m.memory.Buffer(m.sizes.Saved)},
		Workspace: m.memory.Buffer(max(m.sizes.Workspace, m.sizes.BackwardWorkspace))}
	m.back = parallel.BackwardArgs{X: m.args.X, Weights: m.args.Weights, Scores: m.args.Scores, ExpertIDs: m.args.ExpertIDs, Saved: m.args.Saved,
		DO: m.tokens(back.DO), DX: m.memory.Tensor(s.X), Workspace: m.args.Workspace}
	for _, id := range moe.WeightIDs() {
		if g := back.Gradient(id); g != nil && !g.IsZero() {
			m.back.Gradient(id).Tensor = m.memory.Like(*m.args.Weight(id))
		}
	}
	return m.memory.Err()
}

// tokens returns the rank's rows of a tensor that has rows for all tokens.
func (m *member) tokens(of moe.Tensor) moe.Tensor {
	each := of.Shape.Bytes() / of.Shape.Dims[0]
	of.Ptr += driver.DevicePtr(each * int64(m.first))
	of.Shape.Dims[0] = int64(m.row.Tokens)
	return of
}

// run compares the rank's results with those of one device, and measures both.
func (m *member) run(ctx context.Context) error {
	if err := m.alone.Run(ctx, m.alone.Args); err != nil {
		return err
	}
	if err := m.alone.RunBackward(ctx, m.alone.Back); err != nil {
		return err
	}
	same, err := m.same(ctx)
	if err != nil {
		return err
	}
	one, err := m.alone.Args.Tokens(m.row.Tokens)
	if err != nil {
		return err
	}
	back := one.BackwardArgs()
	back.DO, back.DX, back.WeightGradients, back.Workspace = m.tokens(m.alone.Back.DO), m.tokens(m.alone.Back.DX), m.alone.Back.WeightGradients, m.alone.Back.Workspace
	s, call := m.alone.Stream(), m.alone.Call()
	var times [4]time.Duration
	for i, run := range []func() error{
		func() error { return m.Forward(ctx, s, m.args) }, func() error { return m.Backward(ctx, s, m.back) },
		func() error { return call.Forward(s, one) }, func() error { return call.Backward(s, back) },
	} {
		wait := func() error { return s.Synchronize(ctx) }
		if i < 2 {
			wait = func() error { return m.Wait(ctx, s) }
		}
		times[i], err = median(m.runs, func() error {
			if err := run(); err != nil {
				return err
			}
			return wait()
		})
		if err != nil {
			return err
		}
	}
	drawn := ""
	if m.timeline {
		if drawn, err = m.timelines(ctx, s); err != nil {
			return err
		}
	}
	m.reports[m.number] = m.report(same, times, drawn)
	if !same {
		return errBits
	}
	return nil
}

// same runs both passes, and reports whether O and all gradients have the same bits as on one
// device. With partial sums O and DX need only be near.
func (m *member) same(ctx context.Context) (bool, error) {
	s, one, back := m.alone.Stream(), m.alone.Args, m.alone.Back
	type pair struct {
		got, want moe.Tensor
		isSum     bool // O or DX
	}
	pairs := []pair{{m.args.O, m.tokens(one.O), true}, {m.args.Scores, m.tokens(one.Scores), false}, {m.args.ExpertIDs, m.tokens(one.ExpertIDs), false}, {m.back.DX, m.tokens(back.DX), true}}
	var gradients moe.Weights
	for _, id := range moe.WeightIDs() {
		if g := back.Gradient(id); g != nil {
			*gradients.Weight(id) = g.Tensor
		}
	}
	gradients = m.Part(gradients)
	for _, id := range moe.WeightIDs() {
		if g := m.back.Gradient(id); g != nil && !g.IsZero() {
			pairs = append(pairs, pair{g.Tensor, *gradients.Weight(id), false})
		}
	}
	for _, p := range pairs {
		if err := s.Fill32(p.got.Ptr, 0xffffffff, p.got.Shape.Bytes()/4); err != nil {
			return false, err
		}
	}
	if err := m.Forward(ctx, s, m.args); err != nil {
		return false, err
	}
	if err := m.Backward(ctx, s, m.back); err != nil {
		return false, err
	}
	if err := m.Wait(ctx, s); err != nil {
		return false, err
	}
	for _, p := range pairs {
		compare := sameBytes
		if m.sums && p.isSum {
			compare = near
		}
		if same, err := compare(s, p.got, p.want); !same || err != nil {
			return false, err
		}
	}
	return true, nil
}

// report returns the lines of a rank.
func (m *member) report(same bool, times [4]time.Duration, drawn string) string {
	first, count := m.Experts()
	t, bits := m.Traffic(), "bits of one device"
	if m.sums {
		bits = "sums near those of one device, all else with its bits"
	}
	if !same {
		bits = "OTHER BITS"
	}
	pass := func(together, alone time.Duration) string {
		return fmt.Sprintf("%v, one device %v (%.2f)", together.Round(time.Microsecond), alone.Round(time.Microsecond), together.Seconds()/alone.Seconds())
	}
	return fmt.Sprintf("rank %d  experts %d-%d  %d tokens, %d rows here (%.2f of the mean)  %s\n"+
		"        forward  %s  sent %s, received %s, %s/s each way\n"+
		"        backward %s\n"+
		"        workspace %s, saved %s\n%s",
		m.number, first, first+count-1, m.row.Tokens, t.Pairs, t.Imbalance, bits,
		pass(times[0], times[2]), size(float64(t.SentBytes)), size(float64(t.ReceivedBytes)), size(float64(t.SentBytes+t.ReceivedBytes)/2/times[0].Seconds()),
		pass(times[1], times[3]), size(float64(max(m.sizes.Workspace, m.sizes.BackwardWorkspace))), size(float64(m.sizes.Saved)), drawn)
}

// size returns a number of bytes as text, such as "336.8 MB".
func size(bytes float64) string {
	unit := 0
	for ; bytes >= 1000 && unit < 3; unit++ {
		bytes /= 1000
	}
	return fmt.Sprintf("%.1f %s", bytes, []string{"bytes", "kB", "MB", "GB"}[unit])
}
