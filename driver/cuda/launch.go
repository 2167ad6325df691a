package cuda

import (
	"sync"
	"unsafe"

	"sonicmoe/driver/gpu"
)

// launchConfig is a CUlaunchConfig.
type launchConfig struct {
	gridX, gridY, gridZ    uint32
	blockX, blockY, blockZ uint32
	sharedBytes            uint32
	stream                 uintptr
	attributes             uintptr // address of a launchAttribute array
	attributeCount         uint32
}

// launchAttribute is a CUlaunchAttribute. Its value is a union.
type launchAttribute struct {
	id    uint32
	value [8]uint64
}

// These are launch attributes (CUlaunchAttributeID), and the keys that describe the parameter
// buffer in the last argument of cuLaunchKernelEx.
const (
	attrClusterDimension = 4
	attrProgrammatic     = 6

	paramEnd     = 0
	paramPointer = 1
	paramSize    = 2
)

// packet is the memory of one launch: everything that the driver reads, in one heap object that
// is used again for later launches. The object stores addresses of its own parts as integers.
// This is safe because Go does not move heap objects, and because a packet stays reachable
// during its call.
type packet struct {
	config     launchConfig
	attributes [2]launchAttribute
	params     []byte
	size       uintptr
	extra      [5]uintptr
	args       [4]uintptr // argument list of the call: config, function, argument pointers (none), extra
}

var packets = sync.Pool{New: func() any {
	p := new(packet)
	p.params = make([]byte, 4096)
	p.config.attributes = uintptr(unsafe.Pointer(&p.attributes[0]))
	return p
}}

// fill writes the description of a launch of f on a stream into the packet.
func (p *packet) fill(f *function, stream uintptr, l *gpu.Launch, params []byte) {
	one := func(n int) uint32 { return uint32(max(n, 1)) }
	c := &p.config
	c.gridX, c.gridY, c.gridZ = one(l.Grid.X), one(l.Grid.Y), one(l.Grid.Z)
	c.blockX, c.blockY, c.blockZ = one(l.Block.X), one(l.Block.Y), one(l.Block.Z)
	c.sharedBytes, c.stream, c.attributeCount = uint32(l.SharedBytes), stream, 0
	if l.Cluster != (gpu.Dim3{}) {
		x, y, z := one(l.Cluster.X), one(l.Cluster.Y), one(l.Cluster.Z)
		p.add(attrClusterDimension, uint64(x)|uint64(y)<<32, uint64(z))
	}
	if l.Programmatic {
		p.add(attrProgrammatic, 1, 0)
	}
	// Copy params, because the caller's bytes may be on a goroutine's stack, which can move.
	if len(params) > len(p.params) {
		p.params = make([]byte, len(params))
	}
	p.size = uintptr(copy(p.params, params))
	p.extra = [5]uintptr{paramPointer, uintptr(unsafe.Pointer(&p.params[0])), paramSize, uintptr(unsafe.Pointer(&p.size)), paramEnd}
	p.args = [4]uintptr{uintptr(unsafe.Pointer(c)), f.raw, 0, uintptr(unsafe.Pointer(&p.extra[0]))}
	if len(params) == 0 {
		p.args[3] = 0
	}
}

// add appends an attribute, whose value consists of two 64-bit words.
func (p *packet) add(id uint32, word0, word1 uint64) {
	p.attributes[p.config.attributeCount] = launchAttribute{id: id, value: [8]uint64{word0, word1}}
	p.config.attributeCount++
}

// own returns f as a *function if it belongs to this device, otherwise an error.
func (d *device) own(op string, f gpu.Function, l *gpu.Launch) (*function, error) {
	fn, ok := f.(*function)
	if !ok || fn.dev != d {
		return nil, invalid(op, "the function is not of this device")
	}
	if err := l.Check(); err != nil {
		return nil, withText(err, "function %q", fn.name)
	}
	if l.Cluster.Count() > portableClusterCTAs && !fn.big.Load() {
		if err := d.doNumbers(symFuncSetAttribute, fn.raw, funcBigClusters, 1); err != nil {
			return nil, withText(err, "clusters of more than %d CTAs for function %q", portableClusterCTAs, fn.name)
		}
		fn.big.Store(true)
	}
	return fn, nil
}

// Launch implements gpu.Stream.
func (s *stream) Launch(f gpu.Function, l *gpu.Launch, params []byte) error {
	if err := s.use("launch", "stream"); err != nil {
		return err
	}
	defer s.leave()
	fn, err := s.dev.own("launch", f, l)
	if err != nil {
		return err
	}
	p := packets.Get().(*packet)
	p.fill(fn, s.raw, l, params)
	err = s.dev.doSlice(symLaunchKernelEx, p.args[:])
	packets.Put(p)
	if err != nil {
		return explainLaunch(err, fn, *l, len(params))
	}
	return nil
}

// explainLaunch finds out which limit a refused launch exceeds, because the driver returns only
// "invalid value".
func explainLaunch(err error, f *function, l gpu.Launch, paramBytes int) error {
	if f.dev.broken.Cause() != nil {
		return err
	}
	if allowed, e := f.attribute(funcMaxDynamic); e == nil && l.SharedBytes > allowed {
		return withText(err, "SharedBytes is %d, function %q allows %d: call AllowSharedBytes first (a CTA has at most %d here)",
			l.SharedBytes, f.name, allowed, f.dev.target.SharedBytesPerCTA)
	}
	if threads, e := f.attribute(funcMaxThreads); e == nil && l.Block.Count() > threads {
		return withText(err, "Block is %d threads, function %q was compiled for at most %d", l.Block.Count(), f.name, threads)
	}
	return withText(err, "function %q, grid %v, block %v, cluster %v, %d shared bytes, %d parameter bytes",
		f.name, l.Grid, l.Block, l.Cluster, l.SharedBytes, paramBytes)
}

// MaxActiveClusters implements gpu.Device.
func (d *device) MaxActiveClusters(f gpu.Function, l gpu.Launch) (int, error) {
	fn, err := d.own("MaxActiveClusters", f, &l)
	if err != nil {
		return 0, err
	}
	var n int32
	if l.Cluster == (gpu.Dim3{}) {
		err = d.do(symMaxActiveBlocks, uintptr(unsafe.Pointer(&n)), fn.raw, uintptr(l.Block.Count()), uintptr(l.SharedBytes))
		n *= int32(d.target.SMs)
	} else {
		p := packets.Get().(*packet)
		p.fill(fn, 0, &l, nil)
		err = d.do(symMaxActiveClusters, uintptr(unsafe.Pointer(&n)), fn.raw, uintptr(unsafe.Pointer(&p.config)))
		packets.Put(p)
	}
	if err != nil {
		return 0, explainLaunch(err, fn, l, 0)
	}
	return int(n), nil
}
