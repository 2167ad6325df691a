package emu

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// This file calls the functions that the driver provides to every program: printf, malloc, free and
// assertions.

// callOutside calls a function without a body. A call of a function that the driver does not
// provide is a fault.
func (w *warp) callOutside(f *frag, in *inst, fn *function, mask, lanes uint32) outcome {
	c, base := in.called, f.base()
	own := func(l int) []byte { return w.local[l*w.ownBytes:][:w.ownBytes] }
	word := func(l, i int) uint64 {
		p := c.params[i]
		return readWord(own(l)[base+p.at:], p.bytes)
	}
	back := func(l int, v uint64) {
		if len(c.results) > 0 {
			p := c.results[0]
			writeWord(own(l)[base+p.at:], p.bytes, v)
		}
	}
	mem, known := w.cta.cluster.grid.mem, true
	switch l := first(lanes); {
	case fn.Name == "__assertfail" && len(c.params) >= 4:
		return w.fault(in, Trap, lanes, "assertion failed: %s, at %s:%d, %s", w.text(l, word(l, 0)), w.text(l, word(l, 1)), word(l, 2), w.text(l, word(l, 3)))
	case fn.Name == "vprintf" && len(c.params) == 2:
		for l := range lanesIn(lanes) {
			back(l, w.print(l, word(l, 0), word(l, 1)))
		}
	case fn.Name == "malloc" && len(c.params) == 1:
		for l := range lanesIn(lanes) {
			at, err := mem.alloc(int64(min(word(l, 0), math.MaxInt64)), true)
			if errors.Is(err, ErrOutOfMemory) {
				at = 0
			}
			back(l, at)
		}
	case fn.Name == "free" && len(c.params) == 1:
		for l := range lanesIn(lanes) {
			if err := mem.Free(word(l, 0)); err != nil {
				return w.fault(in, OutOfBounds, 1<<l, "free: %v", err)
			}
		}
	default:
		known = false
	}
	if !known {
		return w.fault(in, IllegalInstruction, lanes, "function %s has no body in the module and is not emulated", fn.Name)
	}
	w.leave(f, mask, lanes, frag{pc: f.pc + 1, calls: f.calls})
	return jumped
}

// byteAt returns the byte at a generic address. ok reports whether lane l can read it.
func (w *warp) byteAt(l int, at uint64) (b byte, ok bool) {
	var from []byte
	switch at & windowMask {
	case localWindow:
		from, at = w.local[l*w.ownBytes:][:w.ownBytes], at&^localWindow
	case sharedWindow:
		from, at = w.cta.shared.bytes, at&sharedOffset
	default:
		from, at = w.cta.cluster.globalBytes(at, 1), 0
	}
	if at >= uint64(len(from)) {
		return 0, false
	}
	return from[at], true
}

// maxText is the largest length of a string that a kernel passes to the driver.
const maxText = 1 << 12

// text returns the zero-terminated string at a generic address.
func (w *warp) text(l int, at uint64) string {
	var s []byte
	for i := range uint64(maxText) {
		b, ok := w.byteAt(l, at+i)
		if !ok || b == 0 {
			break
		}
		s = append(s, b)
	}
	return string(s)
}

// print executes printf in one lane: format is the address of the format, args the address of the
// arguments, which lie as in a C struct. It returns the number of arguments.
func (w *warp) print(l int, format, args uint64) (count uint64) {
	at := args
	next := func(bytes uint64) (v uint64) {
		at = (at + bytes - 1) &^ (bytes - 1)
		for i := range bytes {
			b, _ := w.byteAt(l, at+i)
			v |= uint64(b) << (8 * i)
		}
		at += bytes
		count++
		return v
	}
	text := formatC(w.text(l, format), next, func(at uint64) string { return w.text(l, at) })
	if g := w.cta.cluster.grid; g.launch.Print != nil {
		g.printing.Lock()
		defer g.printing.Unlock()
		g.launch.Print(text)
	}
	return count
}

