package devkit

import (
	"context"

	"sonicmoe/driver"
)

// ContextErr is the error of a context that an operation is given: that it has
// ended, or, of kind driver.ErrInvalid, that there is none.
func ContextErr(op string, ctx context.Context) error {
	if ctx == nil {
		return &driver.Error{Op: op, Name: "invalid value", Text: "ctx is nil, must be a context, such as context.Background()", Kind: driver.ErrInvalid}
	}
	return ctx.Err()
}
