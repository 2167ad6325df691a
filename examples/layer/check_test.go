package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/num"
	"sonicmoe/internal/outside"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/safetensors"
)

// script runs testdata/check.py with PyTorch's safetensors package.
func script(t testing.TB, args ...string) (string, error) {
	c := exec.Command("python3", append([]string{filepath.Join("testdata", "check.py")}, args...)...)
	c.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1") // more threads would be slower for these small layers
	out, err := c.CombinedOutput()
	return string(out), err
}

// needPython skips the test if there is no Python that can run check.py.
func needPython(t testing.TB) {
	outside.Python(t, "safetensors", "torch|numpy")
}

// verify lets check.py compare the files with its float64 results.
func (p paths) verify(t testing.TB, c moe.Config, more ...string) (string, error) {
	return script(t, append([]string{"verify", "-weights", p.weights, "-input", p.input, "-output", p.output,
		"-topk", fmt.Sprint(c.TopK), "-layout", c.GateUp.String()}, more...)...)
}

// TestPython runs the command on files that Python wrote, and lets Python check the output
// file.
func TestPython(t *testing.T) {
	needPython(t)
	tests := []struct {
		layout   string
		backward bool
		config   moe.Config
	}{
		{"concatenated", true, moe.Config{Hidden: 192, Intermediate: 64, NumExperts: 8, TopK: 3}},
		{"interleaved", false, moe.Config{Hidden: 128, Intermediate: 128, NumExperts: 16, TopK: 4, GateUp: "interleaved"}},
		{"interleaved", true, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 5, TopK: 2, GateUp: "interleaved"}},
		{"separate", true, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}},
		{"separate", false, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 1}},
	}
	for i, tt := range tests {
		if testing.Short() && i%2 == 1 { // -short tests each layout only once, either with or without gradients
			continue
		}
		t.Run(fmt.Sprintf("%s, backward %v", tt.layout, tt.backward), func(t *testing.T) {
			t.Parallel()
			p, c := newPaths(t), tt.config
			const tokens = 70
			write := []string{"write", "-weights", p.weights, "-input", p.input, "-layout", tt.layout,
				"-tokens", fmt.Sprint(tokens), "-hidden", fmt.Sprint(c.Hidden), "-intermediate", fmt.Sprint(c.Intermediate),
				"-experts", fmt.Sprint(c.NumExperts), "-seed", fmt.Sprint(i), "-scale", fmt.Sprint(weightScale)}
			if tt.backward {
				write = append(write, "-backward")
			}
			out, err := script(t, write...)
			require.NoError(t, err, out)
			args := []string{"-topk", fmt.Sprint(c.TopK), "-device", drivertest.Name()}
			if tt.layout != "separate" {
				args = append(args, "-gateup", tt.layout)
			}
			p.run(t, args...)
			out, err = p.verify(t, c)
			require.NoError(t, err, out)
			assert.Contains(t, out, "right: 70 of 70 tokens")
			assert.Equal(t, tt.backward, strings.Contains(out, "gradients too"), out)
			out, err = p.verify(t, c, "-sample", "9")
			require.NoError(t, err, out)
			assert.Contains(t, out, "right: 9 of 70 tokens")
		})
	}
}

// write puts results into the output file.
func (p paths) write(t testing.TB, c moe.Config, tokens int, r trial.Results) {
	writeFile(t, p.output, tensors{config: c}.of(nameO, r.O, tokens, c.Hidden),
		fileTensor(nameScores, "F32", bytes.NewReader(bytesOf(r.Scores)), tokens, c.TopK),
		fileTensor(nameExperts, "I32", bytes.NewReader(bytesOf(r.ExpertIDs)), tokens, c.TopK))
}