// formatC returns what C's printf prints. next returns the next argument, of 4 or 8 bytes. text
// returns the string at an address.
func formatC(format string, next func(bytes uint64) uint64, text func(at uint64) string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(format, "%")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		flags := rest[:len(rest)-len(strings.TrimLeft(rest, "+-# 0"))]
		rest = rest[len(flags):]
		number := func() (s string) {
			if strings.HasPrefix(rest, "*") {
				rest = rest[1:]
				return fmt.Sprint(int32(next(4)))
			}
			n := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
			s, rest = rest[:n], rest[n:]
			return s
		}
		width, precision := number(), ""
		if strings.HasPrefix(width, "-") {
			flags, width = flags+"-", width[1:]
		}
		if strings.HasPrefix(rest, ".") {
			rest = rest[1:]
			precision = "." + number()
		}
		length := rest[:len(rest)-len(strings.TrimLeft(rest, "hlLjzt"))]
		if rest = rest[len(length):]; rest == "" {
			out.WriteString("%" + flags + width + precision + length) // the format ends early
			return out.String()
		}
		out.WriteString(conversion(flags, width, precision, length, rest[0], next, text))
		format = rest[1:]
	}
}

// conversion returns the text of one conversion of a format.
func conversion(flags, width, precision, length string, verb byte, next func(bytes uint64) uint64, text func(at uint64) string) string {
	spec := "%" + flags + width + precision
	bytes := uint64(4)
	if strings.ContainsAny(length, "ljzt") {
		bytes = 8
	}
	switch verb {
	case '%':
		return "%"
	case 'd', 'i':
		v := int64(next(bytes))
		switch {
		case strings.HasPrefix(length, "hh"):
			v = int64(int8(v))
		case length == "h":
			v = int64(int16(v))
		case bytes == 4:
			v = int64(int32(v))
		}
		return fmt.Sprintf(spec+"d", v)
	case 'u', 'o', 'x', 'X':
		v := next(bytes)
		switch {
		case strings.HasPrefix(length, "hh"):
			v = uint64(uint8(v))
		case length == "h":
			v = uint64(uint16(v))
		}
		if verb == 'u' {
			verb = 'd'
		}
		if v == 0 { // C writes no prefix before zero
			spec = strings.Replace(spec, "#", "", 1)
		}
		return fmt.Sprintf(spec+string(verb), v)
	case 'c':
		return fmt.Sprintf("%"+flags+width+"s", string([]byte{byte(next(4))}))
	case 's':
		return fmt.Sprintf(spec+"s", text(next(8)))
	case 'p':
		return fmt.Sprintf("%"+flags+width+"s", fmt.Sprintf("%#x", next(8)))
	case 'e', 'E', 'f', 'F', 'g', 'G', 'a', 'A':
		return float(flags, width, precision, verb, math.Float64frombits(next(8)))
	}
	return spec + length + string(verb)
}

// float returns the text of a conversion of a floating-point number.
func float(flags, width, precision string, verb byte, v float64) string {
	upper := verb < 'a'
	cased := func(s string) string {
		if upper {
			return strings.ToUpper(s)
		}
		return s
	}
	if math.IsInf(v, 0) || math.IsNaN(v) {
		s := strings.ToLower(strings.TrimPrefix(fmt.Sprint(v), "+"))
		if strings.Contains(flags, "+") && !math.Signbit(v) {
			s = "+" + s
		}
		return fmt.Sprintf("%"+strings.ReplaceAll(flags, "0", "")+width+"s", cased(s))
	}
	switch verb |= 'a' ^ 'A'; {
	case verb == 'a':
		verb = 'x'
	case precision == "":
		precision = ".6"
	}
	s := fmt.Sprintf("%"+flags+width+precision+string(verb), v)
	if verb == 'x' { // C writes the exponent without leading zeros
		s = strings.NewReplacer("p+0", "p+", "p-0", "p-").Replace(s)
	}
	return cased(s)
}
