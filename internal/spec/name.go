package spec

import "strconv"

// name returns the text of an enum's value: one of names, or "Type(9)" for a value
// without a name.
func name[E ~uint8](kind string, names []string, v E) string {
	if int(v) < len(names) {
		return names[v]
	}
	return kind + "(" + strconv.Itoa(int(v)) + ")"
}
