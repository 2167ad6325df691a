package adapter

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver/open"
	"sonicmoe/internal/outside"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/safetensors"
)

// TestPairing reads an adapter that PEFT wrote, and compares with the sums that PEFT computed. The
// same numbers in other orders of experts and ranks must give other sums.
func TestPairing(t *testing.T) {
	dir := filepath.Join("testdata", "peft")
	for layer := range 2 {
		c, f := read(t, dir, small(), layer)
		require.Equal(t, 8, c.LoRARank)
		w1, w2 := deltas(c, f)
		want1 := numbers(t, filepath.Join(dir, "deltas.safetensors"), fmt.Sprintf("%d.gate_up_proj", layer))
		want2 := numbers(t, filepath.Join(dir, "deltas.safetensors"), fmt.Sprintf("%d.down_proj", layer))
		require.Less(t, far(t, w1, want1), 1e-6)
		require.Less(t, far(t, w2, want2), 1e-6)

		const r, e = 4, 3
		for name, of := range map[string]func(*Factors){
			"A with the expert fastest": func(f *Factors) { f.A1 = reordered(f.A1, c, r, func(x, i int) int { return i*e + x }) },
			"experts of A reversed":     func(f *Factors) { f.A1 = reordered(f.A1, c, r, func(x, i int) int { return (e-1-x)*r + i }) },
		} {
			wrong := f
			of(&wrong)
			w1, _ = deltas(c, wrong)
			require.Greater(t, far(t, w1, want1), 0.5, name)
		}
		wrong := f
		wrong.B1 = paired(f.B1, c, r)
		w1, _ = deltas(c, wrong)
		require.Greater(t, far(t, w1, want1), 0.5, "B with the expert slowest")
	}
}

// reordered returns A with other rows: place returns the row of the file that becomes row i of an
// expert.
func reordered(a []float32, c moe.Config, rank int, place func(expert, row int) int) []float32 {
	out := make([]float32, len(a))
	for e := range c.NumExperts {
		for i := range rank {
			at := place(e, i)
			copy(out[(e*c.LoRARank+i)*c.Hidden:][:c.Hidden], a[(at/rank*c.LoRARank+at%rank)*c.Hidden:])
		}
	}
	return out
}

// paired returns the B1 that results if a reader takes the expert for the slowest index of the
// file's columns, which is wrong.
func paired(b []float32, c moe.Config, rank int) []float32 {
	out := make([]float32, len(b))
	for e := range c.NumExperts {
		for o := range c.HWidth() {
			for i := range rank {
				column := e*rank + i // the place in the file, at which the expert is the fastest index
				from := (column%c.NumExperts*c.HWidth()+o)*c.LoRARank + column/c.NumExperts
				out[(e*c.HWidth()+o)*c.LoRARank+i] = b[from]
			}
		}
	}
	return out
}

// TestWritten reads what Write wrote, in each layout.
func TestWritten(t *testing.T) {
	for _, c := range configs() {
		for _, layout := range []Layout{PEFT, PerExpert, Stacked} {
			t.Run(fmt.Sprint(layout, " ", c), func(t *testing.T) {
				layers := map[int]Factors{0: random(c, 1), 7: random(c, 2)}
				dir := t.TempDir()
				require.NoError(t, Write(dir, layout, "model.layers.%d.mlp.experts", c, layers))
				f, err := Open(t.Context(), dir)
				require.NoError(t, err)
				defer func() { require.NoError(t, f.Close()) }()
				require.Equal(t, []int{0, 7}, f.Layers())
				require.Equal(t, layout, f.Layout)
				for layer, want := range layers {
					got, factors := read(t, dir, c, layer)
					require.Equal(t, c, got)
					require.Equal(t, want, factors)
				}
			})
		}
	}
}

