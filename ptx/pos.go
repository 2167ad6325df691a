package ptx

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
)

// position is the Go call stack that emitted an instruction, as program counters, innermost first.
type position [6]uintptr

// here records the call stack, starting at the caller of the function that called function here.
func here(p *position) *position {
	runtime.Callers(3, p[:])
	return p
}

// position returns storage for the position of one instruction. It takes the storage from a slice
// that has room for many positions.
func (k *Kernel) position() *position {
	if len(k.positions) == 0 {
		k.positions = make([]position, 256)
	}
	p := &k.positions[0]
	k.positions = k.positions[1:]
	return p
}

// Frame is one Go line of a [Pos].
type Frame struct {
	File string // base name with its folder, such as "kernel/up.go"
	Line int
	Func string
}

// Pos is the Go call stack that emitted an instruction. It starts at the innermost line outside
// this package, followed by its callers.
type Pos []Frame

// String returns text such as "pipeline/ring.go:33 < kernel/up.go:57": the line
// that emitted the instruction, then its callers.
func (p Pos) String() string {
	if len(p) == 0 {
		return "unknown Go line"
	}
	s := fmt.Sprintf("%s:%d", p[0].File, p[0].Line)
	for _, f := range p[1:] {
		s += fmt.Sprintf(" < %s:%d", f.File, f.Line)
	}
	return s
}

func (p *position) resolve() Pos {
	if p == nil {
		return nil
	}
	n := 0
	for n < len(p) && p[n] != 0 {
		n++
	}
	if n == 0 {
		return nil
	}
	var pos Pos
	frames := runtime.CallersFrames(p[:n])
	for {
		f, more := frames.Next()
		if !ownFrame(f.Function, f.File) && f.Line > 0 {
			if strings.HasPrefix(f.Function, "runtime.") || strings.HasPrefix(f.Function, "testing.") {
				break
			}
			dir, file := filepath.Split(f.File)
			pos = append(pos, Frame{File: filepath.Base(dir) + "/" + file, Line: f.Line, Func: f.Function})
		}
		if !more || len(pos) == 4 {
			break
		}
	}
	return pos
}

// ownFrame reports whether a frame belongs to this package, tests excluded.
func ownFrame(function, file string) bool {
	return strings.HasPrefix(function, "sonicmoe/ptx.") && !strings.HasSuffix(file, "_test.go")
}
