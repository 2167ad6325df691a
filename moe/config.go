package moe

import "fmt"

//go:generate go run ./internal/tensors
//go:generate go run ./internal/names

func argErrorf(field string, got any, want string, args ...any) *ArgError {
	return &ArgError{Field: field, Got: fmt.Sprint(got), Want: fmt.Sprintf(want, args...)}
}
