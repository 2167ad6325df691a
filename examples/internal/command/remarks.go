package command

import "sonicmoe/moe/checkpoint"

// Remarks returns the format of a model's quantised weights, and what the layer lacks,
// assumes, or did not understand in config.json.
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
