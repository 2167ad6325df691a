package jit

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"unicode"
	"unsafe"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/ptx"
	"sonicmoe/ptx/isa"
)

// Builder emits a kernel whose launch arguments are an A. A is a struct with a field for each
// argument; a field is a driver.DevicePtr, int, uint32 or float32. Methods take the address of a
// field in Args, so a wrong name or type is a Go compile error:
//
//	type scaleArgs struct {
//		Data  driver.DevicePtr
//		Words int
//	}
//	k := jit.NewBuilder[scaleArgs]("scale", 256, 1)
//	data, words := k.Ptr(&k.Args.Data), k.U32(&k.Args.Words)
//
// A field becomes a parameter of the kernel when a method reads it. Parameters have the order of
// these calls. A field that no method reads is not passed to the kernel. Only one goroutine may use
// a Builder.
type Builder[A any] struct {
	*ptx.Kernel
	// Args provides the addresses of the fields. Its values are not used.
	Args *A

	name   string
	fields map[uintptr]reflect.StructField
	params []param[A]
	grid   func(a *A, sms int) gpu.Dim3
}

// Params declares parameters of a kernel, whatever the type of its arguments. Code that several
// kernels share takes a Params instead of a [Builder], because the type of a Builder depends on the
// type of the arguments. Each method takes the address of a field of the builder's Args.
type Params interface {
	Ptr(field *driver.DevicePtr) ptx.Global
	U32(field *int) ptx.U32
}

// param is a parameter of a kernel, with the field of A that holds its argument.
type param[A any] struct {
	name  string
	kind  paramKind
	field uintptr // offset of the field in A
	at    int     // offset of the parameter in the packed parameters
	// tensor computes a parameter that is a tensor map from the arguments of a launch.
	tensor func(*A) gpu.TensorMap
}

type paramKind uint8

const (
	ptrParam paramKind = iota
	intParam
	wordParam
	floatParam
	mapParam
)

// NewBuilder starts a kernel whose CTAs have the given number of threads. At least ctasPerSM CTAs
// must fit on an SM at the same time, which limits the number of registers per thread.
func NewBuilder[A any](name string, threads, ctasPerSM int) *Builder[A] {
	b := &Builder[A]{Kernel: ptx.NewKernel(name), Args: new(A), name: name, fields: map[uintptr]reflect.StructField{}}
	b.SetLaunchBounds(threads, ctasPerSM)
	b.addFields(reflect.TypeFor[A](), 0)
	return b
}

// addFields records the offsets of the fields of a struct, including the fields of embedded
// structs.
func (b *Builder[A]) addFields(t reflect.Type, base uintptr) {
	if t.Kind() != reflect.Struct {
		b.Errorf("the arguments are a %v, must be a struct", t)
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous && f.Type.Kind() == reflect.Struct {
			b.addFields(f.Type, base+f.Offset)
			continue
		}
		b.fields[base+f.Offset] = f
	}
}

// Ptr declares the parameter for a field that holds an address in global memory.
func (b *Builder[A]) Ptr(field *driver.DevicePtr) ptx.Global {
	return b.ParamPtr(b.param(ptrParam, unsafe.Pointer(field), nil))
}

// U32 declares the parameter for a field that holds a number from 0 to 2^32-1.
func (b *Builder[A]) U32(field *int) ptx.U32 {
	return b.ParamU32(b.param(intParam, unsafe.Pointer(field), nil))
}

// Word declares the parameter for a field that holds 32 bits.
func (b *Builder[A]) Word(field *uint32) ptx.U32 {
	return b.ParamU32(b.param(wordParam, unsafe.Pointer(field), nil))
}

// F32 declares the parameter for a field that holds a float.
func (b *Builder[A]) F32(field *float32) ptx.F32 {
	return b.ParamF32(b.param(floatParam, unsafe.Pointer(field), nil))
}

// Map declares a parameter that is the tensor map of the tensor whose address a field holds.
// Function of computes the map from the arguments of a launch.
func (b *Builder[A]) Map(field *driver.DevicePtr, of func(a *A) gpu.TensorMap) ptx.TensorMap {
	return b.ParamTensorMap(b.param(mapParam, unsafe.Pointer(field), of))
}

