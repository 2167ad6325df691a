package devkit

import (
	"context"

	"sonicmoe/driver"
)

// ContextErr returns an error if the context of an operation has ended. A nil context gives an
// error of kind driver.ErrInvalid.
func ContextErr(op string, ctx context.Context) error {
	if ctx == nil {
		return &driver.Error{Op: op, Name: "invalid value", Text: "ctx is nil, must be a context, such as context.Background()", Kind: driver.ErrInvalid}
	}
	return ctx.Err()
}
