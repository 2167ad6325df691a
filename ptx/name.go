package ptx

import (
	"fmt"
	"strings"
)

// Name is a name for something that instructions address by number: a region of dynamic shared
// memory, or named barriers. The printer writes names as comments, for readers and reports. Parse
// reads them back.
type Name struct {
	Kind NameKind
	// At is the offset of a region in dynamic shared memory, or the number of the first barrier.
	At int
	// Count is the number of adjacent pieces, such as the stages of a ring. Bytes is the size of
	// one piece in shared memory.
	Count, Bytes int
	Text         string
}

// NameKind says what a Name names.
type NameKind string

// The kinds of names.
const (
	SharedRegion  NameKind = "shared"
	NamedBarriers NameKind = "barrier"
)

// namePrefix starts a comment that holds a name.
const namePrefix = "//@ "

// String returns the comment that holds the name, such as "//@ shared 65536 4*8 ab.full".
func (n Name) String() string {
	return fmt.Sprintf("%s%s %d %d*%d %s", namePrefix, n.Kind, n.At, n.Count, n.Bytes, n.Text)
}

// parseName reads a comment that String has written. ok is false for other comments.
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

// SharedBytes returns the number of bytes of dynamic shared memory up to the end of the last named
// region.
func (e *Entry) SharedBytes() int {
	most := 0
	for _, n := range e.Names {
		if n.Kind == SharedRegion {
			most = max(most, n.At+n.Count*n.Bytes)
		}
	}
	return most
}

// SharedBytes returns the number of bytes of dynamic shared memory up to the end of the last region
// named so far.
func (k *Kernel) SharedBytes() int { return (&Entry{Names: k.names}).SharedBytes() }

// AddName names a region of dynamic shared memory, or named barriers. The Text is one word of
// letters, digits, '.' and '_'.
func (k *Kernel) AddName(n Name) {
	if parsed, ok := parseName(n.String()); !ok || parsed != n {
		k.Errorf("%q is not a name", n.String())
		return
	}
	k.names = append(k.names, n)
}

// Scope names a part of the kernel. It puts the label $name before the code of body, and makes name
// the prefix of all labels in body, for example $load and $load_loop0. Readers of the text and of
// reports then see to which part a line belongs.
func (k *Kernel) Scope(name string, body func()) {
	old := k.scope
	k.place(k.label(name))
	k.scope = name + "_"
	body()
	k.scope = old
}
