package golden_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver/emulated"
	"sonicmoe/driver/open"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/golden"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint"
)

func TestMain(m *testing.M) { os.Exit(drivertest.Main(m, open.Device)) }

// TestTransformers runs MoE blocks of Hugging Face's transformers on the layer's kernels, from
// config.json to gradients, and compares the results. It skips blocks that the kernels do not
// support.
func TestTransformers(t *testing.T) {
	blocks, tokens, err := golden.Blocks()
	require.NoError(t, err)
	computed := 0
	for name, b := range blocks {
		model, err := checkpoint.Read(b.Config)
		require.NoError(t, err, name)
		if len(model.Outside) > 0 || moe.Check(model.Config) != nil {
			continue
		}
		computed++
		if testing.Short() && computed > 1 {
			continue
		}
		t.Run(name, func(t *testing.T) { checkBlock(t, model.Config, b, tokens, 1) })
	}
	assert.GreaterOrEqual(t, computed, 4)
}

// TestTransformersInF16 is like TestTransformers with a config.json that says float16. The
// inputs are the same, because FP16 holds them exactly, too. The bounds are an eighth, because
// FP16 has three more fraction bits than bf16.
func TestTransformersInF16(t *testing.T) {
	blocks, tokens, err := golden.Blocks()
	require.NoError(t, err)
	names := []string{"Qwen3-30B-A3B", "gpt-oss-20b", "DeepSeek-V3", "Llama-4 Scout", "DBRX", "Qwen2-57B-A14B", "MiniMax-M2", "Nemotron-3-Nano"}
	if testing.Short() {
		names = names[:2]
	}
	for _, name := range names {
		b, ok := blocks[name]
		require.True(t, ok, name)
		model, err := checkpoint.Read(bytes.ReplaceAll(b.Config, []byte("bfloat16"), []byte("float16")))
		require.NoError(t, err, name)
		require.Equal(t, moe.F16, model.Config.Type, name)
		t.Run(name, func(t *testing.T) { checkBlock(t, model.Config, b, tokens, 8) })
	}
}

// checkBlock compares a layer with a block. The bounds are those for bf16, divided by finer.
func checkBlock(t *testing.T, c moe.Config, b golden.Block, tokens int, finer float64) {
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	defer dev.Close()
	options := []moe.Option{moe.WithoutCache()}
	if testing.Short() {
		options = append(options, moe.WithoutDecode()) // the kernels for small batches are half of what a layer loads
	}
	layer, err := moe.New(t.Context(), dev, c, options...)
	require.NoError(t, err)
	stream, err := dev.NewStream()
	require.NoError(t, err)
	defer stream.Close()
	memory := moe.NewArena(dev)
	defer memory.Free()

	f := memory.ForwardArgs(layer, tokens)
	f.Weights, f.Workspace = memory.Weights(layer), memory.Workspace(tokens, layer)
	back := f.BackwardArgs()
	back.DO, back.DX, back.WeightGradients = memory.Like(f.O), memory.Like(f.X), memory.Gradients(layer, moe.F32)
	require.NoError(t, memory.Err())
	write := func(name string, to moe.Tensor) {
		values := golden.Values(name, to.Shape.Elements())
		require.NotNil(t, values, name)
		require.NoError(t, moe.Write(stream, to, values), name)
	}
	write("x", f.X)
	write("do", back.DO)
	// f gets all weights of the layer, by their names.
	for _, id := range moe.WeightIDs() {
		if w := *f.Weight(id); !w.IsZero() {
			write(goldenName(id), w)
		}
	}
	call := layer.NewCall()
	require.NoError(t, call.Forward(stream, f))
	require.NoError(t, call.Backward(stream, back))
	read := func(from moe.Tensor) []float64 {
		values := make([]float64, from.Shape.Elements())
		require.NoError(t, moe.Read(stream, from, values))
		return values
	}
	ids := make([]int32, f.ExpertIDs.Shape.Elements())
	require.NoError(t, moe.Read(stream, f.ExpertIDs, ids))
	for i := range tokens {
		require.ElementsMatch(t, b.IDs[i*c.TopK:][:c.TopK], ids[i*c.TopK:][:c.TopK], "token %d", i)
	}
	// The block does not round, but the layer does. Rounding logits to bf16 changes the scores,
	// and with them the scores' gradients.
	assert.LessOrEqual(t, golden.Off(b.O.Values(), read(f.O)), 8e-3/finer, "O")
	assert.LessOrEqual(t, golden.Off(b.Gradients["x"].Values(), read(back.DX)), 1.2e-2/finer, "x")
	met := 1
	for _, id := range moe.WeightIDs() {
		name, of := goldenName(id), back.Gradient(id)
		want, ok := b.Gradients[name]
		if !ok || of == nil || of.IsZero() {
			continue
		}
		met++
		got := read(of.Tensor)
		if s := of.Shape; s.Rank > 1 {
			got = golden.Project(got, int(s.Dims[s.Rank-1]))
		}
		assert.LessOrEqual(t, golden.Off(want.Values(), got), 2e-2/finer, name)
	}
	assert.Equal(t, len(b.Gradients), met, "gradients compared")
}

// goldenName returns a weight's name in the golden file, which starts with a lower-case letter:
// W1 is w1, SharedGate is sharedGate.
func goldenName(id moe.TensorID) string {
	name := id.String()
	return strings.ToLower(name[:1]) + name[1:]
}
