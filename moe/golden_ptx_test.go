package moe_test

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/kernel"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/tools"
)

var (
	updatePTX = flag.Bool("update-ptx", false, "write the digests of the kernels' texts to testdata/ptx.txt")
	ptxFolder = flag.String("ptx", "", "write every kernel's text to this `folder`; compare two folders with diff -r")
)

// TestPTX checks that the PTX text of every kernel, in every layer that has the kernel, has the
// digest in testdata/ptx.txt, and that it has no division of 64-bit numbers. A change that is not
// meant to alter kernels must not alter their text. After a change that does alter them, write the
// file again: go test ./moe -run TestPTX
// -update-ptx. With -short, the test checks a layer only if it has a kernel that no earlier layer
// has.
func TestPTX(t *testing.T) {
	const file = "testdata/ptx.txt"
	for _, k := range kernel.Kernels {
		kept := slices.ContainsFunc(kt.Layers, func(l kt.Layer) bool { return l.Keeps(k) })
		require.True(t, kept, "no layer of kerneltest keeps %s: add one that has it", k.Name())
	}
	layers := kt.Layers
	if testing.Short() && !*updatePTX && *ptxFolder == "" {
		layers = firstToKeep(kernel.Kernels)
	}
	var lines []string
	for _, l := range layers {
		options := []moe.Option{moe.WithTilings(l.Tiles.Text())}
		if l.Inference {
			options = append(options, moe.WithoutBackward())
		}
		sources, err := tools.Sources(driver.H200(), l.Config, options...)
		require.NoError(t, err, l.Name)
		for _, s := range sources {
			text := s.Module.Print().PTX
			lines = append(lines, digestLine(l.Name, s.Name, text))
			for _, slow := range []string{"div.u64", "rem.u64", "div.s64", "rem.s64"} {
				require.False(t, bytes.Contains(text, []byte(slow)), "%s has %s, which the assembler expands to 80 instructions: see tile.ChunkOf", s.Name, slow)
			}
			if *ptxFolder != "" {
				require.NoError(t, os.MkdirAll(*ptxFolder, 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(*ptxFolder, l.Name+"-"+s.Name+".ptx"), text, 0o644))
			}
		}
	}
	if *updatePTX {
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644))
	}
	kept, err := os.ReadFile(file)
	require.NoError(t, err)
	before := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(kept)), "\n"), func(line string) bool {
		name, _, _ := strings.Cut(line, " ")
		return len(layers) < len(kt.Layers) && !slices.ContainsFunc(layers, func(l kt.Layer) bool { return l.Name == name })
	})
	if diff := differencePTX(before, lines); diff != "" {
		t.Errorf("kernels differ from %s:\n%s\nTo see the texts: go test ./moe -run TestPTX -ptx FOLDER, here and at the commit before, and diff -r.\nTo keep the new ones: -update-ptx.", file, diff)
	}
}

// firstToKeep returns each layer that has a kernel which no earlier layer has.
func firstToKeep(kernels []registry.Any) (layers []kt.Layer) {
	for _, l := range kt.Layers {
		left := slices.DeleteFunc(slices.Clone(kernels), l.Keeps)
		if len(left) < len(kernels) {
			layers, kernels = append(layers, l), left
		}
	}
	return layers
}

// digestLine returns a kernel's line: layer, kernel and the first 16 bytes of the text's SHA-256.
func digestLine(layer, kernel string, text []byte) string {
	digest := sha256.Sum256(text)
	return fmt.Sprintf("%s %s %x", layer, kernel, digest[:16])
}

// differencePTX lists the layers and kernels with a new, missing or changed line.
func differencePTX(before, after []string) string {
	parse := func(lines []string) (order []string, digests map[string]string) {
		digests = map[string]string{}
		for _, l := range lines {
			f := strings.Fields(l)
			key := f[0] + " " + f[1]
			order, digests[key] = append(order, key), f[2]
		}
		return order, digests
	}
	oldOrder, old := parse(before)
	newOrder, now := parse(after)
	var b strings.Builder
	for _, key := range oldOrder {
		if now[key] == "" {
			fmt.Fprintf(&b, "  %s is gone\n", key)
		}
	}
	for _, key := range newOrder {
		switch old[key] {
		case now[key]:
		case "":
			fmt.Fprintf(&b, "  %s is new\n", key)
		default:
			fmt.Fprintf(&b, "  %s has another text\n", key)
		}
	}
	return b.String()
}

func TestPTXDifference(t *testing.T) {
	before := []string{"a up 11", "a down 22", "a dh 33", "a dx 44"}
	after := []string{"a up 12", "a dh 33", "a dx 45", "b up 66"}
	require.Equal(t, "  a down is gone\n  a up has another text\n  a dx has another text\n  b up is new\n", differencePTX(before, after))
	require.Empty(t, differencePTX(before, before))
}
