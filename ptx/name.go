package ptx

import (
	"fmt"
	"strings"
)

// Name says what something is that the instructions know by its number only: a
// region of dynamic shared memory, or named barriers. Names stand in the text as
// comments, for people and for reports, and Parse reads them back.
type Name struct {
	Kind NameKind
	// At is the offset in dynamic shared memory, or the first barrier's number.
	At int
	// Count is how many pieces there are, one behind the other, such as the
	// stages of a ring; Bytes is the size of each piece in shared memory.
	Count, Bytes int
	Text         string
}

// NameKind is what is named.
type NameKind string

// The kinds of names.
const (
	SharedRegion  NameKind = "shared"
	NamedBarriers NameKind = "barrier"
)

// namePrefix begins a comment that is a name.
const namePrefix = "//@ "

// String is the comment, such as "//@ shared 65536 4*8 ab.full".
func (n Name) String() string {
	return fmt.Sprintf("%s%s %d %d*%d %s", namePrefix, n.Kind, n.At, n.Count, n.Bytes, n.Text)
}

// parseName reads what String writes; other comments are no names.
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

// SharedBytes is the dynamic shared memory that the entry's names cover.
func (e *Entry) SharedBytes() int {
	most := 0
	for _, n := range e.Names {
		if n.Kind == SharedRegion {
			most = max(most, n.At+n.Count*n.Bytes)
		}
	}
	return most
}

// SharedBytes is the dynamic shared memory that names cover so far.
func (k *Kernel) SharedBytes() int { return (&Entry{Names: k.names}).SharedBytes() }

// AddName names a region of dynamic shared memory or named barriers. Text is a
// word: letters, digits, '.', '_'.
func (k *Kernel) AddName(n Name) {
	if parsed, ok := parseName(n.String()); !ok || parsed != n {
		k.Errorf("%q is no name", n.String())
		return
	}
	k.names = append(k.names, n)
}

// Scope gives labels that are made inside body the name's prefix, such as
// $load_loop0, and puts one of its own, $load, in front: a reader, and a report
// on a thread in there, see which part of the kernel it is.
func (k *Kernel) Scope(name string, body func()) {
	old := k.scope
	k.place(k.label(name))
	k.scope = name + "_"
	body()
	k.scope = old
}
