package store

import "fmt"

// FormatVersion is the version of the file format. It is part of every key. Files of another
// version are therefore never found, and are removed when they are old.
const FormatVersion = 1

// Kind distinguishes the two kinds of stored files: modules and choices.
type Kind uint32

const (
	// KindModule is a compiled module: see [Entry].
	KindModule Kind = 1
	// KindChoice is a tuned choice, which [Store.PutChoice] stores.
	KindChoice Kind = 2
)

// String returns "module" or "choice", which is also the suffix of the file's name.
func (k Kind) String() string {
	switch k {
	case KindModule:
		return "module"
	case KindChoice:
		return "choice"
	}
	return fmt.Sprintf("kind %d", uint32(k))
}
