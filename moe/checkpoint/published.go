package checkpoint

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"
)

//go:embed published.json
var publishedJSON []byte

// Named is a published model.
type Named struct {
	Name string
	Model
}

// published reads the list once.
var published = sync.OnceValues(func() ([]Named, error) {
	var list []struct {
		Name   string          `json:"name"`
		Config json.RawMessage `json:"config"`
	}
	if err := json.Unmarshal(publishedJSON, &list); err != nil {
		return nil, err
	}
	var out []Named
	for _, m := range list {
		of, err := Read(m.Config)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		out = append(out, Named{m.Name, of})
	}
	return out, nil
})

// Published lists models whose sizes and switches are known by name: what their
// config.json says of their expert layers. The slices are shared; don't change
// them.
func Published() ([]Named, error) { return published() }
