package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"sonicmoe/examples/emulate/internal/findings"
	"sonicmoe/ptx/emu"
)

// kernelOf returns the kernel with a name: its name in the PTX, or its C++ name, with or without
// template arguments and namespaces. An empty name stands for the only kernel of the file.
func kernelOf(m *emu.Module, name string) (*emu.Kernel, error) {
	var alike []string
	for _, k := range m.Kernels() {
		if k == name {
			return m.Kernel(k)
		}
		if name == "" || slices.Contains(findings.Names(k), name) {
			alike = append(alike, k)
		}
	}
	if len(alike) == 1 {
		return m.Kernel(alike[0])
	}
	var all strings.Builder
	if err := listKernels(&all, m); err != nil {
		return nil, err
	}
	if len(alike) == 0 {
		return nil, fmt.Errorf("no kernel %q in the file, want one of:\n%s", name, all.String())
	}
	return nil, fmt.Errorf("%d kernels of the file have the name %q, want one of:\n%s", len(alike), name, all.String())
}

// listKernels writes the names of the kernels, and what a launch of each needs.
func listKernels(w io.Writer, m *emu.Module) error {
	for _, name := range m.Kernels() {
		k, err := m.Kernel(name)
		if err != nil {
			return err
		}
		if names := findings.Names(name); len(names) > 2 {
			name += "\n  C++: " + names[1]
		}
		fmt.Fprintln(w, name)
		for i, p := range k.Params() {
			fmt.Fprintf(w, "  param %d: %d bytes\n", i, p.Bytes)
		}
		if n := k.StaticSharedBytes(); n > 0 {
			fmt.Fprintf(w, "  static shared memory: %d bytes\n", n)
		}
		if c := k.Cluster(); c != [3]int{} {
			fmt.Fprintf(w, "  cluster: %v\n", c)
		}
		fmt.Fprintf(w, "  at most %d threads in a CTA\n", k.MaxThreads())
	}
	return nil
}
