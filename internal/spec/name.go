package spec

import "strconv"

// name is an enum's text: one of names, or "Type(9)" for a value without one.
func name[E ~uint8](kind string, names []string, v E) string {
	if int(v) < len(names) {
		return names[v]
	}
	return kind + "(" + strconv.Itoa(int(v)) + ")"
}

// known reports whether v is one of an enum's values.
func known[E ~uint8](names []string, v E) bool { return int(v) < len(names) }
