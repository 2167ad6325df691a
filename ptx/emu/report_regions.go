package emu

import (
	"cmp"
	"slices"

	"sonicmoe/ptx"
)

// Region is a named part of a CTA's shared memory.
type Region struct {
	Name string
	// At is the offset in the CTA's window of shared memory, as in the texts of findings.
	At, Bytes uint32
}

// Regions returns the named parts of the shared memory of a CTA of a launch, by rising offset: the
// variables of the kernel, and the pieces of dynamic shared memory that the kernel's text names.
// Without such names all dynamic shared memory is one region. sharedBytes is the launch's size of
// dynamic shared memory.
func (k *Kernel) Regions(sharedBytes int) []Region {
	start := k.dynamicStart()
	var list []Region
	for _, n := range k.entry.Names {
		for piece := range n.Count {
			if at := n.At + piece*n.Bytes; n.Kind == ptx.SharedRegion && n.Bytes > 0 && at < sharedBytes {
				list = append(list, Region{k.pieceName(n, piece), start + uint32(at), uint32(min(n.Bytes, sharedBytes-at))})
			}
		}
	}
	if len(list) == 0 && sharedBytes > 0 {
		list = append(list, Region{"dynamic shared memory", start, uint32(sharedBytes)})
	}
	for _, v := range k.variables {
		if v.at < start || v.bytes < sharedMaxBytes {
			list = append(list, Region{v.name, v.at, v.bytes})
		}
	}
	slices.SortStableFunc(list, func(x, y Region) int { return cmp.Compare(x.At, y.At) })
	return list
}
