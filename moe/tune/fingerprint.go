package tune

import (
	"context"
	"fmt"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/num"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/ptx"
)

// checksum is a digest of a tensor's bits and their positions. It is two sums over all words of the
// tensor. Each sum adds hashes of a word together with its position. The order of the additions
// makes no difference.
type checksum [2]uint32

// fingerprinter computes checksums on the device, because copying the gradients of
// large layers to the host takes seconds.
type fingerprinter struct {
	launcher *jit.Launcher[fingerprintArgs]
	stream   driver.Stream
	sums     driver.DevicePtr
}

const (
	checksumThreads = 256
	checksumBytes   = 8
	// wordsALaunch is the largest number of words of one launch, so that word numbers fit 32 bits.
	wordsALaunch = 1 << 30
)

// fingerprintArgs are the arguments of the kernel that adds hashes.
type fingerprintArgs struct {
	// Data [Words] u32 is the input. The kernel adds the hashes of its words to Sums [2] u32.
	Data, Sums driver.DevicePtr
	Words      int
	Seed       uint32
}

// fingerprintKernel returns the kernel that adds the hashes of words to the two sums.
func fingerprintKernel() (*jit.Kernel[fingerprintArgs], error) {
	k := jit.NewBuilder[fingerprintArgs]("tune_fingerprint", checksumThreads, 1)
	k.SetGrid(func(_ *fingerprintArgs, sms int) gpu.Dim3 { return gpu.Dim3{X: 8 * sms} })
	data, sums := k.Ptr(&k.Args.Data), k.Ptr(&k.Args.Sums)
	words, seed := k.U32(&k.Args.Words), k.Word(&k.Args.Seed)
	first := k.CtaidX().MulI(checksumThreads).Add(k.TidX())
	a, b := ptx.NewVar(k.Kernel, ptx.Uint(0)), ptx.NewVar(k.Kernel, ptx.Uint(0))
	k.For(first, words, k.NctaidX().MulI(checksumThreads), func(i ptx.U32) {
		h := hash(ptx.LdGlobal[ptx.U32](data.Index(i, 4)).Xor(hash(i.Add(seed))))
		a.Set(a.Get().Add(h))
		b.Set(b.Get().Add(hash(h.Add(ptx.Uint(0x9e3779b9)))))
	})
	k.RedGlobalAdd(sums, a.Get())
	k.RedGlobalAdd(sums.At(4), b.Get())
	return k.Build()
}

// hash mixes all bits of a word. It is a bijection.
func hash(x ptx.U32) ptx.U32 {
	x = x.Xor(x.ShrI(16)).Mul(ptx.Uint(0x7feb352d))
	x = x.Xor(x.ShrI(15)).Mul(ptx.Uint(0x846ca68b))
	return x.Xor(x.ShrI(16))
}

// newFingerprinter returns a fingerprinter for a stream. sums is device memory of checksumBytes
// bytes that the fingerprinter uses.
func newFingerprinter(ctx context.Context, dev driver.Device, c *cache.Cache, s driver.Stream, sums driver.DevicePtr) (*fingerprinter, error) {
	k, err := fingerprintKernel()
	if err != nil {
		return nil, err
	}
	fn, err := jit.Of(dev).Load(ctx, c, k.Source("fingerprint of a tensor"), gpu.CompileOptions{})
	if err != nil {
		return nil, err
	}
	return &fingerprinter{launcher: k.Launcher(fn), stream: s, sums: sums}, nil
}

// sum computes a tensor's checksum, after the earlier work of the stream.
func (f *fingerprinter) sum(t moe.Tensor) (checksum, error) {
	if err := f.stream.Fill32(f.sums, 0, 2); err != nil {
		return checksum{}, err
	}
	words := t.Shape.Bytes() / 4
	for done := int64(0); done < words; done += wordsALaunch {
		if err := f.launcher.Launch(f.stream, fingerprintArgs{
			Data: t.Ptr + driver.DevicePtr(4*done), Sums: f.sums, Words: int(min(wordsALaunch, words-done)), Seed: uint32(done/wordsALaunch) * 0x2545f491,
		}); err != nil {
			return checksum{}, fmt.Errorf("fingerprint: %w", err)
		}
	}
	sums := make([]uint32, 2)
	err := f.stream.CopyToHost(num.Bytes(sums), f.sums)
	return checksum(sums), err
}
