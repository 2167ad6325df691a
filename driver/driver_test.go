package driver

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestError(t *testing.T) {
	cause := errors.New("the cause")
	err := error(&Error{Op: "cuThing", Code: 7, Name: "SEVEN", Text: "what", Log: "line 1\nline 2\n\x00", Kind: ErrOutOfMemory, Cause: cause})
	assert.Equal(t, "cuThing: SEVEN (7): what: the cause\nline 1\nline 2", err.Error())
	assert.ErrorIs(t, err, ErrOutOfMemory)
	assert.ErrorIs(t, err, cause)
	assert.NotErrorIs(t, err, ErrInvalid)
	assert.NotErrorIs(t, error(&Error{Op: "x"}), ErrInvalid)
	assert.Equal(t, "x", (&Error{Op: "x"}).Error())
	assert.ErrorIs(t, fmt.Errorf("layer: %w", err), ErrOutOfMemory)
}
