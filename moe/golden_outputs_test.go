package moe_test

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver/emulated"
	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

var updateGolden = flag.Bool("update-golden", false, "write testdata/golden.txt from the outputs of today")

// goldenPasses are the passes whose outputs have digests. Together they have both layouts of W1,
// both formats of logits and of gradients, overwritten and accumulated gradients, and a caller's
// gradients of the logits.
var goldenPasses = []struct {
	name    string
	tokens  int
	config  moe.Config
	weights moe.Type
	added   bool
}{
	{"concatenated-bf16", 290, moe.Config{Hidden: 256, Intermediate: 128, NumExperts: 7, TopK: 6}, moe.BF16, false},
	{"interleaved-f32", 99, moe.Config{Hidden: 128, Intermediate: 192, NumExperts: 12, TopK: 4, GateUp: spec.Interleaved, Logits: moe.F32}, moe.F32, true},
}

// TestGolden compares every output with its digest in testdata/golden.txt. It finds changes of a
// last bit, which tests with tolerances do not find. After an intended change, write the file
// again: go test ./moe -run TestGolden -update-golden.
func TestGolden(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the digests are of amd64: elsewhere Go may round once where it rounds twice here")
	}
	const file = "testdata/golden.txt"
	var lines []string
	for _, g := range goldenPasses {
		dev, err := emulated.New(emulated.Options{})
		require.NoError(t, err)
		l, err := moe.New(t.Context(), dev, g.config, moe.WithoutCache())
		require.NoError(t, err)
		tr, err := trial.New(dev, l, g.tokens, 1, 6)
		require.NoError(t, err)
		require.NoError(t, tr.PrepareBackward(3, g.weights))
		if g.added {
			require.NoError(t, tr.AddLogitGradients(5))
			addToGradients(t, tr)
		}
		require.NoError(t, tr.Run(t.Context(), tr.Args))
		digest := func(name string, data []byte) {
			lines = append(lines, fmt.Sprintf("%s %s %x", g.name, name, sha256.Sum256(data)))
		}
		for _, in := range []struct {
			name   string
			values []uint16
		}{{"in X", tr.X}, {"in Router", tr.Router}, {"in W1", tr.W1}, {"in W2", tr.W2}, {"in DO", tr.DO}} {
			digest(in.name, num.Bytes(in.values))
		}
		f, b := tr.Args, tr.Back
		out := func(name string, of moe.Tensor) { digest(name, bytesOf(t, tr, of)) }
		out("O", f.O)
		out("H", f.H)
		out("Scores", f.Scores)
		out("Experts", f.ExpertIDs)
		require.NoError(t, tr.RunBackward(t.Context(), b))
		out("DX", b.DX)
		out("DScores", b.DScores)
		out("DW1", b.DW1.Tensor)
		out("DW2", b.DW2.Tensor)
		out("DRouter", b.DRouter.Tensor)
		require.NoError(t, tr.Run(t.Context(), tr.Inference()))
		out("O of inference", f.O)
		require.NoError(t, tr.Close())
		require.NoError(t, dev.Close())
		jit.Forget(dev)
	}
	text := strings.Join(lines, "\n") + "\n"
	if *updateGolden {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	kept, err := os.ReadFile(file)
	require.NoError(t, err)
	before := strings.Split(strings.TrimSpace(string(kept)), "\n")
	require.Len(t, lines, len(before))
	for i, line := range lines {
		assert.Equal(t, before[i], line)
	}
}

// bytesOf reads a tensor.
func bytesOf(t *testing.T, tr *trial.Trial, of moe.Tensor) []byte {
	t.Helper()
	data := make([]byte, of.Shape.Bytes())
	require.NoError(t, tr.Stream().CopyToHost(data, of.Ptr))
	return data
}

// addToGradients makes the backward pass accumulate, and sets the old gradients of weights to 1.
func addToGradients(t *testing.T, tr *trial.Trial) {
	t.Helper()
	tr.Back.DW1.Accumulate, tr.Back.DW2.Accumulate, tr.Back.DRouter.Accumulate = true, true, true
	for _, g := range []moe.Gradient{tr.Back.DW1, tr.Back.DW2, tr.Back.DRouter} {
		require.NoError(t, tr.Stream().Fill32(g.Ptr, 0x3f800000, g.Shape.Bytes()/4))
	}
	require.NoError(t, tr.Stream().Synchronize(context.Background()))
}
