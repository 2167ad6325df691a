package spec

import "fmt"

// ArgError is the error for a wrong value: a field of a Config, or an argument of a call. Use
// errors.As to get it from an error.
type ArgError struct {
	// Field names the value as in the caller's code: "Config.Hidden", "X".
	Field string
	// Got is the value that was passed.
	Got string
	// Want describes the right values. Error puts it after "must be".
	Want string
}

// Error returns "Config.Hidden is 100, must be a multiple of 16, at least 16".
func (e *ArgError) Error() string {
	return e.Field + " is " + e.Got + ", must be " + e.Want
}

func argErrorf(field string, got any, want string, args ...any) *ArgError {
	return &ArgError{Field: field, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, args...)}
}
