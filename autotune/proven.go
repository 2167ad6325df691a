package autotune

import (
	"encoding/json"
	"fmt"
	"slices"

	"sonicmoe/cache"
)

// proven are the digests of the kernels of one problem that were found right on
// a kind of GPU with one producer of machine code: what may be tried without a
// worker. It is one record in the cache.
type proven struct {
	Version int
	// PTX are digests, the latest last.
	PTX []string

	key     string
	changed bool
}

// mostProven bounds the record's growth over years of new kernels.
const mostProven = 512

// readProven reads the record of a problem; without one nothing is proven.
func readProven(c *cache.Cache, k Key, producer string) *proven {
	p := &proven{key: fmt.Sprintf("proven %s on %s, %d SMs, by %s", k.Subject, k.GPU, k.SMs, producer)}
	if c == nil {
		return p
	}
	value, ok := c.GetChoice(p.key)
	if ok && (json.Unmarshal(value, p) != nil || p.Version != recordVersion) {
		p.PTX = nil // another version's: proven again at the next chance
	}
	return p
}

func (p *proven) has(digest string) bool { return slices.Contains(p.PTX, digest) }

func (p *proven) add(digest string) {
	if !p.has(digest) {
		p.PTX, p.changed = append(p.PTX, digest), true
	}
}

// write stores the record, if there is news.
func (p *proven) write(c *cache.Cache) {
	if c == nil || !p.changed {
		return
	}
	p.Version = recordVersion
	p.PTX = p.PTX[max(0, len(p.PTX)-mostProven):]
	if value, err := json.Marshal(p); err == nil { // strings and a number always do
		_ = c.PutChoice(p.key, value) // proven again at the next chance
	}
}
