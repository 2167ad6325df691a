package emu

import "testing"

// ForeignLaunch is a launch of a kernel of ../testdata/foreign, which another compiler generated.
// Before and After hold the contents of memory before and after the launch, by the address of the
// allocation.
type ForeignLaunch struct {
	Text          []byte
	Kernel        *Kernel
	Launch        Launch
	Version       int
	Before, After map[uint64][]byte
}

// OnForeign, if not nil, is called after each launch of a kernel of ../testdata/foreign.
var OnForeign func(t testing.TB, l ForeignLaunch)

// RunForeign runs the tests of the kernels of ../testdata/foreign.
func RunForeign(t *testing.T) { TestForeignKernels(t) }

// onForeign calls OnForeign with the launch that has just run. Parameter before has the memory's
// contents before the launch.
func (r *foreignRun) onForeign(before *snapshot) {
	if OnForeign == nil {
		return
	}
	l := ForeignLaunch{r.source, r.kernel, r.launch, r.kernel.module.Version(), map[uint64][]byte{}, map[uint64][]byte{}}
	for a, b := range before.bytes {
		l.Before[a.base], l.After[a.base] = b, append([]byte(nil), a.bytes...)
	}
	OnForeign(r.t, l)
}

// These unexported values are for tests in package emu_test.
var (
	ElementFormats = elementFormats
	HalvesOfFP8    = halvesOfFP8
	AddF16         = addF16
)
