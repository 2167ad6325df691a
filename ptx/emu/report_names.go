package emu

import (
	"fmt"
	"slices"
	"strings"

	"sonicmoe/ptx"
)

// Reports use the names that the kernel's text gives to regions of shared memory and scopes
// ([ptx.Name], Kernel.Scope). Without a name they use numbers.

// dynamicStart returns the offset in a CTA's window at which dynamic shared memory starts.
func (k *Kernel) dynamicStart() uint32 {
	a := max(k.dynamicAlign, 1)
	return uint32((sharedBase + k.staticShared + a - 1) / a * a)
}

// region returns the named region of dynamic shared memory that contains an offset of the window,
// and the number of the piece there.
func (k *Kernel) region(at uint32) (n ptx.Name, piece int, ok bool) {
	off := int(at&sharedOffset) - int(k.dynamicStart())
	for _, n := range k.entry.Names {
		if d := off - n.At; n.Kind == ptx.SharedRegion && n.Bytes > 0 && d >= 0 && d < n.Count*n.Bytes {
			return n, d / n.Bytes, true
		}
	}
	return n, 0, false
}

// pieceName returns the name of a piece of a region, such as "full[2] of ring ab". The only piece
// of a region has the region's name, such as "stage".
func (k *Kernel) pieceName(n ptx.Name, piece int) string {
	text, ring := n.Text, ""
	for _, end := range []string{".full", ".empty"} {
		if owner, ok := strings.CutSuffix(n.Text, end); ok {
			text, ring = end[1:], " of ring "+owner
		}
	}
	if n.Count > 1 || ring != "" {
		text += fmt.Sprintf("[%d]", piece)
	}
	return text + ring
}

// sharedVariable is a variable in shared memory at an offset of the window. Dynamic shared memory
// counts as a variable without an end.
type sharedVariable struct {
	name      string
	at, bytes uint32
}

// variable returns a text such as "bars + 16" for an offset of the window that lies in a variable
// of the PTX. It returns "" for other offsets.
func (k *Kernel) variable(at uint32) string {
	for _, v := range k.variables {
		if d := at - v.at; at >= v.at && d < v.bytes {
			if d == 0 {
				return v.name
			}
			return fmt.Sprintf("%s + %d", v.name, d)
		}
	}
	return ""
}

// symbolic returns a readable shared address: the name of the region or variable that contains it,
// or the offset in dynamic shared memory.
func (c *cta) symbolic(at uint32) string { return c.cluster.grid.kernel.symbolic(at) }

func (k *Kernel) symbolic(at uint32) string {
	at &= sharedOffset
	start := k.dynamicStart()
	n, piece, ok := k.region(at)
	name := k.variable(at)
	switch {
	case ok && at >= start:
		if inside := int(at-start) - n.At - piece*n.Bytes; inside > 0 {
			return fmt.Sprintf("%s + %d (%#x)", k.pieceName(n, piece), inside, at)
		}
		return fmt.Sprintf("%s (%#x)", k.pieceName(n, piece), at)
	case name != "":
		return fmt.Sprintf("%s (%#x)", name, at)
	case at < sharedBase && k.reserved:
		return fmt.Sprintf("%#x (reserved shared memory)", at)
	case at < start:
		return fmt.Sprintf("%#x", at)
	}
	return fmt.Sprintf("%#x (dynamic shared memory + %#x)", at, at-start)
}

// namedBarrierName returns a name such as "named barrier 3 (store[1])".
func (k *Kernel) namedBarrierName(id int) string {
	text := fmt.Sprintf("named barrier %d", id)
	for _, n := range k.entry.Names {
		if n.Kind == ptx.NamedBarriers && id >= n.At && id < n.At+n.Count {
			return text + " (" + k.pieceName(n, id-n.At) + ")"
		}
	}
	return text
}

// structural lists the labels that the builder generates for its control flow. They are not roles.
var structural = []string{"else", "endif", "loop", "end"}

// nameRoles sets the role of each instruction: the name of the scope that the latest label before
// the instruction begins.
func (k *Kernel) nameRoles() {
	scopes := map[string]bool{}
	eachLabel := func(visit func(label string)) {
		for i := range k.entry.Body {
			if in := &k.entry.Body[i]; in.Form == nil && strings.HasPrefix(in.Label, "$") {
				if name := strings.TrimRight(in.Label[1:], "0123456789"); name != in.Label[1:] {
					visit(name)
				}
			}
		}
	}
	eachLabel(func(label string) {
		if _, word, _ := strings.Cut(label, "_"); word == "" && !slices.Contains(structural, label) {
			scopes[label] = true
		}
	})
	role, n := "", 0
	for i := range k.entry.Body {
		in := &k.entry.Body[i]
		if in.Form != nil {
			k.code[n].role = role
			n++
			continue
		}
		label, _, _ := strings.Cut(strings.TrimRight(strings.TrimPrefix(in.Label, "$"), "0123456789"), "_")
		if role = ""; scopes[label] {
			role = label
		}
	}
}

// ranges formats a list of numbers, for example as "4", "4-7" or "0,2-3".
func ranges(numbers []int) string {
	sorted := slices.Sorted(slices.Values(numbers))
	var parts []string
	for i := 0; i < len(sorted); i++ {
		j := i
		for j+1 < len(sorted) && sorted[j+1] == sorted[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, fmt.Sprint(sorted[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", sorted[i], sorted[j]))
		}
		i = j
	}
	return strings.Join(parts, ",")
}

// plural returns a noun with its numbers, such as "warp 3" or "warps 3,5-7".
func plural(what string, numbers []int) string {
	if len(numbers) != 1 {
		what += "s"
	}
	return what + " " + ranges(numbers)
}
