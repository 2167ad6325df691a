package emulated

import (
	"crypto/sha256"

	"sonicmoe/internal/recent"
	"sonicmoe/ptx/emu"
)

// decoded keeps the modules that this process decoded last: to compile PTX and
// to load what came of it, on one device or on many, decodes it once.
var decoded = recent.New[[sha256.Size]byte, *emu.Module](maxDecoded)

// maxDecoded bounds decoded by the bytes of PTX: two layers, forward and backward.
// Modules take about 30 times that.
const maxDecoded = 4 << 20

// decode gives the module of PTX text with the given SHA-256.
func decode(text []byte, key [sha256.Size]byte) (*emu.Module, error) {
	if m, ok := decoded.Find(key); ok {
		return m, nil
	}
	m, err := emu.Load(text)
	if err == nil {
		decoded.Add(key, m, len(text))
	}
	return m, err
}
