package tune

import (
	"context"
	"fmt"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/trial"
	"sonicmoe/ptx"
)

// print is a digest of a tensor's bits in their places: two sums over all words
// of a hash of word and place. Sums don't depend on the order.
type print [2]uint32

// fingerprinter computes prints on the device: gradients of large layers take
// seconds to copy.
type fingerprinter struct {
	fn      *jit.Function
	binding *jit.Binding
	stream  driver.Stream
	sums    driver.DevicePtr
}

const (
	printThreads = 256
	printBytes   = 8
	// wordsALaunch keeps word numbers in 32 bits.
	wordsALaunch = 1 << 30
)

// fingerprintKernel adds the hashes of words to sums[0] and sums[1].
func fingerprintKernel() (jit.Source, error) {
	const name = "tune_fingerprint"
	k := ptx.NewKernel(name)
	k.SetLaunchBounds(printThreads, 1)
	data, sums := k.ParamPtr("data"), k.ParamPtr("sums")
	words, seed := k.ParamU32("words"), k.ParamU32("seed")
	first := k.Special("%ctaid.x").MulI(printThreads).Add(k.Special("%tid.x"))
	a, b := ptx.NewVar(k, ptx.Uint(0)), ptx.NewVar(k, ptx.Uint(0))
	k.For(first, words, k.Special("%nctaid.x").MulI(printThreads), func(i ptx.U32) {
		h := hash(ptx.LdGlobal[ptx.U32](data.Index(i, 4)).Xor(hash(i.Add(seed))))
		a.Set(a.Get().Add(h))
		b.Set(b.Get().Add(hash(h.Add(ptx.Uint(0x9e3779b9)))))
	})
	k.RedGlobalAdd(sums, a.Get())
	k.RedGlobalAdd(sums.At(4), b.Get())
	m, err := k.Build()
	return jit.Source{Module: m, Name: name, Label: "fingerprint of a tensor"}, err
}

// hash mixes all bits of a word; a bijection.
func hash(x ptx.U32) ptx.U32 {
	x = x.Xor(x.ShrI(16)).Mul(ptx.Uint(0x7feb352d))
	x = x.Xor(x.ShrI(15)).Mul(ptx.Uint(0x846ca68b))
	return x.Xor(x.ShrI(16))
}

// newFingerprinter works on a stream; sums are printBytes of its own.
func newFingerprinter(ctx context.Context, dev driver.Device, c *cache.Cache, s driver.Stream, sums driver.DevicePtr) (*fingerprinter, error) {
	source, err := fingerprintKernel()
	if err != nil {
		return nil, err
	}
	f := &fingerprinter{stream: s, sums: sums}
	if f.fn, err = jit.Of(dev).Load(ctx, c, source, driver.CompileOptions{}); err != nil {
		return nil, err
	}
	f.binding = f.fn.Bind(dev, driver.Launch{Grid: driver.Dim3{X: 8 * dev.Target().SMs}, Block: driver.Dim3{X: printThreads}})
	return f, nil
}

// of computes a tensor's print, behind the stream's earlier work.
func (f *fingerprinter) of(t moe.Tensor) (print, error) {
	if err := f.stream.Fill32(f.sums, 0, 2); err != nil {
		return print{}, err
	}
	words := t.Shape.Bytes() / 4
	f.binding.Ptr("sums", f.sums)
	for done := int64(0); done < words; done += wordsALaunch {
		f.binding.Ptr("data", t.Ptr+driver.DevicePtr(4*done))
		f.binding.U32("words", uint32(min(wordsALaunch, words-done)))
		f.binding.U32("seed", uint32(done/wordsALaunch)*0x2545f491)
		if err := f.binding.Launch(f.stream); err != nil {
			return print{}, fmt.Errorf("fingerprint: %w", err)
		}
	}
	sums := make([]uint32, 2)
	err := f.stream.CopyToHost(trial.Bytes(sums), f.sums)
	return print(sums), err
}
