package moe_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/moe"
)

// wrong is one mistake in the buffers of a pass.
type wrong struct {
	name  string
	field string // the field that the error names
	make  func(f *moe.ForwardArgs)
}

var wrongs = []wrong{
	{"X of rank 1", "X", func(f *moe.ForwardArgs) { f.X = moe.TensorAt(f.X.Ptr, moe.BF16, 70*192) }},
	{"X of negative tokens", "X", func(f *moe.ForwardArgs) { f.X.Shape.Dims[0] = -1 }},
	{"X of too many pairs", "X", func(f *moe.ForwardArgs) { f.X.Shape.Dims[0] = 1 << 30 }},
	{"X too narrow", "X", func(f *moe.ForwardArgs) { f.X.Shape.Dims[1] = 128 }},
	{"X in FP32", "X", func(f *moe.ForwardArgs) { f.X.Shape.Type = moe.F32 }},
	{"X nil", "X.Ptr", func(f *moe.ForwardArgs) { f.X.Ptr = 0 }},
	{"X misaligned", "X.Ptr", func(f *moe.ForwardArgs) { f.X.Ptr += 2 }},
	{"Router of other experts", "Router", func(f *moe.ForwardArgs) { f.Router.Shape.Dims[0]++ }},
	{"Router absent", "Router", func(f *moe.ForwardArgs) { f.Router = moe.Tensor{} }},
	{"Router nil", "Router.Ptr", func(f *moe.ForwardArgs) { f.Router.Ptr = 0 }},
	{"W1 of n rows", "W1", func(f *moe.ForwardArgs) { f.W1.Shape.Dims[1] /= 2 }},
	{"W1 misaligned", "W1.Ptr", func(f *moe.ForwardArgs) { f.W1.Ptr += 8 }},
	{"W2 transposed", "W2", func(f *moe.ForwardArgs) { d := &f.W2.Shape.Dims; d[1], d[2] = d[2], d[1] }},
	{"W2 of rank 2", "W2", func(f *moe.ForwardArgs) { f.W2.Shape.Rank = 2 }},
	{"O of other tokens", "O", func(f *moe.ForwardArgs) { f.O.Shape.Dims[0]-- }},
	{"O nil", "O.Ptr", func(f *moe.ForwardArgs) { f.O.Ptr = 0 }},
	{"H of T rows", "H", func(f *moe.ForwardArgs) { f.H.Shape.Dims[0] /= 2 }},
	{"H misaligned", "H.Ptr", func(f *moe.ForwardArgs) { f.H.Ptr += 4 }},
	{"Scores in bf16", "Scores", func(f *moe.ForwardArgs) { f.Scores.Shape.Type = moe.BF16 }},
	{"Scores nil", "Scores.Ptr", func(f *moe.ForwardArgs) { f.Scores.Ptr = 0 }},
	{"Experts in FP32", "ExpertIDs", func(f *moe.ForwardArgs) { f.ExpertIDs.Shape.Type = moe.F32 }},
	{"Experts of other K", "ExpertIDs", func(f *moe.ForwardArgs) { f.ExpertIDs.Shape.Dims[1]++ }},
	{"Workspace too short", "Workspace", func(f *moe.ForwardArgs) { f.Workspace.Bytes-- }},
	{"Workspace absent", "Workspace", func(f *moe.ForwardArgs) { f.Workspace = moe.Buffer{} }},
	{"Workspace nil", "Workspace.Ptr", func(f *moe.ForwardArgs) { f.Workspace.Ptr = 0 }},
	{"Workspace misaligned", "Workspace.Ptr", func(f *moe.ForwardArgs) { f.Workspace.Ptr += 16 }},
	{"O is X", "O", func(f *moe.ForwardArgs) { f.O.Ptr = f.X.Ptr }},
	{"H begins in the end of O", "H", func(f *moe.ForwardArgs) { f.H.Ptr = f.O.Ptr + 70*192*2 - 16 }},
	{"Experts are Scores", "ExpertIDs", func(f *moe.ForwardArgs) { f.ExpertIDs.Ptr = f.Scores.Ptr }},
	{"Scores in O", "O", func(f *moe.ForwardArgs) { f.Scores.Ptr = f.O.Ptr + 1024 }},
	{"Workspace over W2", "Workspace", func(f *moe.ForwardArgs) { f.Workspace.Ptr = f.W2.Ptr }},
}

