package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// Key is the name of a stored file: a SHA-256 digest.
type Key [sha256.Size]byte

// NewKey hashes FormatVersion and the fields, each preceded by its length as
// eight bytes: moving a byte from one field to its neighbour, or adding an
// empty field, gives another key.
//
// A field belongs here if another value of it means other stored bytes: the
// PTX text, the target, the options. Paths, times, hosts and anything that
// changes from step to step do not.
func NewKey(fields ...[]byte) Key {
	h := sha256.New()
	var length [8]byte
	field := func(f []byte) {
		binary.LittleEndian.PutUint64(length[:], uint64(len(f)))
		h.Write(length[:])
		h.Write(f)
	}
	field(binary.LittleEndian.AppendUint32(nil, FormatVersion))
	for _, f := range fields {
		field(f)
	}
	return Key(h.Sum(nil))
}

// String is the key in 64 lower-case hexadecimal digits.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// ParseKey reads what String wrote, and nothing else.
func ParseKey(text string) (Key, error) {
	var k Key
	if len(text) == hex.EncodedLen(len(k)) {
		if _, err := hex.Decode(k[:], []byte(text)); err == nil && k.String() == text {
			return k, nil
		}
	}
	return Key{}, fmt.Errorf("cache: key %q: want %d lower-case hexadecimal digits", text, hex.EncodedLen(len(k)))
}
