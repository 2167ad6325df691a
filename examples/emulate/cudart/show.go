//go:build cgo && linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"sonicmoe/examples/emulate/internal/findings"
	"sonicmoe/ptx/emu"
)

// finding identifies a finding.
type finding struct {
	kernel string
	line   int
	kind   emu.FaultKind
}

// fresh returns the findings that were not shown before.
func (d *device) fresh(found *emu.Findings) *emu.Findings {
	fresh := &emu.Findings{Runs: found.Runs, Exploration: found.Exploration}
	for _, x := range found.List {
		if id := (finding{x.Kernel, x.Line, x.Kind}); !d.told[id] {
			d.told[id] = true
			fresh.List = append(fresh.List, x)
		}
	}
	return fresh
}

// show writes findings to standard error, and as pages if the options have a folder for them.
func (d *device) show(ctx context.Context, m *module, regions []emu.Region, found *emu.Findings) {
	if !d.options.Quiet {
		say("%s", findings.Readable(found.Error()))
	}
	if d.options.HTML == "" {
		return
	}
	p := findings.Pages{File: m.file(), Text: m.ptx, Regions: regions, From: d.pages}
	d.pages += len(found.List)
	if err := p.Write(ctx, d.options.HTML, found.List); err != nil {
		say("%v", err)
	}
}

// trace writes a trace of a kernel's first launch, if the options have a folder for traces.
func (d *device) trace(ctx context.Context, f *function, k *emu.Kernel, l emu.Launch) {
	if d.options.Trace == "" || d.traced[f.name] {
		return
	}
	d.traced[f.name] = true
	l.Stream, l.Programmatic, l.Races = nil, false, false
	name := fmt.Sprintf("%d-%s.json", len(d.traced), fileName(findings.Name(f.name)))
	if err := findings.WriteTrace(ctx, filepath.Join(d.options.Trace, name), d.options.CTAs, k, d.mem, l, true); err != nil {
		say("%v", err)
	}
}

var notInFiles = regexp.MustCompile(`[^0-9A-Za-z_]+`)

// fileName returns a name with only letters, digits, _ and -, of at most 60 bytes.
func fileName(name string) string {
	name = notInFiles.ReplaceAllString(name, "-")
	return name[:min(len(name), 60)]
}

// file returns the name of the file that save writes.
func (m *module) file() string { return fmt.Sprintf("module-%d.ptx", m.number) }

// save writes the module's PTX to a folder, unless its name is "".
func (m *module) save(folder string) {
	if folder == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(folder, m.file()), m.ptx, 0o644); err != nil {
		say("%v", err)
	}
}
