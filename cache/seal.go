package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"sonicmoe/internal/store"
)

// This is the format of a stored file. Numbers are little-endian:
//
//	 0  magic      8 bytes
//	 8  version    uint32
//	12  kind       uint32
//	16  size       uint64, of the whole file
//	24  key        32 bytes
//	56  fields     for each field its length as uint32, then its bytes
//	-32 checksum   SHA-256 of everything before it
//
// Magic, version, size and checksum have the same place in every version, so that a reader can
// distinguish damage from another version.
//
// The fields of a module are its label and PTX, followed by producer, code and log for each
// image. The fields of a choice are its key and its value.
const (
	magic      = "SonicMoE"
	headerSize = 56
	sealSize   = sha256.Size
)

// These are the reasons why a file is refused. They are wrapped with details.
var (
	// errDamaged means that the content is not what was written under the file's name.
	errDamaged = errors.New("damaged")
	// errVersion means that the file has another format version.
	errVersion = errors.New("other format version")
)

// seal encodes fields as the content of a file. It fails only if a field, or all fields
// together, are too large for the format.
func seal(kind store.Kind, key store.Key, fields ...[]byte) ([]byte, error) {
	size := headerSize + sealSize
	for _, f := range fields {
		size += 4 + len(f)
	}
	if size > maxFileBytes {
		return nil, fmt.Errorf("%s %s: %d bytes, at most %d can be stored", kind, key, size, maxFileBytes)
	}
	b := make([]byte, 0, size)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, store.FormatVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(kind))
	b = binary.LittleEndian.AppendUint64(b, uint64(size))
	b = append(b, key[:]...)
	for _, f := range fields {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f)))
		b = append(b, f...)
	}
	sum := sha256.Sum256(b)
	return append(b, sum[:]...), nil
}

// checkHeader returns the errors of unseal that can be found from the header alone. size is the
// size of the file. If the format version is another, checkHeader checks only the fields that
// all versions share.
func checkHeader(header []byte, size int64, kind store.Kind, key store.Key) error {
	if size < headerSize+sealSize {
		return fmt.Errorf("%w: %d bytes, shorter than the smallest file (%d)", errDamaged, size, headerSize+sealSize)
	}
	if string(header[:8]) != magic {
		return fmt.Errorf("%w: begins with %q, want %q", errDamaged, header[:8], magic)
	}
	if said := binary.LittleEndian.Uint64(header[16:]); said != uint64(size) {
		return fmt.Errorf("%w: %d bytes, its header says %d", errDamaged, size, said)
	}
	if binary.LittleEndian.Uint32(header[8:]) != store.FormatVersion {
		return nil
	}
	if k := store.Kind(binary.LittleEndian.Uint32(header[12:])); k != kind {
		return fmt.Errorf("%w: holds a %s, want a %s", errDamaged, k, kind)
	}
	if k := store.Key(header[24:headerSize]); k != key {
		return fmt.Errorf("%w: holds the key %s, want %s", errDamaged, k, key)
	}
	return nil
}

// unseal checks the content of a file and returns its fields, which share the memory of data.
func unseal(data []byte, kind store.Kind, key store.Key) ([][]byte, error) {
	if err := checkHeader(data, int64(len(data)), kind, key); err != nil {
		return nil, err
	}
	body, want := data[:len(data)-sealSize], data[len(data)-sealSize:]
	if got := sha256.Sum256(body); !bytes.Equal(got[:], want) {
		return nil, fmt.Errorf("%w: checksum %x, its last bytes say %x", errDamaged, got[:4], want[:4])
	}
	if v := binary.LittleEndian.Uint32(data[8:]); v != store.FormatVersion {
		return nil, fmt.Errorf("%w: version %d, want %d", errVersion, v, store.FormatVersion)
	}
	return splitFields(body[headerSize:])
}

// splitFields splits b into fields, each of which follows its length. The fields must fill b.
func splitFields(b []byte) ([][]byte, error) {
	var fields [][]byte
	for len(b) > 0 {
		if len(b) < 4 {
			return nil, fmt.Errorf("%w: %d bytes after the last field", errDamaged, len(b))
		}
		n := binary.LittleEndian.Uint32(b)
		b = b[4:]
		if uint64(n) > uint64(len(b)) {
			return nil, fmt.Errorf("%w: a field of %d bytes with %d bytes left", errDamaged, n, len(b))
		}
		// The slice also limits the capacity, so that appending to a field never overwrites the
		// next field.
		fields = append(fields, b[:n:n])
		b = b[n:]
	}
	return fields, nil
}

// maxFileBytes is the largest size of a file. It bounds the memory for reading a file, and every
// length in a file fits a uint32.
const maxFileBytes = 256 << 20
