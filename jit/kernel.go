package jit

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"unicode"
	"unsafe"

	"sonicmoe/driver"
	"sonicmoe/ptx"
	"sonicmoe/ptx/isa"
)

// Builder emits a kernel whose launches take an A: a struct with a field for
// each argument, of type driver.DevicePtr, int, uint32 or float32. A field is
// named by its address in Args, so a wrong name or type does not compile:
//
//	type scaleArgs struct {
//		Data  driver.DevicePtr
//		Words int
//	}
//	k := jit.NewBuilder[scaleArgs]("scale", 256, 1)
//	data, words := k.Ptr(&k.Args.Data), k.U32(&k.Args.Words)
//
// A field becomes a parameter when it is asked for, in that order; fields that
// nobody asks for are arguments that this kernel does without. It belongs to
// one goroutine.
type Builder[A any] struct {
	*ptx.Kernel
	// Args only lends its fields' addresses; what it holds means nothing.
	Args *A

	name   string
	fields map[uintptr]reflect.StructField
	params []param[A]
	grid   func(a *A, sms int) driver.Dim3
}

// Params declares parameters of a kernel, whatever its arguments' type: what
// the parts of a kernel that come from a kit need of its [Builder]. Each method
// takes the address of a field of the builder's Args.
type Params interface {
	Ptr(field *driver.DevicePtr) ptx.Global
	U32(field *int) ptx.U32
}

// param is a parameter and the field that it comes from.
type param[A any] struct {
	name  string
	kind  paramKind
	field uintptr // offset in A
	at    int     // offset in the packed parameters
	// tensor, of a tensor map, makes it of the arguments.
	tensor func(*A) driver.TensorMap
}

type paramKind uint8

const (
	ptrParam paramKind = iota
	intParam
	wordParam
	floatParam
	mapParam
)

// NewBuilder starts a kernel whose CTAs have that number of threads. At least
// ctasPerSM of them shall fit an SM at once, which bounds the registers of a
// thread.
func NewBuilder[A any](name string, threads, ctasPerSM int) *Builder[A] {
	b := &Builder[A]{Kernel: ptx.NewKernel(name), Args: new(A), name: name, fields: map[uintptr]reflect.StructField{}}
	b.SetLaunchBounds(threads, ctasPerSM)
	b.addFields(reflect.TypeFor[A](), 0)
	return b
}

// addFields notes where the fields of a struct lie, those of embedded ones too.
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

// Ptr is the address in global memory that a field holds.
func (b *Builder[A]) Ptr(field *driver.DevicePtr) ptx.Global {
	return b.ParamPtr(b.param(ptrParam, unsafe.Pointer(field), nil))
}

// U32 is the number that a field holds, which must be from 0 to 2^32-1.
func (b *Builder[A]) U32(field *int) ptx.U32 {
	return b.ParamU32(b.param(intParam, unsafe.Pointer(field), nil))
}

// Word is the 32 bits that a field holds.
func (b *Builder[A]) Word(field *uint32) ptx.U32 {
	return b.ParamU32(b.param(wordParam, unsafe.Pointer(field), nil))
}

// F32 is the number that a field holds.
func (b *Builder[A]) F32(field *float32) ptx.F32 {
	return b.ParamF32(b.param(floatParam, unsafe.Pointer(field), nil))
}

// Map is a tensor map of the tensor whose address a field holds; of makes it of
// a launch's arguments.
func (b *Builder[A]) Map(field *driver.DevicePtr, of func(a *A) driver.TensorMap) ptx.TensorMap {
	return b.ParamTensorMap(b.param(mapParam, unsafe.Pointer(field), of))
}

