package ptx

import (
	"fmt"
	"strings"
)

// Name names something that instructions address by a number: a region of dynamic
// shared memory, or named barriers. The printer writes names as comments, for
// readers and reports, and Parse reads them back.
type Name struct {
	Kind NameKind
	// At is the offset in dynamic shared memory, or the number of the first barrier.
	At int
	// Count is the number of adjacent pieces, such as the stages of a ring. Bytes is
	// the size of one piece in shared memory.
	Count, Bytes int
	Text         string
}

// NameKind is the kind of thing that a Name names.
type NameKind string

// The kinds of names.
const (
	SharedRegion  NameKind = "shared"
	NamedBarriers NameKind = "barrier"
)

// namePrefix starts a comment that holds a name.
const namePrefix = "//@ "

// String returns the comment, such as "//@ shared 65536 4*8 ab.full".
func (n Name) String() string {
	return fmt.Sprintf("%s%s %d %d*%d %s", namePrefix, n.Kind, n.At, n.Count, n.Bytes, n.Text)
}

// parseName reads a comment that String wrote. ok is false for other comments.
func parseName(comment string) (n Name, ok bool) {
	rest, ok := strings.CutPrefix(comment, namePrefix)
	if !ok {
		return n, false
	}
	if _, err := fmt.Sscanf(rest, "%s %d %d*%d %s", &n.Kind, &n.At, &n.Count, &n.Bytes, &n.Text); err != nil {
		return n, false
	}
	return n, (n.Kind == SharedRegion || n.Kind == NamedBarriers) && n.At >= 0 && n.Count >= 1 && n.Bytes >= 0 && n.String() == comment
}

// SharedBytes returns the bytes of dynamic shared memory that the entry's names
// cover.
func (e *Entry) SharedBytes() int {
	most := 0
	for _, n := range e.Names {
		if n.Kind == SharedRegion {
			most = max(most, n.At+n.Count*n.Bytes)
		}
	}
	return most
}

// SharedBytes returns the bytes of dynamic shared memory that names cover so far.
func (k *Kernel) SharedBytes() int { return (&Entry{Names: k.names}).SharedBytes() }

// AddName names a region of dynamic shared memory or named barriers. Its Text is
// one word: letters, digits, '.', '_'.
func (k *Kernel) AddName(n Name) {
	if parsed, ok := parseName(n.String()); !ok || parsed != n {
		k.Errorf("%q is not a name", n.String())
		return
	}
	k.names = append(k.names, n)
}

// Scope prefixes the labels that body creates with name, such as $load_loop0, and
// puts the label $load before the body. A reader of the text or of a report on a
// thread then sees the part of the kernel.
func (k *Kernel) Scope(name string, body func()) {
	old := k.scope
	k.place(k.label(name))
	k.scope = name + "_"
	body()
	k.scope = old
}