// TestTwoFirstFactors reads files in which gate and up have a lora_A each, and in which only some
// experts and products have factors.
func TestTwoFirstFactors(t *testing.T) {
	c := configs()[0]
	first, second, err := unlay(c, random(c, 3))
	require.NoError(t, err)
	g, u := halfOf(c, first, 0), halfOf(c, first, 1)
	other, _, err := unlay(c, random(c, 4))
	require.NoError(t, err)
	u.a = other.a
	var list []safetensors.Source
	for e := range c.NumExperts {
		for name, p := range map[string]*pair{"w1": g, "w3": u, "w2": second} {
			if e == 1 && p == second {
				continue
			}
			at := fmt.Sprintf("model.layers.0.block_sparse_moe.experts.%d.%s", e, name)
			list = append(list, source(at+".lora_A", p.a[e*p.rank*p.in:][:p.rank*p.in], p.rank, p.in), source(at+".lora_B", p.b[e*p.out*p.rank:][:p.out*p.rank], p.out, p.rank))
		}
	}
	list = append(list, source("model.layers.0.self_attn.q_proj.lora_A", make([]float32, 8), 2, 4), source("model.layers.0.mlp.shared_experts.up_proj.lora_A", make([]float32, 8), 2, 4))
	dir := folder(t, `{"peft_type": "LORA", "r": 8, "lora_alpha": 12}`, list...)
	got, f := read(t, dir, small(), 0)
	require.Equal(t, 16, got.LoRARank)
	w1, w2 := deltas(got, f)
	c.RSLoRA = false
	wantG, want2 := deltas(c, lay(c, asGate(c, g), second))
	wantU, _ := deltas(c, lay(c, asGate(c, u), second))
	size := c.Intermediate * c.Hidden
	for e := range c.NumExperts {
		require.Less(t, far(t, w1[2*e*size:][:size], wantG[2*e*size:][:size]), 1e-6)
		require.Less(t, far(t, w1[(2*e+1)*size:][:size], wantU[2*e*size:][:size]), 1e-6)
		if e != 1 {
			require.Less(t, far(t, w2[e*size:][:size], want2[e*size:][:size]), 1e-6)
		}
	}
	for _, v := range w2[size:][:size] {
		require.Zero(t, v)
	}
	opened, err := Open(t.Context(), dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, opened.Close()) }()
	require.Len(t, opened.Outside, 2)
}

// asGate returns the factors of gate and up together, where gate has the factors p, and up has zeros.
func asGate(c moe.Config, p *pair) *pair {
	out := newPair(p.experts, p.rank, p.in, 2*p.out)
	copy(out.a, p.a)
	for e := range p.experts {
		for o := range p.out {
			copy(out.rowB(e, rowOf(c, 0, o)), p.rowB(e, o))
		}
	}
	return out
}

