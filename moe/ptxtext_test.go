package moe_test

import (
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
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/kernel"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/registry"
)

var (
	updatePTX = flag.Bool("update-ptx", false, "write testdata/ptx.txt from the kernels of today")
	ptxFolder = flag.String("ptx", "", "write every kernel's text to this `folder`: compare two with diff -r")
)

// Every kernel of the registry, in every layer that keeps it, has the PTX whose
// digest testdata/ptx.txt keeps, so that a change that is meant to leave the
// kernels alone is known to. One that changes them renews the file: go test ./moe
// -run TestPTX -update-ptx. With -short the layers are those that first keep a
// kernel.
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
		options := []moe.Option{moe.WithTiles(l.Tiles)}
		if l.Inference {
			options = append(options, moe.WithoutBackward())
		}
		sources, err := moe.Sources(driver.H200(), l.Config, options...)
		require.NoError(t, err, l.Name)
		for _, s := range sources {
			text := s.Module.Print().PTX
			lines = append(lines, describePTX(l.Name, s, text))
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

// firstToKeep are the layers that keep a kernel that none before them does.
func firstToKeep(kernels []registry.Any) (layers []kt.Layer) {
	for _, l := range kt.Layers {
		left := slices.DeleteFunc(slices.Clone(kernels), l.Keeps)
		if len(left) < len(kernels) {
			layers, kernels = append(layers, l), left
		}
	}
	return layers
}

// describePTX is a kernel's line: layer, kernel, digest, and how many of each
// instruction there are.
func describePTX(layer string, s jit.Source, text []byte) string {
	counts := map[string]int{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 1 && strings.HasPrefix(f[0], "@") {
			f = f[1:]
		}
		if len(f) > 0 && strings.HasSuffix(f[len(f)-1], ";") && !strings.HasPrefix(f[0], ".") && !strings.HasPrefix(f[0], "//") {
			name, _, _ := strings.Cut(strings.TrimSuffix(f[0], ";"), ".")
			counts[name]++
		}
	}
	var list []string
	for name, n := range counts {
		list = append(list, fmt.Sprintf("%s:%d", name, n))
	}
	slices.Sort(list)
	return fmt.Sprintf("%s %s %x %s", layer, s.Name, sha256.Sum256(text), strings.Join(list, " "))
}

// differencePTX tells which kernels came, went or changed, and in which
// instructions.
func differencePTX(before, after []string) string {
	parse := func(lines []string) (order []string, m map[string][]string) {
		m = map[string][]string{}
		for _, l := range lines {
			f := strings.Fields(l)
			key := f[0] + " " + f[1]
			order, m[key] = append(order, key), f[2:]
		}
		return order, m
	}
	oldOrder, old := parse(before)
	newOrder, now := parse(after)
	var b strings.Builder
	for _, key := range oldOrder {
		if now[key] == nil {
			fmt.Fprintf(&b, "  %s is gone\n", key)
		}
	}
	for _, key := range newOrder {
		switch o, n := old[key], now[key]; {
		case o == nil:
			fmt.Fprintf(&b, "  %s is new\n", key)
		case o[0] != n[0]:
			fmt.Fprintf(&b, "  %s:%s\n", key, changedCounts(o[1:], n[1:]))
		}
	}
	return b.String()
}

// changedCounts lists the instructions whose number differs.
func changedCounts(before, after []string) string {
	counts := map[string][2]int{}
	for i, list := range [][]string{before, after} {
		for _, item := range list {
			name, number, _ := strings.Cut(item, ":")
			c := counts[name]
			_, _ = fmt.Sscan(number, &c[i])
			counts[name] = c
		}
	}
	var changed []string
	for name, c := range counts {
		if c[0] != c[1] {
			changed = append(changed, fmt.Sprintf(" %s %d → %d", name, c[0], c[1]))
		}
	}
	if len(changed) == 0 {
		return " the same number of each instruction, other operands, names or order"
	}
	slices.Sort(changed)
	return strings.Join(changed, ",")
}

// The difference says what changed.
func TestPTXDifference(t *testing.T) {
	before := []string{"a up 11 add:3 mul:1", "a down 22 add:1", "a dh 33 add:1", "a dx 44 bar:2"}
	after := []string{"a up 12 add:5 wgmma:1", "a dh 33 add:1", "a dx 45 bar:2", "b up 66 add:1"}
	require.Equal(t, "  a down is gone\n  a up: add 3 → 5, mul 1 → 0, wgmma 0 → 1\n  a dx: the same number of each instruction, other operands, names or order\n  b up is new\n",
		differencePTX(before, after))
	require.Empty(t, differencePTX(before, before))
}
