package command

import "sonicmoe/moe"

// Remarks are what a model's config.json left to be said of its layer.
func Remarks(m moe.Model) []string {
	var list []string
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