// TestRefused opens wrong files.
func TestRefused(t *testing.T) {
	const at = "base_model.model.model.layers.0.mlp.experts."
	wrap := func(r, in, out, e int) []safetensors.Source {
		return []safetensors.Source{source(at+"lora_A", make([]float32, r*e*in), r*e, in), source(at+"lora_B", make([]float32, out*r*e), out, r*e)}
	}
	for name, of := range map[string]struct {
		text string
		list []safetensors.Source
		want string
	}{
		"type":        {`{"peft_type": "IA3", "r": 4, "lora_alpha": 4}`, nil, `peft_type is "IA3", must be "LORA"`},
		"rank":        {`{"peft_type": "LORA", "r": 0, "lora_alpha": 4}`, nil, "r is 0, must be 1 to 128"},
		"rank's type": {`{"peft_type": "LORA", "r": "4", "lora_alpha": 4}`, nil, "r is of type string, must be int"},
		"alpha":       {`{"peft_type": "LORA", "r": 4}`, nil, "lora_alpha is 0, must be above 0"},
		"twice":       {`{"peft_type": "LORA", "r": 4, "r": 8, "lora_alpha": 4}`, nil, "twice"},
		"pattern":     {`{"peft_type": "LORA", "r": 4, "lora_alpha": 4, "rank_pattern": {"q": 8}}`, nil, "rank_pattern is map[q:8], must be empty, null or false"},
		"dora":        {`{"peft_type": "LORA", "r": 4, "lora_alpha": 4, "use_dora": true}`, nil, "use_dora is true, must be empty, null or false"},
		"biases":      {`{"peft_type": "LORA", "r": 4, "lora_alpha": 4, "bias": "all"}`, nil, `bias is "all", must be "none"`},
		"initial":     {`{"peft_type": "LORA", "r": 4, "lora_alpha": 4, "init_lora_weights": "pissa_niter_16"}`, nil, `init_lora_weights is "pissa_niter_16", must be true`},
		"whole":       {"", []safetensors.Source{source(at+"gate_up_proj", nil, 0, 4)}, "is of routed experts, must be lora_A.weight or lora_B.weight"},
		"no experts":  {"", []safetensors.Source{source("layers.0.q.lora_A", nil, 0, 4)}, "no tensor is a factor of routed experts"},
		"no B":        {"", wrap(4, 16, 48, 3)[:1], `has no lora_B, must have one`},
		"inputs":      {"", wrap(4, 17, 48, 3), "are [12 17] and [48 12], must be [12 48] and [32 12], or [12 16] and [48 12]"},
		"experts":     {"", wrap(4, 16, 48, 4), "are [16 16] and [48 16], must be [12 48]"},
		"rank of one": {"", wrap(8, 16, 48, 3), "are [24 16] and [48 24], must be [12 48]"},
		"expert 3": {"", []safetensors.Source{source(at+"3.up_proj.lora_A", make([]float32, 192), 4, 48), source(at+"3.up_proj.lora_B", make([]float32, 64), 16, 4)},
			"is of expert 3, must be of one of 3"},
		"projection": {"", []safetensors.Source{source(at+"0.q_proj.lora_A", nil, 0, 4)}, "is of no weight that experts have"},
		"layouts":    {"", append(wrap(4, 16, 48, 3), source(at+"down_proj.lora_A", nil, 0, 4)), `has the layout stacked, must have peft`},
		"stacked":    {"", []safetensors.Source{source(at+"gate_up_proj.lora_A", nil, 0, 4, 4)}, "is [0 4 4], must be [experts, 8, inputs]"},
	} {
		t.Run(name, func(t *testing.T) {
			text := of.text
			if text == "" {
				text = `{"peft_type": "LORA", "r": 4, "lora_alpha": 4}`
			}
			f, err := Open(t.Context(), folder(t, text, of.list...))
			if err == nil {
				defer func() { require.NoError(t, f.Close()) }()
				var c moe.Config
				c, err = f.Config(small())
				require.NoError(t, err)
				_, err = f.Factors(0, c)
			}
			require.ErrorContains(t, err, of.want)
		})
	}
	f, err := Open(t.Context(), filepath.Join("testdata", "peft"))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	c, err := f.Config(small())
	require.NoError(t, err)
	_, err = f.Factors(2, c)
	require.ErrorContains(t, err, "layer 2 has no factors, must be one of [0 1]")
	_, err = f.Factors(0, small())
	require.ErrorContains(t, err, "as Config returns it")
	require.ErrorContains(t, Write(t.TempDir(), "vllm", "layers.%d.experts", c, nil), `layout`)
	require.ErrorContains(t, Write(t.TempDir(), PEFT, "layers.experts", c, nil), `must be a name with one %d`)
	require.ErrorContains(t, Write(t.TempDir(), PEFT, "layers.%d.experts", c, map[int]Factors{0: {}}), "layer 0: LoraA1 has 0 elements, must have 1152")
}

// TestSettings opens an adapter with each field of adapter_config.json set. A field is followed,
// refused, or named in Assumed.
func TestSettings(t *testing.T) {
	dir := filepath.Join("testdata", "peft")
	text, err := os.ReadFile(filepath.Join(dir, settingsFile))
	require.NoError(t, err)
	tensors, err := os.ReadFile(filepath.Join(dir, tensorsFile))
	require.NoError(t, err)
	opened := func(change map[string]any) ([]string, error) {
		all := map[string]any{}
		require.NoError(t, json.Unmarshal(text, &all))
		maps.Copy(all, change)
		changed, err := json.Marshal(all)
		require.NoError(t, err)
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, settingsFile), changed, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, tensorsFile), tensors, 0o600))
		f, err := Open(t.Context(), dir)
		if err != nil {
			return nil, err
		}
		return f.Assumed, f.Close()
	}
	assumed, err := opened(nil)
	require.NoError(t, err)
	require.Empty(t, assumed)
	for _, name := range variants {
		for _, v := range []any{true, "all", []any{[]any{0, 4}}, map[string]any{"q_proj": 8}} {
			_, err := opened(map[string]any{name: v})
			require.ErrorContains(t, err, name+" is ", "%v", v)
		}
	}
	for _, how := range []string{"pissa", "pissa_niter_16", "olora", "OLoRA", "corda", "loftq", "lora_ga"} {
		_, err := opened(map[string]any{"init_lora_weights": how})
		require.ErrorContains(t, err, "init_lora_weights is ", how)
	}
	for want, change := range map[string]map[string]any{
		"":                        {"init_lora_weights": "gaussian", "layers_to_transform": []int{0, 1}, "inference_mode": false},
		"lora_dropout is 0.1: ":   {"lora_dropout": 0.1},
		"velora_config is set: ":  {"velora_config": map[string]any{"rank": 1}},
		"use_other is true: ":     {"use_other": true},
		"other_pattern is map[a:": {"other_pattern": map[string]any{"a": 1}},
	} {
		assumed, err := opened(change)
		require.NoError(t, err)
		if want == "" {
			require.Empty(t, assumed)
			continue
		}
		require.Len(t, assumed, 1)
		require.Contains(t, assumed[0], want)
	}
}

