package emulated

import (
	"crypto/sha256"

	"sonicmoe/internal/recent"
	"sonicmoe/ptx/emu"
)

// decoded caches the modules that this process decoded most recently. Compiling PTX and loading
// the result on any number of devices thus decodes the PTX once.
var decoded = recent.New[[sha256.Size]byte, *emu.Module](maxDecoded)

// maxDecoded limits the cache by the bytes of PTX. It is enough for two layers, forward and
// backward. A decoded module takes about 30 times the bytes of its PTX.
const maxDecoded = 4 << 20

// decode returns the module of a PTX text. key is the text's SHA-256.
func decode(text []byte, key [sha256.Size]byte) (*emu.Module, error) {
	return decoded.Get(key, func() (*emu.Module, int, error) {
		m, err := emu.Load(text)
		return m, len(text), err
	})
}
