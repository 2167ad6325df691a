package main

import (
	"context"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/examples/emulate/internal/findings"
	"sonicmoe/ptx/emu"
)

// readPage returns the only page in a folder. It checks that all elements end and that the page has
// no scripts.
func readPage(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.html"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	text, err := os.ReadFile(files[0])
	require.NoError(t, err)
	body := regexp.MustCompile(`<!DOCTYPE html>|<meta [^>]*>`).ReplaceAllString(string(text), "")
	d := xml.NewDecoder(strings.NewReader(body))
	d.Entity = xml.HTMLEntity
	for err == nil {
		_, err = d.Token()
	}
	require.ErrorIs(t, err, io.EOF)
	assert.NotContains(t, strings.ToLower(string(text)), "<script")
	return string(text)
}

// TestPageOfARace checks the page of the guide's race: both accesses with their lines of the PTX
// and of the source, the remedy, and the address in the map of shared memory.
func TestPageOfARace(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "pages")
	require.Error(t, run(t.Context(), arguments(kernelFile, launchFile, "-html", folder), io.Discard, io.Discard))
	text := readPage(t, folder)
	for _, want := range []string{"<h1>race", "line 37 = sum.cu:11", "line 28 = sum.cu:6", "came first in this run</small>line 28", "came second in this run</small>line 37",
		"<small>add</small>bar.warp.sync (__syncwarp)", "<b>  11        s &#43;= part[i];</b>", "<b>   6    part[t] = in[blockIdx.x * 64 &#43; t];</b>",
		"<code>part</code>", "<code>0x400 to 0x500</code>", `<s style="left: 1.5625%">`, "<code>0x404</code>", "-timing early -seed 0"} {
		assert.Contains(t, text, want)
	}
	assert.Regexp(t, `<b> *37 +ld\.shared`, text)
	assert.Regexp(t, `<b> *28 +st\.shared`, text)

	known := filepath.Join(t.TempDir(), "known")
	require.NoError(t, os.WriteFile(known, []byte("37 race\n"), 0o600))
	folder = filepath.Join(t.TempDir(), "none")
	_ = run(t.Context(), arguments(kernelFile, launchFile, "-html", folder, "-known", known), io.Discard, io.Discard)
	files, err := filepath.Glob(filepath.Join(folder, "1-line-37-race.html"))
	require.NoError(t, err)
	assert.Empty(t, files, "a known finding has no page")
}

// TestPageOfOthers checks pages of findings that are no pair of accesses: the page shows all lines
// of a deadlock, escapes the text of files, and says when a remedy leaves the order open.
func TestPageOfOthers(t *testing.T) {
	text := strings.Repeat("\tadd <script>;\n", 40)
	regions := []emu.Region{{Name: "part", At: 0x400, Bytes: 0x100}}
	for i := range uint32(24) {
		regions = append(regions, emu.Region{Name: "x", At: 0x500 + 8*i, Bytes: 8})
	}
	for name, c := range map[string]struct {
		fault      emu.Fault
		want, lack []string
	}{
		"deadlock": {emu.Fault{Kind: emu.Deadlock, Line: 9, Text: "no warp can run\n  warp 0 (line 9) waits at 0x508\n  warp 1 (line 20 = <b>.go:7) waits at descriptor 0x400"},
			[]string{"line 20 = &lt;b&gt;.go:7", "<b>  20      add &lt;script&gt;;</b>", "<h2>Lines</h2>", "<code>0x508 to 0x510</code>", "24 other regions"}, []string{"mends", "0x400 to"}},
		"read before write": {emu.Fault{Kind: emu.Race, Line: 9, Text: "st.shared: writes part (0x400), which warp 0 read with ld.shared (line 12), and nothing orders them; to order them: a barrier"},
			[]string{"must change places", "</small>a barrier", "0x400 to 0x500"}, nil},
		"global memory": {emu.Fault{Kind: emu.Race, Line: 2, Text: "reads global memory 0x404, which warp 1 wrote with st (line 3); to order them: a barrier"},
			[]string{"Both sides"}, []string{"Shared memory", "must change"}},
	} {
		p := findings.Pages{File: "/none/k.ptx", Text: []byte(text), Regions: regions}
		folder := t.TempDir()
		require.NoError(t, p.Write(context.Background(), folder, []emu.Finding{{Fault: &c.fault, Runs: 1}}), name)
		page := readPage(t, folder)
		for _, want := range c.want {
			assert.Contains(t, page, want, name)
		}
		for _, lack := range c.lack {
			assert.NotContains(t, page, lack, name)
		}
	}
}