// TestEarlyPEFT reads files of PEFT before 0.19.1, in which the columns of lora_A are outputs. In a
// square weight only the other weight, or the version, tells them from the files of later versions.
func TestEarlyPEFT(t *testing.T) {
	square, plain, both := configs()[0], configs()[4], configs()[4]
	square.Intermediate = square.Hidden / 2
	both.Intermediate = both.Hidden
	const at = "model.layers.0.mlp.experts"
	for _, of := range []struct {
		name    string
		c       moe.Config
		early   bool
		version string
		only    string // the one weight that the file adapts
		wrong   string
	}{
		{"gated, early", configs()[0], true, "", "", ""},
		{"square, early", square, true, "0.18.1", "", ""},
		{"square, without a version", square, false, "", "", ""},
		{"square and early, alone", square, true, "0.19.0", "gate_up_proj", `peft_version in adapter_config.json is "0.19.0", must be 0.19.1 or later`},
		{"square and without a version, alone", square, false, "", "gate_up_proj", "do not tell whether its columns are inputs or outputs"},
		{"square, alone", square, false, "0.19.1", "gate_up_proj", ""},
		{"without gate, early", plain, true, "", "", ""},
		{"without gate", plain, false, "", "", ""},
		{"without gate, up alone, early", plain, true, "", "up_proj", ""},
		{"without gate, up alone", plain, false, "0.21.2.dev0", "up_proj", ""},
		{"without gate, square", both, false, "1.0", "", ""},
		{"without gate, square, early", both, true, "0.18", "", "do not tell whether its columns are inputs or outputs"},
	} {
		t.Run(of.name, func(t *testing.T) {
			want := random(of.c, 5)
			first, second, err := unlay(of.c, want)
			require.NoError(t, err)
			var list []safetensors.Source
			names := map[bool]string{true: `"gate_up_proj", "down_proj"`, false: `"up_proj", "down_proj"`}[of.c.Activation.Gated()]
			if list = append(list, wrapped(at+".base_layer", first, of.early)...); of.only == "" {
				list = append(list, wrapped(at, second, of.early)...)
			} else {
				list, names = wrapped(at, first, of.early), fmt.Sprintf("%q", of.only)
				want.A2, want.B2 = make([]float32, len(want.A2)), make([]float32, len(want.B2))
			}
			text := fmt.Sprintf(`{"peft_type": "LORA", "r": 8, "lora_alpha": 12, "peft_version": %q, "target_parameters": [%s]}`, of.version, names)
			f, err := Open(t.Context(), folder(t, text, list...))
			require.NoError(t, err)
			defer func() { require.NoError(t, f.Close()) }()
			got, err := f.Factors(0, of.c)
			if of.wrong != "" {
				require.ErrorContains(t, err, of.wrong)
				return
			}
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

// wrapped returns the tensors of a wrapper of PEFT. In early files the columns of lora_A are outputs.
func wrapped(name string, p *pair, early bool) []safetensors.Source {
	in, out := p.in, p.out
	if early {
		in, out = out, in
	}
	a, b := make([]float32, p.experts*p.rank*in), make([]float32, out*p.rank*p.experts)
	for e := range p.experts {
		for i := range p.rank {
			for k, v := range p.rowA(e, i) {
				if early {
					b[(k*p.rank+i)*p.experts+e] = v
				} else {
					a[(e*p.rank+i)*in+k] = v
				}
			}
			for o := range p.out {
				if early {
					a[(e*p.rank+i)*in+o] = p.rowB(e, o)[i]
				} else {
					b[(o*p.rank+i)*p.experts+e] = p.rowB(e, o)[i]
				}
			}
		}
	}
	return []safetensors.Source{source(name+".lora_A", a, p.experts*p.rank, in), source(name+".lora_B", b, out, p.rank*p.experts)}
}

// TestPEFTReads lets PEFT read an adapter that Write wrote, and compares the sums.
func TestPEFTReads(t *testing.T) {
	if testing.Short() {
		t.Skip("importing PEFT takes seconds")
	}
	python := outside.Python(t, "peft", "torch")
	c := configs()[0]
	layers := map[int]Factors{0: random(c, 8), 1: random(c, 9)}
	dir := t.TempDir()
	require.NoError(t, Write(dir, PEFT, "model.layers.%d.mlp.experts", c, layers))
	file := filepath.Join(t.TempDir(), "deltas.safetensors")
	out, err := exec.CommandContext(t.Context(), python, filepath.Join("testdata", "adapters.py"), "read", dir, file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.False(t, strings.Contains(string(out), "missing"), "%s", out)
	for layer, f := range layers {
		w1, w2 := deltas(c, f)
		require.Less(t, far(t, numbers(t, file, fmt.Sprintf("%d.gate_up_proj", layer)), w1), 1e-6)
		require.Less(t, far(t, numbers(t, file, fmt.Sprintf("%d.down_proj", layer)), w2), 1e-6)
	}
}

// TestLoadPlace puts an adapter into one of three places of a table, and reads the table.
func TestLoadPlace(t *testing.T) {
	dev, err := open.Device(t.Context(), "emulated")
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	stream, err := dev.NewStream()
	require.NoError(t, err)
	defer func() { require.NoError(t, stream.Close()) }()
	f, err := Open(t.Context(), filepath.Join("testdata", "peft"))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	for _, change := range []func(c *moe.Config){
		func(c *moe.Config) {}, func(c *moe.Config) { c.InOut, c.GateUp = true, spec.Interleaved }, func(c *moe.Config) { c.GateUp = spec.Apart },
	} {
		c := small()
		c.LoRARank, c.LoRAAdapters = 16, 3
		change(&c)
		memory, shapes, w := moe.NewArena(dev), c.Shapes(0), moe.Weights{}
		ids := append([]spec.TensorID{spec.TensorLoraScales}, tensorIDs...)
		for _, id := range ids {
			if s := shapes.Of(id); !s.IsZero() {
				*w.Weight(id) = memory.Tensor(s)
				require.NoError(t, stream.Fill32(w.Weight(id).Ptr, 0, s.Bytes()/4))
			}
		}
		require.NoError(t, memory.Err())
		require.NoError(t, f.LoadPlace(stream, 1, 2, c, w))

		plain := c
		plain.LoRAAdapters, plain.InOut, plain.RSLoRA = 0, false, true
		plain.LoRAAlpha = f.settings.Alpha * 2 // rank 16 in place of 4
		want, err := f.factors(1, plain)
		require.NoError(t, err)
		scales := make([]float32, 3)
		require.NoError(t, moe.Read(stream, w.LoraScales, scales))
		require.Equal(t, []float32{0, 0, 3}, scales)
		require.Equal(t, spec.LoRAScale(plain), scales[2])
		for _, id := range tensorIDs {
			if shapes.Of(id).IsZero() {
				continue
			}
			got := make([]float32, shapes.Of(id).Elements())
			require.NoError(t, moe.Read(stream, *w.Weight(id), got))
			size := len(got) / 3
			require.Equal(t, make([]float32, 2*size), got[:2*size], id)
			of := wide(*want.of(id))
			require.Less(t, far(t, wide(got[2*size:]), of), 4e-3, id)
		}
		require.ErrorContains(t, f.LoadPlace(stream, 1, 3, c, w), "place is 3, must be one of the 3 places")
		c.LoRARank = 0
		require.ErrorContains(t, f.LoadPlace(stream, 1, 2, c, w), "Config.LoRARank is 0, must be at least 4")
		require.NoError(t, memory.Free())
	}
}
