// Package published lists published models, with the expert layers that their
// config.json describes.
package published

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"

	"sonicmoe/moe/checkpoint"
)

//go:embed published.json
var text []byte

// Models returns the models. Callers share the slices and must not change them.
var Models = sync.OnceValues(func() ([]checkpoint.Model, error) {
	var list []struct {
		Name   string          `json:"name"`
		Config json.RawMessage `json:"config"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	var out []checkpoint.Model
	for _, m := range list {
		of, err := checkpoint.Read(m.Config)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		of.Name = m.Name
		out = append(out, of)
	}
	return out, nil
})
