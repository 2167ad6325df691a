package ptx_test

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/outside"
	"sonicmoe/ptx"
	"sonicmoe/ptx/ptxas"
)

// text builds a kernel and returns the text of its instructions, without declarations and without
// the final ret.
func text(t *testing.T, body func(k *ptx.Kernel)) string {
	t.Helper()
	k := ptx.NewKernel("k")
	body(k)
	m, err := k.Build()
	require.NoError(t, err)
	var out []string
	for _, line := range strings.Split(string(m.Print().PTX), "\n") {
		if strings.HasPrefix(line, "$") || strings.HasPrefix(line, "\t") && !strings.HasPrefix(line, "\t.") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return strings.Join(out[:len(out)-1], "\n")
}

func lines(l ...string) string { return strings.Join(l, "\n") }

// TestConstantsAssemble passes constants to every instruction that accepts them. The assembler must
// accept the kernel.
func TestConstantsAssemble(t *testing.T) {
	k := ptx.NewKernel("constants")
	out, s, n := k.ParamPtr("out"), k.SharedBase(), k.ParamU32("n")
	p := ptx.NewVar(k, ptx.True())
	p.Set(ptx.False())
	h := ptx.Materialize(k, ptx.Uint(3).B16())
	ptx.StGlobal(out, ptx.Uint(1), ptx.Uint(2), ptx.Uint(3), n)
	ptx.StGlobal(out.At(16), ptx.Float(1), ptx.Float(2))
	ptx.StGlobal(out.At(24), ptx.Long(1<<63))
	ptx.StGlobal(out.At(32), ptx.Int(-5))
	ptx.StShared(s, h)
	ptx.StShared(s.At(4), k.PackBF16(ptx.Float(1), ptx.Materialize(k, ptx.Float(2))))
	ptx.StShared(s.At(8), ptx.Select(p.Get().Negated(), ptx.Uint(1), ptx.Uint(2)))
	ptx.StShared(s.At(12), k.VoteBallot(p.Get().Negated(), ptx.Uint(ptx.FullMask)))
	ptx.StShared(s.At(16), h.F32(), ptx.Uint(5).B16().F32())
	k.Stmatrix(s, ptx.Uint(1), n)
	k.Wgmma(k.Accumulators(4), ptx.Long(1), ptx.Long(2), p.Get().Negated(), false, true)
	k.WgmmaFence()
	k.If(k.Any(p.Get().Negated()), func() { ptx.StShared(s, n.Mad(ptx.Uint(3), ptx.Uint(4))) })
	m, err := k.Build()
	require.NoError(t, err)
	outside.Ptxas(t)
	_, report, err := ptxas.Assemble(t.Context(), m.Print().PTX)
	require.NoError(t, err, report)
}

// TestAccumulatorsAreZero checks that accumulators have a value before a product: assemblers before
// CUDA 12.9 wait after each wgmma if they have none.
func TestAccumulatorsAreZero(t *testing.T) {
	k := ptx.NewKernel("k")
	k.Wgmma(k.Accumulators(4), ptx.Long(1), ptx.Long(2), ptx.False(), false, false)
	m, err := k.Build()
	require.NoError(t, err)
	for i := range 4 {
		assert.Regexp(t, fmt.Sprintf(`(?s)mov\.f32 %%acc%d, 0f00000000;.*wgmma\.mma_async`, i), string(m.Print().PTX))
	}
}

func TestTextIsDeterministic(t *testing.T) {
	build := func() string {
		m, err := longKernel().Build()
		if err != nil {
			return err.Error()
		}
		return string(m.Print().PTX)
	}
	want := build()
	var wg sync.WaitGroup
	got := make([]string, 4)
	for i := range got {
		wg.Go(func() { got[i] = build() })
	}
	wg.Wait()
	for _, g := range got {
		require.Equal(t, want, g)
	}
}

func TestPositions(t *testing.T) {
	_, _, base, _ := runtime.Caller(0)
	helper := func(n ptx.U32) ptx.U32 { return n.AddI(1) } // line base + 1
	k := ptx.NewKernel("k")
	n := k.ParamU32("n")                                                              // line base + 3
	k.For(ptx.Uint(0), n, ptx.Uint(1), func(i ptx.U32) { k.BarSync(helper(i)) })      // line base + 4
	ptx.StGlobal(ptx.GlobalAt(ptx.Materialize(k, ptx.Long(4096))), ptx.Uint(1), n, n) // line base + 5
	_, err := k.Build()
	require.ErrorContains(t, err, "builder_test.go:"+strconv.Itoa(base+5)) // there is no vector of 3 values

	k = ptx.NewKernel("k")
	n = k.ParamU32("n") // line base + 10
	k.BarSync(helper(n))
	m, err := k.Build() // line base + 12
	require.NoError(t, err)
	txt := m.Print()
	want := map[string][]int{"ld.param": {base + 10}, "add.u32": {base + 1, base + 11}, "bar.sync": {base + 11}, "ret": {base + 12}}
	for i, line := range strings.Split(string(txt.PTX), "\n") {
		pos := txt.Pos(i + 1)
		found := false
		for op, at := range want {
			if strings.HasPrefix(line, "\t"+op) {
				found = true
				require.GreaterOrEqual(t, len(pos), len(at), line)
				for j := range at {
					assert.Equal(t, "ptx/builder_test.go", pos[j].File)
					assert.Equal(t, at[j], pos[j].Line, line)
				}
			}
		}
		assert.Equal(t, found, len(pos) > 0, line)
	}
	assert.Empty(t, txt.Pos(-1))
	assert.Empty(t, txt.Pos(1<<20))
	assert.Contains(t, string(txt.Listing()), "\tbar.sync %r1;"+strings.Repeat(" ", 60-len("\tbar.sync %r1;"))+
		" // ptx/builder_test.go:"+strconv.Itoa(base+11)+"\n")
}

func TestParametersAreLaidOutAsTheAssemblerDoes(t *testing.T) {
	k := ptx.NewKernel("k")
	k.ParamU32("a")
	k.ParamTensorMap("map")
	k.ParamF32("b")
	k.ParamU64("c")
	m, err := k.Build()
	require.NoError(t, err)
	e := m.Entry("k")
	for _, c := range []struct {
		name   string
		offset int
	}{{"a", 0}, {"map", 112}, {"b", 240}, {"c", 248}} {
		p, ok := e.Param(c.name)
		require.True(t, ok)
		assert.Equal(t, c.offset, p.Offset, c.name)
	}
	assert.Equal(t, 256, e.ParamBytes())
	parsed, err := ptx.Parse(m.Print().PTX)
	require.NoError(t, err)
	for i, p := range parsed.Entries[0].Params {
		assert.Equal(t, e.Params[i].Offset, p.Offset)
	}
	assert.Nil(t, m.Entry("other"))
	_, ok := e.Param("other")
	assert.False(t, ok)
}

func TestErrorsAreAllReported(t *testing.T) {
	k := ptx.NewKernel("k")
	k.BarSync(ptx.U32{})
	k.Errorf("tile of %d rows", 7)
	_, err := k.Build()
	for _, want := range []string{"kernel k", "zero value", "tile of 7 rows"} {
		assert.ErrorContains(t, err, want)
	}
}

// TestThreadIndexIsReadOnly checks that setting a thread index is an error, because all readers of
// the index share one register.
func TestThreadIndexIsReadOnly(t *testing.T) {
	k := ptx.NewKernel("k")
	ptx.VarOf(k.Lane()).Set(ptx.Uint(1))
	_, err := k.Build()
	require.ErrorContains(t, err, "VarOf of a thread index")
	assert.ErrorContains(t, err, "builder_test.go:")

	k = ptx.NewKernel("k")
	lane := k.Lane()
	ptx.NewVar(k, lane).Set(ptx.Uint(1))
	ptx.VarOf(lane.AddI(1)).Set(ptx.Uint(1))
	_, err = k.Build()
	require.NoError(t, err)
}

func TestStoreWithoutAKernelSaysSo(t *testing.T) {
	assert.PanicsWithValue(t, "ptx: st.shared of constants to an address without a register: Materialize the address",
		func() { ptx.StShared(ptx.SharedAt(ptx.Uint(8)), ptx.Uint(1)) })
}
