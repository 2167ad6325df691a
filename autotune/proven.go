package autotune

import (
	"encoding/json"
	"fmt"
	"slices"

	"sonicmoe/cache"
	"sonicmoe/internal/strict"
)

// proven holds the digests of the kernels of one problem that were found right, on one kind of
// GPU with one producer of machine code. These kernels may be tried without a worker. The
// digests are one record in the cache.
type proven struct {
	Version int
	// PTX holds the digests, the latest one last.
	PTX []string

	key     string
	changed bool
}

// mostProven is the largest number of digests in a record. Records need a limit, because they grow
// with every new version of the kernels.
const mostProven = 512

// readProven reads the record of a problem. If there is none, no kernel is proven.
func readProven(c *cache.Cache, k Key, producer string) *proven {
	p := &proven{key: fmt.Sprintf("proven %s on %s, %d SMs, by %s", k.Subject, k.GPU, k.SMs, producer)}
	if c == nil {
		return p
	}
	value, ok := c.GetChoice(p.key)
	if ok && (strict.Unmarshal(value, p) != nil || p.Version != recordVersion) {
		p.PTX = nil // a record of another version: the points are proven again
	}
	return p
}

func (p *proven) has(digest string) bool { return slices.Contains(p.PTX, digest) }

func (p *proven) add(digest string) {
	if !p.has(digest) {
		p.PTX, p.changed = append(p.PTX, digest), true
	}
}

// write stores the record if it has changed.
func (p *proven) write(c *cache.Cache) {
	if c == nil || !p.changed {
		return
	}
	p.Version = recordVersion
	p.PTX = p.PTX[max(0, len(p.PTX)-mostProven):]
	if value, err := json.Marshal(p); err == nil { // strings and a number can always be encoded
		_ = c.PutChoice(p.key, value) // without a record the points are proven again
	}
}
