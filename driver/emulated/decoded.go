package emulated

import (
	"crypto/sha256"

	"sonicmoe/internal/recent"
	"sonicmoe/ptx/emu"
)

// decoded caches the modules decoded most recently in this process, so that
// compiling PTX and loading the result decodes it once, on any number of devices.
var decoded = recent.New[[sha256.Size]byte, *emu.Module](maxDecoded)

// maxDecoded limits decoded by the bytes of PTX: enough for two layers, forward
// and backward. A module takes about 30 times its PTX.
const maxDecoded = 4 << 20

// decode returns the module of PTX text with the given SHA-256.
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