// param records a parameter and returns its name: the field's name in lower camel case. If the
// field is another parameter already, the name ends with Map or Ptr.
func (b *Builder[A]) param(kind paramKind, field unsafe.Pointer, of func(*A) gpu.TensorMap) string {
	at := uintptr(field) - uintptr(unsafe.Pointer(b.Args))
	f, ok := b.fields[at]
	if !ok {
		b.Errorf("an argument of kernel %s is not a field of its builder's Args", b.name)
		return "unknown"
	}
	name := lowerCamel(f.Name)
	for _, p := range b.params {
		switch {
		case p.field != at:
		case kind == mapParam:
			name += "Map"
		default:
			name += "Ptr"
		}
	}
	b.params = append(b.params, param[A]{name: name, kind: kind, field: at, tensor: of})
	return name
}

// lowerCamel returns the name of a field with its first word in lower case, such as "x", "dScores"
// or "perCTA".
func lowerCamel(name string) string {
	r := []rune(name)
	for i := range r {
		if i > 0 && i+1 < len(r) && unicode.IsLower(r[i+1]) || unicode.IsLower(r[i]) {
			break
		}
		r[i] = unicode.ToLower(r[i])
	}
	return string(r)
}

// SetGrid sets the function that computes the grid of a launch from its arguments and from the
// device's number of SMs. By default a launch has one CTA.
func (b *Builder[A]) SetGrid(grid func(a *A, sms int) gpu.Dim3) { b.grid = grid }

// CTAs makes a launch have as many CTAs as count returns.
func (b *Builder[A]) CTAs(count func(a *A) int) {
	b.SetGrid(func(a *A, _ int) gpu.Dim3 { return gpu.Dim3{X: count(a)} })
}

// Persistent makes a launch have one CTA for each SM. With clusters of several CTAs, it has as many
// whole clusters as fit, but at least one.
func (b *Builder[A]) Persistent(cluster int) {
	b.SetGrid(func(_ *A, sms int) gpu.Dim3 { return gpu.Dim3{X: max(1, sms/cluster) * cluster} })
}

// Kernel is an emitted kernel with everything that its launches need.
type Kernel[A any] struct {
	Module *ptx.Module
	// Name is the name of the kernel in its module.
	Name string
	// Threads and SharedBytes are the size of a CTA. Cluster is the number of CTAs in a cluster, or
	// 0 without clusters.
	Threads, SharedBytes, Cluster int

	params []param[A]
	grid   func(a *A, sms int) gpu.Dim3
}

// Build ends the kernel. A CTA gets dynamic shared memory up to the end of the last region that the
// kernel has named. Build returns every mistake in the emission, each with its Go line.
func (b *Builder[A]) Build() (*Kernel[A], error) {
	m, err := b.Kernel.Build()
	if err != nil {
		return nil, err
	}
	e := m.Entry(b.name)
	for i := range b.params {
		b.params[i].at = e.Params[i].Offset
	}
	return &Kernel[A]{Module: m, Name: b.name, Threads: e.MaxThreads, SharedBytes: e.SharedBytes(), Cluster: e.Cluster.Count(), params: b.params, grid: b.grid}, nil
}

// Rename changes the name of the kernel, which errors, listings and profilers show.
func (k *Kernel[A]) Rename(name string) {
	k.Module.Entry(k.Name).Name = name
	k.Name = name
}

// Source returns the kernel in the form that a [Loader] takes. label describes it in listings of a
// cache.
func (k *Kernel[A]) Source(label string) Source {
	return Source{Module: k.Module, Name: k.Name, SharedBytes: k.SharedBytes, Label: label}
}

// programmatic reports whether the kernel itself waits for its predecessor. Only then may it start
// before its predecessor has ended.
func (k *Kernel[A]) programmatic() bool {
	for _, in := range k.Module.Entry(k.Name).Body {
		if in.Form == &isa.Table[isa.GridDepWait] {
			return true
		}
	}
	return false
}

