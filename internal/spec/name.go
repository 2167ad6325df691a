package spec

import "strconv"

// name returns the name of an enum's value, or for example "Type(9)" if value 9 has no name.
func name[E ~uint8](kind string, names []string, v E) string {
	if int(v) < len(names) {
		return names[v]
	}
	return kind + "(" + strconv.Itoa(int(v)) + ")"
}
