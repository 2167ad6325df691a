// Package modelcard has what examples print about a model. It is apart from package setup, so that
// programs without a layer do not link one.
package modelcard

import "sonicmoe/moe/checkpoint"

// Remarks returns remarks on a model's config.json: the format of quantised weights, the
// features that the layer does not have, the assumptions, and the fields that were not
// understood.
func Remarks(m checkpoint.Model) []string {
	var list []string
	if m.Quantised != "" {
		list = append(list, "quantised: "+m.Quantised)
	}
	for _, of := range []struct {
		title string
		texts []string
	}{{"outside the layer: ", m.Outside}, {"assumed: ", m.Assumed}, {"not understood: ", m.Unknown}} {
		for _, text := range of.texts {
			list = append(list, of.title+text)
		}
	}
	return list
}
