package driver

import "context"

// ContextErr is the error of a context that an operation is given: that it has
// ended, or, of kind ErrInvalid, that there is none.
func ContextErr(op string, ctx context.Context) error {
	if ctx == nil {
		return &Error{Op: op, Name: "invalid value", Text: "ctx is nil, must be a context, such as context.Background()", Kind: ErrInvalid}
	}
	return ctx.Err()
}
