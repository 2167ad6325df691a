package emu

import "testing"

// ForeignLaunch is a launch of a kernel of ../testdata/foreign. Before and After hold the
// memory before and after the launch, by the addresses of allocations.
type ForeignLaunch struct {
	Text          []byte
	Kernel        *Kernel
	Launch        Launch
	Version       int
	Before, After map[uint64][]byte
}

// OnForeign, if set, is called for each launch.
var OnForeign func(t testing.TB, l ForeignLaunch)

// RunForeign launches the kernels of ../testdata/foreign.
func RunForeign(t *testing.T) { TestForeignKernels(t) }

// onForeign calls OnForeign for a launch that has run.
func (r *foreignRun) onForeign(before snapshot) {
	if OnForeign == nil {
		return
	}
	l := ForeignLaunch{r.source, r.kernel, r.launch, r.kernel.module.Version(), map[uint64][]byte{}, map[uint64][]byte{}}
	for a, b := range before {
		l.Before[a.base], l.After[a.base] = b, append([]byte(nil), a.bytes...)
	}
	OnForeign(r.t, l)
}

// Unexported values that external tests use.
var (
	ElementFormats = elementFormats
	HalvesOfFP8    = halvesOfFP8
	AddF16         = addF16
)
