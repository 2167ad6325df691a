package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// Key is the name of a stored file: a SHA-256 digest.
type Key [sha256.Size]byte

// NewKey hashes FormatVersion and the fields. Each field follows its length, which is written
// as eight bytes. Moving a byte from one field to the next, or adding an empty field, therefore
// gives another key.
//
// A field belongs in the key if the stored bytes depend on it: the PTX text, the target, the
// options. Paths, times, host names, and values that change from step to step do not belong in
// the key.
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

// String returns the key as 64 lower-case hexadecimal digits.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// ParseKey reads a key in the form that String writes. It accepts no other form.
func ParseKey(text string) (Key, error) {
	var k Key
	if len(text) == hex.EncodedLen(len(k)) {
		if _, err := hex.Decode(k[:], []byte(text)); err == nil && k.String() == text {
			return k, nil
		}
	}
	return Key{}, fmt.Errorf("cache: key %q: want %d lower-case hexadecimal digits", text, hex.EncodedLen(len(k)))
}
