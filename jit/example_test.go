package jit_test

import (
	"context"
	"encoding/binary"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
	"sonicmoe/jit"
	"sonicmoe/ptx"
)

// In this example, the parameters of a kernel are the fields of a Go struct.
func Example() {
	type args struct {
		Data  driver.DevicePtr
		Words int
	}
	k := jit.NewBuilder[args]("double", 32, 1)
	k.CTAs(func(a *args) int { return (a.Words + 31) / 32 })
	data, words := k.Ptr(&k.Args.Data), k.U32(&k.Args.Words)
	i := k.CtaidX().Mad(k.NtidX(), k.TidX())
	k.If(i.Lt(words), func() {
		at := data.Index(i, 4)
		ptx.StGlobal(at, ptx.LdGlobal[ptx.U32](at).ShlI(1))
	})
	kernel, err := k.Build()
	if err != nil {
		fmt.Println(err)
		return
	}

	ctx := context.Background()
	dev, err := emulated.New(emulated.Options{}) // or open.Device(ctx, "cuda")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	defer jit.Forget(dev)
	// nil means no cache; cache.Open returns one
	fn, err := jit.Of(dev).Load(ctx, nil, kernel.Source("double"), gpu.CompileOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := dev.NewStream()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	p, err := dev.Alloc(4 * 40)
	if err == nil {
		err = s.Fill32(p, 21, 40)
	}
	if err == nil {
		err = kernel.Launcher(fn).Launch(s, args{Data: p, Words: 39})
	}
	host := make([]byte, 4*40)
	if err == nil {
		err = s.CopyToHost(host, p)
	}
	fmt.Println(binary.LittleEndian.Uint32(host), binary.LittleEndian.Uint32(host[4*38:]), binary.LittleEndian.Uint32(host[4*39:]), err)
	// Output: 42 42 21 <nil>
}