// param notes a parameter and gives its name: the field's, in lower camel
// case, and that with Map or Ptr where the field is another parameter already.
func (b *Builder[A]) param(kind paramKind, field unsafe.Pointer, of func(*A) driver.TensorMap) string {
	at := uintptr(field) - uintptr(unsafe.Pointer(b.Args))
	f, ok := b.fields[at]
	if !ok {
		b.Errorf("an argument of kernel %s is no field of its builder's Args", b.name)
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

// lowerCamel is a field's name with its first word in lower case: "x",
// "dScores", "perCTA".
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

// SetGrid tells the CTAs of a launch from its arguments and the number of the
// device's SMs; without it a launch has one CTA.
func (b *Builder[A]) SetGrid(grid func(a *A, sms int) driver.Dim3) { b.grid = grid }

// CTAs has a launch take as many CTAs as count says.
func (b *Builder[A]) CTAs(count func(a *A) int) {
	b.SetGrid(func(a *A, _ int) driver.Dim3 { return driver.Dim3{X: count(a)} })
}

// Persistent has a launch take a CTA on each SM, in whole clusters of cluster
// CTAs.
func (b *Builder[A]) Persistent(cluster int) {
	b.SetGrid(func(_ *A, sms int) driver.Dim3 { return driver.Dim3{X: max(1, sms/cluster) * cluster} })
}

// Kernel is an emitted kernel with all that its launches need.
type Kernel[A any] struct {
	Module *ptx.Module
	// Name is the entry's name.
	Name string
	// Threads and SharedBytes are those of a CTA, Cluster the CTAs of a
	// cluster, 0 where there are none.
	Threads, SharedBytes, Cluster int

	params []param[A]
	grid   func(a *A, sms int) driver.Dim3
}

// Build ends the kernel. Its CTAs have the dynamic shared memory that it has
// named. It returns every error of the emission, each with its Go line.
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

// Rename gives the entry another name: errors, listings and profilers go by it.
func (k *Kernel[A]) Rename(name string) {
	k.Module.Entry(k.Name).Name = name
	k.Name = name
}

// Source is the kernel for a [Loader]; label is for people who list a cache.
func (k *Kernel[A]) Source(label string) Source {
	return Source{Module: k.Module, Name: k.Name, SharedBytes: k.SharedBytes, Label: label}
}

// programmatic says that the kernel waits for the one before it by itself, and
// so may be launched before that one has ended.
func (k *Kernel[A]) programmatic() bool {
	for _, in := range k.Module.Entry(k.Name).Body {
		if in.Form == &isa.Table[isa.GridDepWait] {
			return true
		}
	}
	return false
}

// Launcher launches a loaded kernel. It keeps the packed parameters and encoded
// tensor maps, so that a launch allocates nothing but what the device does to
// encode a map that has changed. It belongs to one goroutine at a time.
type Launcher[A any] struct {
	kernel *Kernel[A]
	fn     *Function
	dev    driver.Device
	sms    int
	args   A // of the last launch
	shape  driver.Launch
	packed []byte
	maps   []encodedMap // one for each parameter that is a map
}

// encodedMap is a tensor map as it was encoded last.
type encodedMap struct {
	of driver.TensorMap
	ok bool
}

// Launcher makes a launcher of the kernel, which f is on dev.
func (k *Kernel[A]) Launcher(f *Function, dev driver.Device) *Launcher[A] {
	l := &Launcher[A]{kernel: k, fn: f, dev: dev, sms: dev.Target().SMs}
	l.shape = driver.Launch{Block: driver.Dim3{X: k.Threads}, SharedBytes: k.SharedBytes,
		Cluster: driver.Dim3{X: k.Cluster}, Programmatic: k.programmatic()}
	l.packed = make([]byte, k.Module.Entry(k.Name).ParamBytes())
	l.maps = make([]encodedMap, len(k.params))
	return l
}

// Launch queues the kernel on s with these arguments. Errors name the kernel
// and, of an emulated device, the Go line at fault; nothing is queued when an
// argument is wrong.
func (l *Launcher[A]) Launch(s driver.Stream, args A) error {
	grid := driver.Dim3{X: 1}
	if l.kernel.grid != nil {
		l.args = args
		grid = l.kernel.grid(&l.args, l.sms)
	}
	return l.LaunchGrid(s, args, grid)
}

// LaunchGrid is Launch with another number of CTAs than the kernel's own.
func (l *Launcher[A]) LaunchGrid(s driver.Stream, args A, grid driver.Dim3) error {
	l.args, l.shape.Grid = args, grid
	err := l.pack()
	if err == nil {
		err = s.Launch(l.fn.Function, &l.shape, l.packed)
	}
	if err != nil {
		return fmt.Errorf("launching kernel %s: %w", l.kernel.Name, l.fn.Explain(err))
	}
	return nil
}

// pack writes the arguments to where the kernel's parameters lie.
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

// encode writes the tensor map of parameter i, unless it is there.
func (l *Launcher[A]) encode(i int, to []byte) error {
	p, kept := &l.kernel.params[i], &l.maps[i]
	m := p.tensor(&l.args)
	if kept.ok && kept.of == m {
		return nil
	}
	kept.ok = false
	e, err := l.dev.EncodeTensorMap(m)
	if err != nil {
		return fmt.Errorf("tensor map %s: %w", p.name, err)
	}
	copy(to, e[:])
	kept.of, kept.ok = m, true
	return nil
}

// Again queues the kernel once more, as it was launched last; it does nothing
// when it was not.
func (l *Launcher[A]) Again(s driver.Stream) (launched bool, err error) {
	if l.shape.Grid == (driver.Dim3{}) {
		return false, nil
	}
	return true, l.LaunchGrid(s, l.args, l.shape.Grid)
}
