package emu

import (
	"fmt"
	"strconv"
	"strings"
)

// choice makes an actor (a warp, a load or a warp's deferred arrivals) take the step with the given
// number. By default another actor would take it.
type choice struct{ step, actor int }

// choicesText returns the text of choices that Launch.Choices accepts.
func choicesText(list []choice) string {
	words := make([]string, len(list))
	for i, c := range list {
		words[i] = fmt.Sprintf("%d:%d", c.step, c.actor)
	}
	return strings.Join(words, " ")
}

func parseChoices(text string) ([]choice, error) {
	var list []choice
	last := -1
	for _, word := range strings.Fields(text) {
		step, actor, _ := strings.Cut(word, ":")
		c := choice{}
		var errs [2]error
		c.step, errs[0] = strconv.Atoi(step)
		c.actor, errs[1] = strconv.Atoi(actor)
		if errs[0] != nil || errs[1] != nil || c.step <= last || c.actor < 0 {
			return nil, fmt.Errorf("choice is %q, want STEP:ACTOR, two numbers, with increasing steps", word)
		}
		last = c.step
		list = append(list, c)
	}
	return list, nil
}
