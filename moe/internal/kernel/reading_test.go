package kernel

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/moe/internal/kernel/dh"
	"sonicmoe/moe/internal/kernel/dw"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/registry"
)

// sharedRooms are the packages that all kernels share, listed in the package's
// documentation.
var sharedRooms = []string{"jit/", "registry/", "pipeline/", "tile/", "schedule/", "activation/", "weights/", "lanes/"}

// mostFiles is the largest number of files that may emit a kernel, from operands to
// stores.
const mostFiles = 5

// TestReading checks that the documentation lists exactly the files whose lines
// emit each kernel in any layer, and at most mostFiles for each.
func TestReading(t *testing.T) {
	kernels := map[string][]registry.Any{
		"Router":      {Kernels.Find("router")},
		"Decode":      {Kernels.Find("decode-up"), Kernels.Find("decode-down")},
		"SingleUp":    {Kernels.Find("single-up")},
		"SingleDown":  {Kernels.Find("single-down")},
		"Plan":        {Kernels.Find("plan"), Kernels.Find("plan-pairs"), Kernels.Find("plan-list")},
		"Aggregate":   {Kernels.Find("aggregate"), Kernels.Find("aggregate-early")},
		"Adapt":       {AdaptUpKernel, AdaptDownKernel},
		"AdaptSingle": {AdaptSingleKernel},
		"DRouter":     {Kernels.Find("drouter"), Kernels.Find("drouter-extra")},
	}
	for p, name := range map[*registry.Product]string{UpProduct: "Up", DownProduct: "Down", DXProduct: "DX", dh.Product: "DH", dw.W1Product: "DW", dw.W2Product: "DW"} {
		kernels[name] = append(kernels[name], Kernels.OfProduct(p)...)
	}
	listed := readingList(t)
	require.Len(t, listed, len(kernels))
	for name, list := range kernels {
		emitting := map[string]bool{}
		for _, k := range list {
			for _, l := range kt.Layers {
				if !k.Suits(l.Config) {
					continue
				}
				filesOf(t, k, registry.Layer{Config: l.Config, Tiles: l.Tiles.OrElse(Choose(l.Config, driver.H200()))}, emitting)
				if testing.Short() {
					break // one layer whose files are all listed is enough
				}
			}
		}
		var files []string
		for file := range emitting {
			if !slices.ContainsFunc(sharedRooms, func(room string) bool { return strings.HasPrefix(file, room) }) {
				files = append(files, file)
			}
		}
		assert.Subset(t, listed[name], files, "%s: the lists of doc.go and of the kernel's lines", name)
		if !testing.Short() {
			assert.ElementsMatch(t, files, listed[name], "%s: the lists of the kernel's lines and of doc.go", name)
		}
		assert.LessOrEqual(t, len(files), mostFiles, "%s: files that a reader opens: %v", name, files)
	}
}

// filesOf adds the files whose lines emit the kernel.
func filesOf(t *testing.T, k registry.Any, l registry.Layer, files map[string]bool) {
	b, err := k.Build(l)
	require.NoError(t, err)
	source := b.Source("")
	body := source.Module.Entry(source.Name).Body
	for i := range body {
		for _, frame := range body[i].Pos() {
			if frame.File == "registry/registry.go" {
				break // Build and its callers emit nothing
			}
			if !strings.HasSuffix(frame.File, "_test.go") {
				files[frame.File] = true
			}
		}
	}
}

// readingList returns, for each kernel, the files that the documentation lists, with their
// folders.
func readingList(t *testing.T) map[string][]string {
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "# Reading a kernel")
	require.True(t, found)
	section, _, found = strings.Cut(section, "# Glossary")
	require.True(t, found)
	list := map[string][]string{}
	for _, line := range regexp.MustCompile(`(?m)^//\t(\w+) +(.*)$`).FindAllStringSubmatch(section, -1) {
		for _, file := range regexp.MustCompile(`[\w/]+\.go`).FindAllString(line[2], -1) {
			if !strings.Contains(file, "/") {
				file = "kernel/" + file
			}
			list[line[1]] = append(list[line[1]], file)
		}
	}
	return list
}
