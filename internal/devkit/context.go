package devkit

import (
	"context"

	"sonicmoe/driver"
)

// ContextErr returns the error of an operation's context: that it has ended, or, with kind
// driver.ErrInvalid, that it is nil.
func ContextErr(op string, ctx context.Context) error {
	if ctx == nil {
		return &driver.Error{Op: op, Name: "invalid value", Text: "ctx is nil, must be a context, such as context.Background()", Kind: driver.ErrInvalid}
	}
	return ctx.Err()
}
