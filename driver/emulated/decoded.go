package emulated

import (
	"crypto/sha256"
	"sync"

	"sonicmoe/ptx/emu"
)

// decoded keeps the modules that this process decoded last: to compile PTX and
// to load what came of it, on one device or on many, decodes it once.
var decoded moduleCache

// maxDecoded bounds decoded by the bytes of PTX. Modules take about 30 times that.
const maxDecoded = 1 << 20

type moduleCache struct {
	mu      sync.Mutex
	entries []decodedModule // the latest used last
	bytes   int
}

type decodedModule struct {
	key   [sha256.Size]byte
	bytes int
	code  *emu.Module
}

// load gives the module of PTX text with the given SHA-256. Of goroutines that
// decode the same at once, each does.
func (c *moduleCache) load(text []byte, key [sha256.Size]byte) (*emu.Module, error) {
	if m := c.find(key); m != nil {
		return m, nil
	}
	m, err := emu.Load(text)
	if err == nil {
		c.add(decodedModule{key, len(text), m})
	}
	return m, err
}

func (c *moduleCache) find(key [sha256.Size]byte) *emu.Module {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range c.entries {
		if e.key == key {
			c.entries = append(append(c.entries[:i], c.entries[i+1:]...), e)
			return e.code
		}
	}
	return nil
}

func (c *moduleCache) add(e decodedModule) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries = append(c.entries, e)
	c.bytes += e.bytes
	for c.bytes > maxDecoded && len(c.entries) > 1 {
		c.bytes -= c.entries[0].bytes
		c.entries[0] = decodedModule{}
		c.entries = c.entries[1:]
	}
}