// TestArgErrors checks that a wrong buffer gives an *ArgError with its name, that
// nothing is launched, and that the call works afterwards.
func TestArgErrors(t *testing.T) {
	tr := trialOn(t, testDevice(t), tiny, 70)
	require.NoError(t, tr.Poison())
	for _, w := range wrongs {
		t.Run(w.name, func(t *testing.T) {
			f := tr.Args
			w.make(&f)
			n, err := launches(t, tr.Stream(), func() error { return tr.Call().Forward(tr.Stream(), f) })
			wantArgError(t, err, w.field)
			require.Zero(t, n, "something was launched")

			// Route and ForwardExperts refuse the buffers that they use.
			n, err = launches(t, tr.Stream(), func() error { return tr.Call().Route(tr.Stream(), f) })
			if concernsRoute(w) {
				wantArgError(t, err, w.field)
				require.Zero(t, n, "Route launched something")
			} else {
				require.NoError(t, err)
			}
			n, err = launches(t, tr.Stream(), func() error { return tr.Call().ForwardExperts(tr.Stream(), f) })
			if concernsExperts(w) {
				wantArgError(t, err, w.field)
				require.Zero(t, n, "ExpertIDs launched something")
			} else {
				require.NoError(t, err)
			}
		})
	}
	r, err := tr.Results(true)
	require.NoError(t, err)
	for _, v := range append(r.O, r.H...) {
		require.Equal(t, reference.Poison, v, "an output was written")
	}
	require.NoError(t, tr.Run(testContext(t), tr.Args), "the call works after errors")
}

func wantArgError(t *testing.T, err error, field string) {
	t.Helper()
	var arg *moe.ArgError
	require.ErrorAs(t, err, &arg)
	require.Equal(t, field, arg.Field, arg.Error())
	require.NotEmpty(t, arg.Want)
	require.NotEqual(t, arg.Want, arg.Got, arg.Error())
}

// concernsRoute and concernsExperts report whether Route or ForwardExperts uses the
// wrong buffer.
func concernsRoute(w wrong) bool {
	switch w.field {
	case "W1", "W1.Ptr", "W2", "W2.Ptr", "O", "O.Ptr", "H", "H.Ptr":
		return false
	}
	return w.name != "Workspace over W2"
}

func concernsExperts(w wrong) bool {
	// Scores and ids are inputs here, so they may share memory.
	return w.field != "Router" && w.field != "Router.Ptr" && w.name != "Experts are Scores"
}

// TestNeighboursAreNoOverlap checks that outputs that touch but share no byte are
// accepted.
func TestNeighboursAreNoOverlap(t *testing.T) {
	tr := trialOn(t, testDevice(t), tiny, 64)
	want := forward(t, tr, tr.Args)
	p, err := testDevice(t).Alloc(tr.Args.O.Shape.Bytes() + tr.Args.H.Shape.Bytes())
	require.NoError(t, err)
	defer func() { require.NoError(t, testDevice(t).Free(p)) }()
	f := tr.Args
	f.O.Ptr = p
	f.H.Ptr = p + 2*64*192
	require.NoError(t, tr.Run(testContext(t), f))
	got := make([]uint16, len(want.O))
	require.NoError(t, tr.Stream().CopyToHost(num.Bytes(got), p))
	require.Equal(t, want.O, got)
}

func TestConfigErrors(t *testing.T) {
	for field, c := range map[string]moe.Config{
		"Config.Hidden":       {Hidden: 100, Intermediate: 64, NumExperts: 4, TopK: 2},
		"Config.Intermediate": {Hidden: 128, Intermediate: 40, NumExperts: 4, TopK: 2},
		"Config.NumExperts":   {Hidden: 128, Intermediate: 64, NumExperts: 1025, TopK: 2},
		"Config.TopK":         {Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 5},
		"Config.Logits":       {Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, Logits: 7},
	} {
		l, err := moe.New(context.Background(), testDevice(t), c, moe.WithoutCache())
		require.Nil(t, l)
		wantArgError(t, err, field)
	}
}
