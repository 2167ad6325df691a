package spec

import "fmt"

// ArgError is a value that a layer can't accept: a field of a Config, or a
// buffer of a call. Find it with errors.As.
type ArgError struct {
	// Field names the value as the caller wrote it: "Config.Hidden", "X".
	Field string
	// Got is what was passed.
	Got string
	// Want is what would be right; it reads after "must be".
	Want string
}

// Error reads "Config.Hidden is 100, must be a multiple of 16, at least 16".
func (e *ArgError) Error() string {
	return e.Field + " is " + e.Got + ", must be " + e.Want
}

func argErrorf(field string, got any, want string, args ...any) *ArgError {
	return &ArgError{Field: field, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, args...)}
}