// Launcher launches a loaded kernel. It keeps the packed parameters and the encoded tensor maps, so
// that a launch allocates only what the device needs to encode a tensor map that has changed. Only
// one goroutine may use it at a time.
type Launcher[A any] struct {
	kernel *Kernel[A]
	fn     *Function
	sms    int
	args   A // arguments of the previous launch
	shape  gpu.Launch
	packed []byte
	maps   []encodedMap // one for each parameter that is a tensor map
}

// encodedMap is a tensor map. ok states that the parameter buffer holds its encoding.
type encodedMap struct {
	of gpu.TensorMap
	ok bool
}

// Launcher returns a launcher for the kernel. f is the loaded kernel.
func (k *Kernel[A]) Launcher(f *Function) *Launcher[A] {
	l := &Launcher[A]{kernel: k, fn: f, sms: f.dev.Target().SMs}
	l.shape = gpu.Launch{Block: gpu.Dim3{X: k.Threads}, SharedBytes: k.SharedBytes,
		Cluster: gpu.Dim3{X: k.Cluster}, Programmatic: k.programmatic()}
	l.packed = make([]byte, k.Module.Entry(k.Name).ParamBytes())
	l.maps = make([]encodedMap, len(k.params))
	return l
}

// Launch queues the kernel on stream s with the given arguments. An error names the kernel and, on
// an emulated device, the Go line at fault. If an argument is wrong, nothing is queued.
func (l *Launcher[A]) Launch(s driver.Stream, args A) error {
	grid := gpu.Dim3{X: 1}
	if l.kernel.grid != nil {
		l.args = args
		grid = l.kernel.grid(&l.args, l.sms)
	}
	return l.LaunchGrid(s, args, grid)
}

// LaunchGrid does the same as Launch, with another grid than the kernel's own.
func (l *Launcher[A]) LaunchGrid(s driver.Stream, args A, grid gpu.Dim3) error {
	l.args, l.shape.Grid = args, grid
	err := l.pack()
	if err == nil {
		err = gpu.Enqueue(s, l.fn.Function, &l.shape, l.packed)
	}
	if err != nil {
		return fmt.Errorf("launching kernel %s: %w", l.kernel.Name, l.fn.Explain(err))
	}
	return nil
}

// pack writes the arguments into the parameter buffer.
func (l *Launcher[A]) pack() error {
	base := unsafe.Pointer(&l.args)
	for i := range l.kernel.params {
		p := &l.kernel.params[i]
		field, to := unsafe.Add(base, p.field), l.packed[p.at:]
		switch p.kind {
		case ptrParam:
			binary.LittleEndian.PutUint64(to, uint64(*(*driver.DevicePtr)(field)))
		case intParam:
			n := *(*int)(field)
			if n < 0 || n > math.MaxUint32 {
				return &driver.Error{Op: "launch", Name: "invalid value", Kind: driver.ErrInvalid, Kernel: l.kernel.Name,
					Text: fmt.Sprintf("argument %s is %d, must be from 0 to 2^32-1", p.name, n)}
			}
			binary.LittleEndian.PutUint32(to, uint32(n))
		case wordParam:
			binary.LittleEndian.PutUint32(to, *(*uint32)(field))
		case floatParam:
			binary.LittleEndian.PutUint32(to, math.Float32bits(*(*float32)(field)))
		case mapParam:
			if err := l.encode(i, to); err != nil {
				return err
			}
		}
	}
	return nil
}

// encode writes the tensor map of parameter i into the parameter buffer, unless the buffer already
// holds it.
func (l *Launcher[A]) encode(i int, to []byte) error {
	p, kept := &l.kernel.params[i], &l.maps[i]
	m := p.tensor(&l.args)
	if kept.ok && kept.of == m {
		return nil
	}
	kept.ok = false
	e, err := l.fn.dev.EncodeTensorMap(m)
	if err != nil {
		return fmt.Errorf("tensor map %s: %w", p.name, err)
	}
	copy(to, e[:])
	kept.of, kept.ok = m, true
	return nil
}

// Again queues the kernel with the arguments of the previous launch. launched is false if there was
// no previous launch.
func (l *Launcher[A]) Again(s driver.Stream) (launched bool, err error) {
	if l.shape.Grid == (gpu.Dim3{}) {
		return false, nil
	}
	return true, l.LaunchGrid(s, l.args, l.shape.Grid)
}
