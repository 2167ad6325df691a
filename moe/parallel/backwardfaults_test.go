package parallel

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/moe"
)

// TestBackwardFaults plants a fault on rank 1 in each phase of a backward pass: the rank dies,
// sends too much, expects too little, or wants other gradients. It checks that the errors of the
// other ranks name the phase.
func TestBackwardFaults(t *testing.T) {
	type fault struct {
		name    string
		of      between
		change  func(b *BackwardArgs)
		dies    bool
		want    string
		anybody bool // want must be in the error of at least one other rank; if false, in the errors of all other ranks
	}
	list := []fault{
		{name: "wants no DX", change: func(b *BackwardArgs) { b.DX = moe.Tensor{} }, want: "wanted: DX is given"},
		{name: "wants no DRouter", change: func(b *BackwardArgs) { b.DRouter = moe.Gradient{} }, want: "wanted: DRouter is given"},
		{name: "gives DLogits", change: func(b *BackwardArgs) { b.DLogits = b.Scores; b.DLogits.Shape.Dims[1] = int64(small.NumExperts) }, want: "DLogits"},
		{name: "wants no DSharedGate", change: func(b *BackwardArgs) { b.DSharedGate = moe.Gradient{} }, want: "wanted: DSharedGate is given"},
		{name: "wants no RouterLosses", change: func(b *BackwardArgs) { b.RouterLosses = moe.Tensor{} }, want: "wanted: RouterLosses is given"},
		{name: "another Balance", change: func(b *BackwardArgs) { b.Balance++ }, want: "wanted: Balance of rank"},
		{name: "another ZLoss", change: func(b *BackwardArgs) { b.ZLoss++ }, want: "wanted: ZLoss of rank"},
		{name: "another Sequence", change: func(b *BackwardArgs) { b.Sequence = 45 }, want: "wanted: Sequence of rank"},
		{name: "a Sequence that does not divide", change: func(b *BackwardArgs) { b.Sequence = 40 }, want: "Sequence is 40, must be 0, or a divisor of the 90 tokens"},
		{name: "adds to DSharedW2", change: func(b *BackwardArgs) { b.DSharedW2.Accumulate = true }, want: "wanted: the type or mode of DSharedW2"},
		{name: "saved nothing", change: func(b *BackwardArgs) { b.Saved = nil }, want: "Saved is not written"},
		{name: "other tokens", change: func(b *BackwardArgs) { b.X.Shape.Dims[0]-- }, want: "tokens of the forward pass"},
		{name: "small workspace", change: func(b *BackwardArgs) { b.Workspace.Bytes-- }, want: "Workspace is"},
		{name: "wrong DW1", change: func(b *BackwardArgs) { b.DW1.Shape.Dims[0]++ }, want: "DW1 is"},
		{name: "dies at wanted", of: between{share: func(Step, []int64) error { return errDead }}, dies: true, want: "wanted: waiting for rank 1"},
	}
	for _, phase := range []string{"shared gate, sums", "shared experts, parts", "losses, values", "dispatch", "scores", "logits", "return", "router, tokens", "partials"} {
		at := func(change func(e *Exchange)) between {
			return between{move: func(at Step, list []Exchange) error {
				if at.Phase != phase {
					return nil
				}
				if change == nil {
					return errDead
				}
				change(&list[0])
				return nil
			}}
		}
		off := int64(4)
		if phase == "losses, values" { // rank 1 sends the whole tensor
			off = -off
		}
		list = append(list,
			fault{name: "dies at " + phase, of: at(nil), dies: true, want: Step{Phase: phase}.String() + ": waiting for rank 1"},
			fault{name: "sends other bytes at " + phase, of: at(func(e *Exchange) { e.SendBytes[2] += off }), want: Step{Phase: phase}.String() + ": rank 1 sends", anybody: true},
			fault{name: "expects less at " + phase, of: at(func(e *Exchange) { e.ReceiveBytes[2] -= 4 }), want: "rank 1 of 3: " + Step{Phase: phase}.String() + ": rank 2 sends", anybody: true},
		)
	}
	// The first range of the router's gradient has tokens of all three ranks.
	c := testCase{config: small, tokens: []int{40, 30, 20}}
	c.config.SharedExperts, c.config.SharedGate = 1, true
	devs, err := devices()
	require.NoError(t, err)
	tr := c.oneGPU(t, devs[0])
	modes := []moe.Option{moe.WithGradients(moe.BF16, false), moe.WithGradients(moe.BF16, true)} // one fault accumulates
	for _, f := range list {
		if testing.Short() && f.dies && f.name != "dies at dispatch" {
			continue // each case waits for its deadline
		}
		t.Run(f.name, func(t *testing.T) {
			members := join(t, c, Options{Layer: modes})
			errs := make([]error, len(members))
			require.NoError(t, each(members, func(i int, m *member) (err error) {
				if f.dies {
					m.Deadline = 3 * time.Second
				}
				if err := m.fill(tr, []int{0, 40, 70}[i], c.tokens[i]); err != nil {
					return err
				}
				b, err := m.prepare()
				if err != nil {
					return err
				}
				if i == 1 {
					if f.change != nil {
						f.change(&b)
					}
					f.of.Transport = m.transport
					m.transport = f.of
					if f.dies {
						m.transport = mute{m.transport}
					}
				}
				errs[i] = m.Backward(context.Background(), m.stream, b)
				return nil
			}))
			named := 0
			for i, err := range errs {
				require.Error(t, err, "rank %d", i)
				if errContains(err, f.want) {
					named++
				}
			}
			least := 2
			if f.anybody {
				least = 1
			}
			require.GreaterOrEqual(t, named, least, "%v", errs)
		})
	}
}

// prepare runs a forward pass that saves, and returns the arguments of its backward pass.
func (m *member) prepare() (b BackwardArgs, err error) {
	sizes, err := m.Sizes()
	if err != nil {
		return b, err
	}
	m.args.Saved = &Saved{Buffer: m.memory.Buffer(sizes.Saved)}
	b = BackwardArgs{X: m.args.X, Weights: m.args.Weights, Scores: m.args.Scores, ExpertIDs: m.args.ExpertIDs, Saved: m.args.Saved,
		DO: m.memory.Like(m.args.X), DX: m.memory.Like(m.args.X), Workspace: m.memory.Buffer(sizes.BackwardWorkspace)}
	b.DRouter.Tensor, b.DW1.Tensor = m.memory.Like(m.args.Router), m.memory.Like(m.args.W1)
	if m.Config.SharedExperts > 0 {
		b.DSharedW1.Tensor, b.DSharedW2.Tensor, b.DSharedGate.Tensor = m.memory.Like(b.SharedW1), m.memory.Like(b.SharedW2), m.memory.Like(b.SharedGate)
		b.DSharedW3.Tensor = m.memory.Like(b.SharedW3)
		m.args.Logits = m.memory.Tensor(m.Config.Shapes(int(b.X.Shape.Dims[0])).Logits)
		b.Logits, b.Losses = m.args.Logits, moe.Losses{Balance: 0.5, Sequence: 90, RouterLosses: m.memory.Tensor(m.Config.Gradients(0, moe.F32).RouterLosses)}
	}
	if err := m.memory.Err(); err != nil {
		return b, err
	}
	if err := m.stream.Fill32(b.DO.Ptr, 0, b.DO.Shape.Bytes()/4); err != nil {
		return b, err
	}
	return b, m.Forward(context.Background(), m.stream, m.args)
}