// TestPythonFindsMistakes checks that check.py accepts the reference's results, and that it
// finds every kind of mistake.
func TestPythonFindsMistakes(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	needPython(t)
	const tokens = 50
	x := randomTensors(small, tokens, 3)
	ref, err := reference.NewLayer(small, x.router, x.w1, x.w2)
	require.NoError(t, err)
	routing, out, err := ref.Forward(x.x, reference.Rounded)
	require.NoError(t, err)
	right := trial.Results{ExpertIDs: routing.ExpertIDs}
	for _, s := range routing.Scores {
		right.Scores = append(right.Scores, float32(s))
	}
	for _, o := range out.O {
		right.O = append(right.O, num.Float64ToBF16(o))
	}
	d, last := small.Hidden, tokens-1
	tests := []struct {
		name  string
		spoil func(r *trial.Results)
		want  string
	}{
		{"nothing", func(*trial.Results) {}, "right: 50 of 50 tokens"},
		{"an element", func(r *trial.Results) {
			row := r.O[last*d:]
			row[3] = num.Float64ToBF16(num.BF16ToFloat64(row[3]) + 0.03*largest(row))
		}, "wrong: "},
		{"a row 1 % off", func(r *trial.Results) {
			for i, v := range r.O[:d] {
				r.O[i] = num.Float64ToBF16(1.01 * num.BF16ToFloat64(v))
			}
		}, "wrong: "},
		{"two rows exchanged", func(r *trial.Results) {
			for i := range d {
				r.O[i], r.O[d+i] = r.O[d+i], r.O[i]
			}
		}, "wrong: "},
		{"never written", func(r *trial.Results) { r.O[5] = reference.Poison }, "not finite"},
		{"a score", func(r *trial.Results) { r.Scores[2] += 0.05 }, "a score is off by"},
		{"all scores a little", func(r *trial.Results) {
			for i := range r.Scores {
				r.Scores[i] += 1e-4
			}
		}, "tokens are routed otherwise or with other scores"},
		{"order", func(r *trial.Results) { r.ExpertIDs[0], r.ExpertIDs[1] = r.ExpertIDs[1], r.ExpertIDs[0] }, "not in the order"},
		{"twice", func(r *trial.Results) { r.ExpertIDs[1] = r.ExpertIDs[0] }, "same expert twice"},
		{"no such expert", func(r *trial.Results) { r.ExpertIDs[1] = 8 }, "outside 0..7"},
		{"another expert", func(r *trial.Results) { r.ExpertIDs[1] = lowest(ref, x) }, "was left out"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := x.write(t, true)
			r := trial.Results{O: slices.Clone(right.O), Scores: slices.Clone(right.Scores), ExpertIDs: slices.Clone(right.ExpertIDs)}
			tt.spoil(&r)
			p.write(t, small, tokens, r)
			got, err := p.verify(t, small)
			assert.Contains(t, got, tt.want)
			assert.Equal(t, tt.name == "nothing", err == nil, got)
		})
	}
	t.Run("the other layout", func(t *testing.T) {
		p := x.write(t, false)
		p.write(t, small, tokens, right)
		c := small
		c.GateUp = "interleaved"
		got, err := p.verify(t, c)
		require.Error(t, err)
		assert.Contains(t, got, "wrong: ")
	})
	t.Run("no tokens", func(t *testing.T) {
		p := randomTensors(small, 0, 3).write(t, false)
		p.write(t, small, 0, trial.Results{})
		got, err := p.verify(t, small)
		require.NoError(t, err, got)
		require.NoError(t, os.Remove(p.output))
		_, err = p.verify(t, small)
		require.Error(t, err)
	})
}

// TestPythonFindsWrongGradients checks that check.py finds a mistake in each gradient.
func TestPythonFindsWrongGradients(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	needPython(t)
	const tokens = 40
	p := randomTensors(small, tokens, 8).withDO(9).write(t, true)
	p.run(t, "-topk", "2", "-device", drivertest.Name())
	out, err := p.verify(t, small)
	require.NoError(t, err, out)
	whole, err := os.ReadFile(p.output)
	require.NoError(t, err)
	for _, name := range []string{"dx", "dscores", "drouter.weight", "dexperts.gate", "dexperts.up", "dexperts.down"} {
		t.Run(name, func(t *testing.T) {
			f, err := safetensors.New(bytes.NewReader(whole), int64(len(whole)))
			require.NoError(t, err)
			section, err := f.Section(name)
			require.NoError(t, err)
			data := make([]byte, section.Size())
			_, err = io.ReadFull(section, data)
			require.NoError(t, err)
			spoiled := bytes.Clone(whole)
			start := bytes.Index(spoiled, data)
			require.Positive(t, start)
			// Flip the sign of the last number of the last row.
			spoiled[start+len(data)-1] ^= 0x80
			spoiled[start+len(data)-3] ^= 0x80
			q := p
			q.output = filepath.Join(t.TempDir(), "o.safetensors")
			require.NoError(t, os.WriteFile(q.output, spoiled, 0o666))
			got, err := q.verify(t, small)
			require.Error(t, err)
			assert.Contains(t, got, "wrong: worst row of "+name)
		})
	}
}

// largest returns the largest magnitude of bf16 values.
func largest(bits []uint16) float64 {
	var most float64
	for _, b := range bits {
		most = max(most, num.BF16ToFloat64(b), -num.BF16ToFloat64(b))
	}
	return most
}

// lowest returns the expert with the smallest logit of token 0.
func lowest(ref *reference.Layer, x tensors) int32 {
	routing, err := ref.Route(x.x, []int32{0}, reference.Rounded)
	if err != nil {
		return -1
	}
	return int32(slices.Index(routing.Logits, slices.Min(routing.Logits)))
}
