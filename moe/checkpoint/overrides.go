package checkpoint

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
)

var attention = regexp.MustCompile(`attention|attn`)

// overrides reads per_layer_config, which any model of transformers may have. It maps a layer's
// number to fields with other values, and its "skip" lists parts that the layer does not have. Most
// models use it to change attention heads. A field that would make expert layers differ is refused.
// Fields that may make them differ are returned, each once, for [Model.Unknown].
func (f *fields) overrides() (unknown []string) {
	if _, raw := f.find("per_layer_config"); raw == nil {
		return nil
	}
	named := map[string]bool{}
	layers := value[map[string]object](f, nil, "an object of objects, by layers' numbers", "per_layer_config")
	for _, layer := range slices.Sorted(maps.Keys(layers)) {
		for _, name := range slices.Sorted(maps.Keys(layers[layer])) {
			raw := layers[layer][name]
			switch {
			case name == "skip":
				f.skips(layer, raw)
			case f.read[name] && !equal(raw, f.object[name]):
				f.fail("per_layer_config has %s of layer %s as %s: layers that differ in it are no one Config's", name, layer, shown(raw))
			case !f.read[name] && tells(name) && !named[name] && !equal(raw, f.object[name]):
				named[name] = true
				unknown = append(unknown, fmt.Sprintf("%s = %s, in layer %s", name, shown(raw), layer))
			}
		}
	}
	return unknown
}

// skips refuses a layer that skips parts other than its attention.
func (f *fields) skips(layer string, raw json.RawMessage) {
	var parts []string
	if err := json.Unmarshal(raw, &parts); err != nil {
		f.fail("per_layer_config has skip of layer %s as %s, must be a list of a layer's parts", layer, raw)
	}
	for _, part := range parts {
		if !attention.MatchString(part) {
			f.fail("per_layer_config skips %q of layer %s, may skip its attention only", part, layer)
		}
	}
}
