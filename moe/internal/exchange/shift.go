package exchange

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/ptx"
)

// Shift adds to the place of each pair a number that depends on the pair's expert. A thread handles
// one pair.
type Shift struct{}

const shiftThreads = 256

// ShiftArgs are the arguments of [Shift]. The package comment defines T, K and E.
type ShiftArgs struct {
	// ExpertIDs [T, K] i32 and Places [T, K] u32 are tensors of [Split].
	ExpertIDs, Places driver.DevicePtr
	// Shifts [E] u32 has the number to add for each expert, modulo 2^32.
	Shifts driver.DevicePtr
	// Shifted [T, K] u32 is an output: the new places. A pair whose expert is outside [0, E) keeps
	// its place.
	Shifted driver.DevicePtr
	// Pairs is T·K.
	Pairs int
}

// Build emits the kernel.
func (Shift) Build() (*jit.Kernel[ShiftArgs], error) {
	k := jit.NewBuilder[ShiftArgs]("moe_shift", shiftThreads, 1)
	k.CTAs(func(a *ShiftArgs) int { return (a.Pairs + shiftThreads - 1) / shiftThreads })
	ids, places := k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.Places)
	shifts, shifted, pairs := k.Ptr(&k.Args.Shifts), k.Ptr(&k.Args.Shifted), k.U32(&k.Args.Pairs)
	pair := k.CtaidX().MulI(shiftThreads).Add(k.TidX())
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(pair.Lt(pairs), func() {
		place := ptx.NewVar(k.Kernel, ptx.LdGlobal[ptx.U32](places.Index(pair, 4)))
		k.If(place.Get().NeI(order.NoRow), func() {
			id := ptx.LdGlobal[ptx.U32](ids.Index(pair, 4))
			place.Set(place.Get().Add(ptx.LdGlobal[ptx.U32](shifts.Index(id, 4))))
		})
		ptx.StGlobal(shifted.Index(pair, 4), place.Get())
	})
	return k.Build()
}

// ShiftKernel is the kernel [Shift].
var ShiftKernel = &registry.Kernel[ShiftArgs]{KernelName: "shift", Emit: func(registry.Layer) (*jit.Kernel[ShiftArgs], error) {
	return Shift{}.Build()
}}
