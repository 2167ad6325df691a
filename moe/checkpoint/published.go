package checkpoint

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"
)

//go:embed published.json
var publishedJSON []byte

// published parses the list of models once.
var published = sync.OnceValues(func() ([]Model, error) {
	var list []struct {
		Name   string          `json:"name"`
		Config json.RawMessage `json:"config"`
	}
	if err := json.Unmarshal(publishedJSON, &list); err != nil {
		return nil, err
	}
	var out []Model
	for _, m := range list {
		of, err := Read(m.Config)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		of.Name = m.Name
		out = append(out, of)
	}
	return out, nil
})

// Published lists models by name, with the expert layers that their config.json
// describes. Callers share the slices and must not change them.
func Published() ([]Model, error) { return published() }
