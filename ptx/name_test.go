package ptx_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/ptx"
)

// TestNames checks that names and scopes are printed and read back, and that they do not change the
// instructions.
func TestNames(t *testing.T) {
	k := ptx.NewKernel("k")
	names := []ptx.Name{
		{Kind: ptx.SharedRegion, At: 0, Count: 4, Bytes: 1024, Text: "ab"},
		{Kind: ptx.SharedRegion, At: 4096, Count: 4, Bytes: 8, Text: "ab.full"},
		{Kind: ptx.NamedBarriers, At: 1, Count: 2, Bytes: 0, Text: "store"},
	}
	for _, n := range names {
		k.AddName(n)
	}
	s := k.SharedBase()
	k.Scope("load", func() {
		k.Range(ptx.Uint(4), func(i ptx.U32) { ptx.StShared(s.Plus(i.ShlI(2)), i) })
	})
	m, err := k.Build()
	require.NoError(t, err)
	text := string(m.Print().PTX)
	assert.Contains(t, text, "\t//@ shared 4096 4*8 ab.full\n")
	assert.Contains(t, text, "$load0:\n")
	assert.Contains(t, text, "$load_loop0:\n")
	parsed, err := ptx.Parse([]byte(text))
	require.NoError(t, err)
	assert.Equal(t, names, parsed.Entries[0].Names)
	assert.Equal(t, 4096+4*8, parsed.Entries[0].SharedBytes())
	assert.Equal(t, text, string(parsed.Print().PTX))
}

// TestNoNames checks that a comment that merely resembles a name is read as a comment.
func TestNoNames(t *testing.T) {
	k := ptx.NewKernel("k")
	m, err := k.Build()
	require.NoError(t, err)
	text := string(m.Print().PTX)
	for _, comment := range []string{"//@ shared 1 2", "//@ region 0 1*1 a", "//@ shared -1 1*1 a", "//@ shared 0 0*1 a", "//@ shared 0 1*1 a b", "//@shared 0 1*1 a", "//@ shared 0 1*1 a"} {
		for _, at := range []string{".version", ".address_size 64", ".visible", ")\n", "{\n", "ret;"} {
			parsed, err := ptx.Parse([]byte(strings.Replace(text, at, comment+"\n"+at, 1)))
			require.NoError(t, err, "%s before %s", comment, at)
			if at == "ret;" && comment == "//@ shared 0 1*1 a" {
				assert.Len(t, parsed.Entries[0].Names, 1)
			} else {
				assert.Empty(t, parsed.Entries[0].Names, "%s before %s", comment, at)
			}
		}
	}
	k = ptx.NewKernel("k")
	k.AddName(ptx.Name{Kind: ptx.SharedRegion, Count: 1, Text: "two words"})
	_, err = k.Build()
	assert.ErrorContains(t, err, "is not a name")
}
