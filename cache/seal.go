package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"sonicmoe/internal/store"
)

// A stored file, little-endian:
//
//	 0  magic      8 bytes
//	 8  version    uint32
//	12  kind       uint32
//	16  size       uint64, of the whole file
//	24  key        32 bytes
//	56  fields     each uint32 length, bytes
//	-32 checksum   SHA-256 of everything before it
//
// Magic, version, size and checksum have the same place in every version, so that
// a reader can distinguish damage from another version.
//
// A module's fields: label, PTX, then producer, code, log for each image.
// A choice's fields: key, value.
const (
	magic      = "SonicMoE"
	headerSize = 56
	sealSize   = sha256.Size
)

// Reasons why a file was refused. Each is wrapped with details.
var (
	// errDamaged: the file is not the one written under its name.
	errDamaged = errors.New("damaged")
	// errVersion: the file was written in another format version.
	errVersion = errors.New("other format version")
)

// seal encodes fields as a file. It fails only if a field or their sum is too
// large for the format.
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

// checkHeader refuses a file that unseal would refuse, as far as its header shows.
// size is the file's size. For another format version it checks only the fields
// that all versions share.
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

// unseal checks a file and returns its fields, which alias data.
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

// splitFields splits b into length-prefixed fields. They must fill b.
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
		// The capacity is limited too, so that appending to a field never overwrites the
		// next.
		fields = append(fields, b[:n:n])
		b = b[n:]
	}
	return fields, nil
}

// maxFileBytes limits the memory for a file. Every length fits a uint32.
const maxFileBytes = 256 << 20
