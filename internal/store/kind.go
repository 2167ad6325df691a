package store

import "fmt"

// FormatVersion is the version of the file format. It is part of every key,
// so files of another version are never looked up: they age out.
const FormatVersion = 1

// Kind tells the two sorts of stored files apart.
type Kind uint32

const (
	// KindModule is a compiled module: see Entry.
	KindModule Kind = 1
	// KindChoice is a tuned point: see GetChoice.
	KindChoice Kind = 2
)

// String is "module" or "choice"; it is the file name's ending as well.
func (k Kind) String() string {
	switch k {
	case KindModule:
		return "module"
	case KindChoice:
		return "choice"
	}
	return fmt.Sprintf("kind %d", uint32(k))
}
